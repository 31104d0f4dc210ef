"""Fields that no API has are named by each, whatever they are called: those of our own Structs are no exception."""

import json
from typing import Any

import pytest

from support.servers.appserver import serving
from unilect.testing.echo import Echo

HI = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", HI),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/completion", {"prompt": "Hi"}),
        ("/v1/messages", HI | {"max_tokens": 9}),
        ("/v1/responses", {"input": "Hi", "store": False}),
        ("/api/chat", HI | {"model": "m"}),
        ("/api/generate", {"prompt": "Hi", "model": "m"}),
    ],
)
async def test_names_of_our_own(path: str, body: dict[str, Any]) -> None:
    """A client's `raw_fields` is a field like any other that nobody knows."""
    async with serving(Echo()) as app:
        async with app.post(path, **body, raw_fields={"a": 1}, gateway_fields=[1]) as response:
            text, ignored = await response.text(), response.headers.get("X-Unilect-Ignored", "")

    assert 200 == response.status, text
    assert {"raw_fields", "gateway_fields"} <= set(ignored.split(", "))


@pytest.mark.parametrize(("key", "named"), [("sk-1", "api_key"), (None, "")])
async def test_a_key_in_a_native_body(key: str | None, named: str) -> None:
    """A key in the body is no parameter, goes to no server, and is named; the older web page sends null."""
    async with serving(Echo()) as app, app.post("/completion", prompt="Hi", api_key=key) as answer:
        told = json.loads(await answer.read())

        assert (200, named) == (answer.status, answer.headers.get("X-Unilect-Ignored", ""))
    assert "api_key" not in told.get("generation_settings", {})
