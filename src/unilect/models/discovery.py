"""
Model discovery: the models of a server, or of a folder of GGUF files, with `model = "*"` are added and removed as it lists them.

Such a table is not a model itself. Its server's list is requested at the start and every `EVERY_S`; each listed model is
served under its own name, with the table's settings. A request with an unknown name refreshes the lists at once, because the model may be
new. A name or alias of a configured model stays that model's. While a server is down its models stay; their own errors report it. A model
that cannot be served with the table's settings is skipped, which is logged once, and retried at every refresh.

A server may list anything: of each table `MAX_MODELS` are served, which are made one at a time, with others served in between.
"""

import asyncio
import logging
import math
from collections.abc import Set
from contextlib import suppress
from typing import TypeAlias

import msgspec

from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.core.bounds import MAX_NAME
from unilect.core.errors import BackendUnavailable, ConfigError, UnilectError
from unilect.models import sources
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.models.source_names import settle
from unilect.runtime.redact import Secrets, secrets_of
from unilect.runtime.tasks import Tasks, join_shared, run_aside, spawn_detached

log = logging.getLogger("unilect")
EVERY_S = 10.0
MAX_EVERY_S = 160.0  # while something of ours fails, which is logged each time
ASK_EVERY_S = 1.0  # for a name that nobody knows
ASK_TIMEOUT_S = 3.0  # which is a model that is not found by then
LIST_TIMEOUT_S = 10.0  # a server that says nothing holds up the start, and what others list
MAX_MODELS = 500  # of a table
#: By table, of those that have changed, the models that are to be served.
Prepared: TypeAlias = dict[str, list[Model]]


def _is_name(text: str) -> bool:
    """True for a name that a request can have, and a line of the log."""
    return 0 < len(text) <= MAX_NAME and text.isprintable()


def _collect_own_names(config: Config) -> set[str]:
    """The names and aliases of the models that a configuration has itself, which no table finds for it."""
    own = [
        (name, one) for name, one in sources.models_of(config).items() if one.model != sources.ALL
    ]
    return {known for name, one in own for known in (name, *one.aliases)}


def _tables(config: Config) -> dict[str, ModelConfig]:
    """The tables that stand for all models of a server."""
    return {name: table for name, table in config.models.items() if table.model == sources.ALL}


class Discovery:
    """
    Keeps the registry in sync with the servers' lists of models.

    Args:
        config: Its tables with `model = "*"` are refreshed.
        registry: The models.
    """

    def __init__(self, config: Config, registry: Registry) -> None:
        self._tables = _tables(config)
        self._registry = registry
        self._shared = self._share(config) if self._tables else None
        self._found: dict[str, set[str]] = {name: set() for name in self._tables}
        self._settled: dict[str, str] = {}  # by the source of a table
        self._down: set[str] = set()
        self._crowded: set[str] = set()
        self._refused: dict[str, dict[str, str]] = {name: {} for name in self._tables}  # and why
        self._work = Tasks()
        self._looking: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._asked_at_s = -math.inf
        self._flawed = False

    def _share(self, config: Config) -> sources.Shared:
        shared = sources.share(config, self._registry.checker)
        return sources.leave_room(shared, self._registry.models.values())

    async def start(self) -> None:
        """Ask every server once, and again from time to time, or for a name that nobody knows, until `aclose`."""
        if self._tables:
            self._registry.seek = self.ask
            await self.look()
            self._begin()

    @property
    def names(self) -> set[str]:
        """The names of the models that it has found."""
        return {name for found in self._found.values() for name in found}

    async def prepare(self, config: Config) -> Prepared:
        """
        The models of the tables that are new or other than before, for `change`. A server that does not answer keeps its models, with the
        new settings.
        """
        own, prepared = _collect_own_names(config), Prepared()
        shared = self._share(config)
        new = {n: one for n, one in _tables(config).items() if self._tables.get(n) != one}
        self._down -= new.keys()
        self._crowded -= new.keys()
        lists = await asyncio.gather(*(self._list(*table) for table in new.items()))
        for (table, settings), listed in zip(new.items(), lists, strict=True):
            before = self._tables.get(table)
            if listed is None:
                stays = before is not None and before.sources == settings.sources
                listed = sorted(self._found[table]) if stays else []
            names = [name for name in listed if name not in own]
            self._refused[table] = {}
            prepared[table] = []
            for name in self._choose(table, names, self._found.get(table, set())):
                if (model := self._make(table, name, settings, shared)) is not None:
                    prepared[table].append(model)
                await asyncio.sleep(0)
        return prepared

    def change(self, config: Config, prepared: Prepared) -> None:
        """
        Refresh the tables of another configuration from now on, whose own models are in the registry already.

        Args:
            prepared: What `prepare` has returned for it.
        """
        before, self._tables = self._tables, _tables(config)
        self._shared = self._share(config) if self._tables else None
        own = _collect_own_names(config)
        for found in self._found.values():
            found -= own
        was = dict[str, set[str]]()
        for table in (before.keys() - self._tables.keys()) | prepared.keys():
            was[table] = self._found.pop(table, set())
            for gone in was[table] - {model.name for model in prepared.get(table, ())}:
                self._registry.forget(gone)
            if table not in prepared:
                del self._refused[table]
        for table, models in prepared.items():  # last: their names may have been another table's
            self._found[table] = set()
            for model in models:
                if model.name in was[table] or model.name not in self._registry:
                    self._serve(table, model)
        self._registry.seek = self.ask if self._tables else None
        if self._tables:
            self._begin()

    def _begin(self) -> None:
        """Look from time to time."""
        if self._watching is None:
            self._watching = self._work.start("looking for models", self._watch())

    async def ask(self) -> None:
        """Look for a model that is asked for and that nobody has: once for all who ask, not too often, and not for long."""
        now_s = asyncio.get_running_loop().time()
        if self._looking is None:
            if now_s < self._asked_at_s + ASK_EVERY_S:
                return
            self._asked_at_s = now_s
        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_TIMEOUT_S):
                await self.look()

    async def look(self) -> None:
        """Ask every server for its list, and take in and let go what has changed; all who want it at the same time share one look."""
        if self._looking is None:
            self._looking = self._work.start("a look for models", self._look_at_all())
        with suppress(BackendUnavailable):  # `aclose`: what is not known by then is not found
            await join_shared(self._looking)

    async def aclose(self) -> None:
        """Ask no more."""
        self._registry.seek = None
        await self._work.aclose()

    async def _look_at_all(self) -> None:
        looks = [spawn_detached(self._look(*table)) for table in self._tables.items()]
        try:
            # a flaw, which `spawn_detached` logs, is one table's, and no reason to look no more
            found = await asyncio.gather(*looks, return_exceptions=True)
            self._flawed = any(found)
        finally:
            self._looking = None

    async def _watch(self) -> None:
        pause_s = EVERY_S
        while True:
            await asyncio.sleep(pause_s)
            await self.look()
            pause_s = min(2 * pause_s, MAX_EVERY_S) if self._flawed else EVERY_S

    async def _list(self, table: str, config: ModelConfig) -> list[str] | None:
        """The names that a table's server lists, in its order; None where it does not answer, which is told once."""
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                listed = await sources.list_models(table, await self._settle(config))
        except (UnilectError, ConfigError, TimeoutError) as error:
            if table not in self._down:  # told once
                told = error.for_operator if isinstance(error, UnilectError) else str(error)
                told = Secrets([config.api_key, *secrets_of(config.sources[0])]).remove_from(told)
                why = told or f"its server sent nothing for {LIST_TIMEOUT_S:.0f} s"
                log.warning(
                    "%s: its models cannot be listed, and are asked for again: %s", table, why
                )
            self._down.add(table)
            return None
        return list(dict.fromkeys(listed))

    async def _settle(self, config: ModelConfig) -> ModelConfig:
        """
        Return a table with its source as it was read at first, in a thread: a folder that vanishes is none of the hub's by that.

        Raises:
            ConfigError: The source is nothing that can be served.
        """
        given = config.sources[0]
        if given not in self._settled:
            self._settled[given] = await run_aside(lambda: settle(given))
        return msgspec.structs.replace(config, source=self._settled[given])

    def _choose(self, table: str, names: list[str], served: Set[str]) -> list[str]:
        """At most `MAX_MODELS` of some names: those that are served already, and the first of the others; that some are left out is told once."""
        if len(names) <= MAX_MODELS:
            self._crowded.discard(table)
            return names
        if table not in self._crowded:
            log.warning("%s: its server lists %d models, of which %d are served. Configure others by name.", table, len(names), MAX_MODELS)  # fmt: skip
        self._crowded.add(table)
        stay = [name for name in names if name in served]
        return [*stay, *(name for name in names if name not in served)][:MAX_MODELS]

    async def _look(self, table: str, config: ModelConfig) -> None:
        listed = await self._list(table, config)
        if listed is None or self._tables.get(table) != config:  # it was reloaded meanwhile
            return
        self._down.discard(table)
        found, refused = self._found[table], self._refused[table]
        for name in refused.keys() - set(listed):
            del refused[name]
        for name in found.difference(listed):
            if self._found.get(table) is not found:  # it was reloaded in between
                return
            if name in found:  # else a reload has given it to another model
                log.info("%s: its model %s is gone", table, name)
                found.discard(name)
                self._registry.forget(name)
                await asyncio.sleep(0)
        free = [name for name in listed if name in found or name not in self._registry]
        for name in self._choose(table, free, found):
            if self._found.get(table) is not found:
                return
            if name in self._registry:
                continue
            if (model := self._make(table, name, config, self._shared)) is not None:
                log.info("%s: serving its model %s", table, name)
                self._serve(table, model)
            await asyncio.sleep(0)

    def _make(
        self, table: str, name: str, config: ModelConfig, shared: sources.Shared | None
    ) -> Model | None:
        """A model of a table; None where it cannot be served, which is told once."""
        refused = self._refused[table]
        try:
            if not _is_name(name):
                raise ConfigError(f"a name has 1 to {MAX_NAME} characters, each of which can be printed.")  # fmt: skip
            given = config.sources[0]
            settled = self._settled.get(given, given)
            own = msgspec.structs.replace(config, model=name, aliases=[], source=settled)
            model = sources.model(name, own, *(shared or ()))
        except ConfigError as error:
            if refused.get(name) != str(error):
                shown = name if _is_name(name) else repr(name[:MAX_NAME])
                log.warning("%s: its model %s is left out: %s", table, shown, error)
            refused[name] = str(error)
            return None
        refused.pop(name, None)
        return model

    def _serve(self, table: str, model: Model) -> None:
        self._registry.add(model)
        self._found[table].add(model.name)
