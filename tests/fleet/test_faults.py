"""
A server with a cluster of its own: replicas that are killed, and a model that runs while it is asked.

Every greedy answer is whole, and that of an undisturbed run; what dies comes back by itself.

`UNILECT_KILLS=20` kills each so many times.
"""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from inprocess import Site, site, until

from support.servers.fleet_load import STREAMS, holds, seen_so_many, stories, story
from support.servers.ray_cluster import engines_of, is_at_work, replicas_of
from unilect.config.model import Replicas
from unilect.config.server import Config, ModelConfig

KILLS = int(os.environ.get("UNILECT_KILLS", "2"))
TOKENS, LONG = 200, 1200
REQUESTS = 24
LEFT_S = 0.2
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180 + 60 * KILLS),
]
draw = random.Random(13)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Site]:
    """A server of a model with two replicas, and of one that has as many as it needs, on a cluster of its own."""
    demo = ModelConfig(source="demo:", replicas=2, threads=1, resources={"cpu": 0.5}, parallel=4)
    scale = Replicas(min=0, max=2, up_after_s=1, down_after_s=2)
    few = ModelConfig(
        source="demo:", replicas=scale, threads=1, resources={"cpu": 0.25}, parallel=2
    )
    async with site(
        Config(port=0, models={"demo": demo, "few": few}, log_level="error")
    ) as serving:
        yield serving


def replicas(running: Site, model: str = "demo") -> list[int]:
    """The processes of a model's replicas."""
    (child,) = running.registry.get(model).pool.members[0].backend.children
    return replicas_of(child.pid, model)


async def test_replicas_that_are_killed(running: Site) -> None:
    """Twenty streams go on when a replica is killed, also those that wait for their turn, and the replica comes back."""
    expected = await stories(running, TOKENS)
    interrupted = 0
    for kill in range(KILLS):
        seen = list[int]()
        streams = asyncio.ensure_future(stories(running, TOKENS, seen))
        await seen_so_many(seen, draw.randrange(20, STREAMS * TOKENS // 10))
        victim, engine = draw.choice(await at_work(running))
        before = running.registry.get(None).retries
        os.kill(victim if kill % 2 == 0 else engine, signal.SIGKILL)

        assert expected == await streams
        interrupted += running.registry.get(None).retries > before
        await are_two(running, victim if kill % 2 == 0 else 0)
    # now and then the victim has just written its last token
    assert interrupted >= KILLS / 2


async def test_two_faults_in_one_answer(running: Site) -> None:
    """An answer whose replica is killed, and then the one that has gone on with it, is whole."""
    expected = await story(running, 1, LONG, [])
    seen = list[int]()
    stream = asyncio.ensure_future(story(running, 1, LONG, seen))
    for _ in range(2):
        await seen_so_many(seen, len(seen) + 20)
        [(victim, _)] = await at_work(running)
        os.kill(victim, signal.SIGKILL)

    assert expected == await stream
    await are_two(running, 0)


async def at_work(running: Site) -> list[tuple[int, int]]:
    """The replicas whose engines do something, each with its engine."""
    pairs = [(replica, engine) for replica in replicas(running) for engine in engines_of(replica)]
    works = await asyncio.gather(*(is_at_work(engine) for _, engine in pairs))
    return [pair for pair, is_busy in zip(pairs, works, strict=True) if is_busy]


async def are_two(running: Site, gone: int) -> None:
    """Wait until there are two replicas, one is gone, and each has an engine that is loaded: it does nothing any more."""

    async def loaded() -> bool:
        found = replicas(running)
        engines = [engine for replica in found for engine in engines_of(replica)]
        return 2 == len(found) == len(engines) and gone not in found and not await at_work(running)

    await until(loaded)


async def test_a_client_that_leaves(running: Site) -> None:
    """The engine of a replica stops within 200 ms of its client's leaving: it makes no token more."""
    async with running.post(stream=True, max_tokens=4000, ignore_eos=True) as response:
        await response.content.readline()
        [(_, busy)] = await at_work(running)
    await asyncio.sleep(LEFT_S)

    assert not await is_at_work(busy)


async def test_a_conversation_stays(running: Site) -> None:
    """The second turn of a conversation comes to the replica that has the first one in its cache."""
    for number in range(6):
        messages = [{"role": "user", "content": f"Tell me a story about {number} cats and a sea."}]
        first = await whole(running, messages)
        messages += [first["choices"][0]["message"], {"role": "user", "content": "Go on."}]
        used = (await whole(running, messages))["usage"]
        assert used["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 4


async def whole(running: Site, messages: list[Any]) -> Any:
    """An answer to a conversation."""
    async with running.post(messages=messages, max_tokens=12, temperature=0) as response:
        assert 200 == response.status
        return await response.json()


async def test_from_none_to_two_and_back(running: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without requests no replica is left; the first request waits for one, its stream with keep-alives; load brings a second one; none fails."""
    monkeypatch.setattr("unilect.web.streaming.KEEP_ALIVE_S", 0.3)
    for _ in range(2):
        await holds(lambda: len(replicas(running, "few")) == 0)
        first = await few(running)
        assert first.startswith(": keep-alive")
        assert first.endswith("data: [DONE]\n\n")
        assert len(replicas(running, "few")) == 1

    answers, most = list[str](), 1

    async def client() -> None:
        while most < 2:
            answers.append(await few(running, 300))

    clients = [asyncio.create_task(client()) for _ in range(REQUESTS)]
    await holds(lambda: len(replicas(running, "few")) == 2)
    most = 2
    await asyncio.gather(*clients)
    assert len(answers) >= REQUESTS
    assert all(one.endswith("data: [DONE]\n\n") and "error" not in one for one in answers)
    await holds(lambda: len(replicas(running, "few")) == 0)


async def few(running: Site, tokens: int = 8) -> str:
    """The stream of an answer of the model that runs while it is asked, as it comes."""
    async with running.post(
        model="few", stream=True, max_tokens=tokens, ignore_eos=True
    ) as response:
        assert 200 == response.status
        return (await response.read()).decode()
