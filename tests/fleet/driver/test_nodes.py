"""Tests of unilect.fleet.driver.nodes without a cluster: calls end with the node that has taken them."""

import asyncio

import pytest

from support.servers.clusters import need_ray
from unilect.core.errors import EngineDied

need_ray()
from unilect.fleet.driver.nodes import Nodes


def nodes() -> Nodes:
    """Nodes that nobody looks at."""
    return Nodes(asyncio.get_running_loop(), "own")


async def for_ever(of: Nodes, node: str, begun: asyncio.Event) -> None:
    """A call that is never answered."""
    async with of.until_lost(node):
        begun.set()
        await asyncio.Event().wait()


async def test_a_node_that_is_lost() -> None:
    """The calls of a node end when it is lost, and those of others go on."""
    of, begun = nodes(), [asyncio.Event() for _ in range(3)]
    calls = [
        asyncio.create_task(for_ever(of, node, event))
        for node, event in zip(("a", "a", "b"), begun, strict=True)
    ]
    for event in begun:
        await event.wait()

    of.end_calls({"a", "c"})

    for call in calls[:2]:
        with pytest.raises(EngineDied, match="node of the model's replica is gone"):
            await call
    await asyncio.sleep(0)
    assert not calls[2].done()
    assert 2 == of.deaths
    calls[2].cancel()


async def test_a_node_that_was_lost_before() -> None:
    """A call that a node had taken before its loss was known ends at once."""
    of = nodes()
    of.end_calls({"a"})

    with pytest.raises(EngineDied):
        await for_ever(of, "a", asyncio.Event())


async def test_other_ends_of_a_call() -> None:
    """A call that ends, is cancelled, or fails with a timeout of its own is not taken for a loss, and nothing of it is kept."""
    of, begun = nodes(), asyncio.Event()
    async with of.until_lost("a"):
        pass
    with pytest.raises(TimeoutError):
        async with of.until_lost("a"):
            raise TimeoutError
    call = asyncio.create_task(for_ever(of, "a", begun))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert not of._calls
    of.end_calls({"a"})
