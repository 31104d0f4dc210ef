"""
Failover: the backends that one request is sent to, one after the other, until one begins to answer. Requests are retried only here.

The model's backends first, each once; then those of its fallback. An invalid request is not retried,
nor is a request that crashed an engine: it would crash the others, too.
"""

import asyncio
from collections.abc import Callable

from unilect.errors import BackendUnavailable, CheckerUnavailable, EngineDied, UnilectError
from unilect.requests import Request
from unilect.routing.pool import Asked, Member
from unilect.routing.registry import Model

_ELSEWHERE = frozenset({429, 502, 503, 504})
#: What another backend would not change, or would suffer from, too.
_OF_THE_REQUEST = (CheckerUnavailable, EngineDied)


class Lease:
    """
    A started backend in use, as a context manager: it records how the request ended, and releases the backend.

    Attributes:
        model: Whose backend it is.
        source: Where the backend comes from.
        backend: The backend, ready, behind its concurrency limit, if it has one.
        bare: The backend itself, for calls without work for its model.
        begun: A part of the answer was sent to the client.
    """

    __slots__ = ("_failover", "_member", "backend", "bare", "begun", "model", "source")

    def __init__(self, model: Model, member: Member, failover: "Failover") -> None:
        self.model = model
        self.source = member.source
        self.backend = member.enter()
        self.bare = member.backend
        self.begun = False
        self._member = member
        self._failover = failover

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._member.outstanding -= 1
        # a client that leaves says nothing of the backend
        if error is None or isinstance(error, UnilectError):
            failover = self._failover
            self.model.record_result(
                self._member, error, Asked(failover.request, failover.tried, self.begun)
            )


class Failover:
    """
    The attempts of one request, as a context manager: its model is kept running in the block.

    Args:
        model: The requested model.
        request: The request; None for a call about the model, such as to count tokens.
        other: Finds a model by its name, for the fallback; None if there may be no fallback.

    Attributes:
        request: As given.
        tried: The backends that the request was sent to.
    """

    __slots__ = ("_failure", "_model", "_other", "_seen", "request", "tried")

    def __init__(
        self,
        model: Model,
        request: Request | None = None,
        other: Callable[[str], Model] | None = None,
    ) -> None:
        self.request = request
        self.tried: set[Member] = set()
        self._model = model
        self._other = other
        self._seen = {model.name}
        self._failure: UnilectError | None = None

    def __enter__(self) -> "Failover":
        self._model.arrive()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._model.left()

    async def lease(self) -> Lease:
        """
        Lease the next backend, started.

        Raises:
            UnilectError: No backend is left.
        """
        last: UnilectError | None = None
        while True:
            model = self._model
            if model.stopping is not None:
                await asyncio.shield(model.stopping)
            if model.closed:  # a request that was in it would start it again
                self._go_on(BackendUnavailable("The model was stopped.", retry_after_s=5))
            elif (member := model.pool.choose(self.request, self.tried)) is None:
                self._go_on(model.pool.none_left(last))
                last = None
            else:
                self.tried.add(member)
                member.outstanding += 1
                try:
                    await model.start_for_request(member)
                    return Lease(model, member, self)
                except UnilectError as error:
                    member.outstanding -= 1
                    model.record_result(member, error)
                    last = error
                except BaseException:
                    member.outstanding -= 1
                    raise

    def again(self, failure: UnilectError) -> bool:
        """Whether a request with this error may be retried on another backend."""
        self._failure = failure
        return _elsewhere(failure)

    def _go_on(self, error: UnilectError) -> None:
        """
        Continue with the fallback's backends.

        Raises:
            UnilectError: There is no fallback: the error, or that of the only backend.
        """
        name = self._model.fallback
        if not _elsewhere(error) or self._other is None or name is None or name in self._seen:
            alone = len(self._model.pool.members) == 1
            raise (
                self._failure if alone and self._failure is not None else error
            ) from self._failure
        self._seen.add(name)
        self.tried.clear()
        self._model.left()
        self._model, self._failure = self._other(name), None
        self._model.arrive()


def _elsewhere(error: UnilectError) -> bool:
    return error.status in _ELSEWHERE and not isinstance(error, _OF_THE_REQUEST)
