"""A server in this process that is reloaded from its file."""

import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from unilect.config import load as config_load
from unilect.config.server import Config
from unilect.models import sources
from unilect.models.discovery import Discovery
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.server.listener import Listener
from unilect.server.reload import Reloader, Source


class Reloadable:
    """
    A server in this process, and its file.

    Args:
        models: What it serves instead of its configuration's models; none for those.
        more: For the `Reloader`.

    Attributes:
        file: Its configuration.
        reads: How often that was read.
        urls: Its addresses.
        registry: Its models.
        discovery, listener, reloader: Its other parts.
    """

    def __init__(self, file: Path, models: Sequence[Model] = (), **more: Any) -> None:
        self.file, self.reads = file, 0
        self.urls: list[str] = []
        config = self.read()
        self.registry = Registry(models) if models else sources.registry(config)
        self.discovery = Discovery(config, self.registry)
        self.listener = Listener(config, self.registry)
        source = Source(config_load.origin_of(file), self.read)
        self.reloader = Reloader(
            source, config, self.registry, self.discovery, self.listener, **more
        )

    @property
    def url(self) -> str:
        """Its own address."""
        return self.urls[0]

    def read(self) -> Config:
        """The configuration that the file has now."""
        self.reads += 1
        return config_load.load(self.file, environment={})

    def write(self, text: str) -> None:
        """Put another file in its place, as editors do."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.file)

    @asynccontextmanager
    async def running(self, starts: Iterable[str] | None = None) -> AsyncIterator[None]:
        """It has started all models, or some, and listens until the block ends."""
        try:
            await self.registry.start(self.registry.models if starts is None else starts)
            await self.discovery.start()
            self.urls = await self.listener.listen()
            yield
        finally:
            await self.reloader.aclose()
            await self.listener.aclose()
            await self.discovery.aclose()
            await self.registry.aclose()
