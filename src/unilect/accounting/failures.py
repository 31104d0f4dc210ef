"""
The failed requests of late, for the operator who asks why one has failed: in memory, bounded in number and in bytes.

A failure says what a client was told, what each backend has said before, and who asked; it has nothing of a prompt or an answer.
"""

from collections import deque
from collections.abc import Iterator
from heapq import merge
from itertools import islice

from msgspec import Struct

MOST_FAILURES = 1_000
MOST_ATTEMPTS = 8
MOST_CHARACTERS = 300  # of a sentence; names have a hundred


class AttemptFailure(Struct, frozen=True, gc=False):
    """
    An attempt at a backend that failed.

    Attributes:
        model: Whose backend it is: the model that was asked for, or its fallback.
        backend: Its source.
        reason: A sentence.
    """

    model: str
    backend: str
    reason: str


class Failure(Struct, frozen=True, gc=False, kw_only=True):
    """
    A request that failed.

    Attributes:
        request_id, method, path, caller, address: Of the request; `address` is the client's.
        time: When it ended, in seconds since 1970.
        model: What it asked for; empty where that could not be read.
        answering, backend: The model and the backend that it was sent to last; empty where it was sent to none.
        status: Of the answer's head; 499 where the client left first.
        code, param, reason: Of the error, the last as a sentence; empty where the client left.
        ended: How an answer ended that had begun, or a request that was not answered: `client`, `operator`, or `error CODE`.
        duration_ms: From the request to its end.
        attempts: The backends that failed before.
    """

    request_id: str
    method: str
    path: str
    time: float
    status: int
    duration_ms: float
    caller: str = ""
    address: str = ""
    model: str = ""
    answering: str = ""
    backend: str = ""
    code: str = ""
    param: str = ""
    reason: str = ""
    ended: str = ""
    attempts: tuple[AttemptFailure, ...] = ()


class Failures:
    """The last failures of a server; those of who has no key are kept apart, so that a stranger does not drive out the others."""

    def __init__(self, most: int = MOST_FAILURES) -> None:
        self._of_callers = deque[Failure](maxlen=most)
        self._of_strangers = deque[Failure](maxlen=max(1, most // 5))

    def add(self, failure: Failure) -> None:
        """Keep a failure; the oldest goes where there are too many."""
        (self._of_callers if failure.caller else self._of_strangers).append(failure)

    def get(self, request_id: str) -> Failure | None:
        """Return the failure of a request; None where it did not fail, or long ago."""
        return next((one for one in self._all() if one.request_id == request_id), None)

    def latest(self, most: int) -> list[Failure]:
        """Return the last failures, the latest first."""
        return list(islice(self._all(), most))

    def _all(self) -> Iterator[Failure]:
        kept = (reversed(self._of_callers), reversed(self._of_strangers))
        return merge(*kept, key=lambda one: -one.time)
