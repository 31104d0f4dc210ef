"""
Models that change on a cluster of two nodes, under load; and nodes that die.

A model stays on its cluster when its gateway ends. So the tests of changes have one model, and each finds the replicas that the last one left.
"""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
import pytest_asyncio
from inprocess import Site, site

from support.servers.fleet_load import STREAMS, holds, seen_so_many, stories, story
from support.servers.ray_cluster import Node, cluster
from support.servers.serving import serve
from unilect.config.fleet import FleetConfig
from unilect.config.server import Config, ModelConfig
from unilect.core.errors import UnilectError

KILLS = int(os.environ.get("UNILECT_KILLS", "1"))
TOKENS = 80
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(90 + 60 * KILLS),
]
draw = random.Random(14)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """Two nodes; gateways are connected to the head's."""
    with cluster(2, 2) as found:
        yield found


Gateway = Callable[..., Any]


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(nodes: list[Node]) -> AsyncIterator[Gateway]:
    """Serves a model on the cluster."""
    async with AsyncExitStack() as stack:

        async def serve(
            name: str,
            replicas: Any = 2,
            source: str = "demo:",
            api_keys: Sequence[str] = (),
            **fields: Any,
        ) -> Site:
            fields = {"threads": 1, "parallel": 4, "resources": {"cpu": 0.1}} | fields
            model = ModelConfig(source=source, replicas=replicas, **fields)
            fleet = FleetConfig(address=nodes[0].head, token_file=nodes[0].token)
            config = Config(port=0, api_keys=list(api_keys), models={name: model}, fleet=fleet, log_level="error")  # fmt: skip
            return await stack.enter_async_context(site(config))

        yield serve


def processes(nodes: list[Node], model: str) -> set[int]:
    """The replicas of a model on all nodes."""
    return {pid for node in nodes for pid in node.replicas(model)}


async def test_settings_that_differ(gateway: Gateway, nodes: list[Node]) -> None:
    """A gateway with the same settings replaces no replica, two at once neither; other settings replace all of them, and no answer fails or differs."""
    first, second = await asyncio.gather(gateway("m"), gateway("m"))
    before = processes(nodes, "m")
    third = await gateway("m")
    await gateway(
        "m", api_keys=["one", "two"]
    )  # how many callers it has is no setting of the model
    assert (2, before) == (len(before), processes(nodes, "m"))

    expected, served, answers = await stories(first, TOKENS), asyncio.Event(), list[Any]()

    async def load(running: Site) -> None:
        while not served.is_set():
            answers.append(await stories(running, TOKENS))

    loads = [asyncio.create_task(load(one)) for one in (first, third)]
    changed = await gateway("m", parallel=5)
    served.set()
    await asyncio.gather(*loads)

    assert len(answers) >= 2
    assert all(one == expected for one in answers)
    assert [0, 0] == [one.registry.get(None).retries for one in (first, third)]
    assert expected == await stories(second, TOKENS) == await stories(changed, TOKENS)
    await holds(lambda: len(processes(nodes, "m")) == 2 and not before & processes(nodes, "m"))


async def test_a_reload(nodes: list[Node]) -> None:
    """A server whose file changes, and that gets SIGHUP, has the replicas replaced, and no answer fails or differs."""
    table = f"""
        [fleet]
        address = "{nodes[0].head}"
        token_file = "{nodes[0].token}"
        [models.m]
        source = "demo:"
        replicas = 2
        resources = {{ cpu = 0.1 }}
        threads = 1
        parallel = """
    with serve(config=f"{table}5") as server:
        async with aiohttp.ClientSession() as client:
            running: Any = Site(server.root, *cast(Any, (None, client, None)))
            expected, before, answers = await stories(running, TOKENS), processes(nodes, "m"), 0
            (server.log.parent / "unilect.toml").write_text(f"{table}6")
            os.kill(server.pid, signal.SIGHUP)
            while before & processes(nodes, "m"):
                assert expected == await stories(running, TOKENS)
                answers += 1
            assert expected == await stories(running, TOKENS)
    assert answers


async def test_settings_that_fail(gateway: Gateway, nodes: list[Node], tmp_path: Path) -> None:
    """Where new replicas cannot start the reason is told, and the old ones go on, also after one of them has died; settings that start replace them."""
    (broken := tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    old = await gateway("m", parallel=6)
    before, text = processes(nodes, "m"), await said(old)
    failure = await refused(gateway("m", source=str(broken)))

    assert "broken.gguf" in failure.message
    assert before <= processes(nodes, "m")  # beside one that Ray may still be taking down
    assert text == await said(old)
    os.kill(victim := before.pop(), signal.SIGKILL)
    await holds(lambda: len(processes(nodes, "m") - before - {victim}) == 1)
    assert text == await said(old)
    before = processes(nodes, "m")
    new = await gateway("m", parallel=7)
    assert [text, text] == [await said(old), await said(new)]
    assert not before & processes(nodes, "m")


async def said(running: Site) -> str:
    """The text of an answer."""
    async with running.post() as response:
        assert 200 == response.status, await response.text()
        return str((await response.json())["choices"][0]["message"]["content"])


async def test_a_cluster_that_is_full(gateway: Gateway) -> None:
    """Where no node has room for a replica the missing resource is named: one that none has, and one that others have taken."""
    for resources, why in (
        ({"gpu": 1}, "a replica needs 1 GPU, and the largest node has 0"),
        ({"cpu": 1.95}, "a replica needs 1.95 CPU"),
    ):
        failure = await refused(gateway("f", 3, resources=resources, start_timeout_s=4))
        assert why in failure.message
        assert failure.retry_after_s


async def refused(starting: Awaitable[Site]) -> UnilectError:
    """The error of a gateway that cannot start."""
    with pytest.raises(ExceptionGroup) as group:
        await starting
    (error,) = group.value.exceptions
    assert isinstance(error, UnilectError)
    return error


async def test_a_node_that_dies(gateway: Gateway, nodes: list[Node]) -> None:
    """The answers of a node's replicas go on at another one's, and with the node its replica comes back."""
    running = await gateway("n", resources={"cpu": 1.1})
    expected = await stories(running, TOKENS)
    for _ in range(KILLS):
        lost, seen = nodes[1].replicas("n"), list[int]()
        streams = asyncio.ensure_future(stories(running, TOKENS, seen))
        await seen_so_many(seen, draw.randrange(50, STREAMS * TOKENS // 4))
        nodes[1].kill()
        assert expected == await streams
        assert lost
        await asyncio.to_thread(nodes[1].start)
        await holds(lambda: len(nodes[1].replicas("n")) >= 1)


async def test_the_gateways_node_that_dies(gateway: Gateway, nodes: list[Node]) -> None:
    """A gateway whose own node dies, and with it the cluster, connects again when it is back: its answers go on, and who comes meanwhile waits."""
    running = await gateway("h")
    expected, seen = await stories(running, TOKENS), list[int]()
    streams = asyncio.ensure_future(stories(running, TOKENS, seen))
    await seen_so_many(seen, 200)
    nodes[0].kill()
    late = asyncio.ensure_future(story(running, 3, TOKENS, []))
    await asyncio.to_thread(nodes[1].stop)
    for node in nodes:
        await asyncio.to_thread(node.start)

    assert expected == await streams
    assert expected[3] == await late
