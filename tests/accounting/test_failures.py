"""failures.py: which failures are kept."""

from unilect.accounting.failures import Failure, Failures


def failure(number: int, caller: str = "key-1") -> Failure:
    """The failure of a request."""
    return Failure(
        request_id=f"req_{number}",
        method="POST",
        path="/v1/chat/completions",
        time=float(number),
        status=502,
        duration_ms=1.0,
        caller=caller,
    )


def test_the_last() -> None:
    """The last failures are kept, the latest first, and each is found by its id."""
    failures = Failures(most=3)
    for number in range(5):
        failures.add(failure(number))

    assert ["req_4", "req_3"] == [one.request_id for one in failures.latest(2)]
    assert failures.get("req_2") == failure(2)
    assert failures.get("req_1") is None


def test_strangers() -> None:
    """Requests without a key, however many, do not drive out those of callers."""
    failures = Failures(most=10)
    failures.add(failure(0))
    for number in range(1, 50):
        failures.add(failure(number, caller=""))

    assert failures.get("req_0") is not None
    assert ["req_49", "req_48", "req_0"] == [one.request_id for one in failures.latest(10)]
