"""Tests of unilect.residency.residency with engines, on the bundled model."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from support.common.waiting import until
from support.servers.listening import listening
from unilect.config.limits import LimitsConfig
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.demo import MODEL
from unilect.residency.space import NOTHING


def tables(folder: Path, *names: str, **options: object) -> dict[str, ModelConfig]:
    """Small models that are loaded on demand, each of a file of its own."""
    found = {}
    for name in names:
        (folder / f"{name}.gguf").write_bytes(MODEL.read_bytes())
        found[name] = ModelConfig(
            source=str(folder / f"{name}.gguf"), load="demand", context=256, parallel=1, cache_ram_mib=0, **options,  # type: ignore[arg-type]
        )  # fmt: skip
    return found


async def ask(
    server: object, name: str, prompt: str = "Once", key: str = ""
) -> tuple[int, dict[str, str]]:
    """Ask for a completion; returns the status and the headers."""
    body = {"model": name, "prompt": prompt, "max_tokens": 2}
    async with server.request(key, "/v1/completions", **body) as response:  # type: ignore[attr-defined]
        await response.read()
        return response.status, dict(response.headers)


async def test_what_comes_beside(tmp_path: Path) -> None:
    """The second engine of a model, which makes embeddings, counts as soon as it has come."""
    async with listening(Config(port=0, models=tables(tmp_path, "a"))) as server:
        await ask(server, "a")
        a = server.registry.models["a"]
        assert a.place is not None
        before = (a.memory_need() or NOTHING).total
        async with server.request("", "/v1/embeddings", model="a", input="x") as response:
            assert 200 == response.status
        assert (a.memory_need() or NOTHING).total > before + 10**7
        a.set_keep_alive(0)
        await until(lambda: not a.runs_here and a.stopping is None)
        assert (a.memory_need() or NOTHING).total < before + 10**7


async def test_engines(tmp_path: Path) -> None:
    """Two engines of which one fits are exchanged; an answer that waited says for how long the model was loaded; each is measured."""
    models = tables(tmp_path, "a", "b", memory="60MB")
    async with listening(Config(port=0, memory="110MB", models=models)) as server:
        for name in ("a", "b"):
            status, headers = await ask(server, name)
            assert 200 == status
            assert float(headers["X-Unilect-Loaded-In"]) > 0
        a, b = server.registry.models.values()
        assert [False, True] == [a.runs_here, b.runs_here]
        assert b.place is not None
        await until(lambda: b.place.measured_bytes > 0)  # type: ignore[union-attr]
        assert 10**7 < b.place.measured_bytes < b.place.need.total
        async with server.client.get(f"{server.url}/metrics") as response:
            told = await response.text()
        assert 'unilect_model_events_total{event="evicted",model="a"} 1' in told
        assert "unilect_memory_budget_bytes 110000000" in told


async def test_an_engine_that_is_killed_while_it_loads(tmp_path: Path) -> None:
    """An engine that is killed while it loads for a request is started again, and the request is answered."""
    async with listening(
        Config(port=0, memory="110MB", models=tables(tmp_path, "a", "b", memory="60MB"))
    ) as server:
        await ask(server, "a")
        b = server.registry.models["b"]
        asking = asyncio.create_task(ask(server, "b"))
        child = b.pool.members[0].backend.children[0]
        await until(lambda: child.starting_pid is not None)  # type: ignore[attr-defined]
        os.kill(child.starting_pid, signal.SIGKILL)  # type: ignore[attr-defined]

        status, _ = await asking
        assert 200 == status


async def test_another_one_answers_meanwhile(tmp_path: Path) -> None:
    """While a model is loaded the one that `while_loading` names answers, if it is loaded itself."""
    models = {
        **tables(tmp_path, "first", "large", while_loading="small"),
        "small": ModelConfig(source="echo:yes"),
    }
    async with listening(Config(port=0, models=models)) as server:
        _, headers = await ask(server, "first")
        assert "X-Unilect-Fallback" not in headers
        await ask(server, "small")
        _, headers = await ask(server, "large")
        assert "small" == headers["X-Unilect-Fallback"]
        large = server.registry.models["large"]
        await until(lambda: large.runs_here)
        _, headers = await ask(server, "large")
        assert "X-Unilect-Fallback" not in headers


async def test_another_one_that_cannot_answer_meanwhile(tmp_path: Path) -> None:
    """What the model of `while_loading` refuses, or fails at, waits for the requested one after all."""
    models = {
        **tables(tmp_path, "large", while_loading="small"),
        "small": ModelConfig(source="echo:yes", options={"context": 16}),
    }
    async with listening(Config(port=0, models=models)) as server:
        await ask(server, "small")
        status, headers = await ask(server, "large", "a prompt of more tokens than " * 9)
        assert 200 == status
        assert "X-Unilect-Fallback" not in headers
        assert float(headers["X-Unilect-Loaded-In"]) > 0


@pytest.mark.heavy
async def test_a_key_that_asks_for_many_models(tmp_path: Path) -> None:
    """A key that alternates between models, one of them by a preset, gets no more seconds than a steady key, beside a pinned model."""
    names, steady = ("a", "b", "c"), "z"
    models = tables(tmp_path, *names, steady, memory="60MB")
    models["preset"] = ModelConfig(base="c")
    models |= tables(tmp_path, "fixed", memory="60MB", pin=True)
    keys = {"x": "sk-alternating", "y": "sk-steady"}
    config = Config(
        port=0, memory="170MB", swap_wait_s=0.1, models=models, api_keys=list(keys.values()),
        limits=LimitsConfig(requests_per_minute=1000, tokens_per_day=100_000), store=StoreConfig(url="sqlite://", keys=False),
    )  # fmt: skip
    async with listening(config) as server:
        await ask(server, "fixed", key=keys["x"])
        done = asyncio.Event()

        async def alternate(name: str) -> None:
            model = server.registry.models[name].base
            while not done.is_set():
                assert 200 == (await ask(server, name, key=keys["x"]))[0]
                await until(lambda: not model.runs_here or done.is_set())

        async with asyncio.TaskGroup() as tasks:
            for name in ("a", "b", "preset"):
                tasks.create_task(alternate(name))
            z = server.registry.models[steady]
            for _ in range(3):
                assert 200 == (await ask(server, steady, key=keys["y"]))[0]
                await until(lambda: not z.runs_here and z.stopping is None)
            assert 200 == (await ask(server, steady, key=keys["y"]))[0]
            done.set()
        seats = [server.registry.models[name].place for name in (*names, steady)]
        events = [one for seat in seats if seat is not None for one in seat.events.last]
        assert server.registry.models["fixed"].runs_here

    loads = sorted((one for one in events if one.kind == "loaded"), key=lambda one: one.time)
    whose = ["y" if one.reason.startswith(steady) else "x" for one in loads]
    seconds = {"x": 0.0, "y": 0.0}
    last = len(whose) - whose[::-1].index("y")
    for key, one in list(zip(whose, loads, strict=True))[whose.index("y") : last]:
        seconds[key] += one.numbers["charged_s"]
    most = max(one.numbers["charged_s"] for one in loads)
    assert seconds["x"] <= seconds["y"] + 2 * most, whose
