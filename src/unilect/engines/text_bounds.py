"""
Limits on the length of a text, checked before tokenization.

A tokenizer needs some hundred bytes of memory for each byte of text, and seconds for megabytes; a text that no context can hold is refused
by its size alone. No vocabulary makes less than a token of 32 bytes of ordinary text.
"""

from collections.abc import Iterator

import msgspec

from unilect.core.errors import ContextLengthExceeded, InvalidRequest
from unilect.core.ranking import RerankRequest
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Message,
    Prompt,
    RefusalPart,
    TextPart,
    TextRequest,
)

LEAST_BYTES = 64 * 1024
BYTES_PER_TOKEN = 32


def most_bytes(context: int) -> int:
    """Return the longest text that is tokenized for a model with this context."""
    return max(LEAST_BYTES, BYTES_PER_TOKEN * context)


def check_request(
    request: TextRequest | EmbeddingRequest | RerankRequest | Prompt, context: int
) -> None:
    """
    Raises:
        ContextLengthExceeded: A prompt is far longer than the context, or its token ids are more than that.
    """
    if isinstance(request, ChatRequest):
        size = sum(size_of(text) for text in _texts(request))
        _check(size, context, "messages", "the messages and tools have")
    elif isinstance(request, EmbeddingRequest):
        for text in request.inputs:
            _check_prompt(text, context, "input")
    elif isinstance(request, RerankRequest):  # a document may be cut
        _check_prompt(request.query, context, "query")
    else:
        if isinstance(request, CompletionRequest) and request.suffix:
            _check_prompt(request.suffix, context, "suffix")
        prompts = request.prompts if isinstance(request, CompletionRequest) else [request]
        for prompt in prompts:
            _check_prompt(prompt, context, "prompt")


def check_tokenize(text: str | list[int], context: int) -> None:
    """
    Raises:
        InvalidRequest: A text to be tokenized, or ids to be made a text of, are far longer than the context.
    """
    size, what = (size_of(text), "bytes") if isinstance(text, str) else (len(text), "token ids")
    if size > most_bytes(context):
        raise InvalidRequest(
            f"`prompt` has {size} {what}, and this model takes at most {most_bytes(context)} at a time "
            f"({BYTES_PER_TOKEN} for each of the {context} tokens of its context, or {LEAST_BYTES}). Send it in pieces.",
            param="prompt",
        )


def size_of(text: str) -> int:
    """Return bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def _check_prompt(prompt: Prompt, context: int, param: str) -> None:
    if isinstance(prompt, str):
        _check(size_of(prompt), context, param, "this text has")
    elif len(prompt) > context:
        raise beyond(context, len(prompt), param)


def beyond(context: int, count: int, param: str) -> ContextLengthExceeded:
    """Make the error for a prompt or an input that has more tokens than the context."""
    return ContextLengthExceeded(
        f"This model's maximum context length is {context} tokens, and `{param}` has {count}. Shorten it.",
        param=param,
    ).with_counts(count, context)


def _check(size: int, context: int, param: str, subject: str) -> None:
    if size > most_bytes(context):
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context} tokens, and {subject} {size} bytes, more than the "
            f"{most_bytes(context)} that are read at all: the prompt is too long. Shorten `{param}`.",
            param=param,
        ).with_counts(size // BYTES_PER_TOKEN, context)


def _texts(request: ChatRequest) -> Iterator[str]:
    """Yield all that a template may put into the prompt."""
    for message in request.messages:
        yield from _texts_of(message)
    for more in (request.tools, request.functions, request.chat_template_kwargs):
        if more:
            yield msgspec.json.encode(more).decode()


def _texts_of(message: Message) -> Iterator[str]:
    if isinstance(message.content, list):
        for part in message.content:
            if isinstance(part, TextPart):
                yield part.text
            elif isinstance(part, RefusalPart):
                yield part.refusal
    elif message.content:
        yield message.content
    for text in (message.name, message.refusal, message.reasoning_content, message.reasoning, message.message):  # fmt: skip
        if text:
            yield text
    for call in message.tool_calls or ():
        yield call.function.name
        yield call.function.arguments
    if message.function_call is not None:
        yield message.function_call.arguments
