"""Loopback ports: an aiohttp application on one, in a thread of its own, for tests of processes that call it; a free one."""

import asyncio
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from aiohttp import web

START_TIMEOUT_S = 30.0


@contextmanager
def served(*routes: web.RouteDef) -> Iterator[int]:
    """
    Serve routes while the block runs.

    Yields:
        The port.
    """
    loop, stop, started = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    ports: list[int] = []

    async def serve() -> None:
        app = web.Application()
        app.add_routes(routes)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert started.wait(START_TIMEOUT_S)
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(START_TIMEOUT_S)
        loop.close()


_GIVEN: set[int] = set()  # whoever has one may not listen yet


def free_port() -> int:
    """A port on which nobody listens, for a server that cannot choose one itself; the system gives none of these to others, and this gives none twice."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        if port in _GIVEN:
            continue
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _GIVEN.add(port)
            return port
