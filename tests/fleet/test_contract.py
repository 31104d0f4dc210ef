"""What every backend promises, of models that are replicas."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from support.backends.engine import ENGINES, SOURCES
from support.servers.ray_cluster import Node, cluster
from unilect.api.backend import Backend
from unilect.config.fleet import FleetConfig
from unilect.config.server import ModelConfig
from unilect.core.events import TextDelta, Usage
from unilect.models import sources
from unilect.testing import chat, check_backend

pytestmark = pytest.mark.heavy
LARGE = (1_000_000, 3_000_000, 15_000_000)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """Two nodes, each with room for one replica of a model."""
    with cluster(1, 1) as found:
        yield found


def replicated(engine: str, head: Node) -> Backend:
    """The bundled model as a replica on each node."""
    fleet = FleetConfig(address=head.head, token_file=head.token)
    config = ModelConfig(source=SOURCES[engine], replicas=2, resources={"cpu": 0.4})
    found = sources.model(engine, config, shared={FleetConfig: fleet})
    return found.pool.members[0].backend


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_contract(engine: str, nodes: list[Node]) -> None:
    """Replicas on two nodes keep the contract of a backend, whatever engine they hold."""
    await check_backend(lambda: replicated(engine, nodes[0]))

    assert [1, 1] == [len(node.replicas(engine)) for node in nodes]


@pytest_asyncio.fixture
async def echo(nodes: list[Node]) -> AsyncIterator[Backend]:
    """Two replicas of an engine without a limit of its own."""
    fleet = FleetConfig(address=nodes[0].head, token_file=nodes[0].token)
    config = ModelConfig(source="echo:", replicas=2, parallel=3, resources={"cpu": 0.1})
    model = sources.model("m", config, shared={FleetConfig: fleet}).pool.members[0].backend
    await model.start()
    yield model
    await model.aclose()


async def test_large_requests(echo: Backend) -> None:
    """A request of any size that the server takes is answered, also one of more bytes than Serve takes unless it is told."""
    for size in LARGE:
        said = str(size) + " a" * (size // 2)
        made = echo.generate(chat(said, stream=True, max_tokens=len(str(size))))
        events = [event async for batch in made for event in batch]
        told = "".join(event.text for event in events if isinstance(event, TextDelta))
        assert str(size) == told
        (used,) = [event for event in events if isinstance(event, Usage)]
        assert used.prompt_tokens >= size // 2


async def test_a_limit(echo: Backend) -> None:
    """Replicas of an engine without a limit of its own take `parallel` requests each; the rest waits in the gateway."""
    assert 6 == echo.capabilities.max_in_flight
