"""
OpenAI's chunks and whole answers as they come, for the decoder: Structs that forbid unknown fields, which costs half of decoding a dict.

A whole answer has the shape of a chunk, whose delta is called `message`.

Source: https://platform.openai.com/docs/api-reference/chat-streaming
"""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, field

from unilect.core.events import Count, Extra, Progress, TokenLogprob
from unilect.wire.normalize import EXTRA, STOP, VERBOSE


class FunctionDelta(Struct, forbid_unknown_fields=True, gc=False):
    """A function's name, or a piece of its arguments."""

    name: str | None = None
    arguments: str | None = None


class ToolDelta(Struct, forbid_unknown_fields=True, gc=False):
    """A piece of a tool call."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None
    extra: dict[str, Any] = field(default={}, name=EXTRA)


class Delta(Struct, forbid_unknown_fields=True, gc=False):
    """A piece of a message; servers have two names for what the model thinks."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolDelta] | None = None
    function_call: FunctionDelta | None = None


class Logprobs(Struct, gc=False):
    """Chats have `content`, completions the other four."""

    content: list[TokenLogprob] | None = None
    refusal: list[TokenLogprob] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int] | None = None


class Choice(Struct, forbid_unknown_fields=True, gc=False):
    """A piece of one answer: `delta` in chats, `text` in completions."""

    index: int = 0
    delta: Delta | None = None
    text: str | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop: str | None = field(default=None, name=STOP)


class PromptDetails(Struct, forbid_unknown_fields=True, gc=False):
    """The details of the prompt's tokens."""

    cached_tokens: Count | None = None


class CompletionDetails(Struct, forbid_unknown_fields=True, gc=False):
    """The details of the answer's tokens."""

    reasoning_tokens: int | None = None


class UsageField(Struct, forbid_unknown_fields=True, gc=False):
    """Tokens used so far."""

    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    total_tokens: Count = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    extra: dict[str, Any] = field(default={}, name=EXTRA)


class ProgressField(Struct, gc=False):
    """The progress of llama.cpp in reading the prompt, in tokens."""

    total: Count
    processed: Count
    cache: Count = 0
    time_ms: float = 0.0

    @property
    def event(self) -> Progress:
        """The event that tells it."""
        return Progress(self.processed, self.total, self.cache, self.time_ms)


class Verbose(Struct, forbid_unknown_fields=True, gc=False):
    """The part of llama-server's own view of an answer that is asked for."""

    stopping_word: str
    truncated: bool | UnsetType = UNSET


class Chunk(Struct, forbid_unknown_fields=True, gc=False):
    """The data of one frame; the last two fields are llama-server's, and no part of OpenAI's format."""

    choices: Sequence[Choice] = ()
    usage: UsageField | None = None
    id: str | None = None
    object: str | None = None
    created: float | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_progress: ProgressField | None = None
    timings: dict[str, Any] | None = None
    verbose: Verbose | None = field(default=None, name=VERBOSE)

    def extras(self) -> Sequence[Extra | None]:
        """Return the fields beside OpenAI's, as those of the first choice; the stop word becomes the choices'."""
        if self.timings is None and self.verbose is None:
            return ()
        beside: dict[str, Any] = {} if self.timings is None else {"timings": self.timings}
        if self.verbose is not None:
            if self.verbose.truncated is not UNSET:
                beside[VERBOSE] = {"truncated": self.verbose.truncated}
            for choice in self.choices:
                choice.stop = self.verbose.stopping_word or None
        return [Extra(beside), *[None] * (len(self.choices) - 1)] if beside else ()


#: Those that are read only as llama-server sends them; of any other form they are passed on.
BESIDE = frozenset({"timings", VERBOSE})


class Message(Delta, forbid_unknown_fields=True, gc=False):
    """A whole message; calls have to be numbered first."""

    tool_calls: Annotated[list[ToolDelta], Meta(max_length=0)] | None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None
    audio: None = None


class WholeChoice(Choice, forbid_unknown_fields=True, gc=False):
    """A choice of a whole answer; `None` is what servers say of what they do not use."""

    delta: Message | None = field(default=None, name="message")
    stop_reason: None = None
    token_ids: None = None


class Whole(Chunk, forbid_unknown_fields=True, gc=False, kw_only=True):
    """A whole answer of one choice, without anything unusual."""

    choices: Annotated[Sequence[WholeChoice], Meta(min_length=1, max_length=1)]
    prompt_progress: None = None
    prompt_logprobs: None = None
    prompt_token_ids: None = None
    kv_transfer_params: None = None
