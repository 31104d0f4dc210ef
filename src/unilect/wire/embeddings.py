"""
Embeddings of OpenAI's API, and of servers that accept one text per request.

Source: https://platform.openai.com/docs/api-reference/embeddings
"""

import asyncio
import base64
from array import array
from collections.abc import Awaitable, Callable, Iterable

import msgspec
from msgspec import Struct

from unilect.core.errors import BackendError
from unilect.core.events import believed
from unilect.core.requests import Embeddings, Prompt


class _Item(Struct):
    embedding: list[float] | str
    index: int = 0


class _Usage(Struct, frozen=True):
    prompt_tokens: int = 0


class _List(Struct):
    data: list[_Item]
    usage: _Usage = _Usage()


def decode_embeddings(body: bytes) -> Embeddings:
    """
    The vectors of an embeddings answer, also if the server sends base64 without a request for it.

    Raises:
        BackendError: The body is not an embeddings answer.
    """
    try:
        answer = msgspec.json.decode(body, type=_List)
        items = sorted(answer.data, key=lambda item: item.index)
        vectors = [vector(item.embedding) for item in items]
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BackendError(
            "The model's server sent an answer without embeddings. Try again, or ask its operator."
        ) from error
    return Embeddings(vectors, believed(answer.usage.prompt_tokens))


def vector(given: list[float] | str) -> list[float]:
    """
    A vector, also where it comes as base64.

    Raises:
        ValueError: It is none.
    """
    return given if isinstance(given, list) else list(array("f", base64.b64decode(given)))


async def embed_each(
    inputs: Iterable[Prompt], embed: Callable[[Prompt], Awaitable[Embeddings]], at_once: int
) -> Embeddings:
    """
    Embed several inputs, one request each: llama.cpp returns wrong vectors for several in one request.

    Args:
        embed: Embeds one input.
        at_once: The number of concurrent requests.

    Raises:
        UnilectError: As the first of `embed` that fails; the others are cancelled.
        BackendError: An answer does not have exactly one vector.
    """
    places = asyncio.Semaphore(at_once)

    async def one(text: Prompt) -> Embeddings:
        async with places:
            found = await embed(text)
        if len(found.vectors) != 1:
            raise BackendError(
                f"The model's server answered one input with {len(found.vectors)} vectors."
            )
        return found

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(text)) for text in inputs]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    parts = [task.result() for task in tasks]
    return Embeddings(
        [part.vectors[0] for part in parts], sum(part.prompt_tokens for part in parts)
    )
