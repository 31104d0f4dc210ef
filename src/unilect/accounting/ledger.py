"""
The ledger's side of a request: a row when it ends, and a slot of the journal while it runs.

1. The row is committed before the last frame is sent. A client that has left is not waited for, nor does it wait: its row is committed soon.
2. Where the ledger is required and cannot be written, requests are refused at once, and answers that end are told as failed. Their rows
   are kept, with that status, and written when they can be.
3. What a killed server has left in its journal becomes rows: before this server takes requests, and every `LOOK_S` for the others of
   the same store.
"""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Struct, structs

from unilect.accounting.account import CLIENT_LEFT
from unilect.auth.key_cache import KeyCache
from unilect.config.limits import BUDGETS
from unilect.config.model import Price
from unilect.core.errors import StoreUnavailable
from unilect.core.events import Tally, Usage
from unilect.core.requests import Call, Request
from unilect.limits.claims import cost as cost_of
from unilect.runtime.context import Context, Measured
from unilect.runtime.redact import redact
from unilect.runtime.tasks import Tasks
from unilect.store.database import ABSENT
from unilect.store.journal import (
    BACKEND,
    FREE,
    AbandonedJournal,
    Journal,
    Slot,
    encode_backend,
    find_abandoned,
)
from unilect.store.ledger import Ledger, Writer, unavailable
from unilect.store.records import LedgerRow

log = logging.getLogger("unilect")
LOOK_S = 60.0  # between two looks for journals of dead servers
_AGAIN_S = 1.0  # between two attempts to make a journal
_FLUSH_S = 5.0
Rule: TypeAlias = Literal["required", "best_effort", "off"]


class State(Enum):
    """Of a `LedgerRecorder`."""

    UNUSED = "nothing is recorded, and nothing was opened"
    OPEN = "requests are recorded"
    CLOSED = "the server has stopped"


class Budgets(Protocol):
    """
    The budgets that requests count against.

    Attributes:
        is_on: Requests of any key may have one; else those of a key that has limits of its own.
    """

    is_on: bool

    def plan(self, context: Context) -> "Planned":
        """Tell what holds for a request."""


class Planned(Protocol):
    """The limits that hold for a request; `has_budget` is true where something of it counts against a budget."""

    @property
    def has_budget(self) -> bool:
        """True if it has to be recorded."""


class _OfKey(NamedTuple):
    has_budget: bool


class BudgetsOfKeys:
    """The budgets of a server without limits but those of its keys, as `Budgets`."""

    is_on = False

    def plan(self, context: Context) -> _OfKey:
        """Look for budgets in the limits of a request's key."""
        return _OfKey(not BUDGETS.isdisjoint(context.limits))


class LedgerRecorder:
    """
    Records requests.

    Args:
        ledger: Where.
        journals: What the paths of the journals begin with; None where there are to be none.
        rule: Whether a request has to be recorded; None to go by its key.
        known: The keys of the store, if it has any.
        clock: Seconds since 1970.

    Attributes:
        ledger: As given.
        budgets: The budgets of requests, which have to be recorded then; `update` follows a change.
        is_on: Requests may have to be recorded; see `RequestRecorder`.
        state: What it does.
    """

    def __init__(
        self,
        ledger: Ledger,
        journals: Callable[[], Path | None] = lambda: None,
        rule: Rule | None = None,
        known: KeyCache | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ledger = ledger
        self.budgets: Budgets = BudgetsOfKeys()
        self.state = State.UNUSED
        self.clock = clock
        self._journals, self._rule, self._known = journals, rule, known
        self._tasks = Tasks()
        self.writer = Writer(ledger.write, ledger.probe, self._tasks)
        self._opening = asyncio.Lock()
        self._journal: Journal | None = None
        self._held: list[AbandonedJournal] = []  # whose rows are not written yet
        self._try_at = 0.0
        self._misses = False  # the journal, as the log has it
        self._is_required = rule == "required"
        self._instance = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self.update()
        if known is not None:
            known.on_look = self.update

    @property
    def ready(self) -> bool:
        """False where requests are refused, since the ledger cannot be written."""
        return self.writer.writable or not self._is_required

    @property
    def kept(self) -> bool:
        """True if requests are recorded, or requests with a budget may have been, also before this server was started."""
        if self.state is State.OPEN or self._default != "off":
            return True
        return self._rule is None and self.ledger.mark() is not ABSENT

    async def start(self) -> None:
        """Make rows of what dead servers of this store have left; what cannot be written now is tried again."""
        if self._rule != "off":
            found = self._dead()
            if found or self._default != "off":
                await self._open(found)

    def update(self) -> None:
        """Decide anew whether requests may have to be recorded: the budgets have changed, or what is known of the store's keys."""
        self._default = self._rule or self._rule_of_keys()
        self.is_on = self.budgets.is_on or self._default != "off"

    async def open(self, context: Context, request: Request) -> "LedgerEntry | None":
        """
        Record a request; see `RequestRecorder`.

        Returns:
            None where it is not to be recorded, of a call that makes no answer, and once the server has stopped.

        Raises:
            LedgerUnavailable: It has to be recorded, and cannot be.
        """
        counts = self._rule is None and self.budgets.plan(context).has_budget
        if type(request) is Call or not (counts or self._default != "off"):
            return None
        if self.state is State.UNUSED:
            await self._open()
        if self.state is State.CLOSED:
            return None
        required = counts or self._default == "required"
        if required:
            self._is_required = True
            if self.writer.wrong:
                self.writer.check()
        context.at = self.clock()
        row = LedgerRow(
            # rows of one server are neighbours in the index of ids: a transaction writes a page of it, and not one for each row
            id=f"{self._instance}{next(self._numbers):010x}.{context.request_id or 'apart'}",
            at=context.at,
            key=context.caller,
            owner=context.owner,
            model=context.model,
            dialect=context.dialect,
            endpoint=context.endpoint,
        )
        streams = bool(getattr(request, "stream", False))
        price, slot = context.price, None
        rates = FREE if price is None else (price.prompt, price.cached, price.completion)
        try:
            if self._journal is None:
                self._journal = self._open_journal(required)
            if self._journal is not None:
                slot = self._journal.take(row, rates)
                self._misses = False
        except StoreUnavailable as error:
            self._note_miss(error, required)
        self.writer.pending += 1
        return LedgerEntry(self, context, row, slot, required, streams, context.meter)

    async def recover(self) -> None:
        """
        Make rows now of what dead servers of this store have left, and wait for them, for a bounded time.

        Raises:
            LedgerUnavailable: Some cannot be written now; it is tried again.
        """
        if self.state is State.UNUSED:
            await self._open()
        elif self.state is State.OPEN:
            self._recover(self._dead())
            await self.writer.settle()
        if self._held:
            self.writer.check()

    async def aclose(self) -> None:
        """Write what waits, and close the journal. Idempotent."""
        if self.state is State.OPEN:
            await self.writer.settle(_FLUSH_S)
        self.state = State.CLOSED
        await self._tasks.aclose()
        for one in self._held:
            one.close()  # for the next server
        if self._journal is not None:
            self._journal.close()

    def _rule_of_keys(self) -> Rule:
        """Return the rule for requests without a budget, where nobody has said one."""
        try:
            if self._known is None or not self._known.has_keys:
                return "off"
        except StoreUnavailable:  # whoever is let in now has a key of the configuration
            return "best_effort"
        return "best_effort"

    async def _open(self, found: list[AbandonedJournal] | None = None) -> None:
        """Open the database, and make rows of what dead servers have left, once."""
        async with self._opening:
            if self.state is State.UNUSED:
                self.writer.probe()
                await self.writer.settle()
                self._recover(self._dead() if found is None else found)
                await self.writer.settle()
                self.state = State.OPEN
                self._tasks.start("the look for dead servers' journals", self._look_on())

    def _open_journal(self, required: bool) -> Journal | None:
        """
        Make the journal; None where there is to be none, or it could not be made a moment ago.

        Raises:
            StoreUnavailable: It cannot be made.
        """
        stem, now = self._journals(), time.monotonic()
        if stem is None or (now < self._try_at and not required):
            return None
        self._try_at = now + _AGAIN_S
        return Journal(stem, self._instance)

    def _note_miss(self, error: StoreUnavailable, required: bool) -> None:
        """
        Tell once in the log that requests run without a slot of the journal.

        Raises:
            LedgerUnavailable: One is required.
        """
        if required:
            raise unavailable(error.reason) from error
        if not self._misses:
            self._misses = True
            log.warning("%s If this server dies, the ledger misses what runs.", error.reason)

    def _dead(self) -> list[AbandonedJournal]:
        """Find the journals of dead servers that hold requests; those that hold none are removed."""
        stem, found = self._journals(), []
        for one in [] if stem is None else find_abandoned(stem):
            if one.rows:
                found.append(one)
            else:
                one.discard()
        return found

    def _recover(self, found: list[AbandonedJournal]) -> None:
        """Have the rows written that dead servers have left."""
        for one in found:
            log.warning("ledger: a server has died with %d requests: %s", len(one.rows), one.path)
            left = [len(one.rows)]
            self._held.append(one)

            def note_written(one: AbandonedJournal = one, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] == 0:
                    self._held.remove(one)
                    one.discard()

            for row in one.rows:
                prompt, cached, completion = one.prices[row.id]
                price = Price(prompt=prompt, cached=cached, completion=completion)
                cost = cost_of(price, Usage(row.prompt, row.completion, row.cached))
                row = structs.replace(row, cost=cost)
                self.writer.put(row, note_written, waits=False, bounded=False)

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self.writer.writable:
                self._recover(self._dead())


class LedgerEntry(Struct, eq=False):
    """One request, as a `RequestRecord`."""

    _book: LedgerRecorder
    _context: Context
    _row: LedgerRow
    _slot: Slot | None
    _required: bool
    _streams: bool
    _meter: Measured | None
    _source: str = ""

    def note_usage(self, usage: Tally) -> None:
        """Note in the journal what was used so far."""
        slot, context = self._slot, self._context
        if slot is None or self._book.state is State.CLOSED:
            return
        if context.source is not self._source:
            self._source = context.source
            slot.write(BACKEND, encode_backend(_redact(self._source)))
        if self._streams:  # else nothing is delivered before the end, and so nothing is charged where the server dies
            first_s = None if self._meter is None else self._meter.first_token_s
            slot.set_counts(
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens,
                -1.0 if first_s is None else first_s * 1000,
                (time.perf_counter() - context.started) * 1000,
            )

    async def close(self, usage: Tally | Usage, status: int) -> None:
        """
        Have the row written; it is waited for unless the client has left.

        Raises:
            LedgerUnavailable: It has to be there, and is not.
        """
        book, context = self._book, self._context
        book.writer.pending -= 1
        if book.state is State.CLOSED:
            return  # what stands in the journal is for the next server
        done = _nothing if self._slot is None else self._slot.free
        has_left = status == CLIENT_LEFT
        begun = status >= CLIENT_LEFT and context.leased_at is not None
        if not (status == 200 or usage.prompt_tokens or usage.completion_tokens or begun):
            done()
            return
        if status == CLIENT_LEFT and context.ended is not None:
            status = context.ended.status  # it was ended by us, and its client is told why
        meter = self._meter
        first_s = None if meter is None else meter.first_token_s
        row = structs.replace(
            self._row,
            backend=_redact(context.source),
            prompt=usage.prompt_tokens,
            cached=usage.cached_tokens or 0,
            completion=usage.completion_tokens,
            first_token_ms=None if first_s is None else first_s * 1000,
            duration_ms=(time.perf_counter() - context.started) * 1000,
            status=status,
            finish="" if meter is None else meter.finish_reason,
            cost=0 if context.price is None else cost_of(context.price, usage),
        )
        end = book.writer.put(row, done, self._required, waits=not has_left)
        if end is not None:
            await end


@lru_cache(256)
def _redact(source: str) -> str:
    """Redact the source of an answer, and cut it to 200 characters."""
    return redact(source)[:200]


def _nothing() -> None:
    """No slot is to be freed."""
