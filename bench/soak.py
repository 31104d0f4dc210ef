#!/usr/bin/env python3
"""
What thousands of requests leave behind: memory, threads and open files of the gateway and of the engine, as time goes by.

Requests of all kinds, eight at a time, from a fixed seed: short and long new prompts, the same prompt, streams, JSON schemas,
log probabilities, several choices, and a tenth of them left by their client before the answer is whole. Every answer must be
a success, or the bench fails; at the end nothing may be running or waiting.

usage: soak.py [SOURCE] [--requests 10000]
"""

import argparse
import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from report import table, versions, write

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from serving import serve  # noqa: E402 - found on the path above

AT_ONCE = 8
LEAVE = 10  # one of so many is left
SAMPLES = 10
#: What is remembered on purpose has its size soon.
CONFIG = """
[models.demo]
source = {source}
parallel = 8
cache_ram_mib = 64
"""
WORDS = (ROOT / "README.md").read_text().split()
GAUGES = ("unilect_requests_running{", "unilect_requests_waiting{")


def body(chance: random.Random) -> dict[str, Any]:
    """A request of any kind."""
    words = chance.choices(WORDS, k=chance.randint(1, 100))
    said = chance.choice(["Hello!", " ".join(words)])
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": said}],
        "max_tokens": chance.randint(1, 8),
        "stream": chance.random() < 0.5,
    }
    key = f"a{chance.randrange(200)}"
    schema = {"type": "object", "properties": {key: {"type": "integer"}}, "required": [key]}
    formatted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    more = [{}, {"response_format": formatted}, {"logprobs": True, "top_logprobs": 3}, {"n": 3}]
    return fields | chance.choice(more)


async def ask(client: aiohttp.ClientSession, fields: dict[str, Any], leaves: bool) -> None:
    """
    Send a request and read its answer, or leave once something has come.

    Raises:
        AssertionError: It is no success.
    """
    async with client.post("/v1/chat/completions", json=fields) as answer:
        assert answer.status == 200, (fields, await answer.text())
        if leaves:
            answer.close()
            return
        said = await answer.read()
    assert not fields["stream"] or said.endswith(b"data: [DONE]\n\n"), (fields, said[-500:])


def sample(root: psutil.Process) -> list[dict[str, float]]:
    """What the gateway, and the engine below it, hold."""
    held = []
    for process in [root, *root.children()]:
        own = process.memory_full_info().uss / 2**20
        held.append({"mb": own, "threads": process.num_threads(), "files": process.num_fds()})
    return held


async def until_idle(client: aiohttp.ClientSession) -> None:
    """Wait until nothing runs; ends with an error where something does for ten seconds."""
    async with asyncio.timeout(10):
        while True:
            async with client.get("/metrics") as answer:
                lines = (await answer.text()).splitlines()
            if not any(float(line.split()[-1]) for line in lines if line.startswith(GAUGES)):
                return


async def soak(url: str, root: psutil.Process, requests: int) -> list[list[dict[str, float]]]:
    """Ask, and sample at rest: before, and after every tenth of the requests."""
    chance = random.Random(0)
    places = asyncio.Semaphore(AT_ONCE)

    async with aiohttp.ClientSession(url) as client:

        async def one(fields: dict[str, Any], leaves: bool) -> None:
            async with places:
                await ask(client, fields, leaves)

        await ask(client, body(chance), leaves=False)
        samples = [sample(root)]
        for _ in range(SAMPLES):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(requests // SAMPLES):
                    tasks.create_task(one(body(chance), chance.randrange(LEAVE) == 0))
            await until_idle(client)
            samples.append(sample(root))
            print(".", end="", file=sys.stderr, flush=True)
    return samples


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="What thousands of requests leave behind.")
    parser.add_argument("source", nargs="?", default="demo:")
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args()
    config = CONFIG.format(source=json.dumps(options.source))
    with serve(config=config) as server:
        samples = asyncio.run(soak(server.root, psutil.Process(server.pid), options.requests))
    rows = [
        [number * options.requests // SAMPLES]
        + [value for held in processes for value in held.values()]
        for number, processes in enumerate(samples)
    ]
    columns = ["requests", "gateway MB", "threads", "files", "engine MB", "threads", "files"]
    print(table(columns, rows))
    packages = versions("xllamacpp", "torch", "transformers", "aiohttp")
    write("soak", packages, source=options.source, requests=options.requests, samples=samples)


if __name__ == "__main__":
    main()
