"""Tests of unilect.engines.process._restarts: when a child may be started again, and what is said of it."""

import pytest

from support.backends.rooms import Clock
from unilect.core.errors import BackendUnavailable, ModelTooLarge
from unilect.engines.process import _restarts
from unilect.engines.process._restarts import MAX_DEATHS, Restarts


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the restarts."""
    clock = Clock()
    clock.seconds = 1000.0
    monkeypatch.setattr(_restarts, "time", clock)
    return clock


def test_deaths(clock: Clock) -> None:
    """After the first death there is no pause, then pauses that double, and after the fifth one none comes back before the first is forgiven."""
    restarts, told = Restarts(), []
    for _ in range(MAX_DEATHS):
        restarts.note_death(0)
        told.append(restarts.describe())
        clock.seconds += 10

    pauses = [f"it is started again in {pause} s" for pause in ("0.2", "0.5", "1.0")]
    assert ["it is started again at once", *pauses] == told[:-1]
    assert told[-1].startswith("it died 5 times within 600 s, and is not started again for 560 s")
    with pytest.raises(BackendUnavailable, match="died 5 times within 600 s") as caught:
        restarts.check()
    assert 550.0 == caught.value.retry_after_s
    clock.seconds += 551.0
    restarts.check()
    assert not restarts.is_given_up


def test_deaths_with_a_culprit(clock: Clock) -> None:
    """Deaths that have a culprit do not count, also those of which it is known later."""
    restarts = Restarts()
    for solved in (0, 0, 3, 0, 1):
        restarts.note_death(solved)
    assert [clock.seconds] == [*restarts.deaths]
    restarts.forgive()
    assert (0, 0.0) == (len(restarts.deaths), restarts.rest_s)


@pytest.mark.parametrize("kind", [BackendUnavailable, ModelTooLarge])
def test_starts_that_fail(clock: Clock, kind: type[BackendUnavailable]) -> None:
    """Of starts that fail again and again requests are told the last reason, and when to come again."""
    restarts = Restarts()
    for _ in range(5):
        restarts.check()
        restarts.note_failure(kind("No memory.", reason="none"))
    with pytest.raises(kind, match=r"No memory\.") as caught:
        restarts.check()
    assert "none" == caught.value.reason
    assert 4.0 == restarts.rest_s
    clock.seconds += 4.0
    restarts.check()
