"""Several callers with each of: constraints, responses in the background, stored responses, conversations."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.backends.scripted import Exchange, scripted, waits
from support.servers.listening import Listening, listening
from unilect.answers import inflight
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.constraints.checker import Checker
from unilect.models import sources
from unilect.models.registry import Registry

LOUD, QUIET = "sk-of-the-loud-one", "sk-of-the-quiet-one"
#: A helper for constraints, each of which takes it a moment of the processor.
SLOW = """
import json, sys, time
print('{"ready": true}', flush=True)
for line in sys.stdin:
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    print('{"done": %s}' % ("[]" if json.loads(line)["job"] == "schema" else "null"), flush=True)
"""


class Server:
    """A server in this process, and what its callers ask."""

    def __init__(self, server: Listening) -> None:
        self._server, self.registry = server, server.registry

    async def ask(self, key: str, method: str, path: str, **body: Any) -> tuple[int, Any]:
        """The status and the body of an answer."""
        async with self._server.request(key, f"/v1{path}", method, **body) as got:
            return got.status, await got.json()

    async def respond(self, key: str, **body: Any) -> tuple[int, Any]:
        """Ask for a response."""
        return await self.ask(key, "POST", "/responses", **({"model": "m", "input": "Hi"} | body))


@asynccontextmanager
async def serving(
    source: str = "echo:", store: StoreConfig | None = None, checker: Checker | None = None
) -> AsyncIterator[Server]:
    """A server with one model and two callers."""
    config = Config(
        port=0,
        api_keys=[LOUD, QUIET],
        models={"m": ModelConfig(source=source)},
        store=store or StoreConfig(url="sqlite://"),
    )
    checker = checker or Checker()
    registry = Registry(sources.build_models(config, checker), checker)
    async with listening(config, registry) as server:
        await registry.start(registry.models)
        yield Server(server)


async def test_constraints() -> None:
    """Beside twenty schemas of one caller, each of which takes a while, another caller's answer is one of the first."""
    done: list[str] = []
    async with serving(checker=Checker([sys.executable, "-c", SLOW])) as server:

        async def ask(key: str, number: int) -> None:
            schema = {"type": "string", "title": f"{key} {number}"}
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            messages = [{"role": "user", "content": '"a"'}]
            status, body = await server.ask(
                key, "POST", "/chat/completions", model="m", messages=messages, response_format=form
            )
            assert 200 == status, body
            done.append(key)

        loud = [asyncio.create_task(ask(LOUD, number)) for number in range(20)]
        while server.registry.checker._quick.waiting < 10:
            await asyncio.sleep(0)
        quiet = asyncio.create_task(ask(QUIET, 0))
        await asyncio.gather(quiet, *loud)

    assert 21 == len(done)
    assert done.index(QUIET) < 5


async def test_responses_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who has as many responses in the background as it may is told so, and another one's begins and ends."""
    monkeypatch.setattr(inflight, "most_background", lambda: 8)
    go_on, chats = asyncio.Event(), list[Exchange]()
    async with scripted(waits(go_on, chats)) as upstream, serving(upstream.url) as server:
        many = await asyncio.gather(*(server.respond(LOUD, background=True) for _ in range(6)))
        status, mine = await server.respond(QUIET, background=True)
        go_on.set()
        while mine["status"] in ("queued", "in_progress"):
            _, mine = await server.ask(QUIET, "GET", f"/responses/{mine['id']}")

    assert [200, 200, 429, 429, 429, 429] == sorted(status for status, _ in many)
    assert (200, "completed", 3) == (status, mine["status"], len(chats))


async def test_stored_responses() -> None:
    """Another caller's many responses end none of a caller's, who goes on from the first one."""
    async with serving(store=StoreConfig(url="sqlite://", max_count=20)) as server:
        _, mine = await server.respond(QUIET, input="My name is Ada.")
        _, first = await server.respond(LOUD)
        while (await server.ask(LOUD, "GET", f"/responses/{first['id']}"))[0] == 200:
            await asyncio.gather(*(server.respond(LOUD) for _ in range(10)))
        status, found = await server.ask(QUIET, "GET", f"/responses/{mine['id']}")
        again, _ = await server.respond(QUIET, previous_response_id=mine["id"])

    assert (200, mine, 200) == (status, found, again)


async def test_conversations() -> None:
    """Another caller's many conversations end none of a caller's, which has all its items."""
    async with serving(store=StoreConfig(url="sqlite://", max_count=20)) as server:
        items = [{"role": "user", "content": "My name is Ada."}]
        _, mine = await server.ask(QUIET, "POST", "/conversations", items=items)
        path = "/conversations"
        _, first = await server.ask(LOUD, "POST", path, items=items)
        while (await server.ask(LOUD, "GET", f"{path}/{first['id']}"))[0] == 200:
            await asyncio.gather(*(server.ask(LOUD, "POST", path, items=items) for _ in range(10)))
        status, _ = await server.respond(QUIET, input="Who?", conversation=mine["id"])
        _, found = await server.ask(QUIET, "GET", f"{path}/{mine['id']}/items?order=asc")

    texts = [part["text"] for item in found["data"] for part in item["content"]]
    assert (200, ["My name is Ada.", "Who?"]) == (status, texts[:2])
    assert 3 == len(texts)
