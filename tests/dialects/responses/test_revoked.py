"""A key that ends while its responses are made in the background, on real servers and databases."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from support.servers.serving import serve
from unilect.auth.keys import digest
from unilect.auth.secret import id_of, new_secret
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.models import sources
from unilect.server.listener import Listener
from unilect.store.database import Database
from unilect.store.keys import KeyStore
from unilect.store.ledger import Ledger
from unilect.store.responses import ResponseStore

ECHO = {"text": "y" * 2000, "context": 4096, "tokens_per_s": 50.0}
CONFIG = """
metrics_keys = ["sk-of-prometheus"]
[store]
url = "{url}"
[models.m]
source = "echo:"
options = {{ text = "{text}", context = 4096, tokens_per_s = 50.0 }}
"""


class Outside:
    """The store, as another process has it."""

    def __init__(self, url: str) -> None:
        self.url, self._database = url, Database(url)
        self.keys, self._ledger = KeyStore(self._database), Ledger(self._database)
        self._answers = ResponseStore(self._database)

    async def create(self, name: str, **given: Any) -> tuple[str, dict[str, str]]:
        """The id of a new key, and the headers that have it."""
        secret = new_secret()
        key = await self.keys.create(name, id_of(secret) or "", digest(secret), **given)
        return key.id, {"Authorization": f"Bearer {secret}"}

    async def response(self, owner: str, id: str) -> dict[str, Any]:
        """A response as it is stored."""
        found = await self._answers.get(owner, id)
        assert found is not None
        body: dict[str, Any] = msgspec.json.decode(found.body)
        return body

    async def tokens(self, owner: str) -> list[int]:
        """How many tokens a key was charged for, if for any."""
        return [one.completion for one in await self._ledger.sums(("key",), 0.0, owner)]

    async def aclose(self) -> None:
        """End."""
        await self._ledger.aclose()
        await self._answers.aclose()
        await self._database.aclose()


@pytest.fixture
async def outside(url: str) -> AsyncIterator[Outside]:
    """A new store, of each kind."""
    made = Outside(url)
    yield made
    await made.aclose()


async def begun(client: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> str:
    """The id of a response in the background that has some text."""
    body = {"model": "m", "input": "Hi", "background": True}
    async with asyncio.timeout(20):
        while True:  # the server may not have seen the key yet
            async with client.post(f"{url}/v1/responses", json=body, headers=headers) as answer:
                id: str = (await answer.json())["id"]
            at = f"{url}/v1/responses/{id}"
            async with client.get(f"{at}?stream=true", headers=headers) as events:
                if events.status == 200:
                    while b"output_text.delta" not in await events.content.readuntil(b"\n\n"):
                        pass
                    return id


@pytest.mark.heavy
@pytest.mark.parametrize("ends", ["revoked", "expired"])
async def test_its_key_ends(ends: str, outside: Outside) -> None:
    """A response ends as failed within a second of its key, with the reason; what was made is charged, and one of another key goes on."""
    config = Config(
        port=0,
        models={"m": ModelConfig(source="echo:", options=ECHO)},
        store=StoreConfig(url=outside.url),
    )
    registry = sources.registry(config)
    listener = Listener(config, registry)
    other, of_other = await outside.create("bob")
    try:
        (url,) = await listener.listen()
        async with aiohttp.ClientSession() as client:
            goes_on = await begun(client, url, of_other)
            lasts_s = 3.0 if ends == "expired" else None
            ann, of_ann = await outside.create("ann", lasts_s=lasts_s)
            id = await begun(client, url, of_ann)
            events = await client.get(f"{url}/v1/responses/{id}?stream=true", headers=of_ann)
            if ends == "revoked":
                await outside.keys.revoke("ann")
            at = time.monotonic()
            async with asyncio.timeout(20):
                with suppress(aiohttp.ClientPayloadError):
                    await events.read()
                while (found := await outside.response(ann, id))["status"] != "failed":
                    await asyncio.sleep(0.02)
            assert time.monotonic() - at < (2 if ends == "revoked" else 5)
            assert [goes_on] == [one for one in listener._requests if one.startswith("resp")]
            still = await outside.response(other, goes_on)
    finally:
        await listener.aclose()
        await registry.aclose()

    why = "it has been revoked" if ends == "revoked" else "it has expired at"
    assert why in found["error"]["message"]
    (charged,) = await outside.tokens(ann)
    assert 0 < charged < 2000
    assert still["status"] in ("queued", "in_progress")


async def test_after_a_crash(outside: Outside, tmp_path: Path) -> None:
    """A server that follows one that was killed makes none of its responses again: they are charged for what was made, and no more."""
    ann, of_ann = await outside.create("ann")
    _, of_other = await outside.create("bob")
    config = CONFIG.format(url=outside.url, text=ECHO["text"])
    env = {"XDG_DATA_HOME": str(tmp_path)}
    async with aiohttp.ClientSession() as client:
        with serve(config=config, env=env, killed=True) as server:
            id = await begun(client, server.root, of_ann)
            os.kill(server.pid, signal.SIGKILL)
        await outside.keys.revoke("ann")
        (made,) = await outside.tokens(ann) or [0]
        with serve(config=config, env=env) as server:
            body = {"model": "m", "input": "Hi", "max_output_tokens": 5}
            async with client.post(f"{server.root}/v1/responses", json=body, headers=of_other) as answer:  # fmt: skip
                assert 200 == answer.status
            async with client.get(f"{server.root}/v1/responses/{id}", headers=of_ann) as answer:
                assert 401 == answer.status
            headers = {"Authorization": "Bearer sk-of-prometheus"}
            async with client.get(f"{server.root}/metrics", headers=headers) as answer:
                text = await answer.text()
    assert 'unilect_requests_in_flight{state="answering"} 0.0' in text or 'state="answering"' not in text  # fmt: skip
    assert made == 0
    (made,) = await outside.tokens(ann)
    assert 0 < made < 200
    assert (await outside.response(ann, id))["status"] in ("queued", "in_progress")
