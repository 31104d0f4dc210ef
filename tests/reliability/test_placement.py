"""Which slots of llama.cpp requests get, read from llama.cpp's own slots and from what it had in its cache."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from inprocess import Site, site, until

from unilect.config.server import Config, ModelConfig

LONG = {"max_tokens": 1500, "ignore_eos": True, "stream": True}
STORY = "The bear has a red hat. The fox is his friend. " * 30


def served(parallel: int) -> Any:
    """The bundled model with so many slots."""
    models = {"demo": ModelConfig(parallel=parallel)}
    return site(Config(port=0, models=models, log_level="warning"))


async def stream(running: Site) -> Any:
    """A stream that has begun and takes long."""
    response = await running.post(**LONG).__aenter__()
    await response.content.readany()
    return response


async def cached(running: Site, *texts: str) -> tuple[int, int]:
    """Ask, and return how many tokens of the conversation were in the cache, and how many it has."""
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": text}
        for number, text in enumerate(texts)
    ]
    async with running.post(messages=messages, max_tokens=2) as response:
        usage = (await response.json())["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


async def test_busy_slots_lie_side_by_side() -> None:
    """A request gets the lowest free slot, whichever was used last."""
    async with served(4) as running:
        streams = [await stream(running) for _ in range(3)]
        streams.pop(0).close()
        await running.until_busy(2)
        streams.append(await stream(running))
        busy = [slot["id"] for slot in await running.slots() if slot["is_processing"]]
        for response in streams:
            response.close()

    assert [0, 1, 2] == busy


async def test_conversation_that_goes_on_is_not_read_again() -> None:
    """A conversation goes back to the slot that holds it, though a lower one has become free."""
    async with served(3) as running:
        first, second = await stream(running), await stream(running)
        _, tokens = await cached(running, "Tell me: " + STORY)
        first.close()
        await running.until_busy(1)
        again, _ = await cached(running, "Tell me: " + STORY, "Yes.", "And then?")
        second.close()

    assert again > tokens - 10


async def test_conversation_is_not_lost_when_another_takes_its_slot() -> None:
    """Two conversations that take turns in one slot are each read once."""
    async with served(1) as running:
        for who in ("Ann", "Bob"):
            await cached(running, who + STORY)
        counts = [await cached(running, who + STORY) for who in ("Ann", "Bob", "Ann")]

    assert all(held > tokens - 10 for held, tokens in counts)


@pytest.mark.heavy
async def test_conversations_do_not_fill_the_memory() -> None:
    """Of more conversations than the bundled model may remember the oldest are dropped, and its engine grows no further."""
    text = "The bear has a red hat. " * 180
    async with served(1) as running:
        held, tokens = await cached(running, f"0 {text}")
        before = anonymous_bytes(running.child.pid)
        for number in range(1, 28):
            await cached(running, f"{number} {text}")
        grown = anonymous_bytes(running.child.pid) - before

    assert (held, 1500 < tokens) == (0, True)
    assert grown < 90 * 2**20


def anonymous_bytes(pid: int | None) -> int:
    """What a process has of memory that is no file's."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


async def test_model_that_is_stopped_keeps_nobody_waiting() -> None:
    """Running and waiting requests of an engine that is stopped end with an error, and it stays stopped."""
    async with served(1) as running:
        engine = running.engine()
        running_one = await stream(running)
        waiting = asyncio.ensure_future(running.post(max_tokens=1).__aenter__())
        await until(lambda: is_waiting(running))
        await running.registry.aclose()
        answer = await waiting
        body = await answer.json()
        running_one.close()

        assert (503, "The model was stopped. Try again.") == (
            answer.status,
            body["error"]["message"],
        )
        assert engine._generator.process.closed


async def is_waiting(running: Site) -> bool:
    """True when a request waits for a slot."""
    return any(len(queue) for queue in running.registry.get(None).pool.queues)


async def test_slots_outlive_a_crowd_that_leaves() -> None:
    """Of many requests at few slots every second leaves; the others are answered, and all slots are free again."""
    async with served(3) as running:
        crowd = [  # those that leave would take long, so that all slots are at work until they do
            asyncio.ensure_future(running.post(max_tokens=most, ignore_eos=True).__aenter__())
            for most in [LONG["max_tokens"], 20] * 15
        ]
        await running.until_busy(3)
        for request in crowd[::2]:
            request.cancel()
            await running.slots()
        responses = await asyncio.gather(*crowd[1::2])
        await asyncio.gather(*crowd[::2], return_exceptions=True)

        assert [200] * 15 == [response.status for response in responses]
        await running.until_busy(0)
        await until(lambda: all_free(running))


async def all_free(running: Site) -> bool:
    """True when the engine may give each of its three slots to a request."""
    return running.engine()._slots._free == {0, 1, 2}
