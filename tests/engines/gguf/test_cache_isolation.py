"""Tests of unilect.engines.gguf._cache_isolation on llama.cpp itself, whose metrics tell how many tokens it has read."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from support.backends.engine import answer, completion
from unilect.config.server import ModelConfig
from unilect.core.errors import BackendUnavailable
from unilect.core.events import Finish, TextDelta, Usage
from unilect.core.requests import EmbeddingRequest
from unilect.demo import MODEL
from unilect.engines.gguf.engine import GgufEngine
from unilect.engines.process.child_server import ChildServer
from unilect.runtime.context import CURRENT_REQUEST, Context

TEXT = "Once upon a time there was a little girl. " * 30
OTHER = "The cat sat on the mat, and had a hat. " * 30
ENDS = 5  # tokens of a prompt that are read in any case


@asynccontextmanager
async def running(several: bool = False, **config: Any) -> AsyncIterator[GgufEngine]:
    """The bundled model in one slot, unless it is to have more."""
    settings = ModelConfig(**{"parallel": 1, "context": 1024} | config)
    engine = GgufEngine("demo", MODEL, settings, several_callers=several)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.aclose()


async def as_caller(name: str, work: Coroutine[Any, Any, Any]) -> Any:
    """What a task of this caller's returns."""

    async def task() -> Any:
        CURRENT_REQUEST.set(Context(caller=name))
        return await work

    return await asyncio.create_task(task())


async def asked(engine: GgufEngine, caller: str, text: str) -> tuple[int, int]:
    """How many tokens of a prompt were cached, and how many llama.cpp says that it has read for it."""
    before = await tokens_read(engine)
    found = await as_caller(
        caller, answer(engine.generate(completion(text, max_tokens=2, temperature=0)))
    )
    return found.usage.cached_tokens, await tokens_read(engine) - before


async def tokens_read(engine: GgufEngine, child: ChildServer | None = None) -> int:
    """All tokens of prompts that a child has read, the one that generates or another; 0 in one that has just started."""
    server = await (child or engine._generator).connect()
    told = (await server.get("/metrics")).decode()
    [count] = re.findall(r"^llamacpp:prompt_tokens_total (\S+)$", told, re.MULTILINE)
    return int(float(count))


async def test_one_caller_keeps_llamacpps_cache() -> None:
    """A single caller's conversation comes back into the slot that another of its conversations had."""
    async with running() as engine:
        pid = engine._generator.process.pid
        first, *_ = [await asked(engine, "ada", text) for text in (TEXT, OTHER)]
        again = await asked(engine, "ada", TEXT)

        assert engine._generator.process.pid == pid
    assert again[0] >= first[1] - ENDS
    assert again[1] <= ENDS


@pytest.mark.parametrize("several", [True, False])
async def test_another_caller_finds_nothing(several: bool) -> None:
    """Neither a slot nor the cache in memory has anything for another caller, also where nobody has foreseen that one comes."""
    async with running(several) as engine:
        first = await asked(engine, "ada", TEXT)
        await asked(engine, "ada", OTHER)
        theirs = [await asked(engine, "bob", text) for text in ("Hello", TEXT, OTHER, TEXT)]
        own = await asked(engine, "bob", TEXT)
        back = await asked(engine, "ada", TEXT)

    total = first[1]
    assert max(cached for cached, _ in theirs) <= ENDS
    assert min(read for _, read in theirs[1::2]) >= total - ENDS
    assert own[0] >= total - ENDS
    assert back == (0, total)


async def test_a_shared_cache_is_everybodys() -> None:
    """With `share_cache` the model is not loaded again, and whoever comes reads what others have sent."""
    async with running(several=True, share_cache=True) as engine:
        pid = engine._generator.process.pid
        total = (await asked(engine, "ada", TEXT))[1]
        await asked(engine, "ada", OTHER)
        theirs = await asked(engine, "bob", TEXT)

        assert engine._generator.process.pid == pid
    assert theirs[0] >= total - ENDS


async def test_embeddings_are_in_no_cache() -> None:
    """A text that is embedded again is read again, whoever sends it."""
    async with running() as engine:
        request = EmbeddingRequest(input=TEXT)
        read = []
        for caller in ("ada", "ada", "bob"):
            await as_caller(caller, engine.embed(request))
            read.append(await tokens_read(engine, engine._embedder))

    assert [read[0], 2 * read[0], 3 * read[0]] == read
    assert read[0] > 100


async def test_those_without_a_key_are_one_caller() -> None:
    """A request of nobody's is that of an anonymous caller: no second one has come."""
    async with running() as engine:
        pid = engine._generator.process.pid
        total = (await asked(engine, "anonymous", TEXT))[1]
        theirs = await asked(engine, "", TEXT)

        assert engine._generator.process.pid == pid
    assert theirs[0] >= total - ENDS


async def test_the_first_key() -> None:
    """The first key of a server that had none goes on with its cache, and the model is not loaded again; who comes after it finds nothing."""
    for second in ("bob", "anonymous"):
        async with running() as engine:
            pid = engine._generator.process.pid
            total = (await asked(engine, "anonymous", TEXT))[1]
            await asked(engine, "anonymous", OTHER)
            ada = await asked(engine, "ada", TEXT)
            assert engine._generator.process.pid == pid
            theirs = await asked(engine, second, TEXT)

        assert ada[0] >= total - ENDS
        assert 0 == theirs[0]


async def test_a_running_answer_is_not_cut() -> None:
    """The second caller's request waits for what runs, and is answered then."""
    async with running(parallel=2) as engine:
        begun = asyncio.Event()
        ada = asyncio.create_task(
            as_caller("ada", told_of(engine, begun, ignore_eos=True, max_tokens=200))
        )
        await begun.wait()
        bob = await as_caller("bob", answer(engine.generate(completion("Hello", max_tokens=2))))

        assert ada.done()
        events = await ada
    assert ["length"] == [event.reason for event in events if isinstance(event, Finish)]
    assert [200] == [event.completion_tokens for event in events if isinstance(event, Usage)]
    assert "length" == bob.choices[0].finish_reason


async def told_of(engine: GgufEngine, begun: asyncio.Event, **fields: Any) -> list[Any]:
    """All events of an answer; `begun` is set with the first text."""
    events: list[Any] = []
    async with aclosing(engine.generate(completion("Hello", **fields))) as batches:
        async for batch in batches:
            events += batch
            if any(isinstance(event, TextDelta) for event in batch):
                begun.set()
    return events


@pytest.mark.heavy
async def test_a_second_caller_who_leaves_while_waiting() -> None:
    """Nothing has changed for the first, and a third one is kept apart like any other."""
    async with running() as engine:
        begun = asyncio.Event()
        ada = asyncio.create_task(
            as_caller("ada", told_of(engine, begun, ignore_eos=True, max_tokens=900))
        )
        await begun.wait()
        bob = asyncio.create_task(as_caller("bob", answer(engine.generate(completion(TEXT)))))
        while not (engine._slots._waiting or bob.done()):
            await asyncio.sleep(0)
        bob.cancel()
        await asyncio.wait({bob})
        assert bob.cancelled()
        await ada
        await asked(engine, "ada", TEXT)
        cy = await asked(engine, "cy", TEXT)

    assert 0 == cy[0]


async def test_a_model_that_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot be loaded again the second caller is told so, and is not let near what the first has left."""
    async with running() as engine:
        await asked(engine, "ada", TEXT)
        command: Callable[[], Any] = engine._generator.process._spawn
        monkeypatch.setattr(engine._generator.process, "_spawn", _fails)
        with pytest.raises(BackendUnavailable, match="cannot be started"):
            await asked_only(engine, "bob")
        monkeypatch.setattr(engine._generator.process, "_spawn", command)
        engine._generator.process.restarts.ended_at = 0.0  # without the pause after a failed start
        found = await asked_only(engine, "bob")

    assert 0 == found.usage.cached_tokens


async def asked_only(engine: GgufEngine, caller: str) -> Any:
    """The answer to the text."""
    return await as_caller(
        caller, answer(engine.generate(completion(TEXT, max_tokens=2, temperature=0)))
    )


async def _fails() -> None:
    raise OSError("no memory")
