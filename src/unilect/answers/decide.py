"""
The decision after a failed attempt, as a function of what is known: who is asked next, or nobody.

1. An invalid request is not retried, nor is one that crashed an engine: it would crash the others, too.
2. A request that was in an engine when it died of another one is sent to the same engine once more, which knows the suspects and lets
   them run one at a time, and again as long as its answer gets further. Where the engine was ended from outside, it is sent to another
   backend, if one has room at once, and to the engine again where that one refuses it.
3. Of an answer that its client has a part of, the next backend makes the rest, where it can. An engine whose second answer is another one
   gets the text so far, once.
"""

from enum import Enum, auto

from msgspec import Struct

from unilect.answers.resume_point import refuses
from unilect.core.errors import (
    AnswerTooLong,
    CheckerUnavailable,
    EngineDied,
    ModelTooLarge,
    QueueTimeout,
    RequestKilledEngine,
    UnilectError,
)
from unilect.scheduling.breaker import is_failure

_ELSEWHERE = frozenset({429, 502, 503, 504})
_MOST_DEATHS = (
    4  # of the engines of a backend for one request, however far its answer came each time
)
#: Errors that another backend would not change, or would suffer from, too; and a client that has waited long enough.
_OF_THE_REQUEST = (AnswerTooLong, CheckerUnavailable, EngineDied, QueueTimeout)


class Next(Enum):
    """The backend that is asked after a failure."""

    NOBODY = auto()
    OTHER = auto()  # one that was not tried, or the fallback's
    OTHER_AS_RETRY = auto()  # the same, at the cost of one of its caller's retries
    OTHER_THEN_SAME = auto()  # the same, and this one again where it refuses
    SAME = auto()
    SAME_WITH_TEXT = auto()  # this one, which gets the text so far instead of making it again
    FIRST = auto()  # the one whose engine was ended from outside


class Standing(Struct):
    """
    The state of a request when an attempt has failed.

    Attributes:
        begun: Its client has a part of the answer.
        resumable: The backend, and others like it, can go on with that part.
        differs: The backend could not go on with the answer, and has failed by that alone.
        has_text: The text so far was sent to an engine already.
        returns: Another backend has it only until its own, whose engine was ended from outside, is back.
        deaths: How often an engine of the backend has died under it.
        progressed: Its answer has got further since the last death.
        present: The backend is still there.
        has_room_elsewhere: Another backend would take it at once.
    """

    begun: bool = False
    resumable: bool = False
    differs: bool = False
    has_text: bool = False
    returns: bool = False
    deaths: int = 0
    progressed: bool = True
    present: bool = True
    has_room_elsewhere: bool = False


def decide(failure: UnilectError, now: Standing) -> Next:
    """Decide who is asked next."""
    if now.differs and not now.has_text:
        return Next.SAME_WITH_TEXT
    if now.returns and (now.differs if now.begun else _is_refused(failure)):
        return Next.FIRST
    if now.begun and (now.differs or not now.resumable):
        return Next.NOBODY
    if isinstance(failure, EngineDied):
        return _after_death(failure, now)
    if not can_be_elsewhere(failure):
        return Next.NOBODY
    # a connection that failed has cost nothing, and what goes on is not for nothing
    is_free = failure.connection_failed or now.begun or not is_failure(failure)
    return Next.OTHER if is_free else Next.OTHER_AS_RETRY


def can_be_elsewhere(failure: UnilectError) -> bool:
    """Return True if another backend may answer what has failed."""
    is_elsewhere = failure.status in _ELSEWHERE or isinstance(failure, ModelTooLarge)
    return is_elsewhere and not isinstance(failure, _OF_THE_REQUEST)


def _is_refused(failure: UnilectError) -> bool:
    """Return True if a backend finds fault with a request that another one has taken."""
    return refuses(failure) and not isinstance(failure, RequestKilledEngine)


def _after_death(died: EngineDied, now: Standing) -> Next:
    """Decide after the death of an engine; a request that kills its engine does so again at the same place."""
    if died.blamed:
        return Next.NOBODY
    same = now.present and now.progressed and now.deaths < _MOST_DEATHS
    if died.from_outside and now.has_room_elsewhere:
        return Next.OTHER_THEN_SAME if same else Next.OTHER
    return Next.SAME if same else Next.NOBODY
