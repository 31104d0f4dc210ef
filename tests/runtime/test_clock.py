"""Tests of unilect.runtime.clock."""

import time

import pytest

from support.common.clock import Clock
from unilect.runtime.clock import BELIEVED_S, SMALL_S, SteadyClock

DAY_S = 86_400.0


class Rig:
    """A steady clock on a system whose clock can be set."""

    def __init__(self) -> None:
        self.system, self.even = Clock(), Clock(5_000.0)
        self.clock = SteadyClock(self.system, self.even)
        self.corrections: list[tuple[float, float]] = []
        self.clock.followers.append(lambda *times: self.corrections.append(times))

    def passes(self, seconds: float) -> None:
        """Time goes by."""
        self.system.now += seconds
        self.even.now += seconds


@pytest.mark.parametrize("jump_s", [-30 * DAY_S, -DAY_S, -3.0, 3.0, DAY_S, 30 * DAY_S])
def test_a_jump_and_back(jump_s: float, caplog: pytest.LogCaptureFixture) -> None:
    """A system's clock that jumps, and is right again within ten minutes, changes nothing, and the log tells both once."""
    rig = Rig()
    begin = rig.clock()
    rig.system.now += jump_s
    seen = []
    for _ in range(59):
        rig.passes(10)
        seen.append(rig.clock() - begin)
    rig.system.now -= jump_s
    rig.passes(10)

    assert [10.0 * number for number in range(1, 60)] == seen
    assert (600.0, []) == (rig.clock() - begin, rig.corrections)
    assert ["jumped", "right again"] == [
        word for r in caplog.records for word in ("jumped", "right again") if word in r.getMessage()
    ]


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
def test_a_jump_that_stays(jump_s: float) -> None:
    """A system's clock that goes on evenly after a jump is followed after ten minutes, and who has to know is told both times."""
    rig = Rig()
    begin = rig.clock()
    rig.system.now += jump_s
    rig.clock()
    rig.passes(BELIEVED_S)

    now = begin + BELIEVED_S + jump_s
    assert (now, [(begin + BELIEVED_S, now)]) == (rig.clock(), rig.corrections)
    rig.passes(1)
    assert now + 1 == rig.clock()
    assert 1 == len(rig.corrections)


def test_a_clock_that_jumps_on_and_on() -> None:
    """A system's clock that is set again and again is not followed before it has gone on evenly for ten minutes."""
    rig = Rig()
    begin = rig.clock()
    for number in range(1, 20):
        rig.system.now += DAY_S
        rig.clock()
        rig.passes(BELIEVED_S - 1)
        assert begin + number * (BELIEVED_S - 1) == rig.clock()
    assert [] == rig.corrections


def test_small_corrections() -> None:
    """What the network's time corrects is followed at once."""
    rig = Rig()
    rig.passes(60)
    rig.system.now += SMALL_S / 2
    assert rig.system.now == rig.clock()
    rig.system.now -= SMALL_S / 2
    assert rig.system.now == rig.clock()
    assert [] == rig.corrections


def test_the_systems_own() -> None:
    """Without clocks of a test it is the system's time."""
    before = time.time()
    assert before - 0.01 <= SteadyClock()() <= time.time() + 0.01
