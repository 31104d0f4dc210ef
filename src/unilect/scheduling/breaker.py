"""
A circuit breaker: whether a backend gets requests that another backend can answer.

An error of the request says nothing about the backend. A rate-limited backend gets no requests for its `Retry-After`, which
is not a failure. An unreachable backend is out until a probe succeeds, and so is one that failed `FAILURES`
times in a row, each time for another caller. The breaker has no clock and sends no probes: its pool probes the backend
while the breaker is open, and attributes failures.
"""

from collections.abc import Hashable

from unilect.core.errors import (
    AnswerTooLong,
    BackendUnavailable,
    BackendUnreachable,
    CheckerUnavailable,
    ConstraintViolated,
    EngineDied,
    QueueFull,
    QueueTimeout,
    RateLimited,
    TooManyWaiting,
    UnilectError,
)

FAILURES = 5
REST_S = 1.0  # for a backend that is busy and does not say how long
MAX_REST_S = 30.0
#: What a request did to an engine of ours, which says nothing of how others fare.
OF_THE_REQUEST = (EngineDied,)
#: What no backend has said: what it was asked to answer was not even sent, or its answer was not what it must be, or too long.
OURS = (
    *(AnswerTooLong, CheckerUnavailable, ConstraintViolated),
    *(TooManyWaiting, QueueFull, QueueTimeout),
)


def is_failure(error: UnilectError) -> bool:
    """Return True if the backend may be at fault: not if it is busy, nor for an error of the request."""
    if error.connection_failed:
        return True
    return error.status >= 502 and not isinstance(error, (BackendUnavailable, *OF_THE_REQUEST))


class Breaker:
    """
    The breaker of one backend. Times are seconds of one clock, given by the caller.

    Attributes:
        failed: The requests, or callers, of its failures since its last answer.
        open: The backend gets no requests.
        unreachable: The backend cannot be connected to.
    """

    def __init__(self) -> None:
        self.failed: set[Hashable] = set()
        self._rests_until = 0.0
        self.open = False
        self.unreachable = False

    def allows(self, now_s: float) -> bool:
        """True when requests may go to the backend."""
        return not self.open and now_s >= self._rests_until

    def cooldown_s(self, now_s: float) -> float:
        """The rest of its `Retry-After`; 0 if it has none."""
        return max(0.0, self._rests_until - now_s)

    def close(self) -> None:
        """The backend is healthy: a request was answered, or a probe succeeded."""
        self.failed.clear()
        self.open = self.unreachable = False

    def record_result(self, error: UnilectError, now_s: float, whose: Hashable = None) -> None:
        """
        Record how a request ended, or an attempt to start the backend.

        Args:
            whose: The request, or its caller: all failures of the same one count once. None: counts separately.
        """
        if isinstance(error, OURS):
            return  # which say nothing of the backend
        if isinstance(error, BackendUnreachable):
            self.open = self.unreachable = True
        elif isinstance(error, RateLimited | BackendUnavailable):
            cooldown_s = REST_S if error.retry_after_s is None else error.retry_after_s
            self._rests_until = now_s + min(cooldown_s, MAX_REST_S)
        elif isinstance(error, OF_THE_REQUEST):
            pass  # the engine is started again, and says so where it cannot be
        elif is_failure(error):
            self.failed.add(object() if whose is None else whose)
            self.open = self.open or len(self.failed) >= FAILURES
        else:
            self.failed.clear()
