"""
Replicas and raylets that are killed: every greedy answer is whole, and that of an undisturbed run; what dies comes back by itself.

`UNILECT_KILLS=20` kills each so many times.
"""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from inprocess import Site, site, until

from ray_cluster import descendants, replicas_of, said
from unilect.config.model import Replicas
from unilect.config.server import Config, ModelConfig

KILLS = int(os.environ.get("UNILECT_KILLS", "2"))
STREAMS = 20
TOKENS = 150
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180 + 60 * KILLS),
]
draw = random.Random(13)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Site]:
    """A server of two replicas, on a cluster of its own."""
    model = ModelConfig(source="demo:", replicas=2, threads=1, resources={"cpu": 0.5}, parallel=4)
    async with site(Config(port=0, models={"demo": model}, log_level="error")) as serving:
        yield serving


def replicas(running: Site) -> list[int]:
    """The processes of the replicas."""
    (child,) = running.registry.get(None).pool.members[0].backend.children
    return replicas_of(child.pid)


async def story(running: Site, number: int, seen: list[int] | None = None) -> Any:
    """The text, the usage and the last frame of a greedy stream."""
    said, used, last = "", None, ""
    body = {
        "messages": [{"role": "user", "content": f"Tell me a story about {number} dogs."}],
        "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    async with running.post(**body) as response:
        assert 200 == response.status, await response.text()
        async for line in response.content:
            if line.startswith(b"data: ") and (last := line[6:].strip().decode()) != "[DONE]":
                frame = json.loads(last)
                assert "error" not in frame, frame
                used = frame.get("usage") or used
                for choice in frame["choices"]:
                    said += choice["delta"].get("content") or ""
                if seen is not None:
                    seen.append(number)
    return said, used["completion_tokens"], last


async def test_replicas_that_are_killed(running: Site) -> None:
    """Twenty streams go on when a replica is killed, also those that wait for their turn, and the replica comes back."""
    expected = await asyncio.gather(*(story(running, number) for number in range(STREAMS)))
    for kill in range(KILLS):
        seen = list[int]()
        streams = asyncio.gather(*(story(running, number, seen) for number in range(STREAMS)))
        at = draw.randrange(100, STREAMS * TOKENS // 4)
        await until(lambda: _reached(seen, at))
        victim = draw.choice(replicas(running))
        (engine,) = [pid for pid in descendants(victim) if "llama" in said(pid)] or [victim]
        os.kill(victim if kill % 2 == 0 else engine, signal.SIGKILL)

        assert expected == await streams
        await until(lambda: _are(running, 2, victim if kill % 2 == 0 else 0))


async def _reached(seen: list[int], at: int) -> bool:
    return len(seen) >= at


async def _are(running: Site, count: int, gone: int) -> bool:
    found = replicas(running)
    return len(found) == count and gone not in found
