"""
An answer that goes on when its backend fails in the middle of it: what its client has, and what the next backend is asked for.

1. *again*: an engine of ours makes the same answer once more, with the same seed; so does a llama.cpp elsewhere, if the client has seen to
   it that there is one answer only. What the client has is held against it, character by character, and left out. So everything goes
   on, also a tool call, a grammar, thoughts and log probabilities.
2. *text*: a server that continues texts gets what the client has as the beginning of its answer (`resume_point.py`); so does an engine whose second
   answer is another one, since it rounds otherwise beside other requests.

Where neither is possible the request ends with the error of the backend that failed.
"""

import logging
import secrets
from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from typing import TypeAlias

from msgspec.structs import replace

from unilect.answers.resume_point import (
    ResumePoint,
    filter_continuation,
    find_resume_point,
    is_greedy,
    refuses,
)
from unilect.api.backend import Batches, Capabilities
from unilect.api.parameters.rules import honours
from unilect.core.errors import UnilectError
from unilect.core.events import (
    Event,
    Finish,
    Opaque,
    Progress,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from unilect.core.requests import ANY_SEED, TextRequest
from unilect.runtime.context import current_request

log = logging.getLogger("unilect")
_RECENT = 128  # batches that are kept as they are; of older ones only what they say
_Written: TypeAlias = TextDelta | ReasoningDelta | RefusalDelta
_Key: TypeAlias = tuple[int, object]


class DeliveredOutput:
    """
    The part of an answer that the client has.

    Attributes:
        tokens: The number of its tokens.
        logprobs: The number of tokens of each choice whose log probabilities the client has.
        calls: The names of the tool calls, by choice and number.
        finished: The choices that have ended.
        opaque: The number of `Opaque` events, by choice.
        used: The client has the usage.
    """

    def __init__(self) -> None:
        self._recent: list[list[Event]] = []
        self._texts: dict[_Key, list[str]] = {}
        self.tokens = 0
        self.logprobs = Counter[int]()
        self.calls: dict[tuple[int, int], str | None] = {}
        self.finished: set[int] = set()
        self.opaque = Counter[int | None]()
        self.used = False

    def add(self, batch: list[Event]) -> None:
        """Take note of a batch; it costs next to nothing."""
        self._recent.append(batch)
        if len(self._recent) > 2 * _RECENT:
            self._fold(self._recent[:_RECENT])
            del self._recent[:_RECENT]

    def tail(self) -> list[TextDelta]:
        """The last pieces of text."""
        return [event for batch in self._recent for event in batch if type(event) is TextDelta]

    def whole(self) -> "DeliveredOutput":
        """All of it, as it is now; what is told later does not change it."""
        told = DeliveredOutput()
        told._texts = {key: list(pieces) for key, pieces in self._texts.items()}
        told.tokens, told.used = self.tokens, self.used
        told.logprobs, told.opaque = Counter(self.logprobs), Counter(self.opaque)
        told.calls, told.finished = dict(self.calls), set(self.finished)
        told._fold(self._recent)
        return told

    @property
    def texts(self) -> dict[_Key, str]:
        """Texts by choice and kind of event, and the arguments of calls by choice and number, as far as they are folded."""
        return {key: "".join(pieces) for key, pieces in self._texts.items()}

    def _fold(self, batches: Iterable[list[Event]]) -> None:
        """Keep of batches what they say."""
        texts: dict[_Key, list[str]] = {}
        for event in (event for batch in batches for event in batch):
            self.tokens += event.tokens
            match event:
                case TextDelta() | ReasoningDelta() | RefusalDelta():
                    texts.setdefault((event.index, type(event)), []).append(event.text)
                    if type(event) is TextDelta:
                        self.logprobs[event.index] += len(event.logprobs or ())
                case ToolCallDelta():
                    call = (event.index, event.call)
                    self.calls[call] = self.calls.get(call) or event.name
                    texts.setdefault(call, []).append(event.arguments)
                case Finish():
                    self.finished.add(event.index)
                case Opaque():
                    self.opaque[event.index] += 1
                case Usage():
                    self.used = True
        for key, pieces in texts.items():
            self._texts.setdefault(key, []).append("".join(pieces))


_NOTHING = DeliveredOutput()


class Continuation:
    """
    A stream that a backend can go on with where another has failed, as far as its client has it.

    Attributes:
        resumable: The backend that answers, or another, can go on with what the client has; else nothing is kept of that.
        gives_text: Engines get the text so far, too, instead of making it again.
    """

    __slots__ = ("_point", "_seed", "_told", "gives_text", "resumable")

    def __init__(self) -> None:
        self.resumable = self.gives_text = False
        self._point: ResumePoint | None = None
        self._seed: int | None = None
        self._told = _NOTHING

    @property
    def tokens(self) -> int:
        """The number of tokens of the answer that the client has; 0 where no backend could continue the answer."""
        return self._told.whole().tokens

    def begin_attempt(self, can: Capabilities) -> None:
        """A backend is about to answer, which can do so much, and the client has nothing yet; where nobody could go on, nothing is kept."""
        self.resumable = can.resumes is not None
        self._told = DeliveredOutput() if self.resumable else _NOTHING

    def see(self, batch: list[Event]) -> None:
        """The client is about to get a batch."""
        if self.resumable:
            self._told.add(batch)

    @property
    def has_text(self) -> bool:
        """True where the text so far is what the next backend gets, or the last one got."""
        return self.gives_text or self._point is not None

    def build_request(
        self, request: TextRequest, can: Capabilities, lost: UnilectError | None = None
    ) -> TextRequest:
        """
        Return the request for a backend with the capabilities `can`.

        Args:
            lost: The failure that has interrupted the answer, if any has.

        Raises:
            UnilectError: The backend cannot continue the answer: `lost`.
        """
        self._point = None
        if can.resumes is None:
            if lost is not None:
                raise lost
            return request
        drawn = not is_greedy(request) and request.seed in (None, ANY_SEED)
        if not (self.gives_text or can.resumes == "text" or (can.resumes == "both" and drawn)):
            return self._add_seed(request, can, lost) if drawn else request
        if lost is None:
            return request
        told = self._told.whole()
        texts = told.texts
        if texts.keys() <= {(0, TextDelta)} and not (told.finished or told.used):
            text, tail = texts.get((0, TextDelta), ""), self._told.tail()
            self._point = find_resume_point(request, can, text, told.tokens, tail)
        if self._point is None:
            raise lost
        return self._point.request

    def rest(self, batches: Batches, lost: UnilectError) -> Batches:
        """Return the part of a backend's answer that the client does not have, after the failure that has interrupted it."""
        about, why = current_request().request_id, lost.for_log
        log.info("an answer that was interrupted goes on (%s): %s", about, why)
        if self._point is not None:
            return filter_continuation(batches, self._point, lost)
        return filter_replay(batches, self._told.whole(), lost)

    def _add_seed(
        self, request: TextRequest, can: Capabilities, lost: UnilectError | None
    ) -> TextRequest:
        """A request that is drawn by chance, so that its answer can be made again."""
        if honours(can, "seed"):
            self._seed = secrets.randbits(31) if self._seed is None else self._seed
            return replace(request, seed=self._seed)
        if lost is not None:
            raise lost
        return request


async def filter_replay(batches: Batches, told: DeliveredOutput, lost: UnilectError) -> Batches:
    """
    Yield the part of a regenerated answer that the client does not have.

    Raises:
        UnilectError: As the backend; or `lost`, where it refuses a request that another backend accepted, or generates another answer.
    """
    repetition = ReplayFilter(told, lost)
    async with aclosing(batches):
        try:
            async for batch in batches:
                if rest := [new for event in batch if (new := repetition.rest(event)) is not None]:
                    yield rest
        except UnilectError as error:
            if refuses(error):
                raise lost from error
            raise


class ReplayFilter:
    """
    An answer that is made again, held against what its client has of it.

    Args:
        told: What the client has.
        lost: Raised where the answer is another one.
    """

    def __init__(self, told: DeliveredOutput, lost: UnilectError) -> None:
        self._told = told
        self._lost = lost
        self._texts = told.texts
        self._at = Counter[_Key]()
        self._tokens = 0
        self._logprobs = Counter(told.logprobs)
        self._opaque = Counter(told.opaque)
        self._heads = set(told.calls)
        self._left = Counter[int](index for index, _ in told.calls)
        for (index, _), text in self._texts.items():
            self._left[index] += len(text)

    def rest(self, event: Event) -> Event | None:
        """
        Return the new part of an event; None if nothing of it is new.

        Raises:
            UnilectError: It differs from what the client has.
        """
        self._tokens += event.tokens
        match event:
            case Progress():
                return None
            case TextDelta() | ReasoningDelta() | RefusalDelta():
                return self._filter_text(event)
            case ToolCallDelta():
                return self._filter_call(event)
            case Opaque(_, index):
                self._opaque[index] -= 1
                return event if self._opaque[index] < 0 else None
            case Finish(_, index):
                return None if index in self._told.finished else self._new(event, index)
            case Usage():
                return None if self._told.used else event

    def _filter_text(self, event: _Written) -> Event | None:
        """The same of a piece of text: all of it is told, or its beginning, or nothing."""
        at = self._match((event.index, type(event)), event.index, event.text)
        if type(event) is not TextDelta:
            if at == len(event.text):
                return None
            self._new(event, event.index)
            return replace(event, text=event.text[at:]) if at else event
        told = min(self._logprobs[event.index], len(event.logprobs or ()))
        self._logprobs[event.index] -= told
        logprobs = (event.logprobs or [])[told:] or None
        if at == len(event.text) and logprobs is None:
            return None
        self._new(event, event.index)
        if not at and not told:
            return event
        return replace(event, text=event.text[at:], logprobs=logprobs, tokens=self._fresh(event))

    def _filter_call(self, event: ToolCallDelta) -> Event | None:
        """The same of a piece of a tool call; its id is the one that the client knows."""
        key = (event.index, event.call)
        if key not in self._told.calls:
            return self._new(event, event.index)
        if key in self._heads and event.name is not None:
            if event.name != self._told.calls[key]:
                raise self._lost
            self._heads.discard(key)
            self._left[event.index] -= 1
        at = self._match(key, event.index, event.arguments)
        if at == len(event.arguments):
            return None
        self._new(event, event.index)
        tokens = self._fresh(event) if at else event.tokens
        return replace(event, id=None, name=None, arguments=event.arguments[at:], tokens=tokens)

    def _match(self, key: _Key, index: int, text: str) -> int:
        """
        Return the number of characters at the beginning of a text that the client has.

        Raises:
            UnilectError: The client has another text.
        """
        told, at = self._texts.get(key, ""), self._at[key]
        length = min(len(text), len(told) - at)
        if not told.startswith(text[:length], at):
            raise self._lost
        self._at[key] += length
        self._left[index] -= length
        return length

    def _new(self, event: Event, index: int) -> Event:
        """An event of a choice of which all is told; of any other the answer is another one."""
        if self._left[index]:
            raise self._lost
        return event

    def _fresh(self, event: TextDelta | ToolCallDelta) -> int:
        """Return the number of new tokens of an event whose beginning the client has."""
        return min(event.tokens, max(0, self._tokens - self._told.tokens))
