"""Engines that die, restart and are stopped, with what else goes on: several requests, adapters, callers, memory and folders."""

import asyncio
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.backends.engine import engine, made
from support.backends.tiny_child import Tiny
from support.clients.callers import of
from support.common.waiting import until
from support.servers.reloading import Reloadable
from unilect.core.errors import BackendUnavailable
from unilect.core.events import Fold
from unilect.core.requests import ChatRequest, LoraScale, Message
from unilect.demo import FOLDER, MODEL

PIRATE = str(FOLDER / "lora-pirate.gguf")
HELLO = [Message("user", "Hello!")]
SHORT = ChatRequest(messages=HELLO, temperature=0, max_tokens=8)


async def text(model: Any, request: ChatRequest = SHORT) -> str | None:
    """The text of an answer."""
    folding = Fold()
    async for batch in model.generate(request):
        folding.add(batch)
    return folding.answer().choices[0].text


async def killed(model: Any) -> None:
    """Wait until the child of an engine has died, and is back."""
    child = model.children[0]
    life, pid = child.starts, child.pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: child.starts > life and child.pid is not None)


async def test_a_restart_and_several_requests_at_once() -> None:
    """Requests that come together after a restart share one connection to the new child, and its slots are forgotten once."""
    async with engine(parallel=4) as model:
        first, forgets = await text(model), []
        await killed(model)
        forget = model._slots.forget
        server = model._generator
        server._on_new_life = lambda: forgets.append(forget())

        connections = await asyncio.gather(*(server.connect() for _ in range(4)))
        told = await asyncio.gather(*(text(model) for _ in range(4)))

    assert {first} == set(told)
    assert 1 == len(set(connections))
    assert [None] == forgets


@pytest.mark.heavy
async def test_cache_isolation_and_slots_restored(tmp_path: Path) -> None:
    """After a restart a second caller reads nothing of the first one's prompts, not even from the slot into which that one restores its own."""
    long = ChatRequest(messages=[Message("user", "Tell me a story. " * 30)], max_tokens=2)
    folder = tmp_path / "slots"
    async with engine(parallel=1, slot_save_path=str(folder)) as model:

        async def cached(caller: str) -> int:
            folding = Fold()
            with of(caller):
                async for batch in model.generate(long):
                    folding.add(batch)
            return folding.answer().usage.cached_tokens or 0

        async def change(caller: str, action: Any) -> None:
            with of(caller):
                await model.change_slot(0, action, "mine")

        begun = [await cached("ada"), await cached("bob"), await cached("ada")]
        await change("ada", "save")
        await killed(model)
        after = await cached("bob")
        await change("bob", "erase")
        await killed(model)
        await change("ada", "restore")
        others = await cached("bob")
        await killed(model)
        await change("ada", "restore")
        own = await cached("ada")

    assert [0, 0, 0] == begun
    assert (0, 0) == (after, others)
    assert own > 100


async def test_a_start_and_the_memory_of_two_models(tmp_path: Path) -> None:
    """A model that fits alone, and not beside another one that is being loaded, is refused with the reason, and may start once that one has."""
    first, gate = Tiny(gate=str(tmp_path / "gate")), tmp_path / "gate"
    first.process._takes_bytes = 2**50
    loading, second = asyncio.create_task(first.process.start()), made("gguf")
    try:
        await until(lambda: first.process.pid is None and first.process.starting_pid is not None)
        with pytest.raises(BackendUnavailable, match="of which other models that start now take"):
            await second.start()
        gate.touch()
        await loading
        await second.start()
        assert await text(second)
    finally:
        await second.aclose()
        await first.aclose()


@pytest.mark.heavy
async def test_a_long_tmpdir_and_a_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the path of the folder for temporary files is, a model starts, is replaced by a reload, and checks grammars."""
    long = tmp_path / ("long" * 40)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv("TMPDIR", str(long))
    file = tmp_path / "unilect.toml"
    table = f"port = 0\n[store]\nurl = 'sqlite://'\n[models.own]\nsource = '{MODEL}'\nparallel = "
    bound = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "boolean"}}}
    body = {"model": "own", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8, "response_format": bound}  # fmt: skip
    file.write_text(f"{table}1\n")
    server = Reloadable(file)
    async with server.running(), aiohttp.ClientSession() as client:
        said = []
        for parallel in (2, 3):
            async with client.post(f"{server.url}/v1/chat/completions", json=body) as answer:
                said.append((answer.status, await answer.text()))
            server.write(f"{table}{parallel}\n")
            await server.reloader.reload("a test")

    assert [200, 200] == [status for status, _ in said], said
    assert [] == list(long.iterdir())


@pytest.mark.heavy
@pytest.mark.parametrize("times", [1, 2])
async def test_adapter_requests_and_clients_that_leave_twice(times: int) -> None:
    """The slot of a request with other scales is there for the next life of a model, however often the client's task is cancelled."""
    scaled = ChatRequest(messages=HELLO, max_tokens=400, lora=[LoraScale(id=0, scale=0.5)])
    async with engine(parallel=1, lora=[PIRATE]) as model:
        began = asyncio.Event()

        async def ask() -> None:
            async for _ in model.generate(scaled):
                began.set()

        asked = asyncio.create_task(ask())
        await began.wait()
        for _ in range(times):
            asked.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(asked, return_exceptions=True)
        await model.aclose()

        await model.start()
        async with asyncio.timeout(60):
            slot = await model._slots.acquire(b"")
        model._slots.release(slot)
