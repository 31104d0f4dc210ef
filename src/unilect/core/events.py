"""
The answer of a model, as a small language of events.

A backend yields batches (lists) of events; dialects encode them; `fold` puts a whole answer together from the same events, so
a streamed and a whole answer cannot disagree. Rules:

1. For each choice index: deltas, then exactly one Finish. After all of them, exactly one Usage.
2. The first ToolCallDelta of a call carries its id and name, later ones only arguments.
3. `Progress` tells the prompt's tokens before the first text, where the backend knows them by then; `tokens` of a piece of the
   answer how many tokens it is made of. So what an answer has used so far is known at any event, and at its end by Usage.
4. What an OpenAI-speaking upstream sent that has no place here travels in `extra` and comes out again unchanged.
5. The classes are final: match on them, do not subclass them.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import DecodeError, Meta, Struct
from msgspec.json import Decoder

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
#: The reasons of an answer that nothing has cut.
ENDED: frozenset[FinishReason | None] = frozenset({"stop", "tool_calls", "function_call"})
_decode_object = Decoder(dict[str, Any]).decode


class TokenLogprob(Struct, frozen=True, gc=False):
    """
    A token and its log probability.

    Attributes:
        token: The token's text.
        logprob: Natural logarithm of its probability.
        bytes: Its UTF-8 bytes, for tokens that are a part of a character.
        top_logprobs: The likeliest tokens at this place, themselves without alternatives.
    """

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list["TokenLogprob"] = []


class Extra(Struct, frozen=True, gc=False):
    """
    Fields of an upstream's chunk that we do not know, by the level they stood on.

    `native` holds what only a client of the upstream's own protocol understands; no other dialect tells it.
    """

    chunk: dict[str, Any] = {}
    choice: dict[str, Any] = {}
    delta: dict[str, Any] = {}
    call: dict[str, Any] = {}
    native: dict[str, Any] = {}


class TextDelta(Struct, frozen=True, gc=False):
    """A piece of the answer's text, of so many tokens. `logprobs` covers the tokens of the piece."""

    text: str
    index: int = 0
    logprobs: list[TokenLogprob] | None = None
    extra: Extra | None = None
    tokens: int = 1


class ReasoningDelta(Struct, frozen=True, gc=False):
    """A piece of what the model thought before its answer, of so many tokens."""

    text: str
    index: int = 0
    extra: Extra | None = None
    tokens: int = 1


class RefusalDelta(Struct, frozen=True, gc=False):
    """A piece of a refusal."""

    text: str
    index: int = 0
    extra: Extra | None = None
    tokens: ClassVar[int] = 1


class ToolCallDelta(Struct, frozen=True, gc=False):
    """
    A piece of a tool call.

    Attributes:
        call: Which call of this choice, from 0.
        id: The call's id, in its first delta only.
        name: The function's name, in its first delta only.
        arguments: A piece of the arguments' JSON text.
        tokens: How many tokens it is made of.
    """

    call: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    index: int = 0
    extra: Extra | None = None
    tokens: int = 1


class Finish(Struct, frozen=True, gc=False):
    """
    The end of one choice.

    Attributes:
        stop: The stop word that ended it: the request's, or one of the model's template; None where none did, or it is not known.
    """

    reason: FinishReason
    index: int = 0
    extra: Extra | None = None
    stop: str | None = None
    tokens: ClassVar[int] = 0


class Usage(Struct, frozen=True, gc=False):
    """
    Tokens used by the whole request, all choices together.

    Attributes:
        reasoning_tokens: Those of `completion_tokens` that are thoughts; None where there are thoughts, and nobody has counted them.
        counters: What else an upstream counts, as its `usage` has it.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = 0
    extra: Extra | None = None
    counters: dict[str, Any] = {}
    tokens: ClassVar[int] = 0


class Opaque(Struct, frozen=True, gc=False):
    """A chunk of an upstream that carries only what we do not know; `index` is None where it had no choice."""

    extra: Extra
    index: int | None = None
    tokens: ClassVar[int] = 0


MOST_TOKENS = 10**12  # that a server is believed to have counted
Count = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


def clamp_tokens(tokens: int) -> int:
    """A count of tokens as another server tells it: below zero it would give budgets back, and huge ones fit into no column."""
    return min(max(tokens, 0), MOST_TOKENS)


class Progress(Struct, frozen=True, gc=False):
    """
    The prompt is being read: `processed` of `total` tokens so far.

    Attributes:
        cached: How many of them were in a cache.
        time_ms: How long it has taken so far, where the backend says it.
    """

    processed: int
    total: int
    cached: int = 0
    time_ms: float = 0.0
    tokens: ClassVar[int] = 0


Event: TypeAlias = (
    TextDelta | ReasoningDelta | RefusalDelta | ToolCallDelta | Finish | Usage | Opaque | Progress
)


#: What servers say of themselves with the first chunk, which may come long before the first token.
_OF_THE_SERVER = frozenset({"system_fingerprint", "service_tier", "id_slot"})


def tells(batch: list[Event]) -> bool:
    """Return True if a batch has a piece of the answer, and not only the progress of the prompt or facts of the server."""
    for event in batch:
        if type(event) is Opaque:
            extra = event.extra
            more = extra.choice or extra.delta or extra.call
            if more or not (extra.chunk.keys() | extra.native.keys()) <= _OF_THE_SERVER:
                return True
        elif type(event) is not Progress:
            return True
    return False


class ToolCall(Struct):
    """A whole tool call; `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str
    extra: dict[str, Any] = {}

    def parse_arguments(self) -> dict[str, Any] | None:
        """The arguments as an object; None where they are no JSON object."""
        try:
            return _decode_object(self.arguments or "{}")
        except (DecodeError, UnicodeError, RecursionError):
            return None


class Choice(Struct):
    """
    One whole answer, while it is folded and after.

    `text`, `reasoning` and `refusal` are None where the model gave none; `stop` is as in Finish.
    """

    index: int
    text: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] = []
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop: str | None = None
    extra: dict[str, Any] = {}
    message_extra: dict[str, Any] = {}
    native: dict[str, Any] = {}


class Answer(Struct):
    """The answer to a whole request."""

    choices: list[Choice]
    usage: Usage
    extra: dict[str, Any] = {}


class Tally:
    """
    The tokens that an answer has used: so far by its events, and in the end by its backend's own count, if there is one.

    Attributes:
        prompt_tokens: Those of the prompt.
        read_tokens: Those of them that are read by now.
        cached_tokens: Those of them that were in a cache.
        completion_tokens: Those of the answer.
        pieces: Those of the answer's pieces, of which its backend's own count may have more.
        said: The backend's own count; None where there is none.
    """

    __slots__ = (
        *("cached_tokens", "completion_tokens", "pieces", "prompt_tokens", "read_tokens", "said"),
    )

    def __init__(self) -> None:
        self.prompt_tokens = self.read_tokens = self.cached_tokens = self.completion_tokens = 0
        self.pieces = 0
        self.said: Usage | None = None

    def add(self, batch: Sequence[Event]) -> None:
        """Count a batch."""
        last = batch[-1]
        # one alone, as where a model's tokens come one at a time; of many, `attrgetter` takes ten times as long
        pieces = last.tokens if len(batch) == 1 else sum([event.tokens for event in batch])
        self.pieces += pieces
        if type(last) is Usage and (last.prompt_tokens or last.completion_tokens):
            self.said = last
            self.prompt_tokens = self.read_tokens = last.prompt_tokens
            self.cached_tokens = last.cached_tokens or 0
            self.completion_tokens = last.completion_tokens
            return
        if self.said is not None:
            return
        if not self.completion_tokens:  # the prompt is told before the answer
            for event in batch:
                if type(event) is Progress:
                    self.prompt_tokens, self.read_tokens = event.total, event.processed
                    self.cached_tokens = event.cached
        self.completion_tokens += pieces

    @property
    def usage(self) -> Usage:
        """All of it."""
        return self.said or Usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens)


class Fold:
    """
    Puts a whole answer together, a batch at a time.

    Text is gathered in lists and joined once, and log probabilities in one list: an answer of n pieces costs O(n).
    """

    def __init__(self) -> None:
        self._choices: dict[int, Choice] = {}
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._arguments: dict[tuple[int, int], list[str]] = {}
        self._calls: dict[tuple[int, int], ToolCall] = {}
        self._usage = Usage(0, 0)
        self._extra: dict[str, Any] = {}

    def add(self, batch: Iterable[Event]) -> None:
        """Take in a batch of events."""
        for event in batch:  # a class pattern costs several times as much as a look at the type
            if type(event) is TextDelta:
                self._texts.setdefault((event.index, "text"), []).append(event.text)
                if event.logprobs is not None:
                    choice = self._choice(event.index)
                    if choice.logprobs is None:
                        choice.logprobs = []  # the event's own list stays as it is
                    choice.logprobs += event.logprobs
            elif type(event) is Finish:
                choice = self._choice(event.index)
                choice.finish_reason, choice.stop = event.reason, event.stop
            elif type(event) is Usage:
                self._usage = event
            elif isinstance(event, Progress):
                continue
            elif type(event) is ToolCallDelta:
                self._tool_call(event)
            elif type(event) is ReasoningDelta:
                self._texts.setdefault((event.index, "reasoning"), []).append(event.text)
            elif type(event) is RefusalDelta:
                self._texts.setdefault((event.index, "refusal"), []).append(event.text)
            if event.extra is not None:
                self._take_extra(event.extra, getattr(event, "index", None))

    def answer(self) -> Answer:
        """The whole answer; its choices are in the order of their indices."""
        for (index, kind), pieces in self._texts.items():
            setattr(self._choice(index), kind, "".join(pieces))
        if self._arguments:
            self._fold_calls()
        choices = [self._choices[index] for index in sorted(self._choices)]
        return Answer(choices, self._usage, self._extra)

    def _fold_calls(self) -> None:
        """Put the tool calls together, in each choice in the order of their numbers."""
        calls: dict[int, list[ToolCall]] = {}
        for key, pieces in sorted(self._arguments.items()):
            self._calls[key].arguments = "".join(pieces)
            calls.setdefault(key[0], []).append(self._calls[key])
        for index, choice in self._choices.items():
            choice.tool_calls = calls.get(index, [])

    def _choice(self, index: int) -> Choice:
        choice = self._choices.get(index)
        if choice is None:  # a choice has dicts of its own: none is made in vain
            choice = self._choices[index] = Choice(index)
        return choice

    def _tool_call(self, event: ToolCallDelta) -> None:
        key = (event.index, event.call)
        call = self._calls.setdefault(key, ToolCall(event.id or "", event.name or "", ""))
        call.id = call.id or event.id or ""
        call.name = call.name or event.name or ""
        self._arguments.setdefault(key, []).append(event.arguments)
        if event.extra is not None:
            _merge(call.extra, event.extra.call)
        self._choice(event.index)

    def _take_extra(self, extra: Extra, index: int | None) -> None:
        _merge(self._extra, extra.chunk)
        if index is not None and (extra.choice or extra.delta or extra.native):
            choice = self._choice(index)
            _merge(choice.extra, extra.choice)
            _merge(choice.native, extra.native)
            _merge(choice.message_extra, extra.delta, texts_grow=True)


def fold(batches: Iterable[Iterable[Event]]) -> Answer:
    """
    The whole answer that these batches tell.

    Args:
        batches: All batches of one answer, in order.
    """
    folding = Fold()
    for batch in batches:
        folding.add(batch)
    return folding.answer()


def _merge(into: dict[str, Any], new: dict[str, Any], texts_grow: bool = False) -> None:
    """Lists of the same name grow, and so do a delta's texts; of anything else the last value counts."""
    for name, value in new.items():
        old = into.get(name)
        both = (type(old), type(value))
        if both == (list, list) or (texts_grow and both == (str, str)):
            into[name] = old + value
        elif value is not None or name not in into:
            into[name] = value
