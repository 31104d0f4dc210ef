"""A server of a store in this process, whose clients have keys, limits and a ledger; its model says 80 characters, each a token, as its prompts have."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from unilect.config.limits import LimitsConfig
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.gateway.secret import digest, id_of, new_secret
from unilect.routing import sources
from unilect.server.listener import Listener

PROMPT = "x" * 20
WHOLE = 100  # tokens of a prompt and its answer


class Metered:
    """
    The server, and clients of it.

    Attributes:
        listener: The server's.
    """

    def __init__(self, url: str, client: aiohttp.ClientSession, listener: Listener) -> None:
        self._url, self._client, self.listener = url, client, listener

    async def create(self, name: str, **limits: float) -> str:
        """Make a key; the server has seen it when this returns."""
        secret, known = new_secret(), self.listener._known
        assert known is not None
        await known.stored.create(
            name, id_of(secret) or "", digest(secret), limits=limits, require=True
        )
        await known.refresh()
        return secret

    def chat(self, secret: str, **body: Any) -> Any:
        """Begin a request for 80 tokens."""
        sent = {"max_tokens": 80, "messages": [{"role": "user", "content": PROMPT}]} | body
        return self._client.post(
            f"{self._url}/v1/chat/completions", json=sent, headers=_headers(secret)
        )

    async def status(self, secret: str, **body: Any) -> int:
        """Send a request, and return the status of its answer, which is read to its end."""
        async with self.chat(secret, **body) as answer:
            await answer.read()
            return int(answer.status)

    async def usage(self, secret: str, query: str = "by=key") -> tuple[int, dict[str, Any]]:
        """Ask what a key has used."""
        url = f"{self._url}/v1/usage?{query}"
        async with self._client.get(url, headers=_headers(secret)) as answer:
            return answer.status, await answer.json()

    async def used(self, secret: str) -> list[int]:
        """Ask how many tokens a key has used; a number for each line of the answer."""
        status, body = await self.usage(secret)
        assert 200 == status, body
        return [line["total_tokens"] for line in body["data"]]


def _headers(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@asynccontextmanager
async def metered(url: str, redis: str | None = None, tokens_per_s: float = 10_000.0) -> AsyncIterator[Metered]:  # fmt: skip
    """Run a server until the block ends."""
    options = {"text": "y" * 80, "context": 4096, "tokens_per_s": tokens_per_s}
    config = Config(
        port=0,
        limits=LimitsConfig(url=redis),
        models={"m": ModelConfig(source="echo:", options=options)},
        store=StoreConfig(url=url),
    )
    registry = sources.registry(config)
    listener = Listener(config, registry)
    try:
        (at,) = await listener.listen()
        async with aiohttp.ClientSession() as client:
            yield Metered(at, client, listener)
    finally:
        await listener.aclose()
        await registry.aclose()


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.005)
