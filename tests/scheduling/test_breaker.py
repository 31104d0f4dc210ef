"""Tests of unilect.scheduling.breaker."""

import pytest

from unilect.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    BackendUnreachable,
    EngineDied,
    InvalidRequest,
    QueueFull,
    QueueTimeout,
    RateLimited,
    TooManyWaiting,
    UnilectError,
)
from unilect.scheduling.breaker import FAILURES, MAX_REST_S, REST_S, Breaker


@pytest.mark.parametrize("error", [BackendError("x"), BackendTimeout("x")])
def test_failures_in_a_row_open_it(error: UnilectError) -> None:
    """Only as many failures as `FAILURES` in a row open it; one success begins the count anew."""
    breaker = Breaker()
    for _ in range(FAILURES - 1):
        breaker.record_result(error, 0)
    breaker.close()
    for _ in range(FAILURES - 1):
        breaker.record_result(error, 0)
    assert breaker.allows(0)
    breaker.record_result(error, 0)

    assert not breaker.allows(1e9)


def test_nobody_there_opens_it_at_once() -> None:
    """A backend that cannot be reached gets nothing more until it is seen to be well."""
    breaker = Breaker()
    breaker.record_result(BackendUnreachable("x"), 0)
    assert not breaker.allows(1e9)
    breaker.close()

    assert breaker.allows(0)


def test_a_bad_request_is_no_failure() -> None:
    """What the backend says of a request is an answer: it never opens, and ends a row of failures."""
    breaker = Breaker()
    for _ in range(FAILURES - 1):
        breaker.record_result(BackendError("x"), 0)
    for _ in range(100):
        breaker.record_result(InvalidRequest("x"), 0)
    breaker.record_result(BackendError("x"), 0)

    assert breaker.allows(0)


@pytest.mark.parametrize(
    ("error", "cooldown_s"),
    [
        (RateLimited("x", retry_after_s=7), 7),
        (BackendUnavailable("x"), REST_S),
        (RateLimited("x", retry_after_s=1e6), MAX_REST_S),
    ],
)
def test_overload_is_a_rest(error: UnilectError, cooldown_s: float) -> None:
    """A backend that is over its limit rests as long as it says, within bounds, and is asked again without being looked at."""
    breaker = Breaker()
    breaker.record_result(error, 100)

    assert (False, cooldown_s, False) == (
        breaker.allows(100),
        breaker.cooldown_s(100),
        breaker.open,
    )
    assert breaker.allows(100 + cooldown_s)


def test_one_requests_failures_count_once() -> None:
    """Failures of the same request, or caller, are one failure; those of as many as `FAILURES` open it."""
    breaker = Breaker()
    for _ in range(100):
        breaker.record_result(BackendError("x"), 0, "a")
    assert breaker.allows(0)
    for whose in range(FAILURES - 1):
        breaker.record_result(BackendTimeout("x"), 0, whose)

    assert not breaker.allows(0)


@pytest.mark.parametrize(
    "error", [TooManyWaiting("x", retry_after_s=9), QueueFull("x"), QueueTimeout("x")]
)
def test_what_our_queue_says(error: UnilectError) -> None:
    """A queue that refuses a request says nothing of the backend behind it, which neither rests nor fails for it."""
    breaker = Breaker()
    for whose in range(100):
        breaker.record_result(error, 0, whose)

    assert breaker.allows(0)


def test_a_request_that_kills_an_engine_is_no_failure() -> None:
    """An engine that ended on a request is started again, and is worth asking."""
    breaker = Breaker()
    for whose in range(100):
        breaker.record_result(EngineDied("x"), 0, whose)

    assert breaker.allows(0)
