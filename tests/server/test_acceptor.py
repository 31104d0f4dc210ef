"""Tests of unilect.server._acceptor; those of its bounds are in test_connections.py and server/test_lifecycle.py."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from unilect.server import _acceptor as acceptor_module
from unilect.server._acceptor import Acceptor
from unilect.server._connections import Connections, Limits


@asynccontextmanager
async def accepting() -> AsyncIterator[tuple[Acceptor, Connections]]:
    """An acceptor in front of an application without routes, not yet listening."""
    runner = web.AppRunner(web.Application(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    connections = Connections(Limits())
    acceptor = Acceptor(runner.server, connections, access_log=None)
    try:
        yield acceptor, connections
    finally:
        acceptor.close()
        await runner.cleanup()
        await connections.aclose(0)


async def status(host: str, port: int) -> bytes:
    """The first line of an answer."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    line = (await reader.read()).partition(b"\r\n")[0]
    writer.close()
    return line


async def test_a_name_of_several_addresses() -> None:
    """Every address of a name is listened on, at the same port."""
    async with accepting() as (acceptor, _):
        port = await acceptor.listen("localhost", 0)
        found = {each[4][0] for each in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM)}  # fmt: skip
        answered = 0
        for host in found:
            try:
                answered += b"HTTP/1.1 404 Not Found" == await status(str(host), port)
            except OSError:
                continue  # the name is known for an address that this machine does not have

        assert answered


async def test_an_address_of_another_machine() -> None:
    """An address that this machine does not have is told, and nothing is left open."""
    async with accepting() as (acceptor, _):
        with pytest.raises(OSError, match="assign"):
            await acceptor.listen("192.0.2.1", 0)
        assert [] == acceptor._sockets


async def test_no_more() -> None:
    """After its end nobody is accepted, and who was accepted before is still served."""
    async with accepting() as (acceptor, connections):
        port = await acceptor.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while not len(connections):
            await asyncio.sleep(0)
        acceptor.close()
        with pytest.raises(ConnectionRefusedError):
            await status("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        writer.close()


async def test_clients_that_are_gone_at_once() -> None:
    """Clients that leave before they are looked at leave nothing in the table."""
    async with accepting() as (acceptor, connections):
        port = await acceptor.listen("127.0.0.1", 0)
        for _ in range(2 * acceptor_module.ACCEPTED_AT_ONCE):
            socket.create_connection(("127.0.0.1", port)).close()
        async with asyncio.timeout(60):
            while connections.accepted < 2 * acceptor_module.ACCEPTED_AT_ONCE or len(connections):
                await asyncio.sleep(0)
        assert b"HTTP/1.1 404 Not Found" == await status("127.0.0.1", port)


async def test_the_kernel_asks_whether_a_client_is_there() -> None:
    """A connection has the keep-alive of the socket that it was accepted from, and one is dropped before the event loop has it."""
    async with accepting() as (acceptor, connections):
        port = await acceptor.listen("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        while not len(connections):
            await asyncio.sleep(0)
        (one,) = connections._all
        kept = one.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        one.drop()
        dropped = not len(connections)
        while one.sock.fileno() >= 0:
            await asyncio.sleep(0.01)
        writer.close()

        assert (1, True) == (kept, dropped)
