"""
Model discovery: the models of a server with `model = "*"` are added and removed as the server lists them.

Such a table is not a model itself. Its server's list is requested at the start and every `EVERY_S`; each listed model is
served under its own name, with the table's settings. A request with an unknown name refreshes the lists at once, because the model may be
new. A name or alias of a configured model stays that model's. While a server is down its models stay; their own errors report it. A model
that cannot be served with the table's settings is skipped, which is logged once, and retried at every refresh.
"""

import asyncio
import logging
import math
from contextlib import suppress
from typing import TypeAlias

import msgspec

from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.errors import BackendUnavailable, ConfigError, UnilectError
from unilect.redact import Secrets, secrets_of
from unilect.routing import sources
from unilect.routing.registry import Registry
from unilect.tasks import Tasks, apart, shared

log = logging.getLogger("unilect")
EVERY_S = 10.0
MAX_EVERY_S = 160.0  # while something of ours fails, which is logged each time
ASK_EVERY_S = 1.0  # for a name that nobody knows
ASK_TIMEOUT_S = 3.0  # which is a model that is not found by then
LIST_TIMEOUT_S = 10.0  # a server that says nothing holds up the start, and what others list
#: By table the names that its server lists; None where it does not answer.
Listed: TypeAlias = dict[str, set[str] | None]


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
        self._found: dict[str, set[str]] = {name: set() for name in self._tables}
        self._down: set[str] = set()
        self._refused: dict[str, dict[str, str]] = {name: {} for name in self._tables}  # and why
        self._work = Tasks()
        self._looking: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._asked_at_s = -math.inf
        self._flawed = False

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

    async def prepare(self, config: Config) -> Listed:
        """What the servers of the tables list that are new or other than before; for `change`."""
        new = {n: one for n, one in _tables(config).items() if self._tables.get(n) != one}
        self._down -= new.keys()
        listed = await asyncio.gather(*(self._list(*table) for table in new.items()))
        return dict(zip(new, listed, strict=True))

    def change(self, config: Config, listed: Listed) -> None:
        """
        Refresh the tables of another configuration from now on, whose own models are in the registry already.

        Args:
            listed: What `prepare` has returned for it.
        """
        before, self._tables = self._tables, _tables(config)
        served = sources.served(config)
        own = {name for n, one in served.items() for name in (n, *one.aliases)}
        for found in self._found.values():
            found -= own
        for name in (before.keys() - self._tables.keys()) | listed.keys():
            was, names, table = self._found.pop(name, set[str]()), listed.get(name), self._tables.get(name)  # fmt: skip
            if names is None:  # a server that is down keeps its models
                stays = table is not None and name in before and before[name].sources == table.sources  # fmt: skip
                names = was if stays else set()
            names = names - own
            self._refused.pop(name, None)
            for gone in was - names:
                self._registry.forget(gone)
            if table is not None:
                self._found[name], self._refused[name] = set(), {}
                for one in sorted(names):
                    if one in was or one not in self._registry:
                        self._take_in(name, one, table)
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
            await shared(self._looking)

    async def aclose(self) -> None:
        """Ask no more."""
        self._registry.seek = None
        await self._work.aclose()

    async def _look_at_all(self) -> None:
        looks = [apart(self._look(*table)) for table in self._tables.items()]
        try:
            # a flaw, which `apart` logs, is one table's, and no reason to look no more
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

    async def _list(self, table: str, config: ModelConfig) -> set[str] | None:
        """What a table's server lists; None where it does not answer, which is told once."""
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                return set(await sources.list_models(table, config))
        except (UnilectError, TimeoutError) as error:
            if table not in self._down:  # told once
                told = error.for_operator if isinstance(error, UnilectError) else ""
                told = Secrets([config.api_key, *secrets_of(config.sources[0])]).removed_from(told)
                why = told or f"its server sent nothing for {LIST_TIMEOUT_S:.0f} s"
                log.warning("%s: its models cannot be listed: %s", table, why)
            self._down.add(table)
            return None

    async def _look(self, table: str, config: ModelConfig) -> None:
        listed = await self._list(table, config)
        if listed is None or self._tables.get(table) != config:  # it was reloaded meanwhile
            return
        self._down.discard(table)
        found, refused = self._found[table], self._refused[table]
        for name in sorted(listed - found):
            if name not in self._registry:
                self._take_in(table, name, config)
        for name in refused.keys() - listed:
            del refused[name]
        for name in found - listed:
            log.info("%s: its model %s is gone", table, name)
            found.discard(name)
            self._registry.forget(name)

    def _take_in(self, table: str, name: str, config: ModelConfig) -> None:
        """Serve a model, or say why not."""
        refused = self._refused[table]
        try:
            model = sources.model(name, msgspec.structs.replace(config, model=name, aliases=[]))
        except ConfigError as error:
            if refused.get(name) != str(error):
                log.warning("%s: its model %s is left out: %s", table, name, error)
            refused[name] = str(error)
            return
        log.info("%s: serving its model %s", table, name)
        refused.pop(name, None)
        self._registry.add(model)
        self._found[table].add(name)
