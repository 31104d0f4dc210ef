"""Conversations at once with a real model that has a sliding window, Gemma 3 270M: the memory that they take, what is read again, and waiting."""

import asyncio
import logging
import re
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from support.backends.engine import answer, completion, process
from support.models.published import gemma3, questions
from unilect.config.server import ModelConfig
from unilect.engines.gguf.engine import GgufEngine

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]  # the model may have to be fetched
CONVERSATIONS, TURNS, TOKENS = 8, 3, 4
WINDOW = 512  # tokens
LONG, FIRST = 2, 2300  # conversations that become longer, and the characters of their beginning
MOST = 200  # characters of any other question
BLOCK = 64  # tokens that are read in one step
BOUND = 1.05
LONG_PROMPT, HANG_S = 3000, 5.0  # characters that take longer to read, seconds
UNITS = {"MB": 1e6, "GB": 1e9}


def told_bytes(log: str) -> float:
    """Return what the log tells that a model takes at most."""
    found = re.search(r"at most ([\d.]+) ([MG]B)", log)
    assert found is not None, log
    return float(found[1]) * UNITS[found[2]]


def resident_bytes(pid: int | None) -> int:
    """Return the most memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("settings", [{}, {"cache_ram_mib": 0}], ids=str)
async def test_conversations_at_once(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Each turn is answered and reads again no more than a block, and the engine's process stays below what the log has told."""
    asked = [text for text in questions() if len(text) <= MOST]
    config = ModelConfig(parallel=CONVERSATIONS, context=1024, threads=1, **settings)
    engine = GgufEngine("gemma", gemma3(), config)

    async def talk(number: int) -> None:
        begun = "\n\n".join(questions()) if number < LONG else ""
        text, so_far = f"{number}. {begun[:FIRST]}\n\n", 0
        for turn in range(TURNS):
            text += f"Q: {asked[number * TURNS + turn]}\nA:"
            told = await answer(engine.generate(completion(text, max_tokens=TOKENS)))
            [choice], usage = told.choices, told.usage
            assert choice.finish_reason in ("length", "stop")
            if number < LONG:  # the slot of a short one is not kept for it
                assert (usage.cached_tokens or 0) >= so_far - BLOCK, (number, turn)
            so_far = usage.prompt_tokens + usage.completion_tokens
            text += f"{choice.text}\n\n"
        assert (so_far > WINDOW) == (number < LONG), so_far

    with caplog.at_level(logging.INFO):
        try:
            await engine.start()
            await asyncio.gather(*map(talk, range(CONVERSATIONS)))
            most = resident_bytes(process(engine).pid)
        finally:
            await engine.aclose()

    assert most <= BOUND * told_bytes(caplog.text)


async def test_one_that_waits_for_a_long_prompt() -> None:
    """A request that waits in its slot while another's prompt is read, longer than an engine may hang, is answered like that."""
    long = "\n\n".join(questions())[:LONG_PROMPT]
    config = ModelConfig(parallel=2, context=2048, threads=1, hang_timeout_s=HANG_S)
    engine = GgufEngine("gemma", gemma3(), config)
    reading = asyncio.Event()

    async def first() -> list[Any]:
        events = []
        async with aclosing(engine.generate(completion(long, max_tokens=2))) as batches:
            async for batch in batches:
                reading.set()
                events += batch
        return events

    try:
        await engine.start()
        others = asyncio.create_task(first())
        await reading.wait()
        found = await answer(engine.generate(completion("Once upon a time", max_tokens=2)))
        events = await others
        hangs = process(engine).hangs
    finally:
        await engine.aclose()

    assert 2 == found.usage.completion_tokens == events[-1].completion_tokens
    assert 0 == hangs
