"""Tests of unilect.http.sse."""

import itertools

import pytest
from hypothesis import strategies as st

from support.common.effort import effort_s
from support.common.properties import given
from unilect.core.errors import BackendError
from unilect.http.sse import FrameReader

CASES = [
    (b"", []),
    (b"data: a\n\n", [b"a"]),
    (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    (b"data:a\n\n", [b"a"]),
    (b"data:  a\n\n", [b" a"]),
    (b"data\n\n", [b""]),
    (b"data: \n\n", [b""]),
    (b"data: a\ndata: b\n\n", [b"a\nb"]),
    (b": ping\n\n", []),
    (b": ping\n\ndata: a\n\n: ping\n\n", [b"a"]),
    (b": ping\ndata: a\n\n", [b"a"]),
    (b"event: message\ndata: a\nid: 7\nretry: 1\n\n", [b"a"]),
    (b"event: ping\n\n", []),
    (b'event: ping\ndata: {"type":"ping"}\n\ndata: a\n\n', [b"a"]),
    (b"event: keepalive\ndata: {}\n\n", []),
    (b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", [b"a", b"b"]),
    (b'event: error\ndata: {"message":"no"}\n\n', [b'{"error":{"message":"no"}}']),
    (b'event: error\ndata: {"error":{"message":"no"}}\n\n', [b'{"error":{"message":"no"}}']),
    (b'event: error\ndata: out "of" memory\n\n', [b'{"error":"out \\"of\\" memory"}']),
    (b"\n\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n\n", [b"a", b"b"]),
    (b'data: {"a": "b: c"}\n\n', [b'{"a": "b: c"}']),
    (b"data: data: a\n\n", [b"data: a"]),
    (b'error: {"message": "no"}\n\n', [b'{"error":{"message": "no"}}']),
    (b'data: a\n\nerror: {"code": 1}\n\n', [b"a", b'{"error":{"code": 1}}']),
    ("data: 中国 😀\n\n".encode(), ["中国 😀".encode()]),
    (b"data: a\x00\xff\n\n", [b"a\x00\xff"]),
    (b"dat: a\nxdata: b\n\n", []),
]
LINE_ENDS = [b"\n", b"\r\n", b"\r"]


def read(pieces: list[bytes]) -> list[bytes]:
    """All frames of a stream that comes in these pieces."""
    reader = FrameReader()
    return [frame for piece in pieces for frame in reader.feed(piece)] + reader.end()


@pytest.mark.parametrize(("stream", "expected"), CASES)
def test_every_cut(stream: bytes, expected: list[bytes]) -> None:
    """A stream in one piece, or cut in two at any byte, gives the data of its frames, whatever ends its lines."""
    for line_end in LINE_ENDS:
        sent = stream.replace(b"\n", line_end)
        for cut in range(len(sent) + 1):
            assert expected == read([sent[:cut], sent[cut:]]), (line_end, cut)
        assert expected == read([sent]), line_end


@pytest.mark.parametrize("line_end", LINE_ENDS)
def test_byte_by_byte(line_end: bytes) -> None:
    """All cases one after the other, a byte at a time, give all frames."""
    stream = b"".join(stream for stream, _ in CASES).replace(b"\n", line_end)

    expected = [frame for _, frames in CASES for frame in frames]
    assert expected == read([bytes([byte]) for byte in stream])


@pytest.mark.parametrize(("stream", "expected"), CASES)
def test_trailing_bytes(stream: bytes, expected: list[bytes]) -> None:
    """The beginning of a next frame is kept back until the frame is whole."""
    reader = FrameReader()

    assert expected == reader.feed(stream + b"data: more")
    assert [b"more!"] == reader.feed(b"!\n\n")


def test_the_end_completes_a_frame() -> None:
    """A last frame without its blank line is given at the end of the stream."""
    reader = FrameReader()

    assert [] == reader.feed(b"data: a")
    assert [b"a"] == reader.end()


def test_frames_come_as_soon_as_they_are_whole() -> None:
    """A frame is given by the very bytes that complete it."""
    reader = FrameReader()

    assert [] == reader.feed(b"data: a\n")
    assert [b"a"] == reader.feed(b"\ndata")
    assert [b"b"] == reader.feed(b": b\n\n")


@pytest.mark.parametrize("piece", [1, 7, 64])
def test_a_frame_without_end_is_refused(piece: int) -> None:
    """A line that never ends is given up once it is longer than the limit."""
    reader = FrameReader(limit_bytes=100)
    stream = b"data: " + b"x" * 200

    with pytest.raises(BackendError):
        for at in range(0, len(stream), piece):
            reader.feed(stream[at : at + piece])


def test_the_limit_is_for_one_frame() -> None:
    """Many whole frames in one piece may be longer than the limit together."""
    assert [b"x" * 50] * 10 == FrameReader(limit_bytes=100).feed(
        (b"data: " + b"x" * 50 + b"\n\n") * 10
    )


lines = st.one_of(
    st.sampled_from([b"data", b"data:", b"data: a", b"data:  b: c", b": ping", b"event: x", b"id"]),
    st.binary(max_size=8).map(lambda data: data.replace(b"\r", b"").replace(b"\n", b"")),
)
streams = st.lists(st.tuples(lines, st.sampled_from(LINE_ENDS)), max_size=30).map(
    lambda items: b"".join(line + end for line, end in items)
)


def reference(stream: bytes) -> list[bytes]:
    """The specification's algorithm, line by line; `error:` frames as FrameReader gives them."""
    text = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + b"\n\n"
    frames: list[bytes] = []
    data: list[bytes] = []
    error: bytes | None = None
    for line in text.split(b"\n")[:-1]:
        if not line:
            if error is not None:
                frames.append(b'{"error":' + error + b"}")
            elif data:
                frames.append(b"\n".join(data))
            data, error = [], None
            continue
        name, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if name == b"data":
            data.append(value)
        elif name == b"error" and error is None:
            error = value
    return frames


@given(stream=streams, cuts=st.lists(st.integers(0, 300), max_size=8))
def test_any_stream_in_any_pieces(stream: bytes, cuts: list[int]) -> None:
    """Any lines in any pieces give what the specification's algorithm gives for the whole."""
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[a:b] for a, b in itertools.pairwise(places)]

    assert reference(stream) == read(pieces)


def test_a_frame_in_many_pieces() -> None:
    """A long frame that comes piece by piece is looked at once, not again with each of them."""
    piece = b"x" * 50

    def work() -> None:
        reader = FrameReader()
        frames = [reader.feed(data) for data in (b"data: ", *[piece] * 16_000, b"\n", b"\n")]
        assert [piece * 16_000] == frames[-1]

    assert effort_s(work, 0.3) < 0.3
