"""
The ledger: one row for each request that was answered or begun. It holds no prompt and no answer.

Money is in whole millionths of the currency that the prices are in.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from unilect.errors import LedgerUnavailable, StoreUnavailable
from unilect.store.database import Database
from unilect.tasks import Tasks

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from unilect.store._ledger import LedgerRows

_Result = TypeVar("_Result")
_DAY_S = 86_400.0
_SWEEP_S = 600.0  # between two looks at what is too old
#: The status of a row of which its client was told later that it could not be kept.
CORRECTED = LedgerUnavailable.status
#: What sums can be made by.
PARTS = ("key", "model", "day")


class Row(Struct, frozen=True, kw_only=True):
    """
    One request.

    Attributes:
        id: Unique among all servers of the store.
        at: When the request came, seconds since 1970.
        key: The id of the caller's key.
        owner: Whose key it is.
        model: The model that was asked for.
        backend: Where the answer came from, without credentials.
        dialect, endpoint: What was called.
        prompt, cached, completion: Tokens; `cached` is a part of `prompt`.
        first_token_ms: Milliseconds from the request to its first token; None where there was none.
        duration_ms: Milliseconds from the request to its end.
        status: The HTTP status; 499 where the client has left, or the server has died.
        finish: The finish reason of the last choice; `lost` where the server has died.
        cost: Millionths of the currency.
    """

    id: str
    at: float
    key: str = ""
    owner: str = ""
    model: str = ""
    backend: str = ""
    dialect: str = ""
    endpoint: str = ""
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    first_token_ms: float | None = None
    duration_ms: float = 0.0
    status: int = 200
    finish: str = ""
    cost: int = 0


class Used(Struct, frozen=True):
    """What a key has used of a model: tokens of prompts and answers, and millionths of the currency."""

    key: str
    owner: str
    model: str
    tokens: int
    cost: int


class Sum(Struct, frozen=True, kw_only=True):
    """
    What was used, summed up.

    Attributes:
        key, model, day: Whose, of which model, and on which day (days since 1970, UTC); None where the sum is over all.
        name: What people call the key; its id, where the store does not have it.
        requests: How many.
        prompt, completion: Tokens.
        cost: Millionths of the currency.
    """

    key: str | None
    name: str | None
    model: str | None
    day: int | None
    requests: int
    prompt: int
    completion: int
    cost: int


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

    async def write(self, rows: Sequence[Row]) -> None:
        """
        Insert rows in one transaction; they are on the disk when this returns.

        A row whose id is there already stays as it is; its status alone becomes `CORRECTED`, where the new one has that.
        """

        def add(connection: "Connection") -> bool:
            from unilect.store._ledger import LedgerRows

            return LedgerRows(connection).add(rows)

        def add_at_once(connection: "Connection") -> bool | None:
            """Add them by one statement, where they are few enough."""
            from unilect.store._ledger import AT_ONCE

            return add(connection) if len(rows) <= AT_ONCE else None

        await self._database.begin(add, add_at_once)
        if self._sweeper is None:
            self._sweeper = self._tasks.start("the sweep of the ledger", self._sweep_on())

    async def probe(self) -> None:
        """Write, and leave nothing behind: whether rows can be written."""
        await self._write(lambda all: all.probe())

    async def used(self, since: float, key: str | None = None) -> list[Used]:
        """What every key, or one, has used of every model in requests that came since a time, in seconds since 1970."""
        return await self._database.read(partial(_ask, lambda all: all.used(since, key)))

    async def sums(
        self, by: Sequence[str] = PARTS, since: float = 0.0, key: str | None = None
    ) -> list[Sum]:
        """
        The sums of requests that came since a time.

        Args:
            by: Some of `PARTS`: one sum for each value of these.
            since: Seconds since 1970.
            key: Of this key only.

        Returns:
            By day, key and model.
        """
        found = await self._database.read(
            partial(_ask, lambda all: all.sums(by, since, key)), long=True
        )
        return sorted(found, key=lambda one: (one.day or 0, one.name or "", one.model or ""))

    async def sweep(self) -> None:
        """Delete what is too old."""
        before = self._clock() - self._max_age_s
        while await self._write(lambda all: all.delete_before(before)):
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

    async def _write(self, ask: "Callable[[LedgerRows], _Result]") -> _Result:
        return await self._database.write(partial(_ask, ask))


def _ask(ask: "Callable[[LedgerRows], _Result]", connection: "Connection") -> _Result:
    """Ask something of the rows, in a transaction."""
    from unilect.store._ledger import LedgerRows

    return ask(LedgerRows(connection))
