"""A server of a configuration in this process, at a free port, and a client of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from unilect.config.server import Config
from unilect.models import sources
from unilect.models.registry import Registry
from unilect.server.listener import Listener


class Listening:
    """
    The server and its client.

    Attributes:
        url: Its address.
        client: The client's session.
        registry, listener: The server's parts.
    """

    def __init__(
        self, url: str, client: aiohttp.ClientSession, registry: Registry, listener: Listener
    ) -> None:
        self.url, self.client = url, client
        self.registry, self.listener = registry, listener

    def request(self, key: str, path: str, method: str = "POST", **body: Any) -> Any:
        """Begin a request with a key and a JSON body, if any field of one is given."""
        headers = {"Authorization": f"Bearer {key}"}
        return self.client.request(method, self.url + path, json=body or None, headers=headers)


@asynccontextmanager
async def listening(config: Config, registry: Registry | None = None) -> AsyncIterator[Listening]:
    """Run a server until the block ends, with models of its configuration or of `registry`."""
    registry = registry or sources.registry(config)
    listener = Listener(config, registry)
    try:
        (url,) = await listener.listen()
        async with aiohttp.ClientSession() as client:
            yield Listening(url, client, registry, listener)
    finally:
        await listener.aclose()
        await registry.aclose()
