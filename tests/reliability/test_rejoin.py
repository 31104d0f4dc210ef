"""A client that lost its connection comes back: the engine goes on with its answer, and does no work twice."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from inprocess import METRICS_KEY, Site, site, until

from support.backends.engine import SOURCES
from unilect.config.server import Config, ModelConfig
from unilect.web.rejoining import REJOINED

pytestmark = pytest.mark.asyncio(loop_scope="module")
BODY = {"max_tokens": 1500, "ignore_eos": True, "temperature": 0}
PROMPT = {"messages": [{"role": "user", "content": "a word and another " * 250}]}


@asynccontextmanager
async def serving(rejoin_s: float) -> AsyncIterator[Site]:
    """The bundled model as a GGUF file, on a server that holds answers."""
    model = ModelConfig(source=SOURCES["gguf"], parallel=2)
    config = Config(
        port=0,
        models={"demo": model},
        api_keys=["sk-a"],
        metrics_keys=[METRICS_KEY],
        rejoin_s=rejoin_s,
    )
    async with site(config) as running:
        running.client.headers["Authorization"] = "Bearer sk-a"
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def held_site() -> AsyncIterator[Site]:
    """A server on which an answer is held as long as a test may take."""
    async with serving(60.0) as running:
        yield running


def text(told: bytes) -> str:
    """The text of a stream, or of a whole answer."""
    if told.startswith(b"{"):
        content: str = json.loads(told)["choices"][0]["message"]["content"]
        return content
    frames = told.decode().split("\n\n")
    assert "data: [DONE]" == frames[-2]
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize("where", ["in a stream", "in a prompt", "in a whole answer"])
async def test_an_answer_of_an_engine_is_joined(held_site: Site, where: str) -> None:
    """The text is that of an undisturbed run, and llama.cpp has made its tokens once."""
    # where it is over before its client is back it is held all the same
    body: dict[str, Any] = BODY | {"stream": where != "in a whole answer", "max_tokens": 500}
    if where == "in a prompt":
        body |= PROMPT | {"max_tokens": 20}
    await held_site.until_busy(0)
    before = await held_site.tokens_made()

    asking = asyncio.ensure_future(held_site.post(**body).__aenter__())
    await held_site.until_busy(1)
    if where == "in a stream":
        response = await asking
        begun = await response.content.readany()
        response.close()
    else:
        begun = b""
        assert asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: is_held(held_site))
    async with held_site.post(**body) as again:
        told = await again.read()

    assert again.headers[REJOINED].startswith("req_")
    assert told.startswith(begun)
    assert body["max_tokens"] == await held_site.tokens_made() - before
    async with held_site.post(
        **body
    ) as undisturbed:  # last, since it finds the prompt in the cache
        assert REJOINED not in undisturbed.headers
        assert text(told) == text(await undisturbed.read())


@pytest.mark.heavy
async def test_slot_is_free_when_nobody_comes_back() -> None:
    """An engine works for nobody no longer than the window, and the request is counted with status 499."""
    async with serving(0.2) as running:
        asking = asyncio.ensure_future(running.post(**BODY).__aenter__())
        await running.until_busy(1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        ended = 'unilect_held_answers_total{outcome="ended"}'
        await until(lambda: running.figures(ended))
        await running.until_busy(0)
        await until(running.is_idle)
        left = 'unilect_requests_total{endpoint="chat.completions",model="demo",status="499"}'
        assert 1 == await running.figures(left)
        assert await running.tokens_made() < BODY["max_tokens"]


async def is_held(site: Site) -> bool:
    """Whether an answer waits for its client: one that is made, or was made meanwhile."""
    return site.listener._inflight.held == 1
