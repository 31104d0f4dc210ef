"""Texts far longer than any context: refused at every address before a tokenizer sees them."""

import asyncio
import io
from typing import Any

import msgspec
import psutil
import pytest
from inprocess import Site

pytestmark = pytest.mark.asyncio(loop_scope="module")
MANY = 15_000_000
LONG = "word " * (MANY // 5)
MOST_GROWTH = 100 * 2**20
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}]},
    "/v1/completions": {"prompt": LONG},
    "/v1/embeddings": {"input": LONG},
    "/completion": {"prompt": LONG},
    "/embedding": {"content": LONG},
    "/tokenize": {"content": LONG},
    "/detokenize": {"tokens": [5] * 900_000},
    "/api/v1/token_check": {"prompts": [{"model": "demo", "prompt": LONG, "max_tokens": 1}]},
}
IN_PARTS = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [
        {"type": "function", "function": {"name": "f", "description": LONG, "parameters": {}}}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 1000}] * 2000}),
    ("/v1/completions", {"prompt": ["x", LONG]}),
    ("/v1/completions", {"prompt": [5] * 60_000}),
    ("/v1/embeddings", {"input": ["x", LONG]}),
    ("/completion", {"prompt": [5, LONG]}),
]  # fmt: skip


async def test_long_texts_are_refused(demo: Site) -> None:
    """A text of 15 MB is refused with its size and the model's at every address, and costs the engine no memory."""
    async with demo.post(max_tokens=1) as response:
        assert 200 == response.status
    process = psutil.Process(demo.child.pid)
    before = process.memory_info().rss
    asked = [*BODIES.items(), *IN_PARTS]
    told = [await refusal(demo, path, body) for path, body in asked]
    again = (refusal(demo, "/tokenize", BODIES["/tokenize"]) for _ in range(4))
    told += await asyncio.gather(*again)
    async with demo.post(max_tokens=1) as response:
        assert 200 == response.status

    assert [400] * len(told) == [status for status, _ in told], told
    for _, message in told:
        assert "2048" in message, told
    assert process.memory_info().rss - before < MOST_GROWTH
    assert process.pid == demo.child.pid


async def refusal(demo: Site, path: str, body: Any) -> tuple[int, str]:
    """The status and the message of an answer."""
    data = io.BytesIO(msgspec.json.encode(body))
    headers = {"Content-Type": "application/json"}
    async with demo.client.post(demo.url + path, data=data, headers=headers) as response:
        return response.status, str((await response.json())["message"])[:500]


@pytest.mark.parametrize("text", ["a " * 30_000, "\u00e9" * 32_000])
async def test_what_is_not_far_too_long_is_counted(demo: Site, text: str) -> None:
    """A text that might fit is tokenized, and one that does not fit is refused by its tokens."""
    async with demo.client.post(demo.url + "/tokenize", json={"content": text}) as response:
        counted = len((await response.json())["tokens"])
    status, message = await refusal(demo, "/v1/completions", {"prompt": text})

    assert counted > 2048
    assert 400 == status
    assert str(counted) in message or str(counted + 1) in message
