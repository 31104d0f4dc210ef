"""
Embeddings of OpenAI's API, and of servers that accept one text per request.

Source: https://platform.openai.com/docs/api-reference/embeddings
"""

import asyncio
import base64
from array import array
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import msgspec
from msgspec import Struct

from unilect.core.errors import BackendError
from unilect.core.events import clamp_tokens
from unilect.core.requests import Embeddings, Prompt
from unilect.wire.errors import invalid

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _Vector(Struct):
    embedding: list[float] | str
    index: int = 0


class _Usage(Struct, frozen=True):
    prompt_tokens: int = 0


class _List(Struct):
    data: list[_Vector]
    usage: _Usage = _Usage()


def decode_embeddings(body: bytes) -> Embeddings:
    """
    Return the vectors of an embeddings answer, also if the server sends base64 without a request for it.

    Raises:
        BackendError: The body is not an embeddings answer.
    """
    try:
        answer = msgspec.json.decode(body, type=_List)
        items = sorted(answer.data, key=lambda item: item.index)
        vectors = [vector(item.embedding) for item in items]
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise invalid("an answer without embeddings") from error
    return Embeddings(vectors, clamp_tokens(answer.usage.prompt_tokens))


def vector(given: list[float] | str) -> list[float]:
    """
    Return a vector, also where it comes as base64.

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

    async def one(text: Prompt) -> Embeddings:
        found = await embed(text)
        if len(found.vectors) != 1:
            raise BackendError(
                f"The model's server answered one input with {len(found.vectors)} vectors."
            )
        return found

    parts = await call_each(inputs, one, at_once)
    return Embeddings(
        [part.vectors[0] for part in parts], sum(part.prompt_tokens for part in parts)
    )


async def call_each(
    items: Iterable[_Item], call: Callable[[_Item], Awaitable[_Result]], at_once: int
) -> list[_Result]:
    """
    Call for each item, at most so many at the same time; return the results in the items' order.

    Raises:
        UnilectError: As the first call that fails; the others are cancelled.
    """
    places = asyncio.Semaphore(at_once)

    async def one(item: _Item) -> _Result:
        async with places:
            return await call(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
