"""Tests of unilect.accounting.writer; how rows are written tests/accounting/test_ledger.py tells: a clock says how long each turn of the event loop took."""

import asyncio

import pytest

from unilect.accounting.writer import GATHER_S, wait_while_busy


class Turns:
    """A clock that goes on by what turns took, which are given in microseconds; the last one goes on for ever."""

    def __init__(self, *took: int) -> None:
        self.left = [0, *took]
        self.count = -1
        self.now_us = 0

    def __call__(self) -> float:
        """Tell the time."""
        self.count += 1
        self.now_us += self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return self.now_us / 1e6


async def test_other_work() -> None:
    """It waits while turns take long, and no longer."""
    clock = Turns(300, 250, 70, 30, 1000)
    await wait_while_busy(clock)
    assert clock.count == 4


@pytest.mark.parametrize("shortest_us", [0, 1, 49])
async def test_a_lucky_turn(shortest_us: int) -> None:
    """However short a turn was once, turns that have nothing else to do are known as such."""
    await wait_while_busy(Turns(shortest_us))
    clock = Turns(40)
    await wait_while_busy(clock)
    assert clock.count == 1


async def test_a_loop_that_is_always_busy() -> None:
    """It waits no longer than it may, and other work of the loop is done meanwhile."""
    clock, done = Turns(1000), list[int]()

    async def work() -> None:
        for number in range(3):
            await asyncio.sleep(0)
            done.append(number)

    working = asyncio.create_task(work())
    await wait_while_busy(clock)
    assert clock.count == round(GATHER_S * 1000)
    assert done == [0, 1, 2]
    await working
