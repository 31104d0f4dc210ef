"""Tests of unilect.wire.repeated, and that the decoder which uses it says the same as without it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from support.backends.scripted import delta
from support.common.properties import given
from unilect.core.errors import UnilectError
from unilect.core.events import Event, fold
from unilect.wire.chunks import DONE, ChunkDecoder
from unilect.wire.repeated import RepeatedFrames

PATTERN = b'{"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}'


def frame(inside: bytes) -> bytes:
    """A frame like the pattern, with this between the quotes."""
    return PATTERN.replace(b'"a"', b'"' + inside + b'"')


def alike(pattern: bytes = PATTERN) -> RepeatedFrames:
    """What has learned a pattern."""
    frames = RepeatedFrames()
    frames.learn(pattern)
    return frames


def test_texts() -> None:
    """Frames that are like the pattern give their texts, with what JSON escapes."""
    insides = [b"a", b"", "中😀".encode(), rb"\n\"\\", rb"\u00e9\ud83d\ude00"]

    assert ["a", "", "中😀", '\n"\\', "é😀"] == alike().texts([frame(i) for i in insides])


def test_what_comes_after() -> None:
    """Frames at the end that are not alike are left."""
    assert ["a", "b"] == alike().texts([frame(b"a"), frame(b"b"), b"{}", b"[DONE]"])


@pytest.mark.parametrize(
    ("name", "frames"),
    [
        ("not the first", [b"{}", frame(b"a")]),
        ("not in the middle", [frame(b"a"), b"{}", frame(b"b")]),
        ("another id", [frame(b"a").replace(b'"c"', b'"d"')]),
        ("a quote", [frame(b'a","b')]),
        ("a quote and a line end", [frame(b'a"\n,"b')]),
        ("a backslash at the end", [frame(b"a\\"), frame(b"b")]),
        ("both at once", [frame(b'a","b'), frame(b"c\\"), frame(b"d")]),
        ("a line end", [frame(b"a\nb")]),
        ("half a character", [frame(rb"\ud83d")]),
        ("no UTF-8", [frame(b"\xff")]),
        ("shorter than the pattern", [PATTERN[:30] + PATTERN[-10:]]),
        ("one quote for two", [frame(b"").replace(b'""', b'"')]),
        ("one quote for two, of several", [frame(b"").replace(b'""', b'"'), frame(b"a")]),
        ("one quote for two at the end", [frame(b"a"), frame(b"").replace(b'""', b'"')]),
    ],
)
def test_doubtful_frames(name: str, frames: list[bytes]) -> None:
    """Where anything is doubtful, no frame is taken."""
    assert alike().texts(frames) == []


@pytest.mark.parametrize("inside", [b'a","b', b'a"\n,"b', b"a\\", b"a\nb", rb"\ud83d", b"\xff"])
def test_one_doubtful_frame(inside: bytes) -> None:
    """A frame that comes alone and is doubtful is not taken, and one that is like the pattern is."""
    frames = alike()

    assert (None, None, "b") == (
        frames.text(frame(inside)),
        frames.text(PATTERN[:30] + PATTERN[-10:]),
        frames.text(frame(b"b")),
    )


def test_patterns_that_are_of_no_use() -> None:
    """A second pattern is learned only after the first has served: where every frame has its own, one is enough."""
    frames = alike()
    assert not frames.serves
    frames.text(frame(b"b"))
    assert frames.serves


@pytest.mark.parametrize(
    "pattern", [b"{}", b'{"content": 1}', b'{"x":{"content":"a"},"y":{"content":"a"}}']
)
def test_no_pattern(pattern: bytes) -> None:
    """A frame that has no text, or two, is no pattern."""
    assert alike(pattern).texts([pattern] * 9) == []


odd = st.sampled_from(
    [
        delta(content="x") | {"created": 7},
        delta(content="x", role="assistant"),
        delta(content="x", more=1),
        delta(reasoning="x"),
        delta(1, content="x"),
        delta(content=None),
        delta(finish="length"),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        b'{"choices":[{"delta":{"content":"a","content":"b"}}]}',
        frame(b'a","b'),
        frame(b"\\"),
        frame(b"\xff"),
        frame(rb"\ud83d"),
        b"{",
    ]
)
plain = st.text(st.sampled_from('ab"\\\n中😀'), max_size=3).map(lambda text: delta(content=text))
styles = st.sampled_from([msgspec.json.encode, lambda chunk: json.dumps(chunk).encode()])


def decoded(frames: list[bytes], size: int, joined: bool = False) -> tuple[list[Event], str]:
    """The events of frames that come so many at a time, and the error that ended them."""
    decoder, events = ChunkDecoder(joined), list[Event]()
    try:
        for at in range(0, len(frames), size):
            decoder.decode(frames[at : at + size], events)
        decoder.decode([DONE], events)
        events += decoder.end()
    except UnilectError as error:
        return events, error.message
    return events, ""


@given(
    st.lists(st.one_of(plain, plain, plain, plain, odd), max_size=40), styles, st.integers(8, 40)
)
def test_many_frames_at_once(chunks: list[Any], encode: Any, size: int) -> None:
    """Frames that come one by one, in twos or many at a time give the same events, and the same answer when joined."""
    frames = [chunk if isinstance(chunk, bytes) else encode(chunk) for chunk in chunks]
    one_by_one, error = decoded(frames, 1)

    assert (one_by_one, error) == decoded(frames, 2)  # of which each is decoded as a whole
    assert (one_by_one, error) == decoded(frames, size)
    joined, same_error = decoded(frames, size, joined=True)
    assert (fold([one_by_one]), error) == (fold([joined]), same_error)
