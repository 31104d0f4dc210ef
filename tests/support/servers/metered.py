"""A server of a store in this process, whose clients have keys, limits and a ledger; its model says 80 characters, each a token, as its prompts have."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.servers.listening import Listening, listening
from unilect.auth.keys import digest
from unilect.auth.secret import id_of, new_secret
from unilect.config.limits import LimitsConfig
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.store.keys import KeyStore

PROMPT = "x" * 20
WHOLE = 100  # tokens of a prompt and its answer


class Metered:
    """
    The server, and clients of it.

    Attributes:
        server, listener: The server, and its part of that name.
    """

    def __init__(self, server: Listening) -> None:
        self.server, self.listener = server, server.listener

    async def create(self, name: str, **limits: float) -> str:
        """Make a key; the server has seen it when this returns."""
        known = self.listener._known
        assert known is not None
        secret = await create_key(known.stored, name, **limits)
        await known.refresh()
        return secret

    def chat(self, secret: str, **body: Any) -> Any:
        """Begin a request for 80 tokens, unless said otherwise."""
        sent = {"max_tokens": 80, "messages": [{"role": "user", "content": PROMPT}]} | body
        return self.server.request(secret, "/v1/chat/completions", **sent)

    async def status(self, secret: str, **body: Any) -> int:
        """Send a request, and return the status of its answer, which is read to its end."""
        async with self.chat(secret, **body) as answer:
            await answer.read()
            return int(answer.status)

    async def usage(self, secret: str, query: str = "by=key") -> tuple[int, dict[str, Any]]:
        """Ask what a key has used."""
        async with self.server.request(secret, f"/v1/usage?{query}", "GET") as answer:
            return answer.status, await answer.json()

    async def used(self, secret: str) -> list[int]:
        """Ask how many tokens a key has used; a number for each line of the answer."""
        status, body = await self.usage(secret)
        assert 200 == status, body
        return [line["total_tokens"] for line in body["data"]]


async def create_key(stored: KeyStore, name: str, **limits: float) -> str:
    """Make a key in a store that requires its keys from then on, and return its secret."""
    secret = new_secret()
    await stored.create(name, id_of(secret) or "", digest(secret), limits=limits, require=True)
    return secret


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
    async with listening(config) as server:
        yield Metered(server)
