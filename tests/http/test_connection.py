"""Tests of unilect.http.connection: the parts that need no socket; http/test_client.py has the others."""

import asyncio

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.http.body import ProtocolError
from unilect.http.connection import Connection, parse_head

HEADS = [
    (b"HTTP/1.1 200 OK", (200, {})),
    (b"HTTP/1.1 200", (200, {})),
    (b"HTTP/1.1 404 Not Found\r\nA: b", (404, {"a": "b"})),
    (b"HTTP/1.1 200 OK\r\nA:b\r\nA: c ", (200, {"a": "c"})),
    (b"HTTP/1.1 200 OK\r\nA:", (200, {"a": ""})),
    (b"HTTP/1.1 200 OK\r\nA: b: c", (200, {"a": "b: c"})),
    (b"HTTP/1.0 200 OK", (200, {"connection": "close"})),
    (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", (200, {"connection": "keep-alive"})),
]
BROKEN_HEADS = [
    b"",
    b"\r\n",
    b"hello",
    b"HTTP/1.1",
    b"HTTP/2 200 OK",
    b"HTTP/1.1 abc",
    b"HTTP/1.1 20",
    b"http/1.1 200 OK",
    b"HTTP/1.1  200 OK",
    b"HTTP/1.1 200 OK\r\nno colon",
    b"HTTP/1.1 200 OK\r\n: no name",
    b"HTTP/1.1 200 OK\r\nA : b",
    b"HTTP/1.1 200 OK\r\n folded: b",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\ntransfer-encoding: chunked",
]


@pytest.mark.parametrize(("head", "expected"), HEADS)
def test_head(head: bytes, expected: tuple[int, dict[str, str]]) -> None:
    """A head is its status and its headers, with names in lower case and the last value of each."""
    assert expected == parse_head(head)[:2]


def test_heads_that_come_again() -> None:
    """A head that comes again is not read again, unless it is long; a broken one is refused each time."""
    short, long = (b"HTTP/1.1 200 OK\r\na: " + b"b" * size for size in (9, 1000))

    assert parse_head(short) is parse_head(bytes(bytearray(short)))
    assert parse_head(long) is not parse_head(long)
    for _ in range(2):
        with pytest.raises(ProtocolError):
            parse_head(BROKEN_HEADS[0])


@pytest.mark.parametrize("head", BROKEN_HEADS)
def test_broken_head(head: bytes) -> None:
    """What is no sound head is refused, a second length and a folded line among it."""
    with pytest.raises(ProtocolError):
        parse_head(head)


tokens = st.text("abcdefghijklmnopqrstuvwxyz-0123456789", min_size=1, max_size=12)
values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=20)


@given(status=st.integers(100, 599), headers=st.dictionaries(tokens, values, max_size=8))
def test_any_sound_head(status: int, headers: dict[str, str]) -> None:
    """Any status and headers are read as they were written."""
    lines = [f"HTTP/1.1 {status} x", *(f"{name}:  {value} " for name, value in headers.items())]

    assert (status, headers) == parse_head("\r\n".join(lines).encode())[:2]


@given(st.one_of(st.binary(), st.binary().map(lambda data: b"HTTP/1.1 200 OK\r\n" + data)))
def test_any_bytes_as_head(head: bytes) -> None:
    """Any bytes are a head or a ProtocolError."""
    try:
        status, headers, *_ = parse_head(head)
    except ProtocolError:
        return
    assert 0 <= status <= 999
    assert all(name == name.strip().lower() for name in headers)


async def test_a_wait_outlives_the_gathering_before_it() -> None:
    """A wait for bytes goes on where the time ends in which those before them were gathered, if these were taken earlier."""
    connection, over = Connection(), asyncio.Event()
    connection.gather_s = 0.001
    connection.data_received(b"a")
    asyncio.get_running_loop().call_later(connection.gather_s, over.set)
    assert connection.take() == b"a"

    waiter = connection.readable(60)
    await over.wait()
    assert not waiter.done()
    connection.data_received(b"b")
    await waiter
    assert connection.take() == b"b"
    connection.connection_lost(None)
