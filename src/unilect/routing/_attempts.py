"""
The backends that one request is sent to, one after the other, until one begins to answer.

Its model's backends first, each once; then those of the model's fallback. What is wrong with the request itself is not tried
elsewhere, and neither is a request that an engine of ours died of: it would take the others with it.
"""

from unilect.errors import CheckerUnavailable, EngineDied, UnilectError
from unilect.requests import Request
from unilect.routing.pool import Member
from unilect.routing.registry import Lease, Model, Registry

_ELSEWHERE = frozenset({429, 502, 503, 504})
#: What another backend would not change, or would suffer from, too.
_OF_THE_REQUEST = (CheckerUnavailable, EngineDied)


class Attempts:
    """
    The attempts of one request.

    Args:
        registry: Where fallbacks are looked up.
        model: The model that was asked for.
        request: The request.
        falls_back: The model's fallback may answer, too.
    """

    __slots__ = ("_failure", "_falls_back", "_model", "_registry", "_request", "_seen", "_tried")

    def __init__(
        self, registry: Registry, model: Model, request: Request, falls_back: bool = True
    ) -> None:
        self._registry = registry
        self._model = model
        self._request = request
        self._falls_back = falls_back
        self._tried: set[Member] = set()
        self._seen = {model.name}
        self._failure: UnilectError | None = None

    async def next(self) -> Lease:
        """
        Lease the next backend.

        Raises:
            UnilectError: None is left.
        """
        while True:
            try:
                return await self._model.acquire(self._request, self._tried)
            except UnilectError as error:
                alone = len(self._model.pool.members) == 1
                failure = self._failure if alone and self._failure is not None else error
                if not _elsewhere(error) or not self._fall_back():
                    raise failure from self._failure

    def again(self, failure: UnilectError) -> bool:
        """Whether a request that failed so may be sent to another backend."""
        self._failure = failure
        return _elsewhere(failure)

    def _fall_back(self) -> bool:
        name = self._model.fallback
        if not self._falls_back or name is None or name in self._seen:
            return False
        self._seen.add(name)
        self._tried.clear()
        self._model, self._failure = self._registry.get(name), None
        return True


def _elsewhere(error: UnilectError) -> bool:
    return error.status in _ELSEWHERE and not isinstance(error, _OF_THE_REQUEST)
