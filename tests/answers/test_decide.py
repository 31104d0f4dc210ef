"""Tests of unilect.answers.decide: who is asked after a failure."""

from typing import Any

import pytest

from unilect.answers.decide import Next, Standing, decide
from unilect.core.errors import (
    AnswerTooLong,
    BackendError,
    BackendTimeout,
    BackendUnreachable,
    EngineDied,
    InvalidRequest,
    QueueFull,
    RequestKilledEngine,
    UnilectError,
)

FAILED = BackendError("failed")


def died(**how: bool) -> EngineDied:
    """An engine's death."""
    error = EngineDied("died")
    for name, value in how.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("failure", "now", "after"),
    [
        (FAILED, {}, Next.OTHER_AS_RETRY),
        (BackendTimeout("slow"), {}, Next.OTHER_AS_RETRY),
        (BackendUnreachable("away"), {}, Next.OTHER),
        (QueueFull("full"), {}, Next.OTHER),
        (InvalidRequest("wrong"), {}, Next.NOBODY),
        (AnswerTooLong("long"), {}, Next.NOBODY),
        (RequestKilledEngine("yours"), {}, Next.NOBODY),
        (FAILED, {"begun": True, "resumable": True}, Next.OTHER),
        (FAILED, {"begun": True}, Next.NOBODY),
        (FAILED, {"begun": True, "resumable": True, "differs": True}, Next.SAME_WITH_TEXT),
        (FAILED, {"begun": True, "resumable": True, "differs": True, "has_text": True}, Next.NOBODY),
        (died(), {"deaths": 1}, Next.SAME),
        (died(), {"deaths": 1, "begun": True}, Next.NOBODY),
        (died(), {"deaths": 2, "progressed": False}, Next.NOBODY),
        (died(), {"deaths": 4}, Next.NOBODY),
        (died(), {"deaths": 1, "present": False}, Next.NOBODY),
        (died(), {"deaths": 1, "has_room_elsewhere": True}, Next.SAME),
        (died(blamed=True), {"deaths": 1}, Next.NOBODY),
        (died(from_outside=True), {"deaths": 1}, Next.SAME),
        (died(from_outside=True), {"deaths": 1, "has_room_elsewhere": True}, Next.OTHER_THEN_SAME),
        (died(from_outside=True), {"deaths": 4, "has_room_elsewhere": True}, Next.OTHER),
        (InvalidRequest("no"), {"returns": True}, Next.FIRST),
        (RequestKilledEngine("yours"), {"returns": True}, Next.NOBODY),
        (FAILED, {"returns": True}, Next.OTHER_AS_RETRY),
        (FAILED, {"returns": True, "begun": True, "differs": True, "has_text": True}, Next.FIRST),
    ],
)  # fmt: skip
def test_who_is_asked_next(failure: UnilectError, now: dict[str, Any], after: Next) -> None:
    """What a failure says, and what the client has already, decide who is asked next."""
    assert after is decide(failure, Standing(**now))
