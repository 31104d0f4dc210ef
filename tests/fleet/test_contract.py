"""What every backend promises, and what the official client expects, of models that are replicas."""

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import python_client
from results import KNOWLEDGE, Results, assert_passed, run

from engine import ENGINES, SOURCES
from serving import KEY, serve
from unilect.backend import Backend
from unilect.config.server import ModelConfig
from unilect.events import TextDelta, Usage
from unilect.routing import sources
from unilect.testing import chat, check_backend

pytestmark = pytest.mark.heavy
CHECKS = [name for name in python_client.CHECKS if KNOWLEDGE or name not in python_client.KNOWLEDGE]
LARGE = (1_000_000, 3_000_000, 15_000_000)
_TABLE = """
api_keys = ["{key}"]
[models.demo]
source = "demo:"
replicas = 2
resources = {{ cpu = 0.5 }}
"""


def replicated(engine: str) -> Backend:
    """The bundled model as two replicas."""
    config = ModelConfig(source=SOURCES[engine], replicas=2, resources={"cpu": 0.5})
    return sources.model("m", config).pool.members[0].backend


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_contract(engine: str) -> None:
    """Replicas keep the contract of a backend, whatever engine they hold."""
    await check_backend(lambda: replicated(engine))


@pytest_asyncio.fixture
async def echo() -> AsyncIterator[Backend]:
    """Two replicas of an engine without a limit of its own."""
    config = ModelConfig(source="echo:", replicas=2, parallel=3, resources={"cpu": 0.1})
    model = sources.model("m", config).pool.members[0].backend
    await model.start()
    yield model
    await model.aclose()


async def test_large_requests(echo: Backend) -> None:
    """A request of any size that the server takes is answered: one of more bytes than Serve's gRPC takes goes as an object."""
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


@pytest.fixture(scope="module")
def results() -> Iterator[Results]:
    """What the newest client says of a server with two replicas."""
    with serve(config=_TABLE.format(key=KEY)) as server:
        yield run([sys.executable, "-W", "error", str(Path(python_client.__file__))], server)


@pytest.mark.parametrize("check", CHECKS)
def test_the_official_client(results: Results, check: str) -> None:
    """What the check's docstring says is true for replicas, too."""
    assert_passed(results, check)
