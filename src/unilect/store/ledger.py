"""
The ledger: one row for each request that was answered or begun. It holds no prompt and no answer.

Money is in whole millionths of the currency that the prices are in. Rows that come while a transaction runs share the next one, which
waits for more where the server is busy.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter

from msgspec import Struct, structs

from unilect.core.errors import LedgerUnavailable, StoreUnavailable, UnilectError
from unilect.runtime.tasks import Tasks
from unilect.store.database import Database
from unilect.store.records import CORRECTED, PARTS, KeyUsage, LedgerRow, UsageSum
from unilect.store.sql import ledger

log = logging.getLogger("unilect")
_DAY_S = 86_400.0
_SWEEP_S = 600.0  # between two looks at what is too old
LIMIT_S = 3.0  # how long a request waits for its row
RETRY_S = 0.5
GATHER_S = 0.005  # the longest that rows wait for others
IDLE_S = 50e-6  # a turn of the event loop that took no longer had nothing else to do
MOST = 20_000  # rows that wait
_AT_ONCE = 1000
_row_of = attrgetter("row")


class Ledger:
    """
    The ledger of a database.

    Every method may raise `StoreUnavailable`.

    Args:
        max_age_s: How long a row is kept.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        database: Database,
        *,
        max_age_s: float = 400 * _DAY_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database, self._max_age_s, self._clock = database, max_age_s, clock
        self._tasks = Tasks()
        self._sweeper: asyncio.Task[None] | None = None

    def write(self, rows: Sequence[LedgerRow]) -> Awaitable[None]:
        """
        Insert rows in one transaction; they are on the disk once that is done.

        A row whose id is there already stays as it is; its status alone becomes `CORRECTED`, where the new one has that.
        """
        written = self._database.write(partial(ledger.add, rows=rows))
        if self._sweeper is None:
            self._sweeper = self._tasks.start("the sweep of the ledger", self._sweep_on())
        return written

    async def probe(self) -> None:
        """Write, and leave nothing behind, to see that rows can be written."""
        await self._database.write(ledger.probe)

    async def read_usage(self, since: float, key: str | None = None) -> list[KeyUsage]:
        """Sum up what every key, or one, has used of every model in requests that came since a time, in seconds since 1970."""
        return await self._database.read(
            lambda connection: ledger.usage_since(connection, since, key)
        )

    async def sums(
        self, by: Sequence[str] = PARTS, since: float = 0.0, key: str | None = None
    ) -> list[UsageSum]:
        """
        Sum up requests that came since a time.

        Args:
            by: Some of `PARTS`: one sum for each value of these.
            since: Seconds since 1970.
            key: Of this key only.

        Returns:
            By day, key and model.
        """
        found = await self._database.read(
            lambda connection: ledger.sums(connection, by, since, key), long=True
        )
        return sorted(found, key=lambda one: (one.day or 0, one.name or "", one.model or ""))

    async def requests(self, since: float) -> list[tuple[float, str, float]]:
        """Read the requests that came since a time, the first million of them in their order: time, model, and seconds to the end."""
        return await self._database.read(
            lambda connection: ledger.requests_since(connection, since), long=True
        )

    async def sweep(self) -> None:
        """Delete what is too old."""
        before = self._clock() - self._max_age_s
        while await self._database.write(partial(ledger.delete_before, at=before)):
            await asyncio.sleep(0)

    def mark(self) -> object | None:
        """See `Database.mark`."""
        return self._database.mark()

    async def aclose(self) -> None:
        """End what goes on in the background. Idempotent."""
        await self._tasks.aclose()

    async def _sweep_on(self) -> None:
        while True:
            with suppress(StoreUnavailable):  # the log tells it already
                await self.sweep()
            await asyncio.sleep(_SWEEP_S)


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

    It is `writable`, or it is not and tries again by itself until it is. A row that could not be written stays until it is.

    Args:
        write: Writes some in one transaction.
        probe: Finds out whether it could.
        tasks: Where the work is done.

    Attributes:
        pending: How many requests run whose rows will come.
        wrong: Why the last attempt has failed; empty where it has not.
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
        self.wrong = ""
        self._idle, self._work_comes = asyncio.Event(), asyncio.Event()
        self._idle.set()

    @property
    def writable(self) -> bool:
        """True if the last attempt has succeeded, or there was none."""
        return not self.wrong

    def check(self) -> None:
        """
        Raises:
            LedgerUnavailable: It is not writable.
        """
        if self.wrong:
            raise self._unavailable()

    def put(
        self,
        row: LedgerRow,
        written: Callable[[], None],
        required: bool = True,
        *,
        waits: bool = True,
        bounded: bool = True,
    ) -> asyncio.Future[None] | None:
        """
        Have a row written; see `Item`.

        Args:
            waits: Somebody waits for it.
            bounded: It is not taken where too many wait already.

        Returns:
            The end of waiting for it: it is written, or its time is up, which is an error where it is required. None where nobody has
            to wait, or it may take long.

        Raises:
            LedgerUnavailable: It is required, and too many wait already, or it may take long; then it is tried again.
        """
        if bounded and len(self._waiting) >= MOST:
            self._fail(f"{MOST} rows wait to be written")
            if required:
                raise self._unavailable()
            return None
        item = Item(row, written, required)
        self._waiting.append(item)
        self.probe()
        if not waits or (self.wrong and not required):
            return None
        if self.wrong:
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
        """Write what waits, or find out whether rows can be written; `settle` waits for it."""
        if not self.wrong:  # else `settle` has nothing to wait for
            self._idle.clear()
        self._work_comes.set()
        if self._worker is None or self._worker.done():
            self._worker = self._tasks.start("the writer of the ledger", self._work())

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

    async def _work(self) -> None:
        """Write what comes, and try again what could not be written."""
        try:
            while True:
                await self._work_comes.wait()
                if not self.wrong:
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
            if self.wrong:
                self.wrong = ""
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
        if not self.wrong:
            log.warning("ledger: cannot be written: %s; it is tried again", why)
        self.wrong = why
        self.probe()

    def _unavailable(self) -> LedgerUnavailable:
        return unavailable(f"ledger: {self.wrong}")

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
