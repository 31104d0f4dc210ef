"""What a client writes into a request never decides where it goes, and with which key."""

import json

import pytest

from support.backends.scripted import HELLO, Exchange, answer, says, scripted, stream_of
from support.servers.appserver import serving, upstream

#: Names under which other gateways take an address, a key or headers out of a body.
FIELDS = [
    "api_base", "base_url", "api_base_url", "base_path", "endpoint", "url", "uri", "host", "hostname", "server", "proxy", "proxies",
    "azure_endpoint", "vertex_project", "aws_bedrock_runtime_endpoint", "custom_llm_provider", "litellm_params", "litellm_metadata",
    "deployment_id", "worker_addr", "worker_address", "controller_address", "extra_query", "mock_response", "fallbacks",
    "context_window_fallback_dict", "organization", "callback_url", "webhook", "model_list",
]  # fmt: skip
SECRETS = ["api_key", "extra_headers", "headers", "authorization"]
KEY = "sk-of-the-operator"


@pytest.mark.parametrize("stream", [True, False])
async def test_fields_that_name_an_address(stream: bool) -> None:
    """30 fields that name an address, each as a text, an object and a list, make no connection but to the model's own server."""
    async with (
        scripted(says(stream_of(HELLO))) as theirs,
        scripted(says(answer(b"{}"))) as canary,
        serving(upstream(theirs.url, headers={"Authorization": f"Bearer {KEY}"})) as app,
    ):
        for name in FIELDS:
            for value in (canary.url, {"url": canary.url, "api_base": canary.url}, [canary.url]):
                async with app.chat(stream=stream, **{name: value}) as response:
                    assert response.status in (200, 400), (name, await response.text())
        asked = len(theirs.requests)

    assert 0 == canary.connections
    assert asked > 0
    assert 30 == len(FIELDS)
    assert all(_authorization(request) == f"bearer {KEY}" for request in theirs.requests)


@pytest.mark.parametrize("name", SECRETS)
async def test_fields_that_name_a_key(name: str) -> None:
    """A key or headers in a body do not become those of the request to the model's server."""
    given = {"Authorization": "Bearer sk-of-the-client", "X-Injected": "1"}
    async with (
        scripted(says(stream_of(HELLO))) as theirs,
        serving(upstream(theirs.url, headers={"Authorization": f"Bearer {KEY}"})) as app,
    ):
        for value in ("sk-of-the-client", given):
            async with app.chat(**{name: value}) as response:
                assert response.status in (200, 400), await response.text()

    for request in theirs.requests:
        assert _authorization(request) == f"bearer {KEY}"
        assert b"x-injected" not in request.head.lower()


def _authorization(request: Exchange) -> str:
    lines = request.head.decode().split("\r\n")[1:]
    found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}  # fmt: skip
    assert isinstance(json.loads(request.body), dict)
    return found["authorization"].replace("Bearer", "bearer", 1)
