"""
The application on its addresses: listen, drain, close. It knows aiohttp's way to do that, and no signals.

Each address has an application of its own, since each may have another compatibility profile; the models and the metrics are shared.
"""

import asyncio
import errno
import logging
import socket
import ssl
from contextlib import suppress
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from unilect.config.server import Config, check_keys, each_listener, process_environment
from unilect.context import Requests
from unilect.errors import ConfigError, StoreUnavailable
from unilect.gateway.account import Book
from unilect.gateway.known_keys import KnownKeys
from unilect.gateway.limits import LimitBook
from unilect.gateway.metrics import Metrics
from unilect.routing.measure import Measures
from unilect.routing.registry import Registry
from unilect.server._acceptor import Acceptor
from unilect.server._connections import Connections, Limits, limits_of_system
from unilect.server.app import SITE, create_app
from unilect.server.tls import server_context
from unilect.store.store import Store
from unilect.web.bodies import Bodies

log = logging.getLogger("unilect")
CUT_TIMEOUT_S = 2.0  # for error frames to go out, once the engines have stopped


class Listener:
    """The HTTP side of one server."""

    def __init__(self, config: Config, registry: Registry, limits: Limits | None = None) -> None:
        self._config = config
        self._connections = Connections(
            limits or limits_of_system(config.max_connections, config.max_connections_per_address)
        )
        self._requests: Requests = {}
        self._store = Store(config.store, process_environment())
        bodies = Bodies(config.max_body_bytes)
        keys = self._store.keys
        known = KnownKeys(keys, requests=self._requests) if keys is not None else None
        self._known = known
        self._limits = LimitBook(config, Measures(registry))
        books: tuple[Book, ...] = (self._limits,)
        shared = (registry, Metrics(), bodies, self._requests, self._store, known, books)
        self._doors = [
            _Address(each, create_app(each, *shared), self._connections)
            for each in each_listener(config)
        ]

    async def listen(self) -> list[str]:
        """
        Take requests.

        Returns:
            The URL of each address, the server's own first.

        Raises:
            ConfigError: An address cannot be listened on, or the certificate cannot be used.
        """
        tls = server_context(self._config)
        if self._known is not None:
            await self._known.open()
        await self._limits.start()
        for at, each in enumerate(each_listener(self._config)):
            check_keys(each, self._has_stored_keys(), ("listeners", at - 1) if at else ())
        urls = [await door.open(tls) for door in self._doors]
        log.info("up to %d connections at a time", self._connections.limits.connections)
        return urls

    def _has_stored_keys(self) -> bool:
        """Whether the store lets nobody in without a key: also where nobody knows whether it has any."""
        try:
            return self._known is not None and self._known.required
        except StoreUnavailable:
            return True

    async def drain(self, hurry: asyncio.Event) -> None:
        """Take no more requests, and wait for the running ones: up to the grace, or to `hurry`."""
        for door in self._doors:
            await door.shut()
        log.info("stopping%s", _what_runs(len(self._requests), self._config.shutdown_grace_s))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.shutdown_grace_s):
                while (self._requests or self._connections.busy) and not hurry.is_set():
                    await asyncio.sleep(0.02)

    async def aclose(self) -> None:
        """Close every connection, stop the models, and close the store."""
        for door in self._doors:
            await door.aclose()
        await self._connections.aclose(CUT_TIMEOUT_S)
        await self._limits.aclose()
        if self._known is not None:
            await self._known.aclose()
        await self._store.aclose()


class _Address:
    """One address, and the application behind it."""

    def __init__(self, config: Config, app: web.Application, connections: Connections) -> None:
        self._config = config
        self._connections = connections
        self._acceptor: Acceptor | None = None
        self._app = app
        self._runner = web.AppRunner(
            self._app,
            handler_cancellation=True,  # a client that leaves cancels its handler
            shutdown_timeout=CUT_TIMEOUT_S,
        )

    async def open(self, tls: ssl.SSLContext | None) -> str:
        """
        Listen.

        Returns:
            The URL.
        """
        await self._runner.setup()
        host, port = self._config.host, self._config.port
        assert self._runner.server is not None
        self._acceptor = Acceptor(
            self._runner.server,
            self._connections,
            tls,
            access_log=None,
            logger=_HttpLog(log),
            keepalive_timeout=self._connections.limits.idle_s,
            max_line_size=8 * 1024,
            max_field_size=16 * 1024,
            max_headers=100,
            auto_decompress=False,
        )
        try:
            bound = await self._acceptor.listen(host, port)
        except OSError as error:
            raise ConfigError(_why_not(host, port, error)) from error
        scheme = "http" if tls is None else "https"
        url = f"{scheme}://[{host}]:{bound}" if ":" in host else f"{scheme}://{host}:{bound}"
        await self._app[SITE].open(url)
        return url

    async def shut(self) -> None:
        """Accept no more connections, and tell those that ask."""
        await self._app[SITE].shut()
        self._listen_no_more()

    async def aclose(self) -> None:
        """Close every connection."""
        self._listen_no_more()
        await self._runner.cleanup()

    def _listen_no_more(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()


def _what_runs(active: int, grace_s: float) -> str:
    """What a stopping server still waits for, and how to end that."""
    if not active:
        return ""
    what = "1 request is running" if active == 1 else f"{active} requests are running"
    return f"; {what}, up to {grace_s:g} s; a second Ctrl-C ends {'it' if active == 1 else 'them'}"


def _why_not(host: str, port: int, error: OSError) -> str:
    """Why an address cannot be listened on, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"port: cannot listen on {host}:{port}, which is in use. Stop the program that listens there, or choose another "
            "port with --port (0: any free one)."
        )
    if error.errno == errno.EACCES:
        return f"port: {port} may be listened on by the system's administrator only, as all below 1024. Choose another with --port."
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return (
            f"host: {host} is no address of this machine. Use 127.0.0.1 for this machine alone, or 0.0.0.0 for every "
            "address that it has (which wants a key)."
        )
    return f"host: cannot listen on {host}:{port} ({error.strerror or error}). Choose another address with --host and --port."


class _HttpLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log: for bytes that are no HTTP one line, without them, since they may hold a key, and without a traceback."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **rest: Any) -> None:
        """Log an error; it is a client's where aiohttp's parser raised it."""
        if isinstance(exc_info, HttpProcessingError):
            self.info("a client sent what is no HTTP (%s)", type(exc_info).__name__)
        else:
            self.error(msg, *args, exc_info=exc_info, **rest)
