"""
The ledger: one row for each request that was answered or begun. It holds no prompt and no answer.

Money is in whole millionths of the currency that the prices are in.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from unilect.core.errors import StoreUnavailable
from unilect.runtime.tasks import Tasks
from unilect.store.database import Database
from unilect.store.records import PARTS, KeyUsage, LedgerRow, UsageSum
from unilect.store.sql import ledger

_DAY_S = 86_400.0
_SWEEP_S = 600.0  # between two looks at what is too old


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
