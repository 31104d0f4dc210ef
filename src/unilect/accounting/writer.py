"""
The writer of the ledger: rows that come while a transaction runs share the next one, which waits for more where the server is busy.

It is `writable`, or it is not and tries again by itself until it is. A row that could not be written stays until it is.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter

from msgspec import Struct, structs

from unilect.core.errors import LedgerUnavailable, UnilectError
from unilect.runtime.tasks import Tasks
from unilect.store.records import CORRECTED, LedgerRow

log = logging.getLogger("unilect")
LIMIT_S = 3.0  # how long a request waits for its row
RETRY_S = 0.5
GATHER_S = 0.005  # the longest that rows wait for others
IDLE_S = 50e-6  # a turn of the event loop that took no longer had nothing else to do
MOST = 20_000  # rows that wait
_AT_ONCE = 1000
_row_of = attrgetter("row")


class Item(Struct, eq=False):
    """
    A row on its way.

    Attributes:
        row: It may be replaced until it is written; then it is written again.
        written: Called once it is in the ledger.
        required: Who waits for it is told where it cannot be written, and its row has the status `CORRECTED` from then on; else he need not know.
        end: Is done once it is written, or is not in time; None where nobody waits.
        until: When it is late, by the event loop's clock.
    """

    row: LedgerRow
    written: Callable[[], None]
    required: bool = True
    end: asyncio.Future[None] | None = None
    until: float = 0.0

    def correct(self) -> None:
        """Its client is told that it could not be kept."""
        self.row = structs.replace(self.row, status=CORRECTED)


def unavailable(reason: str | None) -> LedgerUnavailable:
    """Make the error of a request that cannot be recorded now; the reason is for the operator."""
    told = "The request cannot be recorded in the ledger now; try again later."
    return LedgerUnavailable(told, reason=reason, retry_after_s=5)


async def wait_while_busy(clock: Callable[[], float] = time.perf_counter) -> None:
    """
    Wait for a turn of the event loop in which it has nothing else to do, `GATHER_S` at most: no timer, which would leave it idle.

    Args:
        clock: Seconds; the loop's own is not exact enough.
    """
    now = clock()
    until = now + GATHER_S
    while now < until:
        await asyncio.sleep(0)
        before, now = now, clock()
        if now - before <= IDLE_S:
            return


class Writer:
    """
    Writes rows, in the order in which they come.

    Args:
        write: Writes some in one transaction.
        probe: Finds out whether it could.
        tasks: Where the work is done.

    Attributes:
        pending: How many requests run whose rows will come.
    """

    def __init__(
        self,
        write: Callable[[Sequence[LedgerRow]], Awaitable[None]],
        probe: Callable[[], Awaitable[None]],
        tasks: Tasks,
    ) -> None:
        self._write, self._probe, self._tasks = write, probe, tasks
        self._gather: Callable[[], Awaitable[None]] = wait_while_busy
        self.pending = 0
        self._waiting: list[Item] = []
        self._writing: list[Item] = []
        self._worker: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # looks for rows that are late
        self._wrong = ""
        self._idle, self._work_comes = asyncio.Event(), asyncio.Event()
        self._idle.set()

    @property
    def writable(self) -> bool:
        """True if the last attempt has succeeded, or there was none."""
        return not self._wrong

    def check(self) -> None:
        """
        Raises:
            LedgerUnavailable: It is not writable.
        """
        if self._wrong:
            raise self._unavailable()

    def put(
        self,
        row: LedgerRow,
        written: Callable[[], None],
        required: bool = True,
        *,
        bounded: bool = True,
    ) -> Item:
        """
        Have a row written; see `Item`.

        Raises:
            LedgerUnavailable: Too many wait already.
        """
        if bounded and len(self._waiting) >= MOST:
            self._fail(f"{MOST} rows wait to be written")
            raise self._unavailable()
        item = Item(row, written, required)
        self._waiting.append(item)
        self._start()
        return item

    def end_of(self, item: Item) -> asyncio.Future[None] | None:
        """
        Return the end of waiting for a row that was just put: it is written, or its time is up, which is an error where it is required.

        Returns:
            None where it may take long, and nobody has to wait.

        Raises:
            LedgerUnavailable: It is required, and may take long; it is tried again.
        """
        if self._wrong:
            if not item.required:
                return None
            item.correct()
            raise self._unavailable()
        loop = asyncio.get_running_loop()
        item.end, item.until = loop.create_future(), loop.time() + LIMIT_S
        if self._timer is None:
            self._timer = loop.call_at(item.until, self._end_late)
        return item.end

    async def settle(self, timeout_s: float = LIMIT_S) -> None:
        """Wait until no row waits, or one cannot be written; for so long at most."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            if self.writable:
                self._fail(f"the rows were not written within {timeout_s:g} s")

    def probe(self) -> None:
        """Find out whether rows can be written; `settle` waits for it."""
        self._start()

    def _end_late(self) -> None:
        """Tell who waits for rows that have not been written in time; they come and are written in one order."""
        self._timer = None
        loop = asyncio.get_running_loop()
        for item in (*self._writing, *self._waiting):
            # a client that has left is no reason to trust a ledger that does not answer
            if item.end is None or (item.end.done() and not item.end.cancelled()):
                continue
            if item.until > loop.time():
                self._timer = loop.call_at(item.until, self._end_late)
                return
            self._fail(f"a row was not written within {LIMIT_S:g} s")
            self._tell(item, self._unavailable())

    def _start(self) -> None:
        if not self._wrong:  # else `settle` has nothing to wait for
            self._idle.clear()
        self._work_comes.set()
        if self._worker is None or self._worker.done():
            self._worker = self._tasks.start("the writer of the ledger", self._work())

    async def _work(self) -> None:
        """Write what comes, and try again what could not be written."""
        try:
            while True:
                await self._work_comes.wait()
                if not self._wrong:
                    self._idle.clear()
                # a transaction of more takes hardly longer
                if len(self._waiting) > 1 or (self._waiting and self.pending):
                    await self._gather()
                some = self._writing = self._waiting[:_AT_ONCE]
                del self._waiting[:_AT_ONCE]
                is_written = await self._try(some)
                self._writing = []
                if not is_written:
                    self._idle.set()
                    await asyncio.sleep(RETRY_S)
                elif not self._waiting:
                    self._work_comes.clear()
                    self._idle.set()
        finally:
            self._idle.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            for item in (*self._writing, *self._waiting):
                error = LedgerUnavailable(
                    "The server is stopping. Try again soon.", retry_after_s=5
                )
                self._tell(item, error)

    async def _try(self, some: list[Item]) -> bool:
        """Write rows, or probe where there are none; whether that went well. What cannot be written now waits again."""
        rows = list(map(_row_of, some))
        work = self._write(rows) if rows else self._probe()
        (error,) = await asyncio.gather(work, return_exceptions=True)
        if error is None:
            if self._wrong:
                self._wrong = ""
                log.warning("ledger: is written again")
            for item, row in zip(some, rows, strict=True):
                if item.row is not row:  # its client was told something else meanwhile
                    self._waiting.append(item)
                    continue
                if item.end is not None and not item.end.done():
                    item.end.set_result(None)
                item.written()
            return True
        if isinstance(error, UnilectError) or not some:
            self._fail(error.for_operator if isinstance(error, UnilectError) else repr(error))
            self._waiting[:0] = some
            for item in some:
                self._tell(item, self._unavailable())
            return False
        if len(some) > 1:  # a flaw of ours, in one of them
            return all([await self._try([item]) for item in some])
        log.error("ledger: the row %s cannot be written", rows[0].id, exc_info=error)
        self._tell(some[0], LedgerUnavailable("The request cannot be recorded in the ledger. Try again later, or ask the operator."))  # fmt: skip
        some[0].written()  # else it would come back from the journal
        return True

    def _fail(self, why: str) -> None:
        if not self._wrong:
            log.warning("ledger: cannot be written: %s; it is tried again", why)
        self._wrong = why
        self._start()

    def _unavailable(self) -> LedgerUnavailable:
        return unavailable(f"ledger: {self._wrong}")

    @staticmethod
    def _tell(item: Item, error: LedgerUnavailable) -> None:
        """Tell who waits for a row that it is not written, if he has to know."""
        end, item.end = item.end, None
        if end is None or end.done():
            return
        if item.required:
            item.correct()
            end.set_exception(error)
        else:
            end.set_result(None)
