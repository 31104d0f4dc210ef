"""Tests of unilect.answers.service: the tokens of thoughts."""

from typing import Any

import msgspec
import pytest

from support.backends.scripted import DONE, delta, frames, says, scripted, stream_of
from support.servers.appserver import HI, serving, upstream

THOUGHT = (delta(reasoning_content="hm"), delta(reasoning_content=" so"))
TEXT = (delta(content="Hel"), delta(content="lo"), delta(finish="stop"))
PATHS = {
    "/v1/chat/completions": ("messages", "completion_tokens_details", "reasoning_tokens"),
    "/v1/responses": ("input", "output_tokens_details", "reasoning_tokens"),
    "/v1/messages": ("messages", "output_tokens_details", "thinking_tokens"),
}


def used(completion: int, **details: int) -> dict[str, Any]:
    """The chunk that tells what an answer has used."""
    usage: dict[str, Any] = {"prompt_tokens": 3, "completion_tokens": completion}
    if details:
        usage["completion_tokens_details"] = details
    return {"choices": [], "usage": usage}


async def usages(path: str, *chunks: Any) -> list[dict[str, Any]]:
    """The usage of a whole answer and of a streamed one, of a server that sends these chunks."""
    body = {PATHS[path][0]: HI, "model": "m", "max_tokens": 50}
    if path == "/v1/responses":
        body = {"input": HI, "model": "m"}
    if path == "/v1/chat/completions":
        body["stream_options"] = {"include_usage": True}
    async with scripted(says(stream_of(frames(*chunks, DONE)))) as server:
        async with serving(upstream(server.url)) as app:
            async with app.post(path, **body | {"stream": True}) as response:
                data = [line[6:] async for line in response.content if line.startswith(b"data: {")]
            body.pop("stream_options", None)
            async with app.post(path, **body) as response:
                whole = await response.json()
    told = [msgspec.json.decode(line) for line in data]
    last = [one for one in (t.get("usage") or t.get("response", {}).get("usage") for t in told) if one][-1]  # fmt: skip
    return [whole["usage"], last]


@pytest.mark.parametrize("path", PATHS)
async def test_thoughts_are_counted(path: str) -> None:
    """Thoughts that no backend counts are counted by their pieces, or taken from the server that counts them; without any they are 0."""
    _, details, name = PATHS[path]
    for told, expected in ((used(5), 2), (used(5, reasoning_tokens=0), 2), (used(5, reasoning_tokens=3), 3)):  # fmt: skip
        for usage in await usages(path, *THOUGHT, *TEXT, told):
            assert {name: expected} == usage[details]

    for usage in await usages(path, *TEXT, used(2)):
        assert not (usage.get(details) or {}).get(name)


@pytest.mark.parametrize("path", PATHS)
async def test_thoughts_that_cannot_be_counted(path: str) -> None:
    """Where a server's pieces are of many tokens, nothing is told of thoughts, and never 0."""
    for usage in await usages(path, *THOUGHT, *TEXT, used(200)):
        assert usage.get(PATHS[path][1]) is None
