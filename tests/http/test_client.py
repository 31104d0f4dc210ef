"""Tests of unilect.http.client and of its exchanges over real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from support.backends.scripted import STREAM_HEAD, Exchange, answer, chunked, says, scripted
from unilect.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ConfigError,
    InvalidRequest,
    RateLimited,
    UnilectError,
)
from unilect.http.client import HttpServer, raise_for_answer
from unilect.http.error_bodies import plain


async def read(server: HttpServer, path: str = "/x", body: bytes = b"{}") -> bytes:
    """All bytes of a stream."""
    async with aclosing(await server.stream(path, body)) as pieces:
        return b"".join([piece async for piece in pieces])


async def test_a_request() -> None:
    """A request has the base's path, the body and its length, and the headers that were given."""
    async with scripted(says(answer(b"{}"))) as upstream:
        server = HttpServer(upstream.url + "/deep/", headers={"Authorization": "Bearer k"})
        await server.post("/x", b'{"a":1}')

    lines = upstream.requests[0].head.decode().split("\r\n")
    assert lines[0] == "POST /v1/deep/x HTTP/1.1"
    assert {
        f"Host: 127.0.0.1:{upstream.port}",
        "Accept-Encoding: identity",
        "Content-Type: application/json",
        "Connection: close",
        "Authorization: Bearer k",
        "Content-Length: 7",
    } == set(lines[1:])
    assert upstream.requests[0].body == b'{"a":1}'


async def test_a_password_in_the_url_is_no_host() -> None:
    """What stands before the host in a URL is not sent as a part of it."""
    async with scripted(says(answer(b"{}"))) as upstream:
        await HttpServer(f"http://u:p@127.0.0.1:{upstream.port}").get("/x")

    assert b"u:p" not in upstream.requests[0].head


async def test_a_query_in_the_base_url() -> None:
    """A base URL's query goes with every request, after the query of the call itself."""
    async with scripted(says(answer(b"{}"))) as upstream:
        server = HttpServer(f"{upstream.url}/gpt/?api-version=2024-10-21")
        await server.post("/chat/completions", b"{}")
        await server.get("/models?x=1")

    assert [
        b"POST /v1/gpt/chat/completions?api-version=2024-10-21 HTTP/1.1",
        b"GET /v1/gpt/models?x=1&api-version=2024-10-21 HTTP/1.1",
    ] == [one.head.split(b"\r\n")[0] for one in upstream.requests]


async def test_a_user_in_the_base_url() -> None:
    """A base URL's user and password are sent as Basic authentication, decoded, and not beside another key."""
    async with scripted(says(answer(b"{}"))) as upstream:
        await HttpServer(f"http://me:p%40w@127.0.0.1:{upstream.port}").get("/x")

    assert b"Authorization: Basic bWU6cEB3\r\n" in upstream.requests[0].head + b"\r\n"
    with pytest.raises(ConfigError, match=r"http://\*\*\*@host: the URL has a user"):
        HttpServer("http://me:pw@host", headers={"authorization": "Bearer x"})


async def test_a_unix_socket(tmp_path: Path) -> None:
    """A server on a unix socket is asked as any other."""
    path = str(tmp_path / "s")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"[1]"))
        writer.close()
        await writer.wait_closed()

    listening = await asyncio.start_unix_server(serve, path)
    async with listening:
        actual = await HttpServer("http://engine", socket_path=path).get("/x")

    assert actual == b"[1]"


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        ("length", answer(b"hello")),
        ("chunks", chunked([b"hel", b"lo"], b"HTTP/1.1 200 OK\r\n\r\n")),
        ("until close", b"HTTP/1.1 200 OK\r\n\r\nhello"),
        ("HTTP/1.0", b"HTTP/1.0 200 OK\r\n\r\nhello"),
        ("announced", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\nA: b\r\n\r\n" + answer(b"hello")),
        ("identity", answer(b"hello", content_encoding="identity")),
    ],
)  # fmt: skip
async def test_framings(name: str, stream: bytes) -> None:
    """A body ends where its length, its last chunk or the connection says."""
    async with scripted(says(stream)) as upstream:
        assert await HttpServer(upstream.url).post("/x", b"") == b"hello"


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        ("no HTTP", b"hello\r\n\r\n"),
        ("short head", b"HTTP/1.1 200 OK\r\nContent-"),
        ("short length", answer(b"hello")[:-1]),
        ("short chunk", chunked([b"hello"])[:-8]),
        ("no last chunk", chunked([b"hello"])[:-5]),
        ("no trailers' end", chunked([b"hello"])[:-2]),
        ("gzip", answer(b"hello", content_encoding="gzip")),
        ("br in chunks", chunked([b"x"], b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\n")),
        ("two framings", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("coding", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        ("length -1", answer(b"", content_length="-1")),
        ("length +5", answer(b"hello", content_length="+5")),
        ("length 5, 5", answer(b"hello", content_length="5, 5")),
        ("length empty", answer(b"hello", content_length="")),
        ("endless announcements", b"HTTP/1.1 100 Continue\r\n\r\n" * 33 + answer(b"hello")),
        ("an announcement alone", b"HTTP/1.1 100 Continue\r\n\r\n"),
        ("endless head", b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000),
        ("endless chunk size", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000),
        ("nothing", b""),
    ],
)  # fmt: skip
async def test_broken_answers(name: str, stream: bytes) -> None:
    """An answer that is cut, compressed, ambiguous or endless is the backend's error."""
    async with scripted(says(stream)) as upstream:
        with pytest.raises(BackendError):
            await HttpServer(upstream.url).post("/x", b"")


@pytest.mark.parametrize("reuse", [False, True])
async def test_an_answer_that_cannot_be_read_closes_its_connection(reuse: bool) -> None:
    """An answer with a body that nobody can read, such as a compressed one, leaves no connection open."""
    async with scripted(says(answer(b"x", content_encoding="gzip"), "keep")) as upstream:
        server = HttpServer(upstream.url, reuse_connections=reuse)
        with pytest.raises(BackendError):
            await server.post("/x", b"")
        await upstream.until_gone()


@pytest.mark.parametrize("stream", [b"", STREAM_HEAD, answer(b"hello")[:-1]])
async def test_reset(stream: bytes) -> None:
    """A connection that breaks off is the backend's error, wherever it does."""
    async with scripted(says(stream, "reset")) as upstream:
        with pytest.raises(BackendError):
            await HttpServer(upstream.url).post("/x", b"")


async def test_refused() -> None:
    """A server that does not listen is unavailable."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = HttpServer(f"http://127.0.0.1:{sock.getsockname()[1]}")
        with pytest.raises(BackendUnavailable) as raised:
            await server.get("/x")

    assert raised.value.retry_after_s == 1


async def test_no_such_socket(tmp_path: Path) -> None:
    """A unix socket that does not exist is an unavailable server."""
    with pytest.raises(BackendUnavailable):
        await HttpServer("http://x", socket_path=str(tmp_path / "none")).get("/x")


async def test_plain_text_where_tls_is_expected() -> None:
    """A server that does not speak TLS is unavailable over https."""
    async with scripted(says(b"")) as upstream:
        listening = HttpServer(f"https://127.0.0.1:{upstream.port}")
        other = await asyncio.start_server(_plain, "127.0.0.1", 0)
        async with other:
            port = other.sockets[0].getsockname()[1]
            with pytest.raises(BackendUnavailable):
                await HttpServer(f"https://127.0.0.1:{port}").get("/x")
        await listening.aclose()


async def _plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-", answer(b"hello")[:-1]])
async def test_silence(begun: bytes) -> None:
    """A server that is silent for longer than `timeout_s` is given up, and its connection closed."""
    async with scripted(says(begun, "keep")) as upstream:
        with pytest.raises(BackendTimeout):
            await HttpServer(upstream.url, timeout_s=0.05).post("/x", b"")
        async with asyncio.timeout(60):
            await upstream.gone.acquire()


@pytest.mark.parametrize("piece", [b"x", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_head_that_does_not_end_in_time(piece: bytes) -> None:
    """A server that always says something, and never a whole head, is given up after `timeout_s`, or after so many announcements."""

    async def script(exchange: Exchange) -> None:
        gone = asyncio.create_task(exchange.client_gone())
        while not gone.done():
            await exchange.send(piece)
            await asyncio.wait([gone], timeout=0.001)

    async with scripted(script) as upstream:
        with pytest.raises((BackendTimeout, BackendError)):
            await HttpServer(upstream.url, timeout_s=0.1).post("/x", b"")
        await upstream.until_gone()


async def test_a_head_byte_by_byte() -> None:
    """A head, and announcements before it, may come in pieces of any size."""
    said = b"HTTP/1.1 103 x\r\nA: b\r\n\r\n" + answer(b"hello")

    async def script(exchange: Exchange) -> None:
        for byte in said:
            await exchange.send(bytes([byte]))
            await asyncio.sleep(0)

    async with scripted(script) as upstream:
        assert b"hello" == await HttpServer(upstream.url).post("/x", b"")


async def test_json_without_a_length_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an answer whose pieces end like JSON the whole is parsed, when its brackets are closed, and nothing before."""
    parsed = list[bytes]()

    def parse(body: bytes) -> object:
        parsed.append(body)
        return plain(body)

    monkeypatch.setattr("unilect.http.client.plain", parse)
    whole = b'[{"a": "}]\\" ["}' + b', {"b": [1]}' * 30 + b"]"

    async def script(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\n\r\n")
        for piece in whole.split(b"}"):
            await exchange.send(piece + (b"" if piece == b"]" else b"}"))
            await asyncio.sleep(0.001)
        await exchange.client_gone()

    async with scripted(script) as upstream:
        assert whole == await HttpServer(upstream.url).get("/x")
    assert [whole] == parsed


async def test_brackets_that_are_no_json() -> None:
    """An answer without a length that is no JSON, though its brackets are closed, ends with its connection."""
    async with scripted(says(b"HTTP/1.1 200 OK\r\n\r\n[x]" + b"{}" * 9)) as upstream:
        assert b"[x]" + b"{}" * 9 == await HttpServer(upstream.url).get("/x")


async def test_a_long_body_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole answer longer than the limit is the backend's error."""
    monkeypatch.setattr("unilect.http.client.MAX_BODY_BYTES", 1000)
    async with scripted(says(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000)) as upstream:
        with pytest.raises(BackendError):
            await HttpServer(upstream.url).get("/x")


@pytest.mark.parametrize("status", ["301", "302", "303", "307", "308"])
async def test_redirects_are_not_followed(status: str) -> None:
    """A redirect is the backend's error, and its target hears nothing."""
    async with scripted(says(answer(b"{}"))) as target:
        moved = answer(b"", f"{status} Moved", location=target.url + "/x")
        async with scripted(says(moved)) as upstream:
            with pytest.raises(BackendError):
                await HttpServer(upstream.url).post("/x", b"secret")

    assert target.connections == 0


async def test_a_stream() -> None:
    """The bytes of an event stream are given as they come."""
    more = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD + b"a")
        await more.wait()
        await exchange.send(b"b")
        exchange.close()

    async with (
        scripted(script) as upstream,
        aclosing(await HttpServer(upstream.url).stream("/x", b"")) as pieces,
    ):
        first = await anext(pieces)
        more.set()
        rest = [piece async for piece in pieces]

    assert [b"a", b"b"] == [first, *rest]


@pytest.mark.parametrize(
    ("kind", "body"),
    [("text/html", b"<h1>hi"), ("application/json", b'{"error":{"message":"x"}}'), ("", b"data: x\n\n")],
)  # fmt: skip
async def test_no_stream(kind: str, body: bytes) -> None:
    """A 200 that is no event stream is the backend's error, and its text is not shown."""
    async with scripted(says(answer(body, kind=kind))) as upstream:
        with pytest.raises(BackendError) as raised:
            await read(HttpServer(upstream.url))

    assert body.decode() not in raised.value.message


async def test_closing_a_stream_closes_its_connection() -> None:
    """Whoever stops reading a stream ends its connection at once, so that the server stops."""
    async with scripted(says(STREAM_HEAD + b"a", "keep")) as upstream:
        pieces = await HttpServer(upstream.url).stream("/x", b"")
        await anext(pieces)
        await pieces.aclose()

        await upstream.until_gone()


async def test_cancelling_a_request_closes_its_connection() -> None:
    """A request that is cancelled before its answer ends its connection at once."""
    asked = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        asked.set()
        await exchange.client_gone()

    async with scripted(script) as upstream:
        task = asyncio.create_task(HttpServer(upstream.url).post("/x", b""))
        await asked.wait()
        task.cancel()

        await upstream.until_gone()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_closing_the_server_breaks_its_requests_off() -> None:
    """`aclose` ends running requests with an error."""
    asked = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(answer(b"hello")[:-1])
        asked.set()
        await exchange.client_gone()

    async with scripted(script) as upstream:
        server = HttpServer(upstream.url)
        task = asyncio.create_task(server.post("/x", b""))
        await asked.wait()
        await server.aclose()
        with pytest.raises(BackendError):
            await task


async def test_a_server_that_does_not_read_is_no_deadlock() -> None:
    """A reader that stops for a while makes a fast server wait, and loses nothing."""
    size = 4 * 1024 * 1024

    async with (
        scripted(says(STREAM_HEAD + b"x" * size)) as upstream,
        aclosing(await HttpServer(upstream.url).stream("/x", b"")) as pieces,
    ):
        total = len(await anext(pieces))
        for _ in range(100):  # the server's bytes pile up meanwhile
            await asyncio.sleep(0)
        async for piece in pieces:
            total += len(piece)

    assert total == size


# Kept connections


async def test_connections_are_not_kept_unless_told() -> None:
    """Every request has a connection of its own."""
    async with scripted(says(answer(b"{}"), "keep")) as upstream:
        server = HttpServer(upstream.url)
        for _ in range(3):
            await server.get("/x")

    assert upstream.connections == 3


async def test_connections_are_kept_when_told() -> None:
    """With `reuse_connections`, requests one after the other share a connection."""
    async with scripted(says(answer(b"{}"), "keep")) as upstream:
        server = HttpServer(upstream.url, reuse_connections=True)
        for _ in range(3):
            await server.get("/x")
        await server.aclose()

    assert upstream.connections == 1
    assert b"Connection: keep-alive" in upstream.requests[0].head


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        ("close", answer(b"{}", connection="close")),
        ("until close", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
        ("more than its length", answer(b"{}") + b"x"),
        ("more than its chunks", chunked([b"{}"], b"HTTP/1.1 200 OK\r\n\r\n") + b"x"),
    ],
)
async def test_connections_that_cannot_be_kept(name: str, stream: bytes) -> None:
    """A connection that the server closes, or says too much on, is not used again."""
    async with scripted(says(stream, "keep")) as upstream:
        server = HttpServer(upstream.url, reuse_connections=True)
        for _ in range(2):
            assert await server.get("/x") == b"{}"
        await server.aclose()

    assert upstream.connections == 2


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_an_answer_without_a_body(status: str) -> None:
    """An answer that never has a body ends with its head, on a connection that stays open and serves again."""
    head = f"HTTP/1.1 {status}\r\n\r\n".encode()
    async with scripted(says(head, "keep")) as upstream:
        server = HttpServer(upstream.url, reuse_connections=True)
        for _ in range(2):
            with pytest.raises(BackendError):
                await server.get("/x")
        await server.aclose()

    assert 1 == upstream.connections


async def test_a_retired_server_keeps_no_connection() -> None:
    """A server that is asked no more gives its kept connections up."""
    async with scripted(says(answer(b"{}"), "keep")) as upstream:
        server = HttpServer(upstream.url, reuse_connections=True)
        await server.post("/x", b"1")
        server.retire()
        await upstream.until_gone()
        await server.post("/x", b"2")
        await upstream.until_gone()

    assert 2 == upstream.connections


async def test_an_answer_gives_its_connection_back_once() -> None:
    """An answer that is closed twice does not lend its connection to two requests."""

    async def script(exchange: Exchange) -> None:
        begun.release()
        await goes_on.wait()
        await exchange.send(answer(exchange.body))

    begun, goes_on = asyncio.Semaphore(0), asyncio.Event()
    async with scripted(script) as upstream:
        server = HttpServer(upstream.url, reuse_connections=True)
        goes_on.set()
        first = await server.stream("/x", b"1", kind="")
        assert b"1" == await first.whole(100)
        await first.aclose()
        goes_on.clear()
        tasks = [asyncio.create_task(server.post("/x", body)) for body in (b"2", b"3")]
        for _ in range(3):
            await begun.acquire()
        goes_on.set()
        assert [b"2", b"3"] == await asyncio.gather(*tasks)
        await server.aclose()

    assert 2 == upstream.connections


async def test_a_kept_connection_that_was_closed_is_no_failure() -> None:
    """A server that closes a kept connection between requests is asked on a new one."""
    async with scripted(says(answer(b"{}"))) as upstream:
        server = HttpServer(upstream.url, reuse_connections=True)
        for _ in range(5):
            assert await server.get("/x") == b"{}"
        await server.aclose()


async def test_an_unasked_answer_reaches_nobody() -> None:
    """An answer too many on a kept connection never becomes the next request's."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(answer(exchange.body))
        await exchange.send(answer(b"UNASKED"))

    async with scripted(script) as upstream:
        server = HttpServer(upstream.url, reuse_connections=True)
        for number in range(100):
            for body in (b"a%d" % number, b"b%d" % number):
                assert body == await server.post("/x", body)
        await server.aclose()


async def test_an_unasked_answer_that_waits_in_the_kernel() -> None:
    """An unasked answer that has arrived, but was not yet read, ends the kept connection."""
    sent = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(answer(exchange.body) if exchange.body != b"stop" else b"")
        sent.set()

    async with scripted(script) as upstream:
        server = HttpServer(upstream.url, reuse_connections=True)
        assert await server.post("/x", b"1") == b"1"
        _send_now(upstream.requests[0], answer(b"UNASKED"))
        assert await server.post("/x", b"2") == b"2"
        await server.aclose()

    assert upstream.connections == 2


def _send_now(exchange: Exchange, data: bytes) -> None:
    """Send without giving the event loop a turn."""
    sock = socket.socket(fileno=exchange._writer.get_extra_info("socket").fileno())
    try:
        sock.send(data)
    finally:
        sock.detach()


async def test_a_request_is_not_sent_twice_once_its_answer_has_begun() -> None:
    """A kept connection that breaks after the first byte of an answer is an error, and no reason to ask again."""

    async def script(exchange: Exchange) -> None:
        if exchange.body == b"1":
            await exchange.send(answer(b"{}"))
        else:
            await exchange.send(b"HTTP/1.1 200 OK\r\nContent-")
            exchange.reset()

    async with scripted(script) as upstream:
        server = HttpServer(upstream.url, reuse_connections=True)
        await server.post("/x", b"1")
        with pytest.raises(BackendError):
            await server.post("/x", b"2")
        await server.aclose()

    assert [b"1", b"2"] == [request.body for request in upstream.requests]


# Errors


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, InvalidRequest),
        (404, InvalidRequest),
        (409, InvalidRequest),
        (413, InvalidRequest),
        (422, InvalidRequest),
        (429, RateLimited),
        (503, BackendUnavailable),
        (401, BackendError),
        (403, BackendError),
        (418, BackendError),
        (201, BackendError),
        (500, BackendError),
        (502, BackendError),
        (504, BackendError),
    ],
)
def test_statuses(status: int, expected: type[UnilectError]) -> None:
    """Each status of an upstream is an error of ours; only 200 is none."""
    raise_for_answer(200, {}, b"")
    with pytest.raises(UnilectError) as raised:
        raise_for_answer(status, {}, b'{"error":{"message":"SECRET"}}')

    assert expected is type(raised.value)
    assert ("SECRET" in raised.value.message) == (expected is InvalidRequest)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("soon", None),
        ("inf", None),
        ("nan", None),
        ("1e999", None),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0.0),
        ("Fri, 31 Dec 1999", None),
        ("1e308", 604_800.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 604_800.0),
        (f"Fri, 31 Dec {10**20} 23:59:59 GMT", None),
        (f"Fri, 31 Dec 2026 23:59:59 +{10**20}", None),
    ],
)
def test_retry_after(value: str | None, expected: float | None) -> None:
    """A 429's Retry-After in seconds is kept, up to a week, and a date that is past is now; what is neither is none."""
    headers = {} if value is None else {"retry-after": value}
    with pytest.raises(RateLimited) as raised:
        raise_for_answer(429, headers, b"")

    assert expected == raised.value.retry_after_s


@pytest.mark.parametrize(("status", "kind"), [(429, RateLimited), (503, BackendUnavailable)])
def test_retry_after_as_a_date(status: int, kind: type[UnilectError]) -> None:
    """A Retry-After that is a date in HTTP's form is the seconds until then."""
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    with pytest.raises(kind) as raised:
        raise_for_answer(status, {"retry-after": date}, b"")

    assert 50 < (raised.value.retry_after_s or 0) <= 60


# Settings


def test_a_wrong_base_is_told_without_its_password() -> None:
    """A URL that is wrong is told without the credentials in it."""
    with pytest.raises(ConfigError) as raised:
        HttpServer("http://me:secret@host:port/v1?key=secret")

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "base",
    [
        "",
        "host",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://höst",
        "http://[::1",
        "http://h/#x",
        "http://h/a b",
    ],
)
def test_a_wrong_base(base: str) -> None:
    """What is no URL of a server is refused at the start."""
    with pytest.raises(ConfigError):
        HttpServer(base)


@pytest.mark.parametrize(
    "headers", [{"A": "b\r\nC: d"}, {"A b": "c"}, {"": "x"}, {"A": "ü"}, {"A": "\x00"}]
)
def test_wrong_headers(headers: dict[str, str]) -> None:
    """A header that would break a request is refused at the start."""
    with pytest.raises(ConfigError):
        HttpServer("http://host", headers=headers)


@pytest.fixture(autouse=True)
async def _nothing_left() -> AsyncIterator[None]:
    """No task outlives a test."""
    yield
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        async with asyncio.timeout(60):
            await asyncio.wait({task})
