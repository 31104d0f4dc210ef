"""
Requests that crashed an engine: they are not retried, and refused for a while.

A request that ran in the engine when it died is a suspect, and so is one that had left without an answer: its work goes on behind it.

1. A single death convicts nobody: a driver fails, an operator ends a process. The culprit is the only one that was there at an earlier
   death, too, and was not answered between. Of an engine that hangs it is the one that was there alone: to try that again would take
   everybody's time. Several that ask for the same are several.
   A death for want of memory is the engine's own: nobody is a suspect of it.
2. Suspects take turns, so that the next death tells them apart: until an answer has begun, or all through it for one that has been at
   two deaths. Who is answered is cleared.
3. Requests are told apart by a digest of what they ask; of those that are answered none is made before an engine has died.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec
from msgspec import Struct

from unilect.core.errors import RequestKilledEngine

REMEMBERED_S = 600.0
KEPT_WHOLE = 4  # of those that left: their digest is made when it is needed, if ever
MAX_CULPRITS = 1024
MAX_DEATHS = 32
_LINGERS_S = 120.0  # where no watchdog says earlier that an engine has done with it
#: The fields that may differ between two requests that ask for the same.
_ASIDE = (
    "model", "user", "seed", "stream", "stream_options", "metadata", "store", "service_tier", "safety_identifier",
    "prompt_cache_key", "prompt_cache_retention",
)  # fmt: skip


class Ticket:
    """
    A request that asks for an engine.

    Attributes:
        life: The life of the child that it is in, or was in last.
        since: When it came there.
        acked_at: When it was last known that the engine had it, if nothing was said of it.
        left_at: When it left without an answer.
        acked: The engine has said something of it, if only how far it has read.
        on_begin: Called when its answer begins.
    """

    __slots__ = ("_digest", "_request", "acked", "acked_at", "left_at", "life", "on_begin", "since")

    def __init__(self, request: Any) -> None:
        self._request = request
        self.life = 0
        self.since = self.acked_at = self.left_at = 0.0
        self.acked = False
        self.on_begin: Callable[[], None] | None = None
        self._digest: bytes | None = None

    def note_begin(self) -> None:
        """Note that a piece of its answer has come."""
        if self.on_begin is not None:
            self.on_begin()
            self.on_begin = None

    @property
    def digest(self) -> bytes:
        """Of what it asks."""
        if self._digest is None:
            self._digest = digest(self._request)
            self._request = None  # it may be large
        return self._digest


class _Death(Struct, frozen=True):
    """A death that no request is known to be to blame for."""

    at: float
    suspects: frozenset[bytes]


class CrashBlame:
    """
    The requests of one engine.

    Args:
        clock: Seconds, of any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: set[Ticket] = set()
        self._lingering: list[Ticket] = []
        self._deaths: list[_Death] = []
        self._culprits: OrderedDict[bytes, float] = OrderedDict()
        self._suspect_runs = asyncio.Lock()

    async def take_turn(self, ticket: Ticket, held: ExitStack) -> None:
        """
        Return when a request may run: at once, but for a suspect, which waits until no other one runs.

        Args:
            held: Closed when the request has ended; what a suspect keeps others from is in it.

        Raises:
            RequestKilledEngine: As `check`.
        """
        self.check(ticket)
        if times := self.count_deaths(ticket):
            await self._suspect_runs.acquire()
            held.callback(self._suspect_runs.release)
            if times == 1:
                ticket.on_begin = held.close

    def check(self, ticket: Ticket) -> None:
        """
        Raises:
            RequestKilledEngine: The engine has died of such a request, not long ago.
        """
        if self._culprits and (rest_s := self._rest_s(ticket.digest)) > 0:
            raise RequestKilledEngine(
                f"This request crashed the engine or made it hang, and is refused for {rest_s:.0f} s. "
                "Change it: a simpler grammar or schema, a shorter text.",
                retry_after_s=rest_s,
            )

    def find_stuck(self, after_s: float) -> Ticket | None:
        """Return a request of which the engine has said nothing for so long, and which it has not had."""
        now = self._clock()
        late = (one for one in self._running if not one.acked and now - one.acked_at > after_s)
        return next(late, None)

    def block(self, ticket: Ticket) -> None:
        """Refuse such requests for a while: the engine hangs on this one, and on no other."""
        self._culprits[ticket.digest] = self._clock() + REMEMBERED_S

    def is_culprit(self, ticket: Ticket) -> bool:
        """Return True while a request is refused because the engine died of it."""
        return bool(self._culprits) and self._rest_s(ticket.digest) > 0

    def count_deaths(self, ticket: Ticket) -> int:
        """Count the deaths at which a request was there, and of which nobody knows the culprit."""
        if not self._deaths:
            return 0
        self._forget()
        return sum(ticket.digest in death.suspects for death in self._deaths)

    def enter(self, ticket: Ticket, life: int) -> None:
        """Note that a request goes into the engine, in this of its lives."""
        ticket.life, ticket.since = life, self._clock()
        ticket.acked_at = ticket.since
        self._running.add(ticket)

    def leave(self, ticket: Ticket, answered: bool) -> None:
        """Note that a request leaves. One without an answer may still be at work; one that has all of it is no suspect, though the engine died meanwhile."""
        ran = ticket in self._running
        self._running.discard(ticket)
        if not (ran or answered):
            return
        if not answered:
            ticket.left_at = self._clock()
            self._lingering = [*self._lingering[-MAX_CULPRITS:], ticket]
            for older in self._lingering[-KEPT_WHOLE - 1 : -KEPT_WHOLE]:
                older.digest  # noqa: B018 - made now, so that nothing else is kept of it
        elif self._deaths:
            self._clear(ticket.digest)

    def note_answer(self, asked_at: float) -> None:
        """Note that the engine has answered a question of this time: it has done with all that had left by then."""
        self._lingering = [ticket for ticket in self._lingering if ticket.left_at > asked_at]

    def record_death(self, life: int, before: float | None = None, of_memory: bool = False) -> int:
        """
        Record a death of the engine.

        Args:
            life: Which of its lives is over.
            before: It hung since then: what came later is not to blame.
            of_memory: It had no memory left.

        Returns:
            Of how many deaths, this one and earlier ones, the culprit is now known.
        """
        now = self._clock()
        self._forget()
        left = (ticket for ticket in self._lingering if now - ticket.left_at < _LINGERS_S)
        there = {ticket for ticket in (*self._running, *left) if ticket.life == life}
        there = {ticket for ticket in there if before is None or ticket.since <= before}
        names = {ticket.digest for ticket in there}
        self._running, self._lingering = set(), []
        if of_memory:
            return 0
        if names & self._culprits.keys():  # convicted while it ran
            return 1
        earlier = frozenset[bytes]().union(*(death.suspects for death in self._deaths))
        common = names if len(there) == 1 and before is not None else names & earlier
        if len(common) != 1:
            if names:
                self._deaths = [*self._deaths[1 - MAX_DEATHS :], _Death(now, frozenset(names))]
            return 0
        (culprit,) = common
        self._culprits[culprit] = now + REMEMBERED_S
        self._culprits.move_to_end(culprit)
        while len(self._culprits) > MAX_CULPRITS:
            self._culprits.popitem(last=False)
        unsolved = [death for death in self._deaths if culprit not in death.suspects]
        solved, self._deaths = len(self._deaths) - len(unsolved), unsolved
        return 1 + solved

    def _rest_s(self, name: bytes) -> float:
        """Return the seconds for which a request is still refused; 0 or less where it is not."""
        rest_s = self._culprits.get(name, 0.0) - self._clock()
        if rest_s <= 0:
            self._culprits.pop(name, None)
        return rest_s

    def _clear(self, name: bytes) -> None:
        left = (
            msgspec.structs.replace(death, suspects=death.suspects - {name})
            for death in self._deaths
        )
        self._deaths = [death for death in left if death.suspects]

    def _forget(self) -> None:
        now = self._clock()
        self._deaths = [death for death in self._deaths if now - death.at < REMEMBERED_S]


def digest(request: Any) -> bytes:
    """Return a digest of what a request asks."""
    if isinstance(request, Struct):
        names = {field.name for field in msgspec.structs.fields(request)}
        aside: dict[str, Any] = {name: None for name in _ASIDE if name in names}
        if "raw_fields" in names:
            aside["raw_fields"] = {}
        request = msgspec.structs.replace(request, **aside)
    data = msgspec.msgpack.encode((type(request).__name__, request))
    return hashlib.sha256(data).digest()  # processors have instructions for it
