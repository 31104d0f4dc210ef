"""
A bounded queue before a backend that answers a limited number of requests at a time, served fairly (`scheduling/fair_order.py`).

1. A request that finds a place free, while nobody waits, goes at once, and costs next to nothing.
2. Where the queue is full, a caller that has fewer requests in it than another takes the place of that one's newest. So one caller can
   fill it for itself only (429), and others are refused only where so many callers wait that each has one request in it (503).
3. What the requests that run have used so far is charged whenever a place is given away, and the rest when they end, also where their
   client has left.
4. A request that is answered in parts, such as `n` choices, is admitted once: one of its parts waits at a time, and those after the first
   are neither refused nor pushed out. So a request may have more parts than the queue has places to wait.
5. Who waits is a future, and one owner sets its result: a turn, or why there is none. A request that was cancelled in the moment of
   its turn gives the place back.
"""

import asyncio
import math
import time
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from unilect.api.backend import Backend, Batches, Capabilities
from unilect.core.errors import (
    BackendUnavailable,
    QueueFull,
    QueueTimeout,
    TooManyWaiting,
    UnilectError,
)
from unilect.core.events import Event, Tally, Usage
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import (
    ChatRequest,
    EmbeddingRequest,
    Embeddings,
    TextRequest,
)
from unilect.runtime.context import Push, current_request
from unilect.scheduling.fair_order import FairOrder, QueuedRequest

#: A token of an answer takes a step of its own, and those of a prompt are read together.
ANSWER_WEIGHT = 4
_NEW = 0.2  # how much the last request weighs in a mean


class Queue(NamedTuple):
    """
    The requests that wait for a model.

    Attributes:
        length: How many.
        wait_s: Seconds until all of them have had their turn, as the last answers tell; None where there were none.
    """

    length: int
    wait_s: float | None


class QueueSettings(Struct, frozen=True):
    """
    The configured limits of a queue.

    Attributes:
        max_in_flight: The most requests that the backend gets at a time; None for the backend's own limit.
        max_queue: The most waiting requests.
        timeout_s: The longest wait of one request.
    """

    max_in_flight: int | None = None
    max_queue: int = 512
    timeout_s: float = 600.0


class _Waiting(QueuedRequest, eq=False, kw_only=True):
    """
    A request, from its coming to its end.

    Attributes:
        queue: Where it waits.
        used: What it has used of the backend.
        began_s: When it was given its place.
        turn: Is done when its turn has come, or when it has waited in vain.
        charged: How much of what it has used its caller was charged.
    """

    queue: "FairQueue"
    used: Tally
    began_s: float
    turn: asyncio.Future[None] | None = None
    charged: int = 0

    @property
    def position(self) -> int:
        """As `context.Queued.position`; 0 where it does not wait any more."""
        waits = self.turn is not None and not self.turn.done()
        return self.queue.position(self) if waits else 0

    @property
    def wait_s(self) -> float | None:
        """As `context.Queued.wait_s`."""
        interval_s = self.queue.interval_s
        return None if interval_s is None else self.position * interval_s

    def refuse(self, error: UnilectError) -> None:
        """It has waited in vain."""
        if self.turn is not None and not self.turn.done():
            self.turn.set_exception(error)


class Parts:
    """
    A request that is answered in parts, each of which takes a place of its own.

    Attributes:
        turn: Held by the one that waits.
        begun: One of them has had a place.
        aged: As of a ticket, once one of them was.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.begun = self.aged = False


class FairQueue:
    """
    The requests that wait for one backend.

    Args:
        places: How many it answers at a time.
        settings: The operator's.

    Attributes:
        places: As given; one that grows is used with the next request.
    """

    def __init__(self, places: int, settings: QueueSettings | None = None) -> None:
        self.places = places
        self._settings = settings or QueueSettings()
        self._order = FairOrder()
        self._is_calm = True  # the last request that came went at once: the order is not kept, and all debts are off
        self._running: set[_Waiting] = set()
        self._mean_s: float | None = None  # for which a request has a place
        self._mean = 1.0  # what a request uses

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._order)

    @property
    def interval_s(self) -> float | None:
        """Seconds between two turns while all places are taken, as the last requests tell; None where there were none."""
        return None if self._mean_s is None else self._mean_s / self.places

    @property
    def taken(self) -> int:
        """The number of places that are taken."""
        return len(self._running)

    @property
    def has_room(self) -> bool:
        """True while a place is free and no request waits for it."""
        return not self._order.length and len(self._running) < self.places

    def position(self, ticket: QueuedRequest) -> int:
        """The place of one that waits in the order as it is now."""
        return self._order.position(ticket, max(1, round(self._mean)))

    async def enter_part(self, parts: Parts) -> _Waiting:
        """A place for a part of the current request, as `enter` gives it; the first is admitted for all."""
        async with parts.turn:
            ticket = await self.enter(parts)
            parts.begun, parts.aged = True, ticket.aged
            return ticket

    async def enter(self, parts: Parts | None = None) -> _Waiting:
        """
        A place for the current request, once it is its turn; to be given back by `leave`.

        Args:
            parts: The request, where this is a part of it.

        Raises:
            TooManyWaiting: The queue is full, and the caller's share of it, too.
            QueueFull: The queue is full.
            QueueTimeout: Its time is up.
            BackendUnavailable: The model was stopped meanwhile.
        """
        context, now_s = current_request(), time.monotonic()
        ticket = _Waiting(context.caller, now_s, context.priority < 0, queue=self, used=Tally(), began_s=now_s)  # fmt: skip
        if self.has_room:
            self._is_calm = True
            self._running.add(ticket)
            return ticket
        if self._is_calm:
            self._order, self._is_calm = FairOrder(self._running), False
        if parts is not None and parts.begun:
            ticket.begun, ticket.aged = True, parts.aged
        else:
            self._make_room(ticket.caller)
        ticket.turn = asyncio.get_running_loop().create_future()
        self._order.add(ticket)
        self._give()  # there may be more places than there were
        await self._turn(ticket, ticket.turn)
        return ticket

    def leave(self, ticket: _Waiting) -> None:
        """A request has ended, however it has."""
        self._running.discard(ticket)
        self._charge(ticket)
        if not self._is_calm:
            self._order.end(ticket)
        if ticket.charged:  # one that failed at once says nothing of others
            held_s = time.monotonic() - ticket.began_s
            mean_s = held_s if self._mean_s is None else self._mean_s
            self._mean_s = mean_s + _NEW * (held_s - mean_s)
            self._mean += _NEW * (ticket.charged - self._mean)
        if self._order.length:
            self._give()

    def dismiss(self) -> None:
        """The model is stopped: who waits need not wait longer."""
        while (ticket := self._order.next(-math.inf)) is not None:
            assert isinstance(ticket, _Waiting)
            ticket.refuse(BackendUnavailable("The model was stopped. Try again.", retry_after_s=5))

    async def _turn(self, ticket: _Waiting, turn: asyncio.Future[None]) -> None:
        """Wait for a turn; raises as `enter`."""
        context, loop = current_request(), asyncio.get_running_loop()
        timer = loop.call_later(self._settings.timeout_s, self._expire, ticket)
        context.queued = ticket
        try:
            await turn
        except asyncio.CancelledError:
            self._order.discard(ticket)
            if not turn.cancelled() and turn.exception() is None:
                self.leave(ticket)  # it was its turn, and it left in the same moment
            raise
        finally:
            timer.cancel()
            if context.queued is ticket:
                context.queued = None

    def _expire(self, ticket: _Waiting) -> None:
        self._order.discard(ticket)
        ticket.refuse(
            QueueTimeout(
                f"The request waited {self._settings.timeout_s:g} s for its turn, which is as long as a request may wait for this model. Send it "
                "again later, or send fewer at a time.",
                retry_after_s=self._retry_after_s(1),
            )
        )

    def _give(self) -> None:
        """Give the places that are free to those who are next."""
        if not self._order or len(self._running) >= self.places:
            return
        now_s = time.monotonic()
        for running in self._running:
            self._charge(running)
        while len(self._running) < self.places:
            ticket = self._order.next(now_s)
            if ticket is None:
                return
            assert isinstance(ticket, _Waiting)
            assert ticket.turn is not None
            if not ticket.turn.done():  # else it was cancelled in this moment
                self._order.begin(ticket)
                self._running.add(ticket)
                ticket.began_s = now_s
                ticket.turn.set_result(None)

    def _make_room(self, caller: str) -> None:
        """Have a place in the queue for a request of a caller; raises as `enter`."""
        waiting = len(self._order)
        if waiting < self._settings.max_queue:
            return
        mine = self._order.waiting_for(caller)
        own = TooManyWaiting(
            f"The model's queue is full: {waiting} requests wait, and your share of it is taken by your own. Wait for some of them to "
            "end, or send fewer at a time.",
            retry_after_s=self._retry_after_s(max(1, self._order.callers)),
        )
        last = self._order.newest_of_most() if self._order.most > mine + 1 else None
        if last is not None and not last.begun:
            assert isinstance(last, _Waiting)
            self._order.discard(last)
            last.refuse(own)
        elif mine:
            raise own
        else:
            raise QueueFull(
                f"The model's queue is full: {waiting} requests of other callers wait. Send the request again later.",
                retry_after_s=self._retry_after_s(1),
            )

    def _retry_after_s(self, turns: int) -> float | None:
        """Seconds in which so many requests have their turn; None where nobody knows."""
        return None if self.interval_s is None else max(1.0, turns * self.interval_s)

    def _charge(self, ticket: _Waiting) -> None:
        """
        Charge what a request has used since it was charged last: `ANSWER_WEIGHT` for a token of its answer, one for a token of its prompt that
        is read by now and was not cached. A count that was too high is not given back.
        """
        used = ticket.used
        read = max(0, used.read_tokens - used.cached_tokens)
        new = read + ANSWER_WEIGHT * used.completion_tokens - ticket.charged
        if new > 0:
            ticket.charged += new
            if not self._is_calm:
                self._order.charge(ticket, new)


class QueuedBackend:
    """
    A backend behind queues.

    Args:
        backend: The backend.
        answers: For those who want an answer.
        vectors: For embeddings and rankings: another one, where the backend makes them beside its answers.
    """

    def __init__(
        self, backend: Backend, answers: FairQueue, vectors: FairQueue | None = None
    ) -> None:
        self._backend = backend
        self._parts: Parts | None = None
        self._answers = answers
        self._vectors = answers if vectors is None else vectors  # an empty queue is false

    @property
    def capabilities(self) -> Capabilities:
        """The backend's capabilities."""
        return self._backend.capabilities

    @property
    def places(self) -> int:
        """The limit of simultaneous answers."""
        return self._answers.places

    def in_parts(self) -> "QueuedBackend":
        """The same for one request, all of whose answers are parts of it."""
        one = QueuedBackend(self._backend, self._answers, self._vectors)
        one._parts = Parts()
        return one

    async def generate(self, request: TextRequest) -> Batches:
        """Answer a request, when its turn has come; one whose client leaves before that is never sent."""
        calls = isinstance(request, ChatRequest) and request.tools
        if calls or request.grammar or request.response_format is not None:
            await self._backend.compile(request)  # may take long, or refuse it: no place meanwhile
        if self._parts is not None:
            ticket = await self._answers.enter_part(self._parts)
        else:
            ticket = await self._answers.enter()
        used, context = ticket.used, current_request()
        if (push := context.push) is not None:
            context.push = partial(_push_counted, push, used)
        try:
            batches = self._backend.generate(request)
            try:  # as `aclosing`, at half of its price
                async for batch in batches:
                    used.add(batch)
                    yield batch
            finally:
                await batches.aclose()
        finally:
            self._answers.leave(ticket)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request, when its turn has come."""
        ticket = await self._vectors.enter()
        try:
            found = await self._backend.embed(request)
            ticket.used.add([Usage(found.prompt_tokens, 0)])
            return found
        finally:
            self._vectors.leave(ticket)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Score the documents of a request, when its turn has come."""
        ticket = await self._vectors.enter()
        try:
            found = await self._backend.rerank(request)
            ticket.used.add([Usage(found.prompt_tokens, 0)])
            return found
        finally:
            self._vectors.leave(ticket)


def _push_counted(push: Push, used: Tally, batch: list[Event]) -> bool:
    """Push a batch that the queue counts, too."""
    if is_taken := push(batch):  # else it comes by the reader
        used.add(batch)
    return is_taken
