"""Presets with what else knows of models: the engine's life, reloads, keys, limits, lists, the ledger and fallbacks."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from ledger_clients import rows_of

from support.common.waiting import until
from support.servers.listening import Listening, listening
from support.servers.reloading import Reloadable
from unilect.config.limits import Limits
from unilect.config.model import ModelConfig, Price
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.models.preset import Preset

KEY = "sk-of-one"
HI = [{"role": "user", "content": "Hi"}]
TOP = "port = 0\n[store]\nurl = 'sqlite://'\n"
BASE = '[models.base]\nsource = "echo:0123456789"\n'
SHORT = '[models.short]\nbase = "base"\ndefaults = { max_tokens = 3 }\n'


class Gate:
    """A server with a key and a ledger."""

    def __init__(self, server: Listening, store: str) -> None:
        self.server, self._store = server, store

    async def chat(self, model: str, **body: Any) -> tuple[int, dict[str, Any], Any]:
        """The status, the body and the headers of a chat's answer."""
        body = {"model": model, "messages": HI} | body
        async with self.server.request(KEY, "/v1/chat/completions", **body) as answer:
            return answer.status, await answer.json(), answer.headers

    async def ledger(self, model: str) -> list[dict[str, Any]]:
        """The rows of a model."""
        rows = await asyncio.to_thread(rows_of, self._store)
        return [row for row in rows if row["model"] == model]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gate]:
    """One for all tests."""
    store = f"sqlite:///{Path(tmp_path_factory.mktemp('gate')) / 'unilect.db'}"
    once = Limits(requests_per_minute=1)
    models = {
        "base": ModelConfig(source="echo:", unlisted=True, price=Price(completion=1e6)),
        "coder": ModelConfig(base="base", system="Code.", aliases=["gpt-4o"]),
        "tight": ModelConfig(base="base", limits=once, price=Price(completion=2e6)),
        "down": ModelConfig(source="echo:", options={"failing_starts": 10**6}, load="demand"),
        "saved": ModelConfig(base="down", fallback="coder"),
    }
    config = Config(
        port=0,
        api_keys=[KEY],
        store=StoreConfig(url=store, keys=False, ledger="required"),
        models=models,
    )
    async with listening(config) as server:
        yield Gate(server, store)


@pytest.mark.asyncio(loop_scope="module")
async def test_lists_have_what_is_listed(gate: Gate) -> None:
    """A model that is not listed answers, and no list and no error names it; its presets are listed."""
    names = []
    for path in ("/v1/models", "/api/tags"):
        async with gate.server.request(KEY, path, "GET") as answer:
            body = await answer.json()
        names.append([one.get("id") or one["name"] for one in body.get("data") or body["models"]])
    async with gate.server.request(KEY, "/v1/models/base", "GET") as answer:
        assert 200 == answer.status
    _, told, _ = await gate.chat("nobody")

    assert ["coder", "tight", "down", "saved"] == names[0]
    assert [f"{name}:latest" for name in names[0]] == names[1]
    assert "Models: coder, tight, down, saved." in told["error"]["message"]


@pytest.mark.asyncio(loop_scope="module")
async def test_the_name_that_was_asked_counts(gate: Gate) -> None:
    """The answer, the ledger, the price and the limits are those of the name that was asked, an alias's of its preset."""
    _, alias, headers = await gate.chat("gpt-4o")
    _, tight, _ = await gate.chat("tight")
    refused, _, _ = await gate.chat("tight")
    base, _, _ = await gate.chat("base")
    (of_coder,), (of_tight,) = await gate.ledger("coder"), await gate.ledger("tight")

    assert ("coder", "tight") == (alias["model"], tight["model"])
    assert "X-Unilect-Fallback" not in headers
    assert (429, 200) == (refused, base)
    assert 2 * of_coder["cost"] == of_tight["cost"] > 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_preset_has_its_own_fallback(gate: Gate) -> None:
    """Where the base cannot answer, the preset's fallback does, and the base has none."""
    status, _, headers = await gate.chat("saved")
    alone, _, _ = await gate.chat("down")

    assert (200, "coder") == (status, headers["X-Unilect-Fallback"])
    assert 503 == alone


class Server(Reloadable):
    """A server in this process, of a file."""

    async def say(self, model: str) -> str:
        """What a model says; or the status of its error."""
        body = {"model": model, "messages": HI}
        async with (
            aiohttp.ClientSession() as client,
            client.post(f"{self.url}/v1/chat/completions", json=body) as response,
        ):
            told = await response.json()
            return told["choices"][0]["message"]["content"] if response.ok else str(response.status)


def serving(tmp_path: Path, text: str) -> Server:
    """A server of a configuration."""
    file = tmp_path / "unilect.toml"
    file.write_text(text)
    return Server(file, look_s=0.01)


async def test_names_come_and_go_without_a_restart(tmp_path: Path) -> None:
    """Presets that a reload adds, changes and removes leave the engine alone, and an engine that is restarted answers for its presets."""
    server = serving(tmp_path, TOP + BASE)
    async with server.running():
        base = server.registry.models["base"]
        kept = base.pool.members[0].backend
        server.write(TOP + BASE + SHORT)
        added = await server.reloader.reload("a test")
        said = [await server.say("short")]
        preset = server.registry.models["short"]
        server.write(TOP + BASE + SHORT.replace("3", "4"))
        adjusted = await server.reloader.reload("a test")
        said.append(await server.say("short"))

        assert (base, preset) == tuple(server.registry.models.values())
        assert isinstance(preset, Preset)
        assert kept is preset.pool.members[0].backend
        assert 1 == kept.starts  # type: ignore[attr-defined]

        server.write(TOP + BASE.replace("0123", "abcd") + SHORT)
        restarted = await server.reloader.reload("a test")
        said.append(await server.say("short"))
        server.write(TOP + BASE.replace("0123", "abcd"))
        removed = await server.reloader.reload("a test")
        said += [await server.say("short"), await server.say("base")]
        await until(lambda: not server.registry.leaving)
    assert ["012", "0123", "abc", "404", "abcd456789"] == said
    assert (("short",), ("short",)) == (added.added, adjusted.adjusted)
    assert (("base",), ("short",)) == (restarted.restarted, restarted.adjusted)
    assert (("short",), ()) == (removed.removed, removed.restarted)


async def test_a_drained_base_answers_no_name(tmp_path: Path) -> None:
    """A drain of the base holds for its presets until it is loaded again, and idle stops are of the engine, not of a name; a request that comes meanwhile waits."""
    server = serving(tmp_path, TOP + BASE + SHORT)
    async with server.running():
        base, preset = server.registry.models["base"], server.registry.models["short"]
        preset.drain()
        assert ("draining", "draining") == (base.state, preset.state)
        drained = await server.say("short")
        await until(lambda: base.stopping is None and not base.in_use)
        await preset.start()
        said = await server.say("short")
        preset.set_keep_alive(0)
        await until(lambda: base.state == "stopped")
        again = await server.say("short")
        preset.set_keep_alive(0)
        assert preset.stopping is not None
        meanwhile = await server.say("short")

        assert "ready" == preset.state == base.state
    assert ("503", "012", "012", "012") == (drained, said, again, meanwhile)


async def test_a_name_becomes_a_preset(tmp_path: Path) -> None:
    """A model that becomes a preset is stopped once its requests have ended, and the other way round the base goes on."""
    own = '[models.short]\nsource = "echo:own"\n'
    server = serving(tmp_path, TOP + BASE + own)
    async with server.running():
        base, before = server.registry.models["base"], server.registry.models["short"]
        server.write(TOP + BASE + SHORT)
        await server.reloader.reload("a test")
        said = [await server.say("short")]
        await until(lambda: before.gone)
        server.write(TOP + BASE + own)
        await server.reloader.reload("a test")
        said.append(await server.say("short"))

        assert base is server.registry.models["base"]
        assert 1 == base.pool.members[0].backend.starts  # type: ignore[attr-defined]
    assert ["012", "own"] == said
