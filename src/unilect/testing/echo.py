"""
`echo:` says what it was told, at a settable pace and with settable faults: for tests of clients, of gateways and of this server.

With `answers` it plays a part in a conversation of several turns. Thoughts and calls of tools are text as well, as models of the form
`hermes` write them, and the service reads them: `<think>..</think>`, `<tool_call>{"name": "read", "arguments": {}}</tool_call>`.

A token is a character, and its id the character's code point.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from unilect.api.backend import Backend, BackendSpec, Batches, Capabilities
from unilect.core.errors import (
    BackendError,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
)
from unilect.core.events import Finish, Progress, TextDelta, Usage
from unilect.core.requests import SYSTEM_ROLES, ChatRequest, CompletionRequest, Prompt, TextRequest
from unilect.runtime.tasks import join_shared, spawn_detached
from unilect.tools.messages import text

CAPABILITIES = Capabilities(
    parameters={
        **dict.fromkeys(("max_tokens", "max_completion_tokens", "stop"), "native"),
        **dict.fromkeys(("n", "echo"), "emulated"),
        **dict.fromkeys(("tools", "functions", "logprobs", "best_of", "suffix", "lora"), "refused"),
    },
    fans_out=True,
    embeddings=False,
    why_not={"embeddings": "it has none"},
)


class Scripted(Struct, frozen=True, kw_only=True):
    """
    One of `answers`.

    Attributes:
        text: What is said.
        when: Text that was told since the last answer, by the user or by a tool; empty for whatever was told.
    """

    text: str
    when: str = ""


class Options(Struct, frozen=True, kw_only=True):
    """
    The settings in `[models.NAME.options]`.

    Attributes:
        text: The answer, instead of a copy of the last message or prompt.
        answers: Scripted answers, of which the first that fits is sent. Where none fits, it is as if there were none.
        context: The most tokens of prompt and answer together; None for no limit.
        load_s: Seconds that a start takes.
        tokens_per_s: The pace of an answer; None for as fast as it is read.
        failing_starts: The number of starts that fail before one succeeds.
        failing_answers: The number of answers that break off before one does not.
        breaks_after: Tokens that an answer says before it breaks off.
    """

    text: str | None = None
    answers: list[Scripted] = []
    context: Annotated[int, Meta(ge=1)] | None = None
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


class Echo(Backend):
    """
    Says what it was told.

    Attributes:
        starts: How often it was loaded, or tried to.
    """

    capabilities = CAPABILITIES  # of one without options

    def __init__(self, options: Options | None = None) -> None:
        self.starts = self.answers = 0
        self._options = options or Options()
        self.capabilities = replace(
            self.capabilities,
            context=self._options.context,
            tool_form="hermes" if self._options.answers else "",
        )
        self._loading: asyncio.Task[None] | None = None
        self._loaded = False

    async def start(self) -> None:
        """Load once for all who wait, whoever of them leaves; a start that failed is tried anew."""
        if self._loaded:
            return
        task = self._loading
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            self._loading = spawn_detached(self._load())
        assert self._loading is not None
        await join_shared(self._loading)

    async def _load(self) -> None:
        self.starts += 1
        await asyncio.sleep(self._options.load_s)
        if self.starts <= self._options.failing_starts:
            raise BackendUnavailable("The echo cannot be loaded: `failing_starts`.")
        self._loaded = True

    async def generate(self, request: TextRequest) -> Batches:
        """Say the last message, or the prompt, a character at a time."""
        options, self.answers = self._options, self.answers + 1
        breaks = self.answers <= options.failing_answers
        told = _texts(request)
        whole = _find_script(options.answers, request, told) if options.answers else None
        if whole is None:
            whole = told[-1] if options.text is None else options.text
        prompt = sum(map(len, told))
        limit = request.token_limit
        if options.context is not None:
            room = _room(prompt, options.context)
            limit = room if limit is None else min(room, limit)
        end, stop = len(whole), None
        for word in sorted(request.stop_words):
            if 0 <= (at := whole.find(word)) < end:
                end, stop = at, word
        said = whole[: end if limit is None else min(end, limit)]
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

    async def count_tokens(self, request: TextRequest | Prompt) -> int:
        """The number of characters."""
        if isinstance(request, ChatRequest):
            return sum(map(len, _texts(request)))
        prompts = request.prompts if isinstance(request, CompletionRequest) else [request]
        return sum(map(len, prompts))

    async def aclose(self) -> None:
        """Forget that it was loaded."""
        loading, self._loading, self._loaded = self._loading, None, False
        if loading is not None:
            loading.cancel()
            await asyncio.wait([loading])


def _room(prompt: int, context: int) -> int:
    """
    The most tokens that an answer to so many can have.

    Raises:
        ContextLengthExceeded: There is no room for one.
    """
    if prompt >= context:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context} tokens, and the prompt has {prompt}. "
            "Shorten the prompt, or set another `context` in the options of the echo."
        ).with_counts(prompt, context)
    return context - prompt


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


def _texts(request: TextRequest) -> list[str]:
    """
    The texts of the messages, or that of the first prompt.

    Raises:
        InvalidRequest: One holds something else.
    """
    if not isinstance(request, ChatRequest):
        return [_text(request.prompts[0])]
    texts = []
    for number, message in enumerate(request.messages):
        said = message.content
        texts.append(said if isinstance(said, str) else text(message, f"messages[{number}].content"))  # fmt: skip
    return texts


def _find_script(answers: Sequence[Scripted], request: TextRequest, told: list[str]) -> str | None:
    """The text of the first answer that fits; None where none does."""
    new = told
    if isinstance(request, ChatRequest):
        roles = [message.role for message in request.messages]
        begin = max((at for at, role in enumerate(roles, 1) if role == "assistant"), default=0)
        turn = list(zip(roles, told, strict=True))[begin:]
        new = [said for role, said in turn if role not in SYSTEM_ROLES]
    return next(
        (one.text for one in answers if not one.when or any(one.when in said for said in new)), None
    )
