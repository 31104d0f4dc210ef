"""Tests of unilect.server._connections: how many clients there may be, and when one is let go."""

import asyncio
import resource
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from support.common.certificates import certificate, needs_openssl
from unilect.core.bounds import most_background, most_further_parts
from unilect.server._acceptor import Acceptor
from unilect.server._connections import (
    DISCARDED_BYTES,
    FRAMING_BYTES,
    HEAD_BYTES,
    MOST_CONNECTIONS,
    RESERVED_FILES,
    Connections,
    Limits,
    limits_of_system,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
SOON = Limits(sweep_s=0.01)
MUCH = b"x" * 64 * 1024 * 1024  # more than the buffers of both sides take


async def hello(request: web.Request) -> web.StreamResponse:
    """Answer at once."""
    return web.Response(text="hello")


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self) -> bytes:
        """Ask, and return the body of a short answer."""
        self.writer.write(GET)
        return await self.answer()

    async def answer(self) -> bytes:
        """The body of the next answer, a short one."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return await self.reader.readexactly(int(length))

    async def ends(self) -> bytes:
        """Everything up to the end of the connection, which must come."""
        data = b""
        async with asyncio.timeout(60):
            try:
                while more := await self.reader.read(2**16):
                    data += more
            except ConnectionError:
                pass
        return data


class Site:
    """A server whose table of connections a test looks into."""

    def __init__(self, connections: Connections, port: int, tls: ssl.SSLContext | None) -> None:
        self.connections = connections
        self._port = port
        self._tls = tls
        self.clients: list[Client] = []

    async def client(self, limit: int = 2**16) -> Client:
        """A new connection, in the table."""
        before = self.connections.accepted
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._tls, limit=limit
        )
        self.clients.append(Client(reader, writer))
        await until(lambda: self.connections.accepted > before)
        return self.clients[-1]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


@asynccontextmanager
async def site(
    limits: Limits, handler: Handler = hello, cert: tuple[str, str] | None = None
) -> AsyncIterator[Site]:
    """A server with limits, on a free port."""
    app = web.Application()
    app.router.add_route("*", "/", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    ours = theirs = None
    if cert is not None:
        ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        ours.load_cert_chain(*cert)
        theirs = ssl.create_default_context(cafile=cert[0])
    connections = Connections(limits)
    acceptor = Acceptor(runner.server, connections, ours, access_log=None)
    served = Site(connections, await acceptor.listen("127.0.0.1", 0), theirs)
    try:
        yield served
    finally:
        acceptor.close()
        for client in served.clients:
            client.writer.transport.abort()
        await runner.cleanup()
        await connections.aclose(0)


async def test_a_silent_connection() -> None:
    """A connection that sends nothing is closed after its time, and one that is answered stays."""
    answering, go_on = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        answering.set()
        await go_on.wait()
        return web.Response(text="hello")

    async with site(Limits(head_s=1.0, sweep_s=0.01), handler) as server:
        busy = await server.client()
        asked = asyncio.create_task(busy.ask())
        await answering.wait()
        silent = await server.client()

        assert b"" == await silent.ends()
        go_on.set()
        assert b"hello" == await asked


async def test_a_head_byte_by_byte() -> None:
    """A head that comes byte by byte has no more time than any other."""
    async with site(Limits(head_s=0.05, sweep_s=0.01)) as server:
        client = await server.client()
        ended = asyncio.create_task(client.ends())
        for byte in b"GET / HTTP/1.1\r\nHost: localhost\r\n" + (b"X: %b\r\n" % (b"x" * 1000)) * 90:
            if ended.done():
                break
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0)

        assert b"" == await ended


async def test_a_head_after_an_answer() -> None:
    """The time for a head holds for each request of a connection, and a connection between two requests has more."""
    async with site(Limits(head_s=1.0, sweep_s=0.01)) as server:
        idle, half = await server.client(), await server.client()
        assert (b"hello", b"hello") == (await idle.ask(), await half.ask())
        half.writer.write(b"GET /")
        assert b"" == await half.ends()

        assert b"hello" == await idle.ask()


async def test_an_idle_connection() -> None:
    """A connection between two requests is closed after its time."""
    async with site(Limits(idle_s=1.0, sweep_s=0.01)) as server:
        client = await server.client()
        assert b"hello" == await client.ask()
        assert b"" == await client.ends()


@needs_openssl
async def test_a_silent_handshake(tmp_path: Path) -> None:
    """A connection that never begins its TLS handshake is in the table, and is closed after its time."""
    cert = certificate(tmp_path)
    async with site(Limits(head_s=1.0, sweep_s=0.01), cert=cert) as server:
        plain = Site(server.connections, server._port, None)
        silent = await plain.client()
        other = await server.client()
        assert b"hello" == await other.ask()
        assert 2 == len(server.connections)
        assert b"" == await silent.ends()
        silent.writer.close()


@needs_openssl
@pytest.mark.parametrize("tls", [False, True])
async def test_who_makes_room(tmp_path: Path, tls: bool) -> None:
    """When all places are taken the oldest silent connection goes, then the oldest idle one, and never one that is answered."""
    waiting, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        if "wait" in request.headers.get("X", ""):
            waiting.release()
            await go_on.wait()
        return web.Response(text="hello")

    limits = Limits(connections=4, silent=4)
    cert = certificate(tmp_path) if tls else None
    async with site(limits, handler, cert) as server:
        busy, idle, older, newer = [await server.client() for _ in range(4)]
        busy.writer.write(GET[:-2] + b"X: wait\r\n\r\n")
        await waiting.acquire()
        assert b"hello" == await idle.ask()
        fresh = [await server.client()]
        assert b"" == await older.ends()
        fresh.append(await server.client())
        assert b"" == await newer.ends()
        for each in fresh:
            each.writer.write(GET[:-2] + b"X: wait\r\n\r\n")
            await waiting.acquire()
        fresh.append(await server.client())
        assert b"" == await idle.ends()
        fresh[-1].writer.write(GET[:-2] + b"X: wait\r\n\r\n")
        await waiting.acquire()

        refused = Site(server.connections, server._port, None)
        reader, writer = await asyncio.open_connection("127.0.0.1", refused._port)
        assert b"" == await Client(reader, writer).ends()
        writer.close()
        go_on.set()
        for each in (busy, *fresh):
            assert b"200 OK" in await each.reader.readline()


async def test_silent_connections_have_a_bound_of_their_own() -> None:
    """Silent connections push each other out before they take the places of others."""
    async with site(Limits(connections=100, silent=2)) as server:
        first, second, third = [await server.client() for _ in range(3)]
        assert b"" == await first.ends()
        assert b"hello" == await second.ask()
        assert b"hello" == await third.ask()


def test_one_address() -> None:
    """One address has no more connections than it may, but for loopback."""

    class Counted(Connections):
        def held(self, address: str, count: int) -> "Counted":
            self._addresses[address] = count
            return self

    limits = Limits(per_address=2)
    assert [True, False, True] == [
        Counted(limits).held("10.0.0.1", 1).admit("10.0.0.1"),
        Counted(limits).held("10.0.0.1", 2).admit("10.0.0.1"),
        Counted(limits).held("127.0.0.1", 2).admit("127.0.0.1"),
    ]


async def whole(request: web.Request) -> web.StreamResponse:
    """A whole answer that no buffer takes."""
    return web.Response(body=MUCH)


async def end_of_stream(request: web.Request) -> web.StreamResponse:
    """A stream whose last write no buffer takes."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write_eof(MUCH)
    return response


async def stream(request: web.Request) -> web.StreamResponse:
    """A stream without an end."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65536)


@needs_openssl
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("handler", [whole, end_of_stream, stream])
async def test_a_client_that_does_not_read(tmp_path: Path, tls: bool, handler: Handler) -> None:
    """A client that stops to read is let go after its time, whatever is being written to it."""
    cert = certificate(tmp_path) if tls else None
    async with site(Limits(slow_client_s=0.2, sweep_s=0.02), handler, cert) as server:
        client = await server.client(limit=1024)
        client.writer.write(GET)
        await client.reader.readline()
        await until(lambda: len(server.connections) == 0)


@pytest.mark.heavy
async def test_a_slow_reader() -> None:
    """A client that reads slowly, but reads, gets all of its answer, though that takes much longer than it may stand still."""
    limits = Limits(slow_client_s=1.0, sweep_s=0.01)
    async with site(limits, whole) as server:
        client = await server.client(limit=2**18)
        loop = asyncio.get_running_loop()
        client.writer.write(GET)
        begin, size = loop.time(), 0
        while size < len(MUCH):
            data = await client.reader.read(2**18)
            assert data, f"it was cut after {size} bytes"
            size += len(data)
            if loop.time() - begin < 3 * limits.slow_client_s:
                await asyncio.sleep(0.01)

        assert size > len(MUCH)


async def test_the_end_waits_for_what_is_sent() -> None:
    """A connection is busy until the last byte of its answer is sent, which is what a stopping server waits for."""
    async with site(SOON, whole) as server:
        client = await server.client()
        client.writer.write(GET)
        await client.reader.readuntil(b"\r\n\r\n")
        assert 1 == server.connections.busy
        read = asyncio.create_task(client.reader.readexactly(len(MUCH)))
        await until(lambda: server.connections.busy == 0)

        assert len(MUCH) == len(await read)


async def test_the_end_waits_only_so_long() -> None:
    """A server that closes is not held up by a client that does not read."""
    async with site(SOON, whole) as server:
        client = await server.client(limit=1024)
        client.writer.write(GET)
        await client.reader.readline()
        async with asyncio.timeout(60):
            await server.connections.aclose(0.01)

        assert 0 == len(server.connections)


def test_more_than_the_system_allows(caplog: pytest.LogCaptureFixture) -> None:
    """A bound beyond the open files of the process is told at start, with the one that holds."""
    possible = limits_of_system().connections
    limits = limits_of_system(wanted=10**9)

    assert limits.connections == possible or limits.connections > MOST_CONNECTIONS
    assert f"{10**9}; raise `ulimit -n`" in caplog.text
    assert 1 == limits_of_system(wanted=1).connections


def test_files_are_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process's files each client has two, and responses in the background, further parts and what is no client have theirs."""
    for files in (64, 256, 1024, 4096):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        clients = limits_of_system().connections
        if files > 512:
            beside = most_background() + most_further_parts()
            assert 2 * clients + beside + RESERVED_FILES <= files
        assert files // 4 <= clients


POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


async def swallow(request: web.Request) -> web.StreamResponse:
    """Read the body, and answer with its length."""
    return web.Response(text=str(len(await request.read())))


async def refuse(request: web.Request) -> web.StreamResponse:
    """Answer without a look at the body."""
    return web.Response(status=413)


@pytest.mark.parametrize(
    ("why", "begin", "more", "most_bytes"),
    [
        ("head_size", b"", b"\r\n" * 1024, HEAD_BYTES),
        ("framing", POST + b"1;", b"a" * 4096, FRAMING_BYTES),
        ("framing", POST, b"1\r\na\r\n" * 1024, FRAMING_BYTES),
        ("unread_body", POST, b"1000\r\n" + b"a" * 4096 + b"\r\n", DISCARDED_BYTES),
    ],
)
async def test_what_brings_nothing(why: str, begin: bytes, more: bytes, most_bytes: int) -> None:
    """What begins no request and brings no body ends its connection by its size, long before its time is over."""
    most_at_once = 256 * 1024  # a read of the event loop
    buffers = (
        16 * 2**20
    )  # of both sockets: what is there when the connection ends has been sent, and was not read
    async with site(Limits(head_s=600.0), refuse if why == "unread_body" else swallow) as server:
        client, sent = await server.client(), 0
        client.writer.write(begin)
        while not server.connections.closed[why]:
            client.writer.write(more)
            sent += len(more)
            assert sent <= most_bytes + most_at_once + buffers
            with suppress(ConnectionError):
                await client.writer.drain()
            await asyncio.sleep(0)
        await client.ends()

        assert sent >= most_bytes
        assert 1 == server.connections.closed.total()


@pytest.mark.parametrize(("size", "count"), [(1, 20_000), (5, 200_000), (50, 20_000)])
async def test_bodies_in_small_chunks(size: int, count: int) -> None:
    """A body in small chunks is read; those of five bytes may be any number."""
    async with site(Limits(), swallow) as server:
        client = await server.client()
        chunk = b"%x\r\n" % size + b"a" * size + b"\r\n"
        client.writer.write(POST + chunk * count + b"0\r\n\r\n")
        await client.writer.drain()

        assert str(size * count).encode() == await client.answer()


async def test_many_requests_in_halves() -> None:
    """Heads in two pieces count for themselves: a connection may bring any number of them, and of line breaks between them."""
    async with site(Limits()) as server:
        client = await server.client()
        padding = b"X: %b\r\n" % (b"x" * 1000)
        for _ in range(HEAD_BYTES // 8000):
            for piece in (b"\r\n" * 50, GET[:20], GET[20:-2] + padding * 8, b"\r\n"):
                client.writer.write(piece)
                await client.writer.drain()
                await asyncio.sleep(0)
            assert b"hello" == await client.answer()
