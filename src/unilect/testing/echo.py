"""
`echo:` says what it was told, at a settable pace and with settable faults: for tests of clients, of gateways and of this server.

A token is a character, and its id the character's code point.
"""

import asyncio
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from unilect.backend import BackendSpec, Batches, Capabilities
from unilect.engines.tools.messages import text
from unilect.errors import BackendError, BackendUnavailable, InvalidRequest
from unilect.events import Finish, Progress, TextDelta, Usage
from unilect.requests import ChatRequest, CompletionRequest, Prompt
from unilect.tasks import apart, shared

CAPABILITIES = Capabilities(
    parameters={
        **dict.fromkeys(("max_tokens", "max_completion_tokens", "stop"), "native"),
        **dict.fromkeys(("n", "echo"), "emulated"),
        **dict.fromkeys(("tools", "functions", "logprobs", "best_of", "suffix"), "refused"),
    },
    fans_out=True,
    embeddings=False,
    why_not={"embeddings": "it has none"},
)


class Options(Struct, frozen=True, kw_only=True):
    """
    What `[models.NAME.options]` may hold.

    Attributes:
        text: What is said instead of what it was told.
        load_s: Seconds that a start takes.
        tokens_per_s: The pace of an answer; None for as fast as it is read.
        failing_starts: So many starts fail before one succeeds.
        failing_answers: So many answers break off before one does not.
        breaks_after: Tokens that an answer says before it breaks off.
    """

    text: str | None = None
    load_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    tokens_per_s: Annotated[float, Meta(gt=0)] | None = None
    failing_starts: Annotated[int, Meta(ge=0)] = 0
    failing_answers: Annotated[int, Meta(ge=0)] = 0
    breaks_after: Annotated[int, Meta(ge=0)] = 0


def backend(spec: BackendSpec) -> "Echo":
    """The backend for `echo:`."""
    text = spec.location or None
    options: Options = spec.options
    return Echo(
        options if options.text is not None or text is None else replace(options, text=text)
    )


class Echo:
    """
    Says what it was told.

    Attributes:
        starts: How often it was loaded, or tried to.
    """

    capabilities = CAPABILITIES

    def __init__(self, options: Options | None = None) -> None:
        self.starts = self.answers = 0
        self._options = options or Options()
        self._loading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load once for all who wait, whoever of them leaves; a start that failed is tried anew."""
        task = self._loading
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            self._loading = apart(self._load())
        assert self._loading is not None
        await shared(self._loading)

    async def _load(self) -> None:
        self.starts += 1
        await asyncio.sleep(self._options.load_s)
        if self.starts <= self._options.failing_starts:
            raise BackendUnavailable("The echo cannot be loaded: `failing_starts`.")

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Say the last message, or the prompt, a character at a time."""
        options, self.answers = self._options, self.answers + 1
        breaks = self.answers <= options.failing_answers
        told = (
            _messages(request) if isinstance(request, ChatRequest) else [_text(request.prompts[0])]
        )
        whole = told[-1] if options.text is None else options.text
        prompt = sum(map(len, told))
        ends = [(at, word) for word in request.stop_words if (at := whole.find(word)) >= 0]
        end, stop = min(ends, default=(len(whole), None))
        said = whole[:end][: request.token_limit]
        yield [Progress(prompt, prompt)]
        for count, token in enumerate(said):
            if breaks and count == options.breaks_after:
                break
            await asyncio.sleep(1 / options.tokens_per_s if options.tokens_per_s else 0)
            yield [TextDelta(token)]
        if breaks:
            raise BackendError("The echo broke off: `failing_answers`.")
        finish = Finish("stop", stop=stop) if len(said) == end else Finish("length")
        yield [finish, Usage(prompt, len(said))]

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """The code points of a text."""
        return list(map(ord, text))

    async def detokenize(self, tokens: list[int]) -> str:
        """The text of code points."""
        return _text(tokens)

    async def count_tokens(self, request: ChatRequest | CompletionRequest | Prompt) -> int:
        """The number of characters."""
        if isinstance(request, ChatRequest):
            return sum(map(len, _messages(request)))
        prompts = request.prompts if isinstance(request, CompletionRequest) else [request]
        return sum(map(len, prompts))

    async def aclose(self) -> None:
        """Forget that it was loaded."""
        loading, self._loading = self._loading, None
        if loading is not None:
            loading.cancel()
            await asyncio.wait([loading])


def _text(prompt: Prompt) -> str:
    """
    Raises:
        InvalidRequest: A token is no character.
    """
    if isinstance(prompt, str):
        return prompt
    try:
        text = "".join(map(chr, prompt))
        text.encode()
    except ValueError as error:
        raise InvalidRequest(
            "A token of an echo is the code point of a character; `prompt` holds another number.",
            param="prompt",
        ) from error
    return text


def _messages(request: ChatRequest) -> list[str]:
    """
    The texts of the messages.

    Raises:
        InvalidRequest: One holds something else.
    """
    return [text(one, f"messages[{number}].content") for number, one in enumerate(request.messages)]
