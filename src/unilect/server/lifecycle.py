"""
A server's life: start the models, listen, answer until a signal, let running answers finish, stop everything.

SIGTERM and SIGINT (Ctrl-C) stop it. SIGHUP reloads the configuration of a server that has a file and no terminal, such as a service, and
stops any other: it is what shell and kernel send when a terminal is closed, and nobody can tell it from one that a person sends.
SIGUSR1 and SIGUSR2 do nothing: tools that rotate logs send them, and would end the server else.

The order of stopping: not ready at any address (/readyz says 503), accept no more, wait for running answers up to the grace, end the
rest with an error frame, stop the engines. A second SIGTERM or SIGINT ends the waiting.
"""

import asyncio
import gc
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import uvloop

from unilect.config.server import Config
from unilect.core.bounds import raise_open_files
from unilect.core.errors import ConfigError, StoreUnavailable, UnilectError
from unilect.models.discovery import Discovery
from unilect.models.registry import Registry
from unilect.runtime.child_limits import USER_SIGNALS
from unilect.runtime.tasks import close_each
from unilect.server.reload import Reloader, Source, first_message

if TYPE_CHECKING:
    from unilect.server.listener import Listener

log = logging.getLogger("unilect")
_NOTHING = "got %s, which does nothing: the log goes to stderr, and whoever reads that rotates it"


def run(
    config: Config,
    registry: Registry,
    on_start: Callable[[list[str], bool], None] = lambda urls, asks_for_keys: None,
    source: Source | None = None,
) -> None:
    """
    Serve until a signal.

    Args:
        on_start: Called once it answers, with the server's URLs, one for each address, and with whether clients need a key.
        source: Where the configuration comes from, to reload it.

    Raises:
        ConfigError: A model cannot be started, or the address cannot be listened on. Nothing is left running.
    """
    uvloop.run(serve(config, registry, on_start, source))


async def serve(
    config: Config,
    registry: Registry,
    on_start: Callable[[list[str], bool], None],
    source: Source | None = None,
) -> None:
    """Serve as `run` does, in a running loop."""
    reloads = source is not None and source.origin.file is not None and not _has_terminal()
    stop, discovery = _Signals(reloads), Discovery(config, registry)
    try:
        importing = asyncio.ensure_future(asyncio.to_thread(_import_listener))
        await _start_models(config, registry, stop)
        await discovery.start()
        http = await importing
        raise_open_files()
        listener = http.Listener(config, registry)
        reloader = Reloader(source, config, registry, discovery, listener)
        try:
            urls = await listener.listen()
            if (place := await listener.listen_for_admin(reloader)) is not None:
                log.info("the admin API is at %s", place)
            await _tell_keys(listener, reloader.file)
            on_start(urls, listener.asks_for_keys)
            _spare_what_stays()
            _spare_generators()
            reloader.begin(stop.hang_up)
            await stop.first.wait()
            log.info("got %s", stop.name)
            await reloader.aclose()
            await listener.drain(stop.second)
            await registry.aclose()
        finally:
            await close_each(reloader.aclose, listener.aclose)
    finally:
        try:
            await close_each(discovery.aclose, registry.aclose)
        finally:
            stop.ignore()


async def _tell_keys(listener: "Listener", file: Path | None) -> None:
    """Log how many API keys work, where clients need one, and where none works how one is made."""
    if not listener.asks_for_keys:
        return
    with suppress(StoreUnavailable):  # the log tells that already
        stored, configured = await listener.count_keys()
        parts = [
            f"{n} {of}" for n, of in ((stored, "in the store"), (configured, "configured")) if n
        ]
        if parts:
            count = stored + configured
            works = "1 API key works" if count == 1 else f"{count} API keys work"
            log.info("%s (%s)", works, ", ".join(parts))
        else:
            of = f" --config {shlex.quote(str(file))}" if file is not None else ""
            log.warning(
                "every request needs an API key, and none works: those of the store are revoked or have expired. "
                "`unilect keys create NAME%s` makes one; to serve without keys, delete the old ones and restart",
                of,
            )


def _import_listener() -> ModuleType:
    """Import the HTTP side, beside the start of the models: it takes as long as a small model to load."""
    from unilect.server import listener

    return listener


async def _start_models(config: Config, registry: Registry, stop: "_Signals") -> None:
    names = [
        name
        for name in (model.name for model in registry.bases)
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
        raise ConfigError(first_message(group)) from group


def _spare_what_stays() -> None:
    """Keep the garbage collector from the modules and models: they stay, and a look at all of them finds nothing."""
    gc.collect()
    gc.freeze()


def _spare_generators() -> None:
    """
    Keep the event loop from listing every async generator that is begun, of which each request has some: whoever begins one here closes it
    (`aclosing`), and so there is nothing for the loop to close in the end. One that is lost all the same is still closed.

    Source: https://docs.python.org/3/library/sys.html#sys.set_asyncgen_hooks
    """
    sys.set_asyncgen_hooks(firstiter=None)


def _has_terminal() -> bool:
    """Return True if this process has a terminal, which may be closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


class _Signals:
    """
    The signals that stop the server, or reload its configuration.

    Args:
        reloads: SIGHUP does not stop it.

    Attributes:
        first: Set by the first one that stops it.
        second: Set by the next one that a person or a service manager sent.
        hang_up: Set by SIGHUP, where that does not stop it.
        name: The first one's.
    """

    def __init__(self, reloads: bool = False) -> None:
        self.first, self.second, self.hang_up = (asyncio.Event() for _ in range(3))
        self.name = ""
        self._reloads = reloads
        loop = asyncio.get_running_loop()
        self._caught = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means it
            self._caught.append(signal.SIGHUP)
        for number in self._caught:
            loop.add_signal_handler(number, self._got, number)
        for number in USER_SIGNALS:
            loop.add_signal_handler(number, log.info, _NOTHING, number.name)
            self._caught.append(number)

    def ignore(self) -> None:
        """Ignore signals from now on: the work is done, and another one shall not turn a clean exit into a death."""
        for number in self._caught:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    def _got(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP and self._reloads:
            self.hang_up.set()  # while the server starts it waits, and while it stops nobody heeds it
        elif not self.first.is_set():
            self.name = number.name
            self.first.set()
        elif number != signal.SIGHUP:  # shell and kernel both send one when a terminal is closed
            self.second.set()
