"""Tests of unilect.gateway._lull: a clock says how long each turn of the event loop took."""

import asyncio

from unilect.gateway._lull import Lull


class Turns:
    """A clock that goes on by what turns took, which are given in microseconds; the last one goes on for ever."""

    def __init__(self, *took: int) -> None:
        self.left = [0, *took]
        self.count = -1
        self.now_us = 0

    def __call__(self) -> float:
        """The time."""
        self.count += 1
        self.now_us += self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return self.now_us / 1e6


async def test_other_work() -> None:
    """It waits while turns take long, and no longer."""
    clock = Turns(4, 300, 250, 30, 6, 1000)
    lull = Lull(clock)
    await lull.wait(1.0)
    assert clock.count == 1, "the first turn that it sees is the shortest"
    clock.left.insert(0, 0)
    await lull.wait(1.0)
    assert clock.count == 1 + 1 + 4


async def test_a_slow_machine() -> None:
    """What a turn without other work takes is learnt: a machine on which each takes long is not taken for a busy one."""
    clock = Turns(90, 0, 400)
    lull = Lull(clock)
    await lull.wait(1.0)
    await lull.wait(1.0)
    assert clock.count == 3


async def test_a_loop_that_is_always_busy() -> None:
    """It waits no longer than it may."""
    clock = Turns(4, 0, 1000)
    lull = Lull(clock)
    await lull.wait(1.0)
    await lull.wait(0.005)
    assert clock.count == 2 + 5


async def test_others_go_on() -> None:
    """Other work of the loop is done meanwhile."""
    clock = Turns(4, 0, 1000)
    lull = Lull(clock)
    await lull.wait(1.0)
    done: list[int] = []

    async def work() -> None:
        for number in range(3):
            await asyncio.sleep(0)
            done.append(number)

    working = asyncio.create_task(work())
    await lull.wait(0.005)
    assert done == [0, 1, 2]
    await working
