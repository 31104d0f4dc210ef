"""Models that change on a cluster of two nodes, under load; and nodes that die."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from inprocess import Site, site, until

from ray_cluster import Node, cluster
from unilect.config.fleet import FleetConfig
from unilect.config.server import Config, ModelConfig
from unilect.errors import UnilectError

KILLS = int(os.environ.get("UNILECT_KILLS", "1"))
STREAMS = 20
TOKENS = 120
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240 + 90 * KILLS),
]
draw = random.Random(14)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """Two nodes; gateways are connected to the head's."""
    with cluster(1, 1) as found:
        yield found


Gateway = Callable[..., Any]


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(nodes: list[Node]) -> AsyncIterator[Gateway]:
    """Serves a model on the cluster."""
    async with AsyncExitStack() as stack:

        async def serve(name: str, replicas: Any = 2, source: str = "demo:", **fields: Any) -> Site:
            fields = {"threads": 1, "parallel": 4, "resources": {"cpu": 0.1}} | fields
            model = ModelConfig(source=source, replicas=replicas, **fields)
            fleet = FleetConfig(address=nodes[0].head, token_file=nodes[0].token)
            config = Config(port=0, models={name: model}, fleet=fleet, log_level="error")
            return await stack.enter_async_context(site(config))

        yield serve


async def story(running: Site, number: int, seen: list[int]) -> tuple[str, int, str]:
    """The text, the tokens and the last frame of a greedy stream."""
    said, tokens, last = "", 0, ""
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
                tokens = (frame.get("usage") or {}).get("completion_tokens", tokens)
                said += "".join(one["delta"].get("content") or "" for one in frame["choices"])
                seen.append(number)
    return said, tokens, last


async def stories(running: Site, seen: list[int] | None = None) -> list[tuple[str, int, str]]:
    """Twenty at once."""
    seen = [] if seen is None else seen
    return await asyncio.gather(*(story(running, number, seen) for number in range(STREAMS)))


def processes(nodes: list[Node]) -> set[int]:
    """The replicas of all nodes."""
    return {pid for node in nodes for pid in node.replicas()}


async def test_settings_that_differ(gateway: Gateway, nodes: list[Node]) -> None:
    """A gateway with the same settings replaces no replica, two at once neither; other settings replace all of them, and no answer fails or differs."""
    first, second = await asyncio.gather(gateway("m"), gateway("m"))
    before = processes(nodes)
    third = await gateway("m")
    assert (2, before) == (len(before), processes(nodes))

    expected, served, answers = await stories(first), asyncio.Event(), list[Any]()

    async def load(running: Site) -> None:
        while not served.is_set():
            answers.append(await stories(running))

    loads = [asyncio.create_task(load(one)) for one in (first, third)]
    changed = await gateway("m", parallel=5)
    served.set()
    await asyncio.gather(*loads)

    assert len(answers) >= 2
    assert all(one == expected for one in answers)
    assert expected == await stories(second) == await stories(changed)
    await until(
        lambda: _holds(lambda: len(processes(nodes)) == 2 and not before & processes(nodes))
    )


async def test_settings_that_fail(gateway: Gateway, nodes: list[Node]) -> None:
    """Where new replicas cannot start the reason is told, and the old ones go on; settings that start replace them."""
    old = await gateway("e", source="echo:old")
    before = processes(nodes)
    with pytest.raises(UnilectError) as failure:
        await gateway("e", source="echo:new", options={"failing_starts": 9})

    assert "failing_starts" in str(failure.value)
    assert "old" == await said(old)
    assert before == processes(nodes)
    new = await gateway("e", source="echo:new")
    assert ("new", "new") == (await said(old), await said(new))


async def said(running: Site) -> str:
    """The text of an answer."""
    async with running.post() as response:
        assert 200 == response.status, await response.text()
        return str((await response.json())["choices"][0]["message"]["content"])


async def test_a_cluster_that_is_full(gateway: Gateway) -> None:
    """Where no node has room for a replica the missing resource is named: one that none has, and one that others have taken."""
    for resources, why in (
        ({"gpu": 1}, "a replica needs 1 GPU, and the largest node has 0"),
        ({"cpu": 0.95}, "a replica needs 0.95 CPU"),
    ):
        with pytest.raises(UnilectError) as failure:
            await gateway("f", replicas=3, source="echo:x", resources=resources, start_timeout_s=4)
        assert why in failure.value.message
        assert failure.value.retry_after_s


async def test_a_node_that_dies(gateway: Gateway, nodes: list[Node]) -> None:
    """The answers of a node's replicas go on at another one's, and with the node its replica comes back."""
    running = await gateway("n", resources={"cpu": 0.55})
    expected = await stories(running)
    for _ in range(KILLS):
        lost, seen = nodes[1].replicas(), list[int]()
        streams = asyncio.ensure_future(stories(running, seen))
        at = draw.randrange(50, STREAMS * TOKENS // 4)
        await until(lambda: _holds(lambda: len(seen) >= at))
        nodes[1].kill()
        assert expected == await streams
        assert lost
        await asyncio.to_thread(nodes[1].start)
        await until(lambda: _holds(lambda: len(nodes[1].replicas()) >= 1))


async def test_the_gateways_node_that_dies(gateway: Gateway, nodes: list[Node]) -> None:
    """A gateway whose own node dies, and with it the cluster, connects again when it is back: its answers go on, and who comes meanwhile waits."""
    running = await gateway("h")
    expected, seen = await stories(running), list[int]()
    streams = asyncio.ensure_future(stories(running, seen))
    await until(lambda: _holds(lambda: len(seen) >= 200))
    nodes[0].kill()
    late = asyncio.ensure_future(story(running, 3, []))
    await asyncio.to_thread(nodes[1].stop)
    for node in nodes:
        await asyncio.to_thread(node.start)

    assert expected == await streams
    assert expected[3] == await late


async def _holds(condition: Callable[[], bool]) -> bool:
    return condition()
