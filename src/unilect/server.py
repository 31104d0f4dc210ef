"""
A server's life: start the models, listen, answer until SIGTERM, let running answers finish, stop everything.

The order of stopping: not ready (/readyz says 503), accept no more, wait for running answers up to the grace, cut the rest with
an error frame, stop the engines. A second signal cuts at once.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import uvloop
from aiohttp import web

from unilect.app import GUARD, SERVICE, create_app
from unilect.config import Config
from unilect.errors import ConfigError, UnilectError
from unilect.registry import Registry

log = logging.getLogger("unilect")
KEEP_ALIVE_TIMEOUT_S = 75.0
CUT_TIMEOUT_S = 2.0  # for error frames to go out, once the engines have stopped


def run(
    config: Config, registry: Registry, on_start: Callable[[str], None] = lambda url: None
) -> None:
    """
    Serve until SIGTERM or SIGINT.

    Args:
        on_start: Called with the server's URL once it answers.

    Raises:
        ConfigError: A model cannot be started, or the address cannot be listened on. Nothing is left running.
    """
    uvloop.run(serve(config, registry, on_start))


async def serve(config: Config, registry: Registry, on_start: Callable[[str], None]) -> None:
    """As `run`, in a running loop."""
    stop = _Signals()
    try:
        await _start_models(config, registry, stop)
        app = create_app(config, registry)
        runner = make_runner(app)
        await runner.setup()
        try:
            on_start(await _listen(config, runner))
            await stop.first.wait()
            await _drain(config, runner, app, stop)
            await registry.aclose()
        finally:
            await runner.cleanup()
    finally:
        await registry.aclose()
        stop.ignore()


def make_runner(app: web.Application) -> web.AppRunner:
    """What runs the application: limits on heads, and handlers that are cancelled when their client leaves."""
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=KEEP_ALIVE_TIMEOUT_S,
        shutdown_timeout=CUT_TIMEOUT_S,
        max_line_size=8 * 1024,
        max_field_size=16 * 1024,
        max_headers=100,
        auto_decompress=False,
    )


async def _start_models(config: Config, registry: Registry, stop: "_Signals") -> None:
    names = [
        name
        for name in registry.models
        if name not in config.models or config.models[name].load == "start"
    ]
    starting = asyncio.ensure_future(registry.start(names))
    stopped = asyncio.ensure_future(stop.first.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        raise SystemExit(130)
    try:
        starting.result()
    except* UnilectError as group:
        raise ConfigError(_first_message(group)) from group


def _first_message(group: BaseExceptionGroup[UnilectError]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


async def _listen(config: Config, runner: web.AppRunner) -> str:
    site = web.TCPSite(runner, config.host, config.port, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(
            f"port: cannot listen on {config.host}:{config.port} ({error.strerror or error})."
        ) from error
    port = runner.addresses[0][1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{port}"


async def _drain(
    config: Config, runner: web.AppRunner, app: web.Application, stop: "_Signals"
) -> None:
    """Take no more requests, and wait for the running ones: up to the grace, or to a second signal."""
    app[SERVICE].ready = False
    for site in list(runner.sites):
        await site.stop()
    guard = app[GUARD]
    log.info("stopping; %d requests are running", guard.active)
    with suppress(TimeoutError):
        async with asyncio.timeout(config.shutdown_grace_s):
            while guard.active and not stop.second.is_set():
                await asyncio.sleep(0.02)


class _Signals:
    """SIGTERM and SIGINT, counted."""

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            if sys.platform != "win32":
                loop.add_signal_handler(number, self._got)

    def ignore(self) -> None:
        """The work is done; another signal shall not turn a clean exit into a death."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    def _got(self) -> None:
        (self.second if self.first.is_set() else self.first).set()
