"""A model that runs while it is asked: from no replica to two and back."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from inprocess import Site, site

from fleet_load import holds
from ray_cluster import replicas_of
from unilect.config.model import Replicas
from unilect.config.server import Config, ModelConfig

pytestmark = [pytest.mark.heavy, pytest.mark.asyncio(loop_scope="module")]
REQUESTS = 24
SCALE = Replicas(min=0, max=2, up_after_s=1, down_after_s=2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Site]:
    """A server whose model has as many replicas as it needs, on a cluster of its own."""
    model = ModelConfig(
        source="demo:", replicas=SCALE, threads=1, resources={"cpu": 0.5}, parallel=2
    )
    async with site(Config(port=0, models={"demo": model}, log_level="error")) as serving:
        yield serving


def replicas(running: Site) -> int:
    """How many there are."""
    (child,) = running.registry.get(None).pool.members[0].backend.children
    return len(replicas_of(child.pid, "demo"))


async def ask(running: Site, tokens: int = 8) -> str:
    """The stream of an answer, as it comes."""
    async with running.post(stream=True, max_tokens=tokens, ignore_eos=True) as response:
        assert 200 == response.status
        return (await response.read()).decode()


async def test_from_none_to_two_and_back(running: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without requests no replica is left; the first request waits for one, its stream with keep-alives; load brings a second one; none fails."""
    monkeypatch.setattr("unilect.web.streaming.KEEP_ALIVE_S", 0.3)
    for _ in range(2):
        await holds(lambda: replicas(running) == 0)
        first = await ask(running)
        assert first.startswith(": keep-alive")
        assert first.endswith("data: [DONE]\n\n")
        assert replicas(running) == 1

    answers, most = list[str](), 1

    async def client() -> None:
        while most < 2:
            answers.append(await ask(running, 300))

    clients = [asyncio.create_task(client()) for _ in range(REQUESTS)]
    await holds(lambda: replicas(running) == 2)
    most = 2
    await asyncio.gather(*clients)
    assert len(answers) >= REQUESTS
    assert all(one.endswith("data: [DONE]\n\n") and "error" not in one for one in answers)
    await holds(lambda: replicas(running) == 0)
