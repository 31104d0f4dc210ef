"""Tests of unilect.upstreams.openai._salt: what a vLLM server is sent, on a real socket, for requests of several callers."""

from typing import Any

import msgspec
import pytest

from support.backends.scripted import Exchange, answer, scripted
from support.servers.appserver import serving
from unilect.api.backend import BackendSpec
from unilect.config.server import Config, ModelConfig
from unilect.upstreams.openai._salt import takes_salt
from unilect.upstreams.openai.backend import backend

CHAT = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}  # fmt: skip
TEXT = {"choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}]}
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


@pytest.mark.parametrize(
    ("version", "takes"),
    [
        ("0.11.0", True),
        ("0.11.1rc2.dev5+g1234", True),
        ("0.29", True),
        ("1.0.0", True),
        ("0.10.2", False),
        ("0.9.11", False),
        ("0.1100", True),
        ("", False),
        ("v0.11", False),
        ("0." + "9" * 5000, False),
        (None, False),
        (0.11, False),
        (["0.11.0"], False),
    ],
)
def test_versions(version: object, takes: bool) -> None:
    """A salt is for a version that is told as one, and is known to take it."""
    assert takes is takes_salt(version)


async def salts(
    asked: list[tuple[str, str, dict[str, Any]]],
    version: Any = "0.11.2",
    owner: str = "vllm",
    keys: tuple[str, ...] = ("sk-a", "sk-b"),
    **settings: Any,
) -> list[str | None]:
    """The salts that a server gets of requests, each with its path, its key and more fields."""
    found: list[str | None] = []

    async def script(exchange: Exchange) -> None:
        path = exchange.head.split(b" ")[1].decode()
        told: Any = {
            "/v1/models": {"data": [{"id": "m", "owned_by": owner}]},
            "/version": {"version": version},
        }.get(path)
        if told is None:
            found.append(exchange.json().get("cache_salt"))
            told = CHAT if path.endswith("chat/completions") else TEXT
        await exchange.send(answer(msgspec.json.encode(told)))
        exchange.close()

    async with scripted(script) as server:
        config = ModelConfig(source="x", model="m", whole_answers="whole", **settings)
        url = server.url.removeprefix("http:")
        spec = BackendSpec("m", "http", url, config, 1, lambda *_: None)
        config_of_server = Config(api_keys=list(keys))
        async with serving(backend(spec), config_of_server, runs_locally=False) as app:
            for path, key, more in asked:
                body = {
                    "/v1/completions": {"prompt": "Hi"},
                    "/v1/responses": {"input": "Hi", "store": False},
                }.get(path, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5})
                headers = {"Authorization": f"Bearer {key}"}
                at = f"http://127.0.0.1:{app.port}{path}"
                async with app.session.post(at, json=body | more, headers=headers) as response:
                    assert 200 == response.status, await response.text()
    return found


@pytest.mark.parametrize("path", PATHS)
async def test_each_caller_has_a_salt(path: str) -> None:
    """One caller's requests have the same salt, and another's have another one, of which neither tells the key."""
    first, second, other = await salts([(path, key, {}) for key in ("sk-a", "sk-a", "sk-b")])

    assert first == second != other
    assert {64} == {len(salt or "") for salt in (first, other)}


async def test_a_salt_of_the_clients_own() -> None:
    """A client's salt parts its requests further, and gets it into nobody else's."""
    fields = {"cache_salt": "x"}
    asked = [("/v1/chat/completions", key, more) for key in ("sk-a", "sk-b") for more in ({}, fields)]  # fmt: skip
    found = await salts(asked)

    assert 4 == len(set(found))
    assert "x" not in found


async def test_salts_of_another_start_are_others() -> None:
    """Who reads a salt cannot make that of a caller: it depends on a key that only this process has."""
    found = [await salts([("/v1/completions", "sk-a", {})]) for _ in range(2)]

    assert found[0] != found[1]


@pytest.mark.parametrize(
    "how",
    [
        {"keys": ()},
        {"share_cache": True},
        {"version": "0.10.2"},
        {"version": None},
        {"owner": "sglang"},
        {"owner": "me"},
    ],
)
async def test_no_salt(how: dict[str, Any]) -> None:
    """Without keys all callers are one, `share_cache` makes them one, and a server that may not know a salt gets none."""
    assert [None, None] == await salts([("/v1/completions", key, {}) for key in ("sk-a", "sk-b")], **how)  # fmt: skip
