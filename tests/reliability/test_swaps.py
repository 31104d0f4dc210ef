"""Models that take turns in memory, while somebody kills their engines."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from support.common.waiting import until
from support.servers.listening import listening
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.demo import MODEL

NAMES = ("left", "right", "steady")
REQUESTS = 8  # of each client
SIZE = 60_000_000


@pytest.mark.heavy
@pytest.mark.timeout(300)
async def test_no_request_is_lost(tmp_path: Path) -> None:
    """Three models of which two fit, a client of each, and engines that are killed while they load and while they answer: all is answered."""
    models = dict[str, ModelConfig]()
    for name in NAMES:
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(MODEL.read_bytes())
        models[name] = ModelConfig(
            source=str(file), load="demand", context=256, parallel=1, cache_ram_mib=0, memory=str(SIZE)
        )  # fmt: skip
    config = Config(port=0, memory=str(SIZE * 2), swap_wait_s=0.2, models=models)
    async with listening(config) as server:
        residency = server.registry.residency
        assert residency is not None
        statuses, most = list[int](), 0

        async def client(name: str) -> None:
            nonlocal most
            for _ in range(REQUESTS):
                body = {"model": name, "prompt": "Once upon a time", "max_tokens": 32, "seed": 1}
                async with server.request("", "/v1/completions", **body) as response:
                    await response.read()
                    statuses.append(response.status)
                most = max(most, residency.claimed)

        async def kill(name: str) -> None:
            """Kill an engine as soon as it runs, and the next one once it serves."""
            child = server.registry.models[name].pool.members[0].backend.children[0]
            for which in ("starting_pid", "pid"):
                await until(lambda which=which: getattr(child, which) is not None)
                os.kill(getattr(child, which), signal.SIGKILL)

        await asyncio.gather(*map(client, NAMES), kill("left"), kill("right"))
        kinds = [one.events.counts for one in residency.seats.values()]

    assert [200] * (REQUESTS * len(NAMES)) == statuses
    assert most <= SIZE * 2
    assert sum(one["evicted"] for one in kinds) >= 1
