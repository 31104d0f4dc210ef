"""Readiness together with what no request succeeds without: a store that can be read, and an upstream that is there."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import ClientSession

from support.backends.loopback import free_port
from support.backends.scripted import LIST, answer, says, scripted
from support.servers.appserver import App, serving, serving_models, upstream
from support.servers.serving import serve
from unilect.config.server import Config
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import Echo


async def readiness(app: App) -> tuple[int, str]:
    """The status and the text of /readyz."""
    status, body = await app.get("/readyz")
    return status, body.decode()


async def fail(app: App, model: str) -> None:
    """Have a request fail."""
    async with app.chat(model=model) as response:
        assert 503 == response.status


@pytest.mark.heavy
async def test_an_unreadable_store(tmp_path: Path) -> None:
    """A server that cannot read its store, which may hold keys, lets nobody in, is not ready, and says so without a path."""
    (tmp_path / "text.db").write_text("this is no database " * 50)
    store = f"[store]\nurl = 'sqlite:///{tmp_path}/text.db'\n"
    with serve(config=f"{store}[models.a]\nsource = 'echo:'\n") as server:
        async with ClientSession() as client:
            async with client.get(f"{server.root}/readyz") as answered:
                status, told = answered.status, await answered.text()
            async with client.get(f"{server.url}/models") as refused:
                error = (await refused.json())["error"]

    assert (503, "store_unavailable") == (refused.status, error["code"])
    assert "cannot read its store now" in error["message"]
    assert 503 == status
    assert told.startswith("not ready: This server cannot read its store now")
    assert str(tmp_path) not in told


async def test_all_upstreams_out_and_back() -> None:
    """A server is not ready while all its upstreams are out, and is again when one is back, without a request."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    async with serving([PooledBackend(upstream(url), url)], runs_locally=False) as app:
        assert (200, "ready\n") == await readiness(app)
        await fail(app, "m")
        assert (503, "not ready: No model can answer (1 out); `unilect ps` says why.\n") == await readiness(app)  # fmt: skip
        async with scripted(says(answer(LIST)), port), asyncio.timeout(20):
            while await readiness(app) != (200, "ready\n"):
                await asyncio.sleep(0.02)


async def test_one_upstream_of_two() -> None:
    """A server stays ready while one of its models can answer."""
    url = f"http://127.0.0.1:{free_port()}/v1"
    models = [
        Model("m", [PooledBackend(upstream(url), url)], runs_locally=False),
        Model("other", Echo()),
    ]
    async with serving_models(Config(), Registry(models)) as app:
        await fail(app, "m")
        assert (200, "ready\n") == await readiness(app)


async def test_drained() -> None:
    """A server whose only model an operator has drained is not ready; its start ends that."""
    async with serving(Echo()) as app:
        model = app.service.registry.get("m")
        model.drain()
        assert (503, "not ready: No model can answer (1 drained); `unilect ps` says why.\n") == await readiness(app)  # fmt: skip
        await model.start()
        assert (200, "ready\n") == await readiness(app)


async def test_a_model_that_is_not_loaded() -> None:
    """A model that is loaded with its first request counts as one that can answer."""
    async with serving(Echo()) as app:
        assert "stopped" == app.service.registry.get("m").state
        assert (200, "ready\n") == await readiness(app)
