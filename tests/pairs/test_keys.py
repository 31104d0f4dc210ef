"""Keys that are restricted to models, with all that leads from one model to another: fallbacks, aliases, stored responses, discovery."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from support.backends.scripted import Exchange, answer, scripted
from unilect.auth.keys import digest
from unilect.auth.secret import id_of, new_secret
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.models import sources
from unilect.models.discovery import Discovery
from unilect.server.listener import Listener
from unilect.store.database import Database
from unilect.store.keys import KeyStore

pytestmark = pytest.mark.asyncio(loop_scope="module")
#: By the name of a key the models that it may use.
KEYS = {
    "all": None,
    "two": ["down", "mine", "tiny"],
    "one": ["down", "mine", "found-mine"],
}
SAID = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": SAID}


class Gate:
    """
    A server with the keys of `KEYS`: `down` cannot answer, and has `large` as its fallback, which has `tiny`; `mine` answers itself. Of
    another server all models are served.

    Attributes:
        listed: What that server lists.
        discovery: What finds its models.
    """

    def __init__(self, discovery: Discovery, listed: list[str]) -> None:
        self.url = ""
        self.discovery, self.listed = discovery, listed
        self.secrets: dict[str, str] = {}
        self.client = aiohttp.ClientSession()

    async def ask(self, key: str, path: str, method: str = "POST", **body: Any) -> tuple[int, str, str]:  # fmt: skip
        """The status of an answer, its text, and the fallback that has answered, if any."""
        headers = {"Authorization": f"Bearer {self.secrets[key]}"}
        given = {"json": body} if method == "POST" else {}
        at = f"{self.url}{path}"
        async with self.client.request(method, at, headers=headers, **given) as response:  # type: ignore[arg-type]
            fallback = response.headers.get("X-Unilect-Fallback", "")
            return response.status, await response.text(), fallback

    async def respond(self, key: str, **body: Any) -> tuple[int, dict[str, Any]]:
        """The status and the body of a response."""
        status, text, _ = await self.ask(key, "/v1/responses", **body)
        return status, msgspec.json.decode(text)

    async def ended(self, key: str, id: str) -> dict[str, Any]:
        """A response in the background, once it has ended."""
        async with asyncio.timeout(20):
            while True:
                _, text, _ = await self.ask(key, f"/v1/responses/{id}", "GET")
                body: dict[str, Any] = msgspec.json.decode(text)
                if body["status"] not in ("queued", "in_progress"):
                    return body
                await asyncio.sleep(0.005)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gate]:
    """One for all tests; its keys are there before it listens."""
    url = f"sqlite:///{Path(tmp_path_factory.mktemp('gate')) / 'unilect.db'}"
    listed = ["found-mine", "found-other"]

    async def lists(exchange: Exchange) -> None:
        await exchange.send(
            answer(msgspec.json.encode({"data": [{"id": name} for name in listed]}))
        )
        exchange.close()

    def echo(text: str, **given: Any) -> ModelConfig:
        options = {"text": text, "failing_starts": 10**6 if text == "down" else 0}
        return ModelConfig(source="echo:", options=options, load="demand", **given)

    async with scripted(lists) as upstream:
        config = Config(
            port=0,
            store=StoreConfig(url=url),
            models={
                "large": echo("large", fallback="tiny", aliases=["big"]),
                "down": echo("down", fallback="large", aliases=["low"]),
                "tiny": echo("tiny"),
                "mine": echo("mine", aliases=["my"]),
                "star": ModelConfig(source=upstream.url, model="*"),
            },
        )
        registry = sources.registry(config)
        discovery, listener = Discovery(config, registry), Listener(config, registry)
        running = Gate(discovery, listed)
        database = Database(url)
        for name, models in KEYS.items():
            secret = running.secrets[name] = new_secret()
            await KeyStore(database).create(name, id_of(secret) or "", digest(secret), models=models)  # fmt: skip
        await database.aclose()
        try:
            await discovery.start()
            (running.url,) = await listener.listen()
            yield running
        finally:
            await running.client.close()
            await listener.aclose()
            await discovery.aclose()
            await registry.aclose()


ANSWERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"stream": True}),
    ("/v1/completions", {"prompt": "Hi"}),
    ("/v1/responses", {"input": "Hi"}),
    ("/v1/responses/compact", {"input": "Hi"}),
    ("/v1/messages", CHAT | {"max_tokens": 9}),
    ("/api/chat", CHAT | {"stream": False}),
    ("/api/generate", {"prompt": "Hi", "stream": False}),
    ("/completion", {"prompt": "Hi"}),
    ("/api/v1/chat/completions", {"messages": "Hi"}),
]


@pytest.mark.parametrize(("path", "body"), ANSWERS)
async def test_keys_and_fallbacks(gate: Gate, path: str, body: dict[str, Any]) -> None:
    """A fallback answers only whose key may use it, by every API: else the next one in the chain, or nobody does."""
    every = await gate.ask("all", path, model="down", **body)
    two = await gate.ask("two", path, model="down", **body)
    one = await gate.ask("one", path, model="low", **body)

    is_plain = "stream" not in body and not path.endswith(
        "compact"
    )  # else its text is in pieces, or packed
    assert (200, "large") == (every[0], every[2] or "large")
    assert "large" in every[1] or not is_plain
    assert (200, "tiny") == (two[0], two[2] or "tiny")
    assert "tiny" in two[1] or not is_plain
    assert 503 == one[0], one
    for told in (two[1], one[1]):
        assert "large" not in told
    assert "tiny" not in one[1]


async def test_keys_and_fallbacks_in_the_background(gate: Gate) -> None:
    """A response in the background has its key's models: it ends as failed where the only fallback is none of them."""
    texts = {}
    for key in KEYS:
        status, begun = await gate.respond(key, model="down", input="Hi", background=True)
        assert 200 == status
        ended = await gate.ended(key, begun["id"])
        texts[key] = msgspec.json.encode([ended["status"], ended["output"], ended["error"]])

    assert b"large" in texts["all"]
    assert b"tiny" in texts["two"]
    assert texts["one"].startswith(b'["failed"')
    assert b"large" not in texts["two"] + texts["one"]


NAMED: list[tuple[str, str, dict[str, Any]]] = [
    *(("POST", path, body) for path, body in ANSWERS),
    ("POST", "/v1/engines/MODEL/embeddings", {"input": "Hi"}),
    ("POST", "/infill", {"input_prefix": "Hi", "input_suffix": ""}),
    ("POST", "/tokenize", {"content": "Hi"}),
    ("POST", "/detokenize", {"tokens": [1]}),
    ("POST", "/apply-template", CHAT),
    ("POST", "/v1/chat/completions/input_tokens", CHAT),
    ("POST", "/embedding", {"content": "Hi"}),
    ("POST", "/lora-adapters?model=MODEL", {}),
    ("POST", "/slots/0?action=erase&model=MODEL", {}),
    ("POST", "/v1/messages/count_tokens", CHAT),
    ("POST", "/api/embed", {"input": "Hi"}),
    ("POST", "/api/embeddings", {"prompt": "Hi"}),
    ("POST", "/api/show", {}),
    ("POST", "/api/pull", {"stream": False}),
    ("POST", "/api/copy", {}),
    ("POST", "/api/push", {}),
    ("POST", "/v1/embeddings", {"input": "Hi"}),
    ("POST", "/v1/rerank", {"query": "Hi", "documents": ["a"]}),
    ("POST", "/v1/responses/input_tokens", {"input": "Hi"}),
    ("POST", "/api/v1/token_check", {}),
    ("GET", "/v1/models/MODEL", {}),
    ("GET", "/props?model=MODEL", {}),
    ("GET", "/slots?model=MODEL", {}),
    ("GET", "/lora-adapters?model=MODEL", {}),
]


@pytest.mark.parametrize("name", ["large", "big", "found-other"])
async def test_keys_and_names(gate: Gate, name: str) -> None:
    """A model that a key may not use is refused by every route that names one, by its name and by its alias, and the other is not told."""
    other = {"large": "big", "big": "large"}.get(name, "large")
    for method, path, body in NAMED:
        given = body | {"model": name}
        if path == "/api/v1/token_check":
            given = {"prompts": [{"model": name, "prompt": "Hi", "max_tokens": 1}]}
        status, text, _ = await gate.ask("one", path.replace("MODEL", name), method, **given)
        if path.startswith("/lora-adapters") and method == "POST":
            assert status in (400, 403), (path, text)  # its body is a list
        else:
            assert 403 == status, (path, text)
        assert other not in text


@pytest.mark.parametrize(
    "path", ["/", "/v1/models", "/models", "/api/tags", "/api/ps", "/v1/usage", "/docs"]
)
async def test_keys_and_lists(gate: Gate, path: str) -> None:
    """Lists of models, and pages, have those that the key may use, and no others."""
    headers = {"Accept": "text/html", "Authorization": f"Bearer {gate.secrets['one']}"}
    for more in ({}, {"anthropic-version": "2023-06-01"}):
        async with gate.client.get(f"{gate.url}{path}", headers=headers | more) as response:
            text = await response.text()
        assert 200 == response.status or path == "/v1/usage"
        for name in ("large", "big", "tiny", "found-other"):
            assert name not in text
        assert path not in ("/v1/models", "/api/tags") or "mine" in text


async def test_keys_and_unknown_models(gate: Gate) -> None:
    """The error for a name that no model has lists the models that the key may use."""
    status, text, _ = await gate.ask("one", "/v1/chat/completions", model="nosuch", **CHAT)

    assert 404 == status
    assert "Models: down, mine, found-mine." in text


async def test_keys_and_aliases(gate: Gate) -> None:
    """An alias is its model: it is answered for a key that may use that, and the default model is none for a key that may not."""
    answered = await gate.ask("one", "/v1/chat/completions", model="my", **CHAT)
    refused = await gate.ask("one", "/v1/chat/completions", model="big", **CHAT)
    default = await gate.ask("one", "/v1/chat/completions", **CHAT)

    assert (200, 403, 403) == (answered[0], refused[0], default[0])
    assert "`big`" in refused[1]
    assert "the default model" in default[1]
    assert "large" not in refused[1] + default[1]


async def test_keys_and_stored_responses(gate: Gate) -> None:
    """Who goes on from a response, or within a conversation, needs the right to the model that is to answer, and to what is gone on from."""
    _, first = await gate.respond("one", model="mine", input="Hi")
    _, theirs = await gate.respond("all", model="large", input="Hi")
    _, made, _ = await gate.ask("one", "/v1/conversations")
    talk = msgspec.json.decode(made)["id"]
    before = [{"previous_response_id": first["id"]}, {"conversation": talk}]
    asked = [{"input": "And?", **one, **more} for one in before for more in ({}, {"background": True})]  # fmt: skip

    for body in asked:
        for model in ("large", "big", None):
            status, told = await gate.respond("one", **body, **({"model": model} if model else {}))
            assert (403, "permission_denied") == (status, told["error"]["code"])
        status, told = await gate.respond("one", model="mine", **body)
        assert 200 == status
        assert "completed" == (await gate.ended("one", told["id"]))["status"]
    for path in ("input_tokens", "compact"):
        status, _, _ = await gate.ask("one", f"/v1/responses/{path}", model="large", **asked[0])
        assert 403 == status
    status, told = await gate.respond("one", model="mine", input="?", previous_response_id=theirs["id"])  # fmt: skip
    assert (400, "previous_response_not_found") == (status, told["error"]["code"])
    assert 200 == (await gate.ask("one", f"/v1/responses/{first['id']}", "GET"))[0]


async def test_keys_and_discovery(gate: Gate) -> None:
    """A key names models that a server will list: it may use them when they come, and no others, though asking for one has the list read."""
    assert 404 == (await gate.ask("one", "/v1/models/nosuch", "GET"))[0]
    assert 200 == (await gate.ask("one", "/v1/models/found-mine", "GET"))[0]
    assert 403 == (await gate.ask("one", "/v1/models/found-other", "GET"))[0]
    gate.listed[:] = ["found-new"]
    await gate.discovery.look()
    try:
        assert 404 == (await gate.ask("one", "/v1/models/found-mine", "GET"))[0]
        status, text, _ = await gate.ask("one", "/v1/models/found-new", "GET")
        assert (403, False) == (status, "found-other" in text)
        assert 200 == (await gate.ask("all", "/v1/models/found-new", "GET"))[0]
    finally:
        gate.listed[:] = ["found-mine", "found-other"]
        await gate.discovery.look()
    assert 200 == (await gate.ask("one", "/v1/models/found-mine", "GET"))[0]
