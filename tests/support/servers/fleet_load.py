"""Load for tests of the fleet: twenty greedy streams at once, which are the same in each run."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeAlias

from inprocess import Site, until

STREAMS = 20
#: the text, the number of tokens, and the last frame
Told: TypeAlias = tuple[str, int, str]


async def story(running: Site, number: int, tokens: int, seen: list[int]) -> Told:
    """
    A greedy stream that is whole, or a failed test.

    Args:
        seen: Gets the number at each frame that comes.
    """
    text, used, last = "", 0, ""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"Tell me a story about {number} dogs."}],
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with running.post(**body) as response:
        assert 200 == response.status, await response.text()
        async for line in response.content:
            if line.startswith(b"data: ") and (last := line[6:].strip().decode()) != "[DONE]":
                frame = json.loads(last)
                assert "error" not in frame, frame
                used = (frame.get("usage") or {}).get("completion_tokens", used)
                text += "".join(one["delta"].get("content") or "" for one in frame["choices"])
                seen.append(number)
    assert (tokens, "[DONE]") == (used, last)
    return text, used, last


async def stories(running: Site, tokens: int, seen: list[int] | None = None) -> list[Told]:
    """All streams."""
    seen = [] if seen is None else seen
    return await asyncio.gather(
        *(story(running, number, tokens, seen) for number in range(STREAMS))
    )


async def seen_so_many(seen: list[int], count: int) -> None:
    """Wait until so many frames have come."""
    await holds(lambda: len(seen) >= count)


async def holds(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""

    async def asked() -> bool:
        return condition()

    await until(asked)
