"""An engine that dies under streams of each API: they go on; one that cannot says so in its API's form, and does not end as if it were whole."""

import asyncio
import json
import os
import signal
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from inprocess import Site, site
from msgspec.structs import replace

from support.backends.engine import ENGINES_IN_CI, SOURCES
from unilect.config.server import Config, ModelConfig, StoreConfig

HELLO = [{"role": "user", "content": "Hello!"}]
NUMBERS = 200
#: So long an answer that it is not over when the engine dies.
LONG = {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": NUMBERS, "maxItems": NUMBERS}


@dataclass(frozen=True)
class Api:
    """
    How one API streams.

    Attributes:
        path, body: What is asked.
        piece: What the event of a piece of the answer holds.
        over: What an answer that is whole holds.
    """

    path: str
    body: dict[str, Any]
    piece: bytes
    over: bytes

    def last(self, data: bytes) -> dict[str, Any]:
        """The last event or row."""
        line = data.rstrip(b"\n").rpartition(b"\n")[2]
        found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
        return found


RESPONSES = Api(
    "/v1/responses",
    {
        "input": "Hello!",
        "text": {"format": {"type": "json_schema", "name": "long", "schema": LONG}},
    },
    b"output_text.delta",
    b"response.completed",
)
MESSAGES = Api(
    "/v1/messages",
    {"messages": HELLO, "output_config": {"format": {"type": "json_schema", "schema": LONG}}},
    b"content_block_delta",
    b"message_stop",
)
OLLAMA = Api("/api/chat", {"messages": HELLO, "format": LONG}, b'"content"', b'"done":true')
APIS = (RESPONSES, MESSAGES, OLLAMA)


def config_of(model: ModelConfig) -> Config:
    """A server of a model, whose responses are stored in its memory."""
    return Config(
        port=0, models={"m": model}, store=StoreConfig(url="sqlite://"), log_level="warning"
    )


async def streams_of_dying(running: Site) -> list[bytes]:
    """What a stream of each API tells whose engine is killed once each has its first piece; they begin at once, so that none ends before."""

    async def begin(api: Api) -> tuple[aiohttp.ClientResponse, bytes]:
        body = {"model": "m", "stream": True} | api.body
        stream = await running.client.post(running.url + api.path, json=body)
        assert 200 == stream.status
        told = b""
        while api.piece not in told:
            told += await stream.content.readline()
            assert not stream.content.at_eof()
        return stream, told

    begun = await asyncio.gather(*map(begin, APIS))
    assert running.child.pid is not None
    os.kill(running.child.pid, signal.SIGKILL)
    return [told + await stream.read() for stream, told in begun]


@pytest.mark.heavy
@pytest.mark.parametrize("engine", ENGINES_IN_CI)
async def test_streams_of_an_engine_that_dies(engine: str) -> None:
    """Streams that had begun are whole, also those that a schema binds, and hold the numbers that it asks for."""
    model = ModelConfig(source=SOURCES[engine], parallel=len(APIS))
    async with site(config_of(model)) as running:
        told = await streams_of_dying(running)

    assert all(api.over in data for api, data in zip(APIS, told, strict=True))
    responses, messages, _ = told
    answer = RESPONSES.last(responses)["response"]["output"][0]["content"][0]["text"]
    assert NUMBERS == len(json.loads(answer))
    data = (line[6:] for line in messages.splitlines() if line.startswith(b"data: "))
    deltas = (line for line in data if MESSAGES.piece in line)
    texts = (json.loads(line)["delta"]["text"] for line in deltas)
    assert NUMBERS == len(json.loads("".join(texts)))


async def test_streams_that_cannot_go_on() -> None:
    """A stream that nobody can go on with ends in `response.failed`, an `error` event or an error row; what is asked later is answered."""
    model = ModelConfig(source="demo:", parallel=len(APIS))
    async with site(config_of(model)) as running:
        engine = running.engine()
        engine.capabilities = replace(engine.capabilities, resumes=None)
        told = await streams_of_dying(running)
        after = []
        for api in APIS:
            body = {"model": "m", "input": "Hello!", "messages": HELLO, "stream": True}
            del body["messages" if api is RESPONSES else "input"]
            async with running.client.post(running.url + api.path, json=body) as again:
                after.append(await again.read())

    failed, error, row = (api.last(data) for api, data in zip(APIS, told, strict=True))
    assert ("response.failed", "server_error") == (failed["type"], failed["response"]["error"]["code"])  # fmt: skip
    assert ("error", "api_error") == (error["type"], error["error"]["type"])
    assert ["error"] == list(row)
    assert not any(api.over in data for api, data in zip(APIS, told, strict=True))
    assert all(api.over in data for api, data in zip(APIS, after, strict=True))
