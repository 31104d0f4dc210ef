#!/usr/bin/env python3
"""
What one caller's clock tells of another caller's prompts: the time to the first token, as a client sees it.

usage: cache_timing.py [SOURCE] [--tries 50] [--words 950]

Each try has a prefix of its own, of about two tokens a word. Caller A sends it with a question (cold), and again with another one (its own);
caller B sends it (a hit, if B could profit from A), and a prompt that nobody has sent (fresh). B's two are in turn first and second. The same
is measured with `share_cache`, where B is to profit. Promise: medians of B's hits and fresh prompts differ by less than 10 %, and A's own
reuse is at least 3 times as fast as a fresh prompt.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import aiohttp
from report import table, versions, write

from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.models import sources
from unilect.server.listener import Listener

KEYS = {"A": "sk-a", "B": "sk-b"}
KINDS = ("A, cold", "A, own", "B, hit", "B, fresh")
PROMISED_DIFFERENCE, PROMISED_REUSE = 0.10, 3.0


class Site(NamedTuple):
    """A server, and a client for it."""

    url: str
    client: aiohttp.ClientSession


@asynccontextmanager
async def site(config: Config) -> AsyncIterator[Site]:
    """A server in this process, until the block ends."""
    registry = sources.registry(config)
    listener = Listener(config, registry)
    try:
        await registry.start(list(registry.models))
        url, *_ = await listener.listen()
        async with aiohttp.ClientSession() as client:
            yield Site(url, client)
    finally:
        await listener.aclose()
        await registry.aclose()


async def first_token_ms(server: Site, model: str, caller: str, text: str) -> float:
    """Milliseconds from sending a prompt to the first bytes with text of its answer."""
    body = {"model": model, "prompt": text, "max_tokens": 1, "stream": True, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {KEYS[caller]}"}
    began = time.perf_counter()
    async with server.client.post(f"{server.url}/v1/completions", json=body, headers=headers) as response:  # fmt: skip
        response.raise_for_status()
        async for line in response.content:
            if b'"text"' in line:
                found = (time.perf_counter() - began) * 1000
                break
        else:
            raise RuntimeError("the answer has no text")
        await response.read()
    return found


async def one_try(server: Site, model: str, number: int, words: int) -> dict[str, float]:
    """The times of one prefix."""

    def prompt(kind: str, question: str) -> str:
        return f"{kind} {number} of {model} is told. {'word ' * words}{question}"

    asked = {
        "A, cold": ("A", prompt("known", "Who?")),
        "A, own": ("A", prompt("known", "Why?")),
        "B, hit": ("B", prompt("known", "When?")),
        "B, fresh": ("B", prompt("fresh", "When?")),
    }
    order = KINDS if number % 2 else (*KINDS[:2], KINDS[3], KINDS[2])
    return {kind: await first_token_ms(server, model, *asked[kind]) for kind in order}


async def measure(source: str, tries: int, words: int) -> dict[str, dict[str, list[float]]]:
    """The times of each kind, by model."""
    models = {
        name: ModelConfig(source=source, parallel=2, share_cache=shares)
        for name, shares in (("apart", False), ("shared", True))
    }
    config = Config(port=0, models=models, api_keys=[*KEYS.values()], log_level="warning")
    times = {name: {kind: list[float]() for kind in KINDS} for name in models}
    async with site(config) as server:
        for name in models:
            await one_try(server, name, -1, words)  # warms up
            for number in range(tries):
                for kind, found in (await one_try(server, name, number, words)).items():
                    times[name][kind].append(found)
    return times


def verdict(times: dict[str, list[float]]) -> str:
    """Whether the promise is kept where callers are apart."""
    middle = {kind: statistics.median(found) for kind, found in times.items()}
    differ = abs(middle["B, hit"] / middle["B, fresh"] - 1)
    reuse = middle["B, fresh"] / middle["A, own"]
    kept = differ < PROMISED_DIFFERENCE and reuse >= PROMISED_REUSE
    return f"B's medians differ by {differ:.1%}, own reuse is {reuse:.1f} times as fast: {'kept' if kept else 'NOT kept'}"


def main() -> None:
    """Measure, and print the table and the verdict."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("source", nargs="?", default="demo:")
    parser.add_argument("--tries", type=int, default=50)
    parser.add_argument("--words", type=int, default=950)
    given = parser.parse_args()
    times = asyncio.run(measure(given.source, given.tries, given.words))
    rows = [
        [f"{model}: {kind}", statistics.median(found), min(found), max(found)]
        for model, kinds in times.items()
        for kind, found in kinds.items()
    ]
    print(table(["time to the first token", "median ms", "min", "max"], rows))
    print(verdict(times["apart"]))
    write("cache_timing", versions("xllamacpp", "transformers"), milliseconds=times)


if __name__ == "__main__":
    main()
