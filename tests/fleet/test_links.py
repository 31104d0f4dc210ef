"""A node of the fleet whose network goes away, in a network namespace of its own with a cable that can be pulled."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from inprocess import Site, site
from namespaces import ADDRESSES, Namespaces, namespaces, why_not

from support.servers.fleet_load import Told, holds, seen_so_many, stories
from support.servers.ray_cluster import Node, engines_of, free_port, is_at_work, running
from unilect.config.fleet import FleetConfig
from unilect.config.server import Config, ModelConfig

CI = os.environ.get("CI") == "true"
PARALLEL = 4
TOKENS = 400  # an answer takes a second, so that a cable is pulled in the middle of some
SHORT_S = 3.0
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]


@pytest.fixture(scope="module")
def cable() -> Iterator[Namespaces]:
    """A cable from here to another namespace."""
    if (reason := why_not()) and not CI:
        pytest.skip(reason)
    with namespaces(here=True) as made:
        yield made


@pytest.fixture(scope="module")
def nodes(cable: Namespaces) -> Iterator[list[Node]]:
    """The head here, and a node at the other end."""
    here, there = ADDRESSES[True]
    with tempfile.TemporaryDirectory(prefix="ur", ignore_cleanup_errors=True) as folder:
        head = f"{here}:{free_port()}"
        far = Node(there, head, folder, 1, cable.command(cable.client, []))
        made = [Node(here, head, folder, 1), far]
        with running(made):
            yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(nodes: list[Node]) -> AsyncIterator[Site]:
    """A server with a replica on each node."""
    model = ModelConfig(
        source="demo:", replicas=2, threads=1, resources={"cpu": 0.7}, parallel=PARALLEL
    )
    fleet = FleetConfig(address=nodes[0].head, token_file=str(Path(nodes[0].token)))
    async with site(Config(port=0, models={"demo": model}, fleet=fleet, log_level="error")) as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(gateway: Site) -> list[Told]:
    """What an undisturbed run says."""
    return await stories(gateway, TOKENS)


async def test_a_short_failure(gateway: Site, cable: Namespaces, expected: list[Told]) -> None:
    """A cable that is out for some seconds delays answers, and ends none."""
    seen, before = list[int](), gateway.registry.get(None).retries
    streams = asyncio.ensure_future(stories(gateway, TOKENS, seen))
    await seen_so_many(seen, 300)
    cable.cut()
    await asyncio.sleep(SHORT_S)
    cable.mend()

    assert expected == await streams
    assert before == gateway.registry.get(None).retries


async def test_a_node_that_is_cut_off(
    gateway: Site, nodes: list[Node], cable: Namespaces, expected: list[Told]
) -> None:
    """The answers of a node whose cable is pulled go on elsewhere, whole and exact; with its cable the node comes back, and its replica."""
    streams = asyncio.ensure_future(stories(gateway, TOKENS))
    while not await works(nodes[1]):
        if streams.done():  # a cable that was out a moment ago may have kept all answers here
            assert expected == await streams
            streams = asyncio.ensure_future(stories(gateway, TOKENS))
    cable.cut()

    assert expected == await streams
    assert gateway.registry.get(None).retries
    cable.mend()
    await asyncio.to_thread(nodes[1].stop)
    await asyncio.to_thread(nodes[1].start)
    await holds(lambda: bool(nodes[1].replicas("demo")))
    assert expected == await stories(gateway, TOKENS)


async def works(node: Node) -> bool:
    """Whether an engine of a node makes something."""
    await asyncio.sleep(0)  # there may be none
    engines = [engine for replica in node.replicas("demo") for engine in engines_of(replica)]
    return any(await asyncio.gather(*map(is_at_work, engines)))
