"""Tests of images with a projector on llama.cpp itself: a tiny model and a tiny encoder with random weights; the answers are noise, the counts are not."""

import base64
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from support.clients.callers import of
from support.models import tiny_gguf
from unilect.config.server import ModelConfig
from unilect.core.errors import ContextLengthExceeded, InvalidRequest
from unilect.core.events import Answer, Fold
from unilect.core.requests import ChatRequest, ImagePart, ImageUrl, Message, Part, TextPart
from unilect.engines.gguf.engine import GgufEngine

OF_AN_IMAGE = 4  # tokens: 28 by 28 pixels in patches of 14
TEXT = TextPart("the cat is on")
BEFORE = 20  # tokens before the first image, at most
#: Pixels of a picture by its column and row.
BLACK, WHITE = (lambda x, y: (0, 0, 0)), (lambda x, y: (255, 255, 255))


def picture(
    color: Callable[[int, int], tuple[int, int, int]], width: int = 28, height: int = 28
) -> ImagePart:
    """A part with a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # fmt: skip

    rows = b"".join(b"\0" + b"".join(bytes(color(x, y)) for x in range(width)) for y in range(height))  # fmt: skip
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")  # fmt: skip
    return ImagePart(ImageUrl(f"data:image/png;base64,{base64.b64encode(png).decode()}"))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[GgufEngine]:
    """A model that reads images, whose callers are kept apart."""
    projector = tiny_gguf.make_projector(tmp_path / "p.gguf")
    config = ModelConfig(mmproj=str(projector), context=256, parallel=1)
    made = GgufEngine("v", tiny_gguf.make(tmp_path / "m.gguf"), config, several_callers=True)
    try:
        await made.start()
        yield made
    finally:
        await made.aclose()


def asks(*parts: Part) -> ChatRequest:
    """A chat with one message of parts."""
    return ChatRequest(messages=[Message("user", list(parts))], max_tokens=4, temperature=0)


async def told(engine: GgufEngine, *parts: Part, caller: str = "ada") -> Answer:
    """An answer."""
    folding = Fold()
    with of(caller):
        async for batch in engine.generate(asks(*parts)):
            folding.add(batch)
    return folding.answer()


async def test_tokens_of_images(engine: GgufEngine) -> None:
    """Each image counts with its tokens, wherever it stands and whatever its size; what is counted before is what is read."""
    small, wide = picture(BLACK), picture(WHITE, 90, 30)
    every: list[tuple[Part, ...]] = [(TEXT,), (TEXT, small), (TEXT, small, wide), (small, wide, TEXT)]  # fmt: skip
    read = [(await told(engine, *parts)).usage.prompt_tokens for parts in every]
    counted = [await engine.count_tokens(asks(*parts)) for parts in every]

    assert counted == read
    assert [0, OF_AN_IMAGE, 2 * OF_AN_IMAGE] == [count - read[0] for count in read[:3]]
    assert read[3] >= read[2]


async def test_the_cache_knows_images(engine: GgufEngine) -> None:
    """The same image is not read again for its caller; another one of the same size is, and so is the same one for another caller."""
    first = await told(engine, TEXT, picture(BLACK))
    again = await told(engine, TEXT, picture(BLACK))
    other = await told(engine, TEXT, picture(WHITE))
    theirs = await told(engine, TEXT, picture(WHITE), caller="bob")
    total = first.usage.prompt_tokens

    assert first.choices[0].text == again.choices[0].text
    assert total == other.usage.prompt_tokens
    assert total - 1 == again.usage.cached_tokens
    assert (other.usage.cached_tokens or 0) <= min(BEFORE, total - OF_AN_IMAGE)
    assert not theirs.usage.cached_tokens


async def test_too_much(engine: GgufEngine) -> None:
    """Too many images, images that do not fit beside their text, and half an image are refused; the next one is read."""
    half = picture(BLACK).image_url.url[:-60]
    with pytest.raises(InvalidRequest, match="has 9 images; the maximum is 8"):
        await told(engine, *[picture(BLACK)] * 9)
    with pytest.raises(ContextLengthExceeded, match="256 tokens, and the prompt has"):
        await told(engine, TextPart("the cat is on " * 60), *[picture(BLACK)] * 8)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        await told(engine, TEXT, ImagePart(ImageUrl(half)))
    assert "length" == (await told(engine, TEXT, picture(BLACK))).choices[0].finish_reason
