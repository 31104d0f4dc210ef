"""Tests of the writer of unilect.store.ledger; how rows are written tests/accounting/test_ledger.py tells: a clock says how long each turn of the event loop took."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from support.common.ledger_rows import row
from support.common.waiting import until
from unilect.core.errors import LedgerUnavailable
from unilect.runtime.tasks import Tasks
from unilect.store import ledger
from unilect.store.ledger import GATHER_S, Writer, wait_while_busy
from unilect.store.records import LedgerRow


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


class Disk:
    """
    A disk that may stop.

    Attributes:
        works: Set while it writes what it gets.
    """

    def __init__(self) -> None:
        self.works = asyncio.Event()

    async def write(self, rows: Sequence[LedgerRow]) -> None:
        """Write rows, once it works."""
        await self.works.wait()

    async def probe(self) -> None:
        """It may be written to."""


@pytest.fixture
async def disk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Disk, Writer]]:
    """A disk that has stopped, and a writer for it that soon loses patience."""
    monkeypatch.setattr(ledger, "LIMIT_S", 0.02)
    stopped, tasks = Disk(), Tasks()
    yield stopped, Writer(stopped.write, stopped.probe, tasks)
    await tasks.aclose()


async def test_a_client_that_does_not_wait(disk: tuple[Disk, Writer]) -> None:
    """A ledger that does not answer is known as such also where each client leaves before its time is up."""
    _, rows = disk
    end = rows.put(row(), lambda: None)
    assert end is not None

    end.cancel()
    await until(lambda: not rows.writable)

    with pytest.raises(LedgerUnavailable):
        rows.check()


async def test_a_flaw_of_what_follows_a_row(disk: tuple[Disk, Writer]) -> None:
    """Whoever waits for a row is told in time, also after the task that writes has failed."""
    stops, rows = disk
    stops.works.set()
    failed = rows.put(row(), lambda: [].pop())
    assert failed is not None
    await failed
    await until(lambda: rows._worker is None or rows._worker.done())

    stops.works.clear()
    end = rows.put(row(), lambda: None)
    assert end is not None

    with pytest.raises(LedgerUnavailable):
        await asyncio.wait_for(end, 10)
