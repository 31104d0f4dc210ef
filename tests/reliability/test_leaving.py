"""When a client leaves, the model stops: in each phase, as the engine itself tells."""

import asyncio
from typing import Any

import pytest
from inprocess import Site, until

from unilect.engines.gguf.engine import GgufEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = {"max_tokens": 1500, "ignore_eos": True}  # seconds of work
ENDING = LONG | {"max_tokens": 500}  # that are waited for
PROMPT = {"messages": [{"role": "user", "content": "a word and another " * 250}]}


async def leave(site: Site, **body: Any) -> None:
    """Send a request beside those that run, leave once the engine works on it, and wait until it no longer does."""
    running = await site.busy()
    request = asyncio.ensure_future(site.post(**body).__aenter__())
    await site.until_busy(running + 1)
    if body.get("stream") and "messages" not in body:
        response = await asyncio.wait_for(asyncio.shield(request), 60)
        await response.content.readany()
        response.close()
    else:
        assert not request.done()
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await site.until_busy(running)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"stream": True}, id="in a stream"),
        pytest.param({"stream": False}, id="in a whole answer"),
        pytest.param({"echo": True, "path": "/v1/completions", "prompt": "Once"}, id="in an echo"),
        pytest.param(
            {"echo": True, "logprobs": 1, "path": "/v1/completions", "prompt": "a word " * 250},
            id="in a prompt's likelihood",
        ),
        pytest.param({**PROMPT, "stream": True}, id="before a stream"),
        pytest.param({**PROMPT, "stream": False}, id="in a prompt"),
    ],
)
async def test_slot_is_free_soon_after_the_client_leaves(demo: Site, body: dict[str, Any]) -> None:
    """The slot of a client that leaves answers the next one while an answer as long that began before still runs."""
    other = asyncio.ensure_future(demo.post(**LONG).__aenter__())
    await demo.until_busy(1)

    await leave(demo, **LONG, **body)
    async with demo.post(max_tokens=1) as next_one:
        await next_one.read()

    assert not other.done()
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)


async def test_queued_request_never_runs_when_its_client_leaves(demo: Site) -> None:
    """A request that waits for a slot is dropped when its client leaves, and the running ones go on."""
    counts = isinstance(demo.registry.get(None).pool.members[0].backend, GgufEngine)
    before = await demo.tokens_made() if counts else 0
    running = [asyncio.ensure_future(demo.post(**ENDING).__aenter__()) for _ in range(2)]
    await demo.until_busy(2)
    queued = asyncio.ensure_future(demo.post(**LONG).__aenter__())
    await until(lambda: waiting(demo, 3))
    queued.cancel()
    await asyncio.gather(queued, return_exceptions=True)

    answers = [await (await request).json() for request in running]

    assert [answer["choices"][0]["finish_reason"] for answer in answers] == ["length", "length"]
    await demo.until_busy(0)
    if counts:
        one_step = 2  # llama.cpp may take a step before it looks whether the client is there
        assert await demo.tokens_made() - before <= 2 * ENDING["max_tokens"] + one_step


async def test_all_choices_stop_when_the_client_leaves(demo: Site) -> None:
    """With n = 2 both slots are freed."""
    request = asyncio.ensure_future(demo.post(**LONG, n=2, temperature=1).__aenter__())
    await demo.until_busy(2)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)

    await demo.until_busy(0)


async def test_client_that_left_is_counted(demo: Site) -> None:
    """A request whose client left is counted with status 499."""
    before = await left(demo)

    await leave(demo, **LONG)

    assert before + 1 == await left(demo)


async def left(site: Site) -> int:
    """How many requests' clients have left."""
    async with site.client.get(site.url + "/metrics") as response:
        text = await response.text()
    return sum(
        round(float(line.split()[-1])) for line in text.splitlines() if 'status="499"' in line
    )


async def waiting(site: Site, count: int) -> bool:
    """True when so many requests are with the server."""
    return await site.asked() == count
