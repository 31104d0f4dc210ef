#!/usr/bin/env python3
"""
How soon the clients of an engine that is killed are told, where their answers cannot go on, and how soon the next request is answered.

usage: dying.py [SOURCE] [--tries N] [--streams N]

It serves the bundled model in this process, with the helper of tests/reliability, and kills the engine N times under streams that
are not to go on: that is when a death becomes an error. Each stream has to end with one error event, without a finish reason.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import structs

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "reliability"))

from inprocess import Site, site, until  # noqa: E402 - found on the path above
from report import table, versions, write  # noqa: E402

from unilect.config.model import ModelConfig  # noqa: E402
from unilect.config.server import Config  # noqa: E402

LONG: dict[str, Any] = {"max_tokens": 1500, "ignore_eos": True, "stream": True}


async def die(server: Site, streams: int) -> tuple[list[float], float]:
    """
    Kill the engine under so many streams.

    Returns:
        Milliseconds from the kill to the end of each stream, and to the answer of the next request.
    """
    server.child.restarts.deaths.clear()  # else it is given up after the fifth
    suspects = server.suspects
    suspects._deaths, suspects._lingering = [], []
    responses = [await server.post(**LONG, seed=number).__aenter__() for number in range(streams)]
    for response in responses:
        await response.content.readline()
    pid = server.child.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    begun = time.perf_counter()

    async def end(response: Any) -> float:
        last = (await response.read()).decode().rstrip().rpartition("data: ")[2]
        taken = (time.perf_counter() - begun) * 1000
        assert json.loads(last)["error"]["code"] == "engine_died", last
        return taken

    async def ask() -> float:
        async with server.post(max_tokens=1) as response:
            assert response.status == 200
        return (time.perf_counter() - begun) * 1000

    *told, answered = await asyncio.gather(*map(end, responses), ask())
    return told, answered


async def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="?", default="demo:")
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--streams", type=int, default=8)
    args = parser.parse_args()
    model = ModelConfig(source=args.source, parallel=args.streams)
    told, answered = list[float](), list[float]()
    async with site(Config(port=0, models={"demo": model}, log_level="error")) as server:
        await until(lambda: ready(server))
        backend = server.registry.get(None).pool.members[0].backend
        backend.capabilities = structs.replace(backend.capabilities, resumes=None)
        for _ in range(args.tries):
            ends, next_ms = await die(server, args.streams)
            told += ends
            answered.append(next_ms)
    found = {"a stream ends with its error": told, "the next request is answered": answered}
    rows = [
        [name, len(times), statistics.median(times), statistics.quantiles(times, n=100)[98], max(times)]
        for name, times in found.items()
    ]  # fmt: skip
    print(table(["", "times", "median ms", "p99", "most"], rows))
    write("dying", versions("xllamacpp", "aiohttp"), milliseconds=found, streams=args.streams)


async def ready(server: Site) -> bool:
    """Whether the engine serves."""
    async with server.post(max_tokens=1) as response:
        return bool(response.status == 200)


if __name__ == "__main__":
    asyncio.run(main())
