"""
The application on its addresses: listen, drain, close. It knows aiohttp's way to do that, and no signals.

Each address has an application of its own, since each may have another compatibility profile; the models and the metrics are shared.
"""

import asyncio
import errno
import logging
import os
import socket
import ssl
import time
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from msgspec import structs

from unilect.accounting.ledger import LedgerRecorder
from unilect.accounting.tracing import tracing_of
from unilect.answers.calls import TokenEstimator
from unilect.answers.inflight import Answers
from unilect.auth.key_cache import KeyCache, wrong
from unilect.config.admin import admin_folders
from unilect.config.server import Config, check_keys, each_listener, process_environment
from unilect.config.store import location
from unilect.core.errors import BackendUnavailable, ConfigError, StoreUnavailable
from unilect.limits.limiter import Limiter
from unilect.models.registry import Registry
from unilect.runtime.clock import SteadyClock
from unilect.runtime.context import Requests
from unilect.runtime.tasks import close_each
from unilect.server import _admin_socket
from unilect.server._acceptor import Acceptor
from unilect.server._connections import Connections, Limits, limits_of_system
from unilect.server._model_events import ModelEvents
from unilect.server._state import metrics_of
from unilect.server.admin import change_admin, create_admin
from unilect.server.app import SITE, Shared, change, create_app
from unilect.server.reload import Reloader
from unilect.server.steering import Steering
from unilect.server.tls import server_context
from unilect.store.store import Store
from unilect.web.bodies import Bodies

log = logging.getLogger("unilect")
_FEW_CONNECTIONS = 1024  # which is told
_NO_HTTP = "a client sent what is no HTTP (%s)"
_OF_ADMIN = Limits(connections=64, silent=32)
CUT_TIMEOUT_S = 2.0  # for error frames to go out
_CUT = "The server was stopped before the answer was complete. Try again soon."


class Listener:
    """The HTTP side of one server."""

    def __init__(self, config: Config, registry: Registry, limits: Limits | None = None) -> None:
        self._config = config
        self._connections = Connections(
            limits or limits_of_system(config.max_connections, config.max_connections_per_address)
        )
        self._requests: Requests = {}
        clock = self._clock = SteadyClock()
        self._store = Store(config.store, process_environment(), clock)
        keys, known = self._store.keys, None
        if keys is not None:
            known = KeyCache(keys, clock, self._requests, configured=bool(config.api_keys))
        self._known = known
        self._ledger = self._new_ledger(registry)
        self._limits = Limiter(
            config,
            TokenEstimator(registry),
            self._ledger.ledger if self._ledger else None,
            clock,
            requests=self._requests,
        )
        if self._ledger is not None:
            self._ledger.budgets = self._limits
            self._ledger.update()
            self._limits.recover = self._ledger.recover
        clock.followers.append(self._limits.correct_periods)
        if known is not None:
            known.on_change = self._limits.note_change
        self._inflight = Answers(config.rejoin_s, self._requests)
        metrics = metrics_of(
            registry,
            self._connections,
            self._requests,
            self._store.database,
            per_key=config.metrics_per_key,
            rejoin=self._inflight if config.rejoin_s else None,
        )
        self._events = ModelEvents(registry.feed, self._store.events)
        self._bodies = Bodies(config.max_body_bytes, config.max_total_body_bytes)
        self._tracing = tracing_of(config.otel, process_environment())
        shared = self._shared = Shared(
            *(registry, metrics, self._bodies, self._requests, self._store, known, self._ledger),
            *(self._limits, self._tracing, self._inflight),
            events=self._events,
        )
        steering = self._steering = Steering(config, shared)
        self._doors = [
            _Address(each, create_app(each, shared, steering.page_routes()), self._connections)
            for each in each_listener(config)
        ]
        self._registry = registry
        self._admin: _Address | None = None
        self._urls: list[str] = []
        self._started_at = time.time()

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
        if self._ledger is not None:
            await self._ledger.start()
        await self._limits.start()
        self._events.start()
        self._steering.open()
        self.check(self._config)
        self._urls = [await door.open_site(tls) for door in self._doors]
        most = self._connections.limits.connections
        if most < _FEW_CONNECTIONS:
            log.info(
                "up to %d connections at a time, of the files that this process may open", most
            )
        return self._urls

    def _new_ledger(self, registry: Registry) -> LedgerRecorder | None:
        """Make the recorder of requests; None where nothing is recorded."""
        rule = self._config.store.ledger
        if rule == "off":
            return None
        store = self._store
        return LedgerRecorder(store.ledger, lambda: store.journals, rule, self._known, self._clock)

    async def listen_for_admin(self, reloader: Reloader) -> str | None:
        """
        Take requests of operators, at the place that the configuration names; until `aclose`, also while the server drains.

        Returns:
            The URL, or the path of the unix socket; None where there is no admin API.

        Raises:
            ConfigError: The configuration names a place that cannot be listened on.
        """
        admin = self._config.admin
        if admin.is_off:
            return None
        app = create_admin(self._config, self._steering, reloader, self.describe)
        place, at = admin.place, self._config
        if isinstance(place, tuple):
            at = structs.replace(at, host=place[0], port=place[1])
        # a table of their own: whoever fills that of the clients locks no operator out
        door = self._admin = _Address(at, app, Connections(_OF_ADMIN))
        try:
            if isinstance(place, tuple):
                return await door.open(server_context(self._config))
            acceptor = await door.set_up(None)
            if place is None:
                folders = admin_folders(process_environment())
                port = urlsplit(self._urls[0]).port or 0
                return str(_admin_socket.listen(acceptor, folders, port))
            acceptor.listen_at(place)
            return str(place)
        except OSError as error:
            if place is None:
                log.warning(
                    "there is no admin API, which `unilect ps` asks: its socket cannot be made (%s). Name a place with `listen` in [admin]",
                    error,
                )
                return None
            raise ConfigError(_why_not_admin(place, error)) from error

    async def describe(self) -> dict[str, Any]:
        """Describe this server to an operator, as its store has it now; `keys`: it asks clients for keys."""
        await self.look()
        return {
            "pid": os.getpid(),
            "version": version("unilect"),
            "urls": self._urls,
            "started_at": self._started_at,
            "store": location(self._config.store, process_environment()),
            "keys": self.asks_for_keys,
        }

    def check(self, config: Config) -> None:
        """
        Check that this server could go by another configuration.

        Raises:
            ConfigError: It is not.
        """
        for at, each in enumerate(each_listener(config)):
            check_keys(each, self._has_stored_keys(), ("listeners", at - 1) if at else ())

    async def look(self) -> None:
        """Know the keys that the store has now, by which a configuration is checked."""
        if self._known is not None:
            await self._known.refresh()

    def change(self, config: Config, tls: ssl.SSLContext | None) -> None:
        """
        Go by another configuration from now on, which has the same addresses.

        Args:
            tls: Its certificate, for connections that come from now on.
        """
        limits = limits_of_system(config.max_connections, config.max_connections_per_address)
        same = ("connections", "silent", "per_address")
        self._connections.limits = structs.replace(
            self._connections.limits, **{name: getattr(limits, name) for name in same}
        )
        self._bodies.change(config.max_body_bytes, config.max_total_body_bytes)
        self._limits.configure(config)
        self._steering.change(config)
        if self._ledger is not None:
            self._ledger.update()
        if self._known is not None:
            self._known.require_if_any("the configuration was reloaded, and the store has keys")
            self._known.configured = bool(config.api_keys)
        asked, before = self.asks_for_keys, self._callers()
        for door, each in zip(self._doors, each_listener(config), strict=True):
            door.change(each, tls)
        if self._admin is not None:
            self._admin.change(config, tls)
        self._config = config
        if asked != self.asks_for_keys:
            log.warning(
                "requests need no API key any more: the configuration and the store have none"
                if asked
                else "every request needs an API key from now on: the configuration has keys"
            )
        gone = before - self._callers()
        for context in self._requests.values() if gone else ():
            if context.caller in gone:
                context.end(wrong("it has been revoked."))

    def _callers(self) -> set[str]:
        """Return the names of the configuration's keys, of all addresses."""
        return {name for door in self._doors for name in door.callers}

    @property
    def asks_for_keys(self) -> bool:
        """True if clients need a key: also where nobody knows whether the store has any."""
        try:
            return bool(self._config.api_keys) or (self._known is not None and self._known.required)
        except StoreUnavailable:
            return True

    async def count_keys(self) -> tuple[int, int]:
        """
        Count the keys that work: those of the store, and those of the configuration.

        Raises:
            StoreUnavailable: Those of the store cannot be read.
        """
        stored = 0 if self._known is None else await self._known.count()
        return stored, len(self._callers())

    def _has_stored_keys(self) -> bool:
        """Return True if the store has keys that will be asked for, or none can be read."""
        try:
            return self._known is not None and (self._known.required or self._known.has_keys)
        except StoreUnavailable:
            return True

    async def drain(self, hurry: asyncio.Event) -> None:
        """
        Take no more requests at any address, end the work in the background, and wait for the running requests: up to the grace, or to
        `hurry`. Those that are left are ended, each with an error.
        """
        for door in self._doors:
            door.shut()
        await self._steering.shut()  # who looks on keeps no server
        self._inflight.shut()
        log.info("stopping%s", _what_runs(len(self._requests), self._config.shutdown_grace_s))
        of_doors = (door.end_background() for door in self._doors)
        ending = asyncio.gather(self._inflight.end_background(), *of_doors)
        await self._idle(self._config.shutdown_grace_s, hurry)
        for context in list(self._requests.values()):
            context.end(BackendUnavailable(_CUT, retry_after_s=5))
        await self._idle(CUT_TIMEOUT_S)
        await ending

    async def _idle(self, timeout_s: float, hurry: asyncio.Event | None = None) -> None:
        """Wait until nothing is answered or sent any more, for so long at most, or to `hurry`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._requests or self._connections.busy:
                    if hurry is not None and hurry.is_set():
                        break
                    await asyncio.sleep(0.02)

    async def aclose(self) -> None:
        """Close every connection, stop the models, and close the store."""
        doors = (*self._doors, self._admin)
        books = (
            self._inflight,
            self._limits,
            self._ledger,
            self._known,
            self._events,
            self._store,
            self._tracing,
        )
        await close_each(
            self._inflight.end_background,
            self._steering.shut,
            *(door.aclose for door in doors if door is not None),
            partial(self._connections.aclose, CUT_TIMEOUT_S),
            *(book.aclose for book in books if book is not None),
        )


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

        Raises:
            OSError: The address cannot be listened on.
        """
        acceptor = await self.set_up(tls)
        host = self._config.host
        bound = await acceptor.listen(host, self._config.port)
        scheme = "http" if tls is None else "https"
        return f"{scheme}://[{host}]:{bound}" if ":" in host else f"{scheme}://{host}:{bound}"

    async def open_site(self, tls: ssl.SSLContext | None) -> str:
        """Listen for clients; as `open`, but for a `ConfigError` where the address cannot be listened on."""
        try:
            url = await self.open(tls)
        except OSError as error:
            raise ConfigError(_why_not(self._config.host, self._config.port, error)) from error
        await self._app[SITE].open(url)
        return url

    async def set_up(self, tls: ssl.SSLContext | None) -> Acceptor:
        """Make what accepts connections for the application."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._acceptor = Acceptor(
            server,
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
        return self._acceptor

    def change(self, config: Config, tls: ssl.SSLContext | None) -> None:
        """Go by another configuration from now on, and use its certificate."""
        if SITE in self._app:
            change(self._app, config)
        else:
            change_admin(self._app, config)
        if self._acceptor is not None and self._acceptor.tls is not None:
            self._acceptor.tls = tls

    @property
    def callers(self) -> set[str]:
        """The names of the keys of its configuration."""
        return self._app[SITE].keys.callers

    def shut(self) -> None:
        """Accept no more connections, and tell those that ask."""
        self._app[SITE].shut()
        self._listen_no_more()

    async def end_background(self) -> None:
        """End what goes on apart from requests."""
        await self._app[SITE].end_background()

    async def aclose(self) -> None:
        """Close every connection."""
        self._listen_no_more()
        await self._runner.cleanup()

    def _listen_no_more(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()


def _what_runs(active: int, grace_s: float) -> str:
    """Describe what a stopping server still waits for, and how to end that; empty for nothing."""
    if not active:
        return ""
    what = "1 request is running" if active == 1 else f"{active} requests are running"
    return f"; {what}, up to {grace_s:g} s; a second Ctrl-C ends {'it' if active == 1 else 'them'}"


def _why_not_admin(place: Path | tuple[str, int], error: OSError) -> str:
    """Explain why the place of the admin API cannot be listened at, and what to do."""
    why = error.strerror or error
    if not isinstance(place, Path):
        return f"admin.listen: cannot listen on {place[0]}:{place[1]} ({why}). Choose another address, or name a unix socket."
    if error.errno == errno.EADDRINUSE:
        why = "another server listens there, or a file has this name"
    return f"admin.listen: cannot listen at {place} ({why}). Choose another path, in a folder that this user may write to."


def _why_not(host: str, port: int, error: OSError) -> str:
    """Explain why an address cannot be listened on, and what to do."""
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
            self.info(_NO_HTTP, type(exc_info).__name__)
        else:
            self.error(msg, *args, exc_info=exc_info, **rest)

    def debug(self, msg: object, *args: object, exc_info: Any = None, **rest: Any) -> None:
        """Log a detail; aiohttp tells a first request without a method here."""
        if isinstance(exc_info, HttpProcessingError):
            msg, args, exc_info = _NO_HTTP, (type(exc_info).__name__,), None
        super().debug(msg, *args, exc_info=exc_info, **rest)
