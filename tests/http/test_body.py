"""Tests of unilect.http.body."""

import json

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.http.body import ChunkedBody, JsonEnd, ProtocolError

CHUNKED = [
    (b"0\r\n\r\n", b""),
    (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
    (b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", b"hello world"),
    (b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
    (b"a;name=value\r\n0123456789\r\n0;x\r\n\r\n", b"0123456789"),
    (b"00005 \r\nhello\r\n000\r\n\r\n", b"hello"),
    (b"4\r\n\r\n\r\n\r\n0\r\n\r\n", b"\r\n\r\n"),
    (b"5\r\nhello\r\n0\r\nExpires: never\r\nX: y\r\n\r\n", b"hello"),
]
BROKEN_CHUNKS = [
    b"\r\n\r\n",
    b"x\r\nhello\r\n0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"+5\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"5_0\r\nhello\r\n0\r\n\r\n",
    b"123456789\r\n",
    b"5\r\nhello!\r\n0\r\n\r\n",
    b"5\r\nhellohello\r\n",
    b"5\nhello\n0\n\n" + b" " * 2000,
    b"1" * 2000,
    b"0\r\n" + b"x" * 70_000,
]


def decode(pieces: list[bytes]) -> tuple[bytes, bool, bytes]:
    """The payload of a body in these pieces, whether it is done, and what came after it."""
    body, payload = ChunkedBody(), b""
    for piece in pieces:
        if body.done:
            body.rest += piece
        else:
            payload += body.feed(piece)
    return payload, body.done, body.rest


@pytest.mark.parametrize(("stream", "expected"), CHUNKED)
def test_chunked_whole(stream: bytes, expected: bytes) -> None:
    """A chunked body in one piece gives its payload."""
    assert (expected, True, b"") == decode([stream])


@pytest.mark.parametrize(("stream", "expected"), CHUNKED)
def test_chunked_every_cut(stream: bytes, expected: bytes) -> None:
    """A chunked body cut in two at any byte, or into bytes, gives the same payload."""
    for cut in range(len(stream) + 1):
        assert (expected, True, b"") == decode([stream[:cut], stream[cut:]])
    assert (expected, True, b"") == decode([bytes([byte]) for byte in stream])


@pytest.mark.parametrize(("stream", "expected"), CHUNKED)
def test_chunked_trailing_bytes(stream: bytes, expected: bytes) -> None:
    """What follows a chunked body is no part of it."""
    assert (expected, True, b"HTTP/1.1 200") == decode([stream + b"HTTP/1.1 200"])


@pytest.mark.parametrize(("stream", "expected"), CHUNKED)
def test_chunked_is_not_done_early(stream: bytes, expected: bytes) -> None:
    """No beginning of a chunked body is taken for the whole."""
    for cut in range(len(stream)):
        _, done, _ = decode([stream[:cut]])
        assert not done


@pytest.mark.parametrize("stream", BROKEN_CHUNKS)
def test_chunked_broken(stream: bytes) -> None:
    """Broken framing is refused, in one piece and in small ones."""
    for size in (len(stream), 50):
        with pytest.raises(ProtocolError):
            decode([stream[at : at + size] for at in range(0, len(stream), size)])


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    extension=st.sampled_from([b"", b";a", b"; a=b"]),
    trailers=st.sampled_from([b"", b"A: b\r\n", b"A: b\r\nC: d\r\n"]),
    rest=st.binary(max_size=10),
    size=st.integers(1, 60),
)
def test_chunked_of_any_encoder(
    chunks: list[bytes], extension: bytes, trailers: bytes, rest: bytes, size: int
) -> None:
    """What an encoder writes, with extensions and trailers, is read as it was, in pieces of any size."""
    stream = b"".join(b"%X%s\r\n%s\r\n" % (len(c), extension, c) for c in chunks)
    stream += b"0%s\r\n%s\r\n%s" % (extension, trailers, rest)

    actual = decode([stream[at : at + size] for at in range(0, len(stream), size)])
    assert (b"".join(chunks), True, rest) == actual


@given(st.binary(max_size=60))
def test_chunked_of_any_bytes(stream: bytes) -> None:
    """Any bytes are a body or a ProtocolError."""
    try:
        decode([stream])
    except ProtocolError:
        return


payloads = st.lists(
    st.one_of(st.binary(min_size=1, max_size=200), st.sampled_from([b"\r\n", b"a\r\nb", b"5\r\nhello"])),
    max_size=40,
)  # fmt: skip


@given(payloads, st.integers(1, 4000), st.integers(0, 20), st.binary(max_size=3))
def test_many_chunks_at_once(chunks: list[bytes], size: int, at: int, wrong: bytes) -> None:
    """Chunks that are cut out all at once are those that are cut out one by one, also where a byte is wrong."""
    stream = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
    stream = stream[:at] + wrong + stream[at + len(wrong) :]
    outcomes = []
    for many in (0, len(stream)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("unilect.http.body._MANY_CHUNKS_BYTES", many)
            try:
                pieces = [stream[begin : begin + size] for begin in range(0, len(stream), size)]
                outcomes.append(decode(pieces))
            except ProtocolError:
                outcomes.append((b"broken", False, b""))

    assert outcomes[0] == outcomes[1]


_VALUES = st.recursive(
    st.none() | st.integers() | st.text('\\"[]{},:ab ', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('\\"[]{}', max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(_VALUES, max_size=3) | st.dictionaries(st.text(max_size=3), _VALUES), st.integers(1, 7))  # fmt: skip
def test_where_json_ends(value: object, size: int) -> None:
    """The brackets of JSON are closed at its end, and nowhere before, whatever its texts hold and wherever it is cut."""
    text = json.dumps(value).encode()
    end, pieces = JsonEnd(), [text[at : at + size] for at in range(0, len(text), size)]

    assert [*[False] * (len(pieces) - 1), True] == [end.feed(piece) for piece in pieces]
