"""
Reloads the configuration of a running server: all of it, or nothing and the reason.

1. *checking*: the file is read and checked as at the start, and its models are made.
2. *starting*: models with new backends are started while the old ones go on answering, and so are those that are on demand no more.
3. *swapping*: everything changes in one step of the event loop. Models that leave finish their requests, and are stopped then.

One reload runs at a time. Who asks while one runs may have changed the file since it was read, so another one follows, which all who
ask meanwhile share. What fails before the swap leaves nothing behind; what has been started for it is stopped.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from ssl import SSLContext
from typing import Literal, NamedTuple, Protocol, TypeAlias

from unilect.config.file import Origin
from unilect.config.mistakes import ErrorCollector
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.core.errors import BackendUnavailable, ConfigError, ReloadRefused, UnilectError
from unilect.http.tls import client_context
from unilect.models import sources
from unilect.models.discovery import Discovery
from unilect.models.model import Model
from unilect.models.preset import Preset
from unilect.models.registry import Registry
from unilect.runtime.tasks import Tasks, run_aside
from unilect.server._changes import Changes, check_fixed, compare, same_backends
from unilect.server.tls import server_context

log = logging.getLogger("unilect")
LOOK_S = 1.0
State: TypeAlias = Literal["idle", "checking", "starting", "swapping", "closed"]


class Source(NamedTuple):
    """
    The source of a server's configuration, to be read again.

    Attributes:
        origin: Its file, and which options are set elsewhere.
        read: Reads it, checked and with the same flags as at the start; raises ConfigError.
    """

    origin: Origin
    read: Callable[[], Config]


class Changing(Protocol):
    """The parts of a server beside the models that follow the configuration, such as the addresses."""

    async def look(self) -> None:
        """Look at what a configuration is checked with, such as the keys of the store."""

    def check(self, config: Config) -> None:
        """
        Raises:
            ConfigError: It could not go by this one.
        """

    def change(self, config: Config, tls: SSLContext | None) -> None:
        """Go by it from now on; it fails at nothing."""


class _Plan(NamedTuple):
    """
    The plan of a reload.

    Attributes:
        config: The new configuration.
        tls: Its certificate.
        models: Its models, in order.
        kept: Those with the same backends as a model that is served, by whose name, with their settings.
        woken: Models that are served, and were to be loaded on demand until now, which nobody has; not those that an operator has drained.
    """

    config: Config
    tls: SSLContext | None
    models: list[Model]
    kept: dict[str, Model]
    woken: list[Model]

    @property
    def new(self) -> list[Model]:
        """The models with new backends; those of a preset are its base's."""
        return [one for one in self.models if one.name not in self.kept and one.base is one]


class Reloader:
    """
    The owner of all changes of the configuration.

    Args:
        source: None for a server without a file, which is never reloaded.
        config: What the server goes by.
        registry, discovery: Its models.
        parts: What else goes by the configuration.
        look_s: Time between two looks at a watched file.

    Attributes:
        state: What it does now.
    """

    def __init__(
        self,
        source: Source | None,
        config: Config,
        registry: Registry,
        discovery: Discovery,
        *parts: Changing,
        look_s: float = LOOK_S,
    ) -> None:
        self.state: State = "idle"
        self._source, self._config = source, config
        self._registry, self._discovery, self._parts = registry, discovery, parts
        self._look_s = look_s
        self._tasks, self._turn = Tasks(), asyncio.Lock()
        self._next: asyncio.Task[Changes] | None = None
        self._read_at = _mark(self.file)

    @property
    def file(self) -> Path | None:
        """The file of the configuration."""
        return None if self._source is None else self._source.origin.file

    def begin(self, hang_up: asyncio.Event | None = None) -> None:
        """
        Reload without being asked, until `aclose`: when the file changes, where `watch` is set, and for a signal.

        Args:
            hang_up: Set for each SIGHUP; cleared here.
        """
        if hang_up is not None:
            self._tasks.start("the wait for SIGHUP", self._reload_on_signal(hang_up))
        if self._config.watch and self.file is None:
            log.warning("watch: there is no configuration file to watch; name one with --config")
        elif self._config.watch:
            self._tasks.start("the watch over the configuration file", self._watch())

    async def reload(self, why: str) -> Changes:
        """
        Go by the file as it is now.

        Args:
            why: Who asks, for the log.

        Raises:
            ReloadRefused: It cannot be used, or there is none; the reason is told, in the log too. Nothing has changed.
            BackendUnavailable: The server is stopping.
        """
        task = self.ask(why)
        await asyncio.wait({task})  # who leaves stops nothing
        if task.cancelled():
            raise _stopping()
        return task.result()

    def ask(self, why: str) -> "asyncio.Task[Changes]":
        """Reload without waiting for it."""
        if self.state == "closed":
            raise _stopping()
        if self.file is None:
            raise ReloadRefused(
                "This server was started without a configuration file, so there is nothing to reload. Restart it."
            )
        if self._next is None:
            self._next = self._tasks.start("the reload of the configuration", self._take_turn(why))
        return self._next

    async def aclose(self) -> None:
        """Reload no more; one that runs is given up, unless it has swapped. Idempotent."""
        self.state = "closed"
        await self._tasks.aclose()

    async def _take_turn(self, why: str) -> Changes:
        async with self._turn:
            self._next = None  # who asks from now on may have changed the file since
            log.info("reloading %s (%s)", self.file, why)
            try:
                done = await self._reload()
            except ConfigError as error:
                mistakes = "; ".join(map(str, error.each))
                raise ReloadRefused(f"{mistakes} Nothing has changed.") from error
            finally:
                if self.state != "closed":
                    self.state = "idle"
            log.info("reloaded: %s", done)
            return done

    async def _reload(self) -> Changes:
        """
        Raises:
            ConfigError: The new configuration cannot be used.
        """
        self.state = "checking"
        for part in self._parts:
            await part.look()
        plan = await run_aside(self._plan)
        try:
            listed = await self._discovery.prepare(plan.config)
            self.state = "starting"
            await self._start(plan)
            self._check(plan)  # models may have come meanwhile
        except BaseException:
            await asyncio.gather(*(model.aclose() for model in plan.new))
            await self._restore(plan.new)
            for model in plan.woken:
                if not model.in_use:
                    model.set_keep_alive(0)
            raise
        self.state = "swapping"
        before, was = self._config, sources.models_of(self._config)
        self._swap(plan)
        self._discovery.change(plan.config, listed)
        now = sources.models_of(plan.config)
        return compare(before, plan.config, was, now, [model.name for model in plan.new])

    def _plan(self) -> _Plan:
        """
        Read and check the configuration, and make its models; it is called in a thread, since both read files.

        Raises:
            ConfigError: Something is wrong; all is told, with its place.
        """
        assert self._source is not None
        self._read_at = _mark(self.file)
        config = self._source.read()
        client_context.cache_clear()  # authorities may have come; they are read here, in a thread
        if config.image_hosts:
            client_context()
        found, models, tls = ErrorCollector(), list[Model](), None
        with found:
            check_fixed(self._config, config)
        with found:
            tls = server_context(config)
        for part in self._parts:
            with found:
                part.check(config)
        with found:
            models = sources.build_models(config, self._registry.checker)
        ErrorCollector(self._source.origin.locate(found.errors)).raise_all()
        was, now = sources.models_of(self._config), sources.models_of(config)
        kept = {model.name: model for model in models if self._is_kept(model.name, was, now)}
        for model in models:
            if isinstance(model, Preset) and model.base.name in kept:
                model.bind(self._registry.models[model.base.name])
        demanded = [
            name
            for name, model in kept.items()
            if model.base is model and was[name].load == "demand" and now[name].load == "start"
        ]
        served = map(self._registry.models.__getitem__, demanded)
        woken = [model for model in served if not (model.runs_here or model.draining)]
        return _Plan(config, tls, models, kept, woken)

    def _is_kept(self, name: str, was: dict[str, ModelConfig], now: dict[str, ModelConfig]) -> bool:
        """Return True if a model keeps the backends that it has."""
        return (
            name in was
            and name in self._registry.models
            and was[name].model != sources.ALL
            and was[name].base == now[name].base
            and same_backends(was[name], now[name])
        )

    async def _start(self, plan: _Plan) -> None:
        """
        Start the new models that are not to be loaded on demand, and those that are no more.

        Raises:
            ConfigError: One cannot be started.
        """
        tables = sources.models_of(plan.config)
        try:
            new = [model for model in plan.new if tables[model.name].load == "start"]
            await self._registry.start_all([*new, *plan.woken])
        except* UnilectError as group:
            raise ConfigError(first_message(group)) from group

    async def _restore(self, given_up: list[Model]) -> None:
        """Have models go on with their settings where others of their names have told these to engines that both know, as a cluster's."""
        if self.state == "closed":
            return
        names = [model.name for model in given_up if model.name in self._registry.models]
        members = [one for name in names for one in self._registry.models[name].pool.members]
        found = [one.backend.restore() for one in members]
        for error in await asyncio.gather(*found, return_exceptions=True):
            if isinstance(error, UnilectError):
                log.error("a model does not go on with its settings before the reload: %s", error.for_log)  # fmt: skip
            elif error is not None:
                raise error

    def _check(self, plan: _Plan) -> None:
        """
        Raises:
            ConfigError: A model has the name, or an alias, of one that neither the configuration nor a server's list has brought.
        """
        found, theirs = ErrorCollector(), set(self._others()) - self._discovery.names
        for name, table in plan.config.models.items():
            if name in theirs:
                found.add(f"models.{name}: a FastChat worker serves a model of this name. Choose another one.")  # fmt: skip
            for alias in theirs.intersection(table.aliases):
                found.add(f"models.{name}.aliases: a FastChat worker serves the model `{alias}`. Choose another one.")  # fmt: skip
        found.raise_all()

    def _others(self) -> list[str]:
        """Return the models that are served, and are not those of the configuration."""
        own = sources.models_of(self._config)
        return [
            name
            for name in self._registry.models
            if name not in own or own[name].model == sources.ALL
        ]

    def _swap(self, plan: _Plan) -> None:
        """Let everything go by the new configuration; it waits for nothing, so nobody sees a part of it."""
        served, models = self._registry.models, list[Model]()
        for model in plan.models:
            if model.name in plan.kept:
                served[model.name].update_settings(model)
                model = served[model.name]
            models.append(model)
        taken = {name for model in models for name in (model.name, *model.aliases)}
        others = [served[name] for name in self._others() if name not in taken]
        if plan.config.log_level != self._config.log_level:
            logging.getLogger().setLevel(plan.config.log_level.upper())
        for part in self._parts:
            part.change(plan.config, plan.tls)
        self._registry.swap([*models, *others])
        self._config = plan.config

    async def _reload_on_signal(self, hang_up: asyncio.Event) -> None:
        while True:
            await hang_up.wait()
            hang_up.clear()
            self._ask_quietly("SIGHUP")

    async def _watch(self) -> None:
        """Reload once the file has changed and is as it was at the look before: an editor may still write it."""
        seen = self._read_at
        while True:
            await asyncio.sleep(self._look_s)
            before, seen = seen, await asyncio.to_thread(_mark, self.file)
            if seen is None and before is not None:
                log.error(
                    "%s is gone or cannot be read; the server goes on by what it has read, and watches for the file to come back",
                    self.file,
                )
            if seen is not None and seen == before and seen != self._read_at:
                self._read_at = seen
                self._ask_quietly("it has changed")

    def _ask_quietly(self, why: str) -> None:
        try:
            self.ask(why)
        except UnilectError as error:
            log.error("the configuration is not reloaded: %s", error)


def first_message(group: BaseExceptionGroup[UnilectError]) -> str:
    """Return the operator's message of the first of several errors."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.for_operator if isinstance(error, UnilectError) else str(error)


def _stopping() -> BackendUnavailable:
    return BackendUnavailable(
        "The server is stopping; its configuration is not reloaded. Start it again."
    )


def _mark(file: Path | None) -> tuple[int, ...] | None:
    """Return what distinguishes one version of a file from another, also where an editor replaces the file; None without one."""
    if file is None:
        return None
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
