"""
Servers of many models: each of their models becomes one of ours, and goes when it goes there.

A table with `model = "*"` is no model itself. Its server is asked for its list at the start and every `EVERY_S`; what it lists is
served under its own name, with the table's settings. A name that the configuration gives to a model stays that model's. A server
that is down keeps what it had: the models' own errors say so.
"""

import asyncio
import logging

import msgspec

from unilect import sources
from unilect.config import Config
from unilect.errors import UnilectError
from unilect.model_config import ModelConfig
from unilect.registry import Registry

log = logging.getLogger("unilect")
EVERY_S = 10.0


class Discovery:
    """
    Keeps the registry in step with the servers of many models.

    Args:
        config: Its tables with `model = "*"` are looked after.
        registry: The models.
    """

    def __init__(self, config: Config, registry: Registry) -> None:
        self._tables = {
            name: table for name, table in config.models.items() if table.model == sources.ALL
        }
        self._registry = registry
        self._found: dict[str, set[str]] = {name: set() for name in self._tables}
        self._down: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Ask every server once, and again from time to time until `aclose`."""
        if self._tables:
            await self.look()
            self._task = asyncio.create_task(self._watch())

    async def look(self) -> None:
        """Ask every server for its list, and take in and let go what has changed."""
        await asyncio.gather(*(self._look(*table) for table in self._tables.items()))

    async def aclose(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look()

    async def _look(self, table: str, config: ModelConfig) -> None:
        try:
            listed = set(await sources.list_models(table, config))
        except UnilectError as error:
            if table not in self._down:  # told once
                log.warning("%s: its models cannot be listed: %s", table, error.message)
            self._down.add(table)
            return
        self._down.discard(table)
        found = self._found[table]
        for name in sorted(listed - found):
            if name not in self._registry.models:
                log.info("%s: serving its model %s", table, name)
                one = msgspec.structs.replace(config, model=name, aliases=[])
                self._registry.add(sources.model(name, one))
                found.add(name)
        for name in found - listed:
            log.info("%s: its model %s is gone", table, name)
            found.discard(name)
            self._registry.forget(name)
