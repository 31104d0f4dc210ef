"""
Attempts: the backends that one request is sent to, one after the other, until one begins to answer. Requests are retried only here.

The model's backends come first, each once; then those of its fallback, as long as its caller's retries are of use
(`scheduling/retry_budget.py`). Who is asked after a failure is decided in `decide.py`.
"""

import asyncio
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from unilect.answers.decide import Next, Standing, can_be_elsewhere, decide
from unilect.answers.resume import Continuation
from unilect.api.backend import Backend, Capabilities
from unilect.core.errors import (
    BackendTimeout,
    BackendUnavailable,
    EngineDied,
    ModelNotFound,
    UnilectError,
)
from unilect.core.requests import Request
from unilect.models.model import Model
from unilect.runtime.context import Attempt, current_request
from unilect.scheduling.breaker import is_failure
from unilect.scheduling.fair_queue import QueuedBackend
from unilect.scheduling.pool import RoutedRequest
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.scheduling.retry_budget import Retries

FittedT = TypeVar("FittedT")
#: Makes a request fit for a backend of a model that can do so much; raises an error for what it asks of it in vain.
Fit: TypeAlias = Callable[[Model, Capabilities], FittedT]
_NOBODY: Set[PooledBackend] = frozenset()
_NO_DEATHS: Mapping[PooledBackend, tuple[int, int]] = MappingProxyType({})


class Lease(NamedTuple, Generic[FittedT]):
    """
    A started backend in use, as a context manager: it records how the request ended, and releases the backend. An error after which
    another backend is tried ends with the block.

    Attributes:
        attempts: Which it is one of.
        model: The model of the backend.
        member: The backend, as its pool has it.
        backend: The backend, ready, behind its queues, if it has any; `member.backend` is for calls without work for the model.
        can: Its capabilities.
        fitted: The request as it is for this backend.
    """

    attempts: "Attempts[FittedT]"
    model: Model
    member: PooledBackend
    backend: Backend | QueuedBackend
    can: Capabilities
    fitted: FittedT

    def __enter__(self) -> "Lease[FittedT]":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        """True if another backend is to be tried after the error."""
        self.member.release()
        if error is None or isinstance(error, UnilectError):
            return self.attempts.end(self.model, self.member, error)
        return False  # a client that leaves says nothing of the backend


class Attempts(Generic[FittedT]):
    """
    The attempts of one request: a lease of one backend after the other, until one has answered. As a context manager it keeps the
    model running in the block.

    Args:
        model: The requested model.
        fit: As `Fit`.
        request: The request; None for a call about the model, such as to count tokens.
        other: Finds a model by its name, for the fallback; None where that may not answer.
        check_native: Raises an error where something is made up for a backend; those that need nothing are preferred.

    Attributes:
        begun: The client has a part of the answer, as who passes that on says here.
        lost: The failure after which the answer goes on; None where none has interrupted it.
        continuation: How it goes on; None where no backend could make the rest.
        tried: The backends that the request was sent to, or that cannot do what it asks for.
        asked: What they were asked, as their pool has it.
    """

    __slots__ = (
        "_again", "_answered", "_awaited", "_context", "_deaths", "_failure", "_fit", "_home", "_judges", "_leases", "_model", "_other",
        "_requested", "_retries", "_seen", "asked", "begun", "continuation", "lost", "tried",
    )  # fmt: skip

    def __init__(
        self,
        model: Model,
        fit: Fit[FittedT],
        request: Request | None = None,
        *,
        other: Callable[[str], Model] | None = None,
        check_native: Fit[object] | None = None,
    ) -> None:
        self.begun = False
        self.lost: UnilectError | None = None
        self.continuation: Continuation | None = None
        self.tried: set[PooledBackend] = set()
        self.asked = RoutedRequest(request, self.tried)
        self._model = self._requested = model
        self._other, self._fit = other, fit
        self._judges: tuple[Fit[object], ...] = (fit,) if check_native is None else (check_native, fit)  # fmt: skip
        self._seen: tuple[str, ...] = (model.name,)
        self._failure: UnilectError | None = None
        self._again: PooledBackend | None = None
        self._home: PooledBackend | None = (
            None  # whose engine was ended from outside and comes back
        )
        self._awaited: Model | None = None  # which another one stands in for while it is loaded
        self._deaths = _NO_DEATHS
        self._leases = 0
        self._answered = False
        self._context = current_request()
        # where there is nobody else to ask, no retry is counted
        self._retries = self._make_retries() if model.pool.spares else None

    def __enter__(self) -> "Attempts[FittedT]":
        """
        Raises:
            UnilectError: The model takes no requests now, and has no fallback.
        """
        if self._model.successor is not None:
            self._model = self._model.latest
        self._model.acquire()
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
            self._model.release()
            raise

    def _make_retries(self) -> Retries:
        """The retries of the request."""
        return self._requested.pool.retries.request(self._context.caller)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._retries is not None:
            self._retries.settle(None)
        del self._judges, self._fit  # they belong to what holds this: no work for the garbage collector  # fmt: skip
        self._model.release()

    async def lease(self) -> Lease[FittedT] | None:
        """
        Lease the next backend, started; None once one has answered.

        Raises:
            UnilectError: None is left: the error of the last.
        """
        last: UnilectError | None = None
        while not self._answered:
            model = self._model
            deadline = self._context.deadline
            if deadline is not None and asyncio.get_running_loop().time() >= deadline:
                raise BackendTimeout("No backend took the request before its deadline.")
            if not model.open and await self._waits_in_vain(model):
                continue
            several = (
                len(model.pool.members) > 1
            )  # a single one says itself what it is unable to do
            self.tried |= self._unable(model) if several else _NOBODY
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
                    is_ready = await model.start_for_request(member)
                except UnilectError as error:
                    last = error
                    if not model.closed:
                        model.pool.record_result(member, error)
                    self.note(model, member.source, error.for_log)
                else:  # its start may have shown that it is unable
                    if not is_ready:
                        self.tried.discard(member)
                    elif (not several or member not in self._unable(model)) and (
                        lease := self._enter(model, member)
                    ):
                        return lease
                finally:
                    member.release()
        return None

    async def _waits_in_vain(self, model: Model) -> bool:
        """
        Wait until the model of this attempt may be asked; returns True where another one is to be, since it answers meanwhile, or
        is served under its name by now, or since the model can have no place.

        Raises:
            UnilectError: As `_go_on`.
        """
        if self._again is None and self.tried.issuperset(model.pool.members):
            return False  # nothing of it would be asked
        if (other := self._stand_in(model)) is not None:
            model.load_soon()
            self._change_to(other)
            self._awaited = model
            return True
        try:
            await model.wait_until_open(self._context.deadline)
        except UnilectError as error:
            self.note(model, "memory", error.for_log)
            self._go_on(error)
            return True
        if model.closed and model.successor is not None and not self._leases:
            self._change_to(model.latest)
            return True
        return False

    def _stand_in(self, model: Model) -> Model | None:
        """The model that answers while this one is not loaded; None where none does, or where it would have to be loaded, too."""
        name = model.stays.while_loading
        if name is None or self._other is None or self.begun:
            return None
        with suppress(ModelNotFound):
            other = self._other(name)
            able = other.open and (other.runs_here or not other.runs_locally)
            able = able and not other.draining and self._context.may_use(other.name)
            return other if able and other.name not in self._seen else None
        return None

    def _change_to(self, other: Model) -> None:
        """Ask the backends of another model from now on."""
        self.tried.clear()
        self._again = self._home = None
        self._seen += (other.name,)
        self._model.release()
        self._model, self._failure = other, None
        self._model.acquire()
        self.asked.falls_back = self._fallback() is not None

    def _enter(self, model: Model, member: PooledBackend) -> Lease[FittedT] | None:
        """
        Lease a started backend; None where another one is to be tried.

        Raises:
            UnilectError: The request is not fit for it.
        """
        can = member.backend.capabilities
        try:
            fitted = self._fit(model, can)
        except UnilectError as error:  # about the request: it says nothing of the backend
            if self._go_on_after(member, error):
                return None
            raise
        if self.continuation is not None and not self.begun:
            self.continuation.begin_attempt(can)
        model.retries += self._leases > 0
        if model is not self._requested:
            self._requested.fallbacks[model.name] += 1
        self._leases += 1
        return Lease(self, model, member, member.enter(), can, fitted)

    def end(self, model: Model, member: PooledBackend, error: UnilectError | None) -> bool:
        """Record how a lease ended; returns True if another backend is to be tried."""
        if error is None or error is not self.lost:  # that was another backend's
            self.asked.begun = self.begun
            if error is not None:
                self.note(model, member.source, error.for_log)
            if not model.closed:
                model.pool.record_result(member, error, self.asked)
        if error is not None:
            return self._go_on_after(member, error)
        self._answered = True
        if self._retries is not None:
            self._retries.settle(False)
        return False

    def _none_left(self, model: Model, last: UnilectError | None) -> UnilectError:
        """The error where no backend is left to be tried; the troubles of those that were not tried are noted."""
        for one in model.pool.members:
            if one not in self.tried and one.trouble is not None:
                self.note(model, one.source, one.trouble.reason)
        return model.pool.none_left(last)

    def _unable(self, model: Model) -> Set[PooledBackend]:
        """The backends of a model that cannot do what the request asks for."""
        for judge in self._judges:
            if unable := model.pool.unable(partial(judge, model)):
                return unable
        return _NOBODY

    def note(self, model: Model, source: str, reason: str) -> None:
        """Note a backend that cannot take the request, for an operator who asks why it failed."""
        self._context.attempts += (Attempt(model.name, source, reason),)

    def _go_on_after(self, member: PooledBackend, failure: UnilectError) -> bool:
        """Act on what is decided after a failure; returns True if it is retried."""
        self._failure = failure
        if self._retries is not None:
            self._retries.settle(is_failure(failure))
        now = self._judge(member, failure)
        after = decide(failure, now)
        if after is Next.NOBODY:
            return self._return_to_awaited()
        if now.begun and not now.differs:
            self.lost = failure
        if self.continuation is not None:
            # where the first is asked again, it is to make the same answer
            given = self.continuation.gives_text or after is Next.SAME_WITH_TEXT
            self.continuation.gives_text = given and after is not Next.FIRST
        if after is Next.OTHER_AS_RETRY:
            self._take_retry()
        elif after is Next.OTHER_THEN_SAME:
            self.tried.discard(member)  # in case that the other one fails, too
            self._home = member
        elif after is not Next.OTHER:
            self._again, self._failure = member, None
        if after is Next.FIRST:
            self._again, self._home = self._home, None
        return True

    def _judge(self, member: PooledBackend, failure: UnilectError) -> Standing:
        """The state of the request after a failure, and of the backend that failed."""
        answer = self.continuation
        now = Standing(
            begun=self.begun,
            resumable=answer is not None and answer.resumable,
            differs=failure is self.lost,
            has_text=answer is not None and answer.has_text,
            returns=self._home is not None and self._home in self._model.pool.members,
            present=member in self._model.pool.members,
        )
        if isinstance(failure, EngineDied) and not (failure.blamed or now.differs):
            deaths, had = self._deaths.get(member, (0, -1))
            has = 0 if answer is None else answer.tokens
            self._deaths = {**self._deaths, member: (deaths + 1, has)}
            now.deaths, now.progressed = deaths + 1, has > had
            now.has_room_elsewhere = failure.from_outside and self._has_room_elsewhere()
        return now

    def _take_retry(self) -> None:
        """Take a retry of the caller; where none is left, nobody else is asked."""
        self._retries = self._retries or self._make_retries()
        if not self._retries.take():
            self.tried |= set(self._model.pool.members)
            self._other = None

    def _has_room_elsewhere(self) -> bool:
        """True if another backend has room at once; of those that cannot go on with the answer none is asked any more."""
        pool, tried = self._model.pool, set(self.tried)
        if self.begun:
            tried |= {one for one in pool.members if one.backend.capabilities.resumes is None}
        if has_room := pool.has_room(self.asked, tried):
            self.tried |= tried
        return has_room

    def _go_on(self, error: UnilectError) -> None:
        """
        Continue with the backends of the model that another one stands in for in vain, or of the fallback.

        Raises:
            UnilectError: There is no fallback: the error, or that of the only backend; or the client has a part of this model's answer,
                which another model does not go on with: what has interrupted it.
        """
        if self._return_to_awaited():
            return
        if self.lost is not None:
            raise self.lost from error
        if (other := self._fallback() if can_be_elsewhere(error) else None) is None:
            alone = len(self._model.pool.members) == 1
            raise (
                self._failure if alone and self._failure is not None else error
            ) from self._failure
        self._change_to(other)

    def _return_to_awaited(self) -> bool:
        """Wait for the requested model after all, once, where the one that answers meanwhile cannot; false where nothing is waited for."""
        if (model := self._awaited) is None or self.begun:
            return False
        self._awaited = None
        self._change_to(model)
        return True

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


def any_backend(model: Model, can: Capabilities) -> None:
    """Fit for every backend: a call about the model, such as to count tokens."""
