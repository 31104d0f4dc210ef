"""A client of the Responses API in front of a server that says exactly what a test gives it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from support.backends.scripted import Exchange, Script, Scripted, scripted, stream_of
from support.servers.appserver import App, serving, upstream
from unilect.config.store import StoreConfig
from unilect.store.store import Store


def says(*bodies: bytes) -> Script:
    """A script that answers each request with the next of these streams, and with the last one from then on."""
    left = list(bodies)

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(left.pop(0) if len(left) > 1 else left[0]))
        exchange.close()

    return script


class Client:
    """The Responses API of an application in front of a script."""

    def __init__(self, app: App, server: Scripted) -> None:
        self.app = app
        self.server = server

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any, Any]:
        """The status, the headers and the body of an answer."""
        url = f"http://127.0.0.1:{self.app.port}/v1{path}"
        async with self.app.session.request(method, url, json=body) as response:
            data = await response.read()
            return response.status, response.headers, msgspec.json.decode(data)

    async def create(self, input: Any = "hi", **fields: Any) -> dict[str, Any]:
        """A response that must be made."""
        status, _, body = await self.ask("POST", "/responses", {"input": input} | fields)
        assert status == 200, body
        found: dict[str, Any] = body
        return found

    async def stream(self, input: Any = "hi", **fields: Any) -> list[dict[str, Any]]:
        """The events of a stream."""
        body = {"input": input, "stream": True} | fields
        async with self.app.post("/v1/responses", **body) as response:
            assert response.status == 200, await response.read()
            return events(await response.read())

    def prompt(self, number: int = -1) -> list[dict[str, Any]]:
        """The messages that the model's server was asked with."""
        found: list[dict[str, Any]] = self.server.requests[number].json()["messages"]
        return found


def events(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream, whose `event` lines must say their types, and whose numbers must have no gaps."""
    found = []
    for frame in data.removesuffix(b"\n\n").split(b"\n\n"):
        name, line = frame.split(b"\n")
        event = msgspec.json.decode(line.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        found.append(event)
    first = found[0]["sequence_number"]
    assert [event["sequence_number"] for event in found] == list(range(first, first + len(found)))
    return found


@asynccontextmanager
async def client(script: Script, store: Store | None = None) -> AsyncIterator[Client]:
    """An application in front of a script, that stores in memory."""
    kept = store or in_memory()
    async with scripted(script) as server, serving(upstream(server.url), store=kept) as app:
        yield Client(app, server)
    await kept.aclose()


def in_memory(**config: Any) -> Store:
    """A store that ends with its test."""
    return Store(StoreConfig(url="sqlite://", **config), {})
