#!/usr/bin/env python3
"""
How soon a slot of llama.cpp is free after its client has left, in each phase of an answer, read from llama.cpp's own /slots.

usage: leaving.py [--tries N]

It serves the bundled model in this process, with the helper of tests/reliability, and leaves N times in each phase.
"""

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "reliability"))

from inprocess import Site, site  # noqa: E402 - found on the path above
from report import table, versions, write  # noqa: E402

from unilect.config.model import ModelConfig  # noqa: E402
from unilect.config.server import Config  # noqa: E402

LONG = {"max_tokens": 1500, "ignore_eos": True}
PROMPT = "a word and another " * 250  # half a second to read
PHASES: dict[str, dict[str, Any]] = {
    "its prompt is read, streamed": {"stream": True},
    "its prompt is read, whole": {"stream": False},
    "a stream runs": {**LONG, "stream": True},
    "a whole answer is made": {**LONG, "stream": False},
}


async def leave(server: Site, body: dict[str, Any], number: int) -> float:
    """Milliseconds from leaving until no slot is at work."""
    reading = "max_tokens" not in body
    if reading:  # a prompt that is in no cache
        content = f"{number} {body['stream']} is new. {PROMPT}"
        body = body | {"messages": [{"role": "user", "content": content}]}
    request = asyncio.ensure_future(server.post(**body).__aenter__())
    await server.until_busy(1)
    if body["stream"] and not reading:
        response = await request
        await response.content.readany()
        left = time.perf_counter()
        response.close()
    else:
        left = time.perf_counter()
        request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await server.until_busy(0)
    return (time.perf_counter() - left) * 1000


async def measure(tries: int) -> dict[str, list[float]]:
    """The times of every phase, in milliseconds."""
    config = Config(port=0, models={"demo": ModelConfig(parallel=2)}, log_level="warning")
    async with site(config) as server:
        return {
            phase: [await leave(server, body, number) for number in range(tries)]
            for phase, body in PHASES.items()
        }


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description="How soon a slot is free after its client has left."
    )
    parser.add_argument("--tries", type=int, default=30)
    times = asyncio.run(measure(parser.parse_args().tries))
    rows = [
        [phase, statistics.median(values), sorted(values)[int(len(values) * 0.9)], max(values)]
        for phase, values in times.items()
    ]
    print(table(["the client leaves while", "median ms", "p90", "most"], rows))
    write("leaving", versions("xllamacpp", "aiohttp"), milliseconds=times)


if __name__ == "__main__":
    main()
