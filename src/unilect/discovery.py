"""
All models of a FastChat controller, each under its own name: what a table with `model = "*"` stands for.

The controller is asked at start and then now and again. A model that comes is served with the table's settings, one that goes
is served no longer, and a name that is taken stays its owner's. While the controller cannot be reached, nothing changes.
"""

import asyncio
import logging
from contextlib import suppress

from unilect.config import ModelConfig
from unilect.errors import UnilectError
from unilect.registry import Registry
from unilect.sources import discovered, split
from unilect.upstreams._http import HttpServer
from unilect.upstreams.fastchat import Controller

log = logging.getLogger("unilect")
LOOK_S = 15.0


class Discovery:
    """
    The models of one controller.

    Args:
        registry: Where they are added and removed.
        name: The table's name, for logs.
        table: The settings of each of them; its source names the controller.
        look_s: The time between two looks.
    """

    def __init__(
        self, registry: Registry, name: str, table: ModelConfig, look_s: float = LOOK_S
    ) -> None:
        scheme, location = split(table.sources[0])
        server = HttpServer(
            f"{scheme.removeprefix('fastchat+')}:{location}", timeout_s=table.timeout_s
        )
        self._controller = Controller(server)
        self._registry = registry
        self._name = name
        self._table = table
        self._look_s = look_s
        self._added: set[str] = set()
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look once, and go on looking."""
        await self.look()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def look(self) -> None:
        """Serve what the controller has now."""
        try:
            found = set(await self._controller.models())
        except UnilectError as error:
            if not self._failing:
                log.warning("%s: %s It is asked again.", self._name, error.message)
            self._failing = True
            return
        self._failing = False
        for name in self._added - found:
            self._registry.forget(name)
        self._added &= found
        for name in sorted(found - self._added - set(self._registry.models)):
            self._registry.add(discovered(name, self._table))
            self._added.add(name)

    async def aclose(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            await self.look()
