"""
The current request, for what lies too deep to be given it: who asks, whose failure it is, which request a line of the log is about,
and what the request's own line tells in the end.

The guard makes a context for each request; whatever runs for that request, in its task or in one that it has started, finds it.
Work that belongs to nobody's request is started with `tasks.spawn_detached`, and sets a context of its own where it asks a model.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, TypeAlias

from msgspec import Struct, field

from unilect.core.errors import UnilectError
from unilect.core.events import Event, Usage

#: As `Context.push`.
Push: TypeAlias = Callable[[list[Event]], bool]


class Measured(Protocol):
    """
    The meter of a request.

    Attributes:
        finish_reason: The `finish_reason` of the last choice that has ended; empty before that.
        first_token_s: Seconds from the request to its first token; None before that.
    """

    finish_reason: str
    first_token_s: float | None

    @property
    def usage(self) -> Usage:
        """The tokens that the answer has used so far."""

    def hold(self, prompt: int, completion: int) -> None:
        """Count so many tokens more, or less, of what was made and is not told."""


BATCH = -1  # the priority of requests that others may overtake


class Queued(Protocol):
    """A request that waits for its turn at a backend."""

    @property
    def position(self) -> int:
        """Its place in the order as it is now, 1 for the next; those who come later may be served before."""

    @property
    def wait_s(self) -> float | None:
        """Seconds until its turn, as far as the last answers tell; None where there were none."""


class Lease(Protocol):
    """A part of something bounded that a request has while it lasts."""

    def release(self) -> None:
        """Give it back. Idempotent."""


class Rates(Protocol):
    """The price of a million tokens of a model, in any currency."""

    @property
    def prompt(self) -> float:
        """Of the prompt, without those from a cache."""

    @property
    def cached(self) -> float:
        """Of the prompt, from a cache."""

    @property
    def completion(self) -> float:
        """Of the answer."""


class Attempt(NamedTuple):
    """
    An attempt at a backend that failed, or that was not made because the backend is out.

    Attributes:
        model: Whose backend it is.
        source: Where it comes from.
        reason: A sentence for the log, which may quote the request.
    """

    model: str
    source: str
    reason: str


class Context(Struct, eq=False, kw_only=True):
    """
    The state of one request.

    Attributes:
        request_id: The request's id, as the client and the access log have it.
        address: The client's, without the port; empty where it has none.
        caller: The name of the caller's key; empty where it is not known.
        models: The names of the models that the caller may use; None for all.
        owner: The owner of the key; empty where it has none.
        limits: The limits of the caller's key, by name.
        at: The time when it came, in seconds since 1970, as its row of the ledger has it; None where it has none.
        endpoint: The endpoint that was called, as metrics name it.
        dialect: The API that was called.
        priority: `BATCH`, or less, for one that gives way to others that wait for a backend, for a time.
        body: Its large body's part of the memory for all of them; None where the body is not large. What outlives the request takes it over.
        queued: Its place in the queue; None where it does not wait.
        stage: Tells what it waits for before a backend is ready; None where it has waited for nothing.
        deadline: The event loop's time after which the request is sent to no backend any more; None for never.
        started: The time when the request came, by `time.perf_counter`.
        model: The requested model; empty until it is known.
        answering: The model that answers: its fallback, where that is another one.
        source: The source of the answering backend.
        price: The price of the requested model at that time; None where it is free.
        leased_at: The time when a started backend was ready for the request, by `time.perf_counter`; None before that.
        meter: The request's meter.
        task: The task that answers it; None where nobody may cancel it.
        ended: The reason why unilect ended it; None where it did not.
        failure: The error that its client got instead of an answer, or of the rest of one; None where it got none.
        attempts: The backends that have failed on it, in order.
        held: Its client has left, and its answer waits for the same request (`answers/inflight.py`), which takes it off the list.
        lowered: The limit of tokens that a backend has lowered to what fits; empty where none has.
        allowed: The most tokens of each answer that the caller's limits leave, where the request names no limit; None for any.
        most: The most tokens that its answers may be counted to have together; an answer beyond is ended.
        headers: Headers of every answer to the request, such as what is left of the caller's limits.
        push: Delivers a batch of the answer to its client while the task that answers waits for it; false where the task must take it. None
            where each batch must pass the task. It is called outside of the request: `current_request` may be another one there.
        trace: The request's trace; None where there is none.
        trace_headers: The lines of W3C's trace context, for the head of a request to an upstream; empty where nothing is traced.
    """

    request_id: str = ""
    address: str = ""
    caller: str = ""
    models: frozenset[str] | None = None
    owner: str = ""
    limits: Mapping[str, float] = {}
    at: float | None = None
    endpoint: str = ""
    dialect: str = ""
    priority: int = 0
    body: Lease | None = None
    queued: Queued | None = None
    stage: Callable[[], str] | None = None
    deadline: float | None = None
    started: float = field(default_factory=time.perf_counter)
    model: str = ""
    answering: str = ""
    source: str = ""
    price: Rates | None = None
    leased_at: float | None = None
    meter: Measured | None = None
    task: asyncio.Task[object] | None = None
    ended: UnilectError | None = None
    failure: UnilectError | None = None
    attempts: tuple[Attempt, ...] = ()
    held: bool = False
    lowered: str = ""
    allowed: int | None = None
    most: float = math.inf
    headers: Mapping[str, str] = {}
    push: Push | None = None
    trace: Any = None
    trace_headers: bytes = b""

    @property
    def state(self) -> str:
        """`reading` its body, `queued` for its turn, `waiting` for its first token, `answering`, or `held` without a client."""
        if self.held:
            return "held"
        if self.queued is not None:
            return "queued"
        if self.meter is None:
            return "reading"
        return "waiting" if self.meter.first_token_s is None else "answering"

    def may_use(self, model: str) -> bool:
        """Return True for a model that the caller may use, by its name, which is no alias."""
        return self.models is None or model in self.models

    def set_model(self, model: str, meter: Measured) -> None:
        """Begin the request for a model."""
        self.model = self.answering = model
        self.meter = meter
        self.at, self.most = None, math.inf

    def set_backend(self, model: str, source: str) -> None:
        """Note the backend that is about to answer."""
        self.answering = model
        self.source = source
        self.leased_at = time.perf_counter()

    def fails(self, error: UnilectError) -> None:
        """Note the error that the client gets, without its traceback, which holds the request."""
        self.failure = error.alone()

    def end(self, error: UnilectError) -> None:
        """End the request, with what its client is told; nothing where it has ended already, or answers nobody."""
        if self.ended is None and self.task is not None and not self.task.done():
            self.ended = error
            self.task.cancel()


def explain_cancellation(error: BaseException) -> BaseException:
    """
    Return the reason why the current request ended: for a cancellation that `Context.end` has caused its reason, and the task may go on then; else
    the error itself, such as where the client has left, or the server cancels it.
    """
    context = current_request()
    if context.ended is None or not isinstance(error, asyncio.CancelledError):
        return error
    return error if context.task is None or context.task.uncancel() else context.ended


#: The requests of a server that are being answered, by their ids, the oldest first.
Requests = dict[str, Context]
CURRENT_REQUEST: ContextVar[Context | None] = ContextVar("current_request", default=None)


def current_request() -> Context:
    """Return the context of the request that this task answers; outside of a request an empty one."""
    return CURRENT_REQUEST.get() or Context()


#: The caller's name where no key is required.
ANONYMOUS = "anonymous"


def cache_owner() -> str:
    """Return the caller of the current request, as caches tell callers apart; all who need no key are one."""
    return current_request().caller or ANONYMOUS
