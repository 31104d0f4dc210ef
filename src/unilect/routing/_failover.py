"""
Failover: the backends that one request is sent to, one after the other, until one begins to answer. Requests are retried only here.

The model's backends first, each once; then those of its fallback, as long as its caller's retries are of use
(`routing/_retry_budget.py`). An invalid request is not retried, nor is a request that
crashed an engine: it would crash the others, too. A request that was in an engine when it died of another one is sent to the same
engine once more, which knows the suspects and lets them run one at a time, and again as long as its answer gets further; where the engine was ended from outside, to another backend,
if one has room at once, and to the engine again where that one refuses it. Of an answer that its client has a part of, the next backend of the same model makes the rest, where it can
(`_resume.py`).
"""

import asyncio
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from unilect.backend import Capabilities
from unilect.context import Attempt, in_hand
from unilect.errors import (
    AnswerTooLong,
    BackendUnavailable,
    CheckerUnavailable,
    EngineDied,
    ModelNotFound,
    QueueTimeout,
    RequestKilledEngine,
    UnilectError,
)
from unilect.requests import Request
from unilect.routing._asked import Asked
from unilect.routing._breaker import is_failure
from unilect.routing._resume import WHOLE, Continuation
from unilect.routing._retry_budget import Retries
from unilect.routing._seam import refuses
from unilect.routing.pool import Member
from unilect.routing.registry import Model

_ELSEWHERE = frozenset({429, 502, 503, 504})
_Asked = TypeVar("_Asked")
_NOBODY: Set[Member] = frozenset()
_NO_DEATHS: Mapping[Member, tuple[int, int]] = MappingProxyType({})
_MOST_DEATHS = (
    4  # of the engines of a backend for one request, however far its answer came each time
)
#: What another backend would not change, or would suffer from, too; and where the client has waited long enough.
_OF_THE_REQUEST = (AnswerTooLong, CheckerUnavailable, EngineDied, QueueTimeout)


class Lease:
    """
    A started backend in use, as a context manager: it records how the request ended, and releases the backend. An error after which
    another backend is tried ends with the block.

    Attributes:
        model: Whose backend it is.
        source: Where the backend comes from.
        backend: The backend, ready, behind its queues, if it has any.
        bare: The backend itself, for calls without work for its model.
    """

    __slots__ = ("_failover", "_judging", "_member", "backend", "bare", "model", "source")

    def __init__(self, model: Model, member: Member, failover: "Failover") -> None:
        self.model = model
        self.source = member.source
        self.backend = member.enter()
        self.bare = member.backend
        self._judging = False
        if failover.continuation is not WHOLE:
            failover.continuation.leased(member.backend.capabilities)
        self._member = member
        self._failover = failover
        if model is failover.uncounted:
            failover.uncounted = None
        else:
            failover.count(model)

    def __enter__(self) -> "Lease":
        return self

    def judged(self, judge: Callable[[Model, Capabilities], _Asked], can: Capabilities) -> _Asked:
        """What is asked of the backend; errors of the judge are about the request, and say nothing of a backend that was not asked."""
        self._judging = True
        request = judge(self.model, can)
        self._judging = False
        return request

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        """Whether another backend is to be tried after the error."""
        self._member.release()
        if error is not None and not isinstance(error, UnilectError):
            return False  # a client that leaves says nothing of the backend
        failover, continuation = self._failover, self._failover.continuation
        # that of before was another backend's failure
        if not self._judging and (error is None or error is not continuation.lost):
            failover.asked.begun = continuation.begun
            if error is not None:
                failover.note(self.model, self.source, error.for_log)
            self.model.record_result(self._member, error, failover.asked)
        return failover.goes_on(self._member, error)


class Failover:
    """
    The attempts of one request: a lease of one backend after the other, until one has answered. As a context manager it keeps the
    model running in the block.

    Args:
        model: The requested model.
        request: The request; None for a call about the model, such as to count tokens.
        other: Finds a model by its name, for the fallback; None where that may not answer.
        judges: Each raises an error for what the request asks of a model's backend in vain; where one of them tells backends apart,
            the later ones are not asked.
        continuation: What the client has of the answer; by default nothing until it has all.

    Attributes:
        request, continuation: As given.
        tried: The backends that the request was sent to, or that cannot do what it asks for.
        asked: What they were asked, as their pool has it.
        uncounted: The model whose lease is no retry and no fallback: the one that was asked for, until the first lease.
    """

    __slots__ = (
        "_again", "_answered", "_asked", "_context", "_deaths", "_failure", "_home", "_judges", "_model", "_other",
        "_retries", "_seen", "asked", "continuation", "request", "tried", "uncounted",
    )  # fmt: skip

    def __init__(
        self,
        model: Model,
        request: Request | None = None,
        other: Callable[[str], Model] | None = None,
        *judges: Callable[[Model, Capabilities], object],
        continuation: Continuation | None = None,
    ) -> None:
        self.request = request
        self.continuation = continuation or Continuation()
        self.tried: set[Member] = set()
        self.asked = Asked(request, self.tried)
        self._model = self._asked = model
        self.uncounted: Model | None = model
        self._other = other
        self._judges = judges
        self._seen: tuple[str, ...] = (model.name,)
        self._failure: UnilectError | None = None
        self._again: Member | None = None
        self._home: Member | None = None  # whose engine was ended from outside and comes back
        self._deaths = _NO_DEATHS
        self._answered = False
        self._context = in_hand()
        # where there is nobody else to ask, no retry is counted
        self._retries = self._earned() if model.pool.spares else None

    def __enter__(self) -> "Failover":
        """
        Raises:
            UnilectError: The model takes no requests now, and has no fallback.
        """
        if self._model.successor is not None:
            self._model = self._model.latest
        self._model.arrive()
        self.asked.falls_back = bool(self._model.fallback and self._fallback())
        if self._model.draining:
            self._leave_drained()
        return self

    def _leave_drained(self) -> None:
        """Go on to a model that takes requests; raises as `__enter__`."""
        told = "The model takes no requests now: an operator has it drained. Try again later."
        try:
            self._go_on(BackendUnavailable(told, retry_after_s=5))
        except UnilectError:
            self._model.left()
            raise

    def _earned(self) -> Retries:
        """The retries of the request."""
        return self._asked.pool.retries.request(self._context.caller)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._retries is not None:
            self._retries.ended(None)
        self._judges = ()  # they belong to what holds this: no work for the garbage collector
        self._model.left()

    def __aiter__(self) -> "Failover":
        return self

    async def __anext__(self) -> Lease:
        """The next backend, started, until one has answered; if none is left, the error of the last."""
        last: UnilectError | None = None
        while not self._answered:
            model = self._model
            self._context.check_deadline()
            if model.stopping is not None:
                await asyncio.shield(model.stopping)
            self.tried |= self._unable(model)
            if model.closed:  # a request that was in it would start it again
                self._go_on(
                    BackendUnavailable("The model was stopped. Try again.", retry_after_s=5)
                )
            elif (member := self._again or model.pool.choose(self.asked)) is None:
                self._go_on(self._none_left(model, last))
                last = None
            else:
                self._again = None
                self.tried.add(member)
                member.outstanding += 1  # already while it is started
                try:
                    await model.start_for_request(member)
                    if member not in self._unable(model):  # its start may have shown that it is
                        return Lease(model, member, self)
                except UnilectError as error:
                    last = error
                    model.record_result(member, error)
                    self.note(model, member.source, error.for_log)
                finally:
                    member.release()
        raise StopAsyncIteration

    def _none_left(self, model: Model, last: UnilectError | None) -> UnilectError:
        """The error where no backend is left to be tried; the troubles of those that were not tried are noted."""
        for one in model.pool.members:
            if one not in self.tried and one.trouble is not None:
                self.note(model, one.source, one.trouble.reason)
        return model.pool.none_left(last)

    def _unable(self, model: Model) -> Set[Member]:
        """The backends of a model that cannot do what the request asks for; a single one says so itself."""
        if len(model.pool.members) > 1:
            for judge in self._judges:
                if unable := model.pool.unable(partial(judge, model)):
                    return unable
        return _NOBODY

    def count(self, model: Model) -> None:
        """Count a lease of a backend: a further one of this request, or of another model than the one that was asked for."""
        if self.uncounted is None:
            model.retries += 1
        self.uncounted = None
        if model is not self._asked:
            self._asked.fallbacks[model.name] += 1

    def note(self, model: Model, source: str, reason: str) -> None:
        """Note a backend that cannot take the request, for an operator who asks why it failed."""
        self._context.attempts += (Attempt(model.name, source, reason),)

    def goes_on(self, member: Member, failure: UnilectError | None) -> bool:
        """Record how an attempt ended; whether its failure is retried."""
        self._failure, self._answered = failure, failure is None
        if self._retries is not None:
            self._retries.ended(failure is not None and is_failure(failure))
        if failure is None:
            return False
        if self.continuation.turns(failure):
            self._again, self._failure = member, None
            return True
        if self._home is not None and self._is_refusal(failure):
            return self._goes_home(self._home)
        if not self.continuation.fails(failure):
            return False
        if isinstance(failure, EngineDied) and not failure.blamed:
            comes_back = self._comes_back(member)
            elsewhere = failure.from_outside and self._has_room_elsewhere()
            if comes_back and elsewhere:
                self.tried.discard(member)  # in case that the other one fails, too
                self._home = member
            elif comes_back:
                self._again = member
            if comes_back or elsewhere:
                self._failure = None
                return True
        free = (
            failure.connection_failed or self.continuation.begun
        )  # what goes on is not for nothing
        if is_failure(failure) and not free:
            self._retries = self._retries or self._earned()
            if not self._retries.take():
                self.tried |= set(self._model.pool.members)  # nobody else is asked
                self._other = None
        return _elsewhere(failure)

    def _is_refusal(self, failure: UnilectError) -> bool:
        """Whether a backend cannot go on with the answer, or finds fault with a request that another one has taken."""
        if self.continuation.begun:
            return failure is self.continuation.lost
        return refuses(failure) and not isinstance(failure, RequestKilledEngine)

    def _goes_home(self, home: Member) -> bool:
        """Have the backend asked again that had the request when its engine was ended; whether there is still such a one."""
        self._home = None
        if home not in self._model.pool.members:
            return False
        self.continuation.returns()
        self._again, self._failure = home, None
        return True

    def _comes_back(self, member: Member) -> bool:
        """
        Whether a backend whose engine has died is to be asked once more: after a first death, and after a further one if the client
        has got more of the answer since, since a request that kills its engine does so again at the same place.
        """
        deaths, told = self._deaths.get(member, (0, -1))
        told_now = self.continuation.tokens
        self._deaths = {**self._deaths, member: (deaths + 1, told_now)}
        goes_on = told_now > told and deaths + 1 < _MOST_DEATHS
        return goes_on and member in self._model.pool.members

    def _has_room_elsewhere(self) -> bool:
        """Whether another backend has room at once; of those that cannot go on with the answer none is asked any more."""
        pool, tried = self._model.pool, set(self.tried)
        if self.continuation.begun:
            tried |= {one for one in pool.members if one.backend.capabilities.resumes is None}
        if has_room := pool.has_room(self.asked, tried):
            self.tried |= tried
        return has_room

    def _go_on(self, error: UnilectError) -> None:
        """
        Continue with the fallback's backends.

        Raises:
            UnilectError: There is no fallback: the error, or that of the only backend; or the client has a part of this model's answer,
                which another model does not go on with: what has interrupted it.
        """
        if self.continuation.lost is not None:
            raise self.continuation.lost from error
        if (other := self._fallback() if _elsewhere(error) else None) is None:
            alone = len(self._model.pool.members) == 1
            raise (
                self._failure if alone and self._failure is not None else error
            ) from self._failure
        self.tried.clear()
        self._again = self._home = None
        self._seen += (other.name,)
        self._model.left()
        self._model, self._failure = other, None
        self._model.arrive()
        self.asked.falls_back = self._fallback() is not None

    def _fallback(self) -> Model | None:
        """
        The next model that takes requests and that the caller may use; none where another one may not answer, or where it was taken
        out meanwhile.
        """
        model, seen = self._model, self._seen
        with suppress(ModelNotFound):
            while self._other and model.fallback:
                model = self._other(model.fallback)
                if model.name in seen:
                    return None
                if not model.draining and self._context.may_use(model.name):
                    return model
                seen = (*seen, model.name)
        return None


def _elsewhere(error: UnilectError) -> bool:
    return error.status in _ELSEWHERE and not isinstance(error, _OF_THE_REQUEST)
