"""Tests of unilect.wire.embeddings: reading an answer, and one request for each input."""

import asyncio
import base64
import struct

import msgspec
import pytest

from unilect.core.errors import BackendError, InvalidRequest
from unilect.core.requests import Embeddings, Prompt
from unilect.wire.embeddings import decode_embeddings, embed_each


def test_base64_embeddings() -> None:
    """Embeddings that come as base64 unasked are read."""
    text = base64.b64encode(struct.pack("<2f", 1.0, -2.5)).decode()

    actual = decode_embeddings(msgspec.json.encode({"data": [{"embedding": text}]}))
    assert [[1.0, -2.5]] == actual.vectors


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"data":[{"embedding":"AAA"}]}',
        b'{"data":[{"embedding":"AAAA"}]}',
        b'{"data":[{"embedding":["x"]}]}',
        b'{"error":{"message":"no"}}',
        b'{"x":' * 100_000,
    ],
)
def test_no_embeddings(body: bytes) -> None:
    """What is no embeddings answer is the backend's error."""
    with pytest.raises(BackendError):
        decode_embeddings(body)


async def test_each_input_has_its_request() -> None:
    """Vectors come in the order of the inputs, tokens are summed, and no more requests run at a time than may."""
    running, most = 0, 0

    async def embed(text: Prompt) -> Embeddings:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5 - len(text)):  # the longer ones are ready first
            await asyncio.sleep(0)
        running -= 1
        return Embeddings([[float(len(text))]], len(text))

    actual = await embed_each(["a", "bb", "ccc"], embed, 2)
    assert (Embeddings([[1.0], [2.0], [3.0]], 6), 2) == (actual, most)


async def test_the_first_failure_is_the_answer() -> None:
    """When one input fails, the requests for the others are given up."""
    given_up = asyncio.Event()

    async def embed(text: Prompt) -> Embeddings:
        if text == "bad":
            raise InvalidRequest("no")
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
        raise AssertionError

    with pytest.raises(InvalidRequest):
        await embed_each(["good", "bad"], embed, 2)
    assert given_up.is_set()


@pytest.mark.parametrize("vectors", [[], [[1.0], [2.0]]])
async def test_not_one_vector(vectors: list[list[float]]) -> None:
    """A server that answers one input with no vector, or with two, is at fault."""

    async def embed(text: Prompt) -> Embeddings:
        return Embeddings(vectors, 1)

    with pytest.raises(BackendError, match="one input"):
        await embed_each(["a"], embed, 1)
