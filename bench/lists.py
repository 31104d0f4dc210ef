#!/usr/bin/env python3
"""
How long reading a list of many models holds the event loop: the most processor time between two turns of another task.

A server of many upstream models, in this process, has counted a request for each. Each list is read, again and again, by a process
of its own, while a task here takes every turn of the loop that it gets. Processor time does not depend on what else the machine does.

usage: bench/lists.py [--models 1000] [--rounds 9]
"""

import argparse
import asyncio
import gc
import logging
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "reliability"))

import uvloop  # noqa: E402 - found on the path above
from inprocess import Site, site  # noqa: E402
from report import table, versions, write  # noqa: E402

from unilect.config.model import ModelConfig  # noqa: E402
from unilect.config.server import Config  # noqa: E402

LISTS = ("/healthz", "/metrics", "/v1/models", "/api/tags")
READ = "import sys, urllib.request as r; print(len(r.urlopen(sys.argv[1]).read()))"


async def read(url: str) -> tuple[float, float]:
    """Read a list in another process; its KB, and the most processor ms between two turns."""
    gaps: list[float] = []

    async def turn() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0.0001)  # a sleep of 0 would have the others wait for it
            now = time.thread_time()
            gaps.append((now - last) * 1000)
            last = now

    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", READ, url, stdout=pipe)
    task = asyncio.create_task(turn())
    size, _ = await process.communicate()
    task.cancel()
    return int(size) / 1000, max(gaps)


async def measure(models: int, rounds: int) -> list[list[object]]:
    """The rows of the table."""
    tables = {
        f"m{n}": ModelConfig(source="http://127.0.0.1:9/v1", model="m") for n in range(models)
    }
    async with site(Config(port=0, models=tables)) as server:
        await count(server, models)
        gc.collect()
        gc.freeze()  # as `unilect serve` does
        found = {path: [await read(server.url + path) for _ in range(rounds)] for path in LISTS}
    rows: list[list[object]] = []
    for path, times in found.items():
        sizes, gaps = zip(*times, strict=True)
        rows.append([path, sizes[0], median(gaps), max(gaps)])
    return rows


async def count(server: Site, models: int) -> None:
    """Have every model count a request, which fails: nobody listens there."""
    for n in range(models):
        async with server.post(model=f"m{n}") as answer:
            await answer.read()


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="How long reading a list holds the event loop.")
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    logging.disable()
    rows = uvloop.run(measure(given.models, given.rounds))
    print(table(["GET", "KB", "most ms between two turns, median", "most"], rows))
    write("lists", versions("unilect", "aiohttp"), settings=vars(given), rows=rows)


if __name__ == "__main__":
    main()
