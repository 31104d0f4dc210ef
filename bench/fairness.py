#!/usr/bin/env python3
"""
What a key that floods a model costs another that asks one at a time: seconds of the second's answers beside the flood, and alone.

usage: fairness.py [--streams N] [--places N] [--asks N] [--source SOURCE]

It starts `unilect serve` with two keys. Without --source the model is an `echo:` of 100 tokens a second, so that only the queue is measured.
The most that is promised is 1.5 times the time alone, and the time of one place more, which is that of the flood's longest answer.
"""

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

import aiohttp

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from report import table, versions, write  # noqa: E402 - found on the path above

from serving import serve  # noqa: E402

FLOOD, ONE = "sk-flood-0123456789abcdef", "sk-one-0123456789abcdef"
TEXT = "count from one to twenty, please, and then back again to one"


def configuration(source: str | None, places: int) -> str:
    """The server's: two keys, and a model with so many places."""
    keys = f'api_keys = ["{FLOOD}", "{ONE}"]\n[models.m]\n'
    if source is None:
        return f'{keys}source = "echo:"\nmax_in_flight = {places}\noptions = {{ tokens_per_s = 100 }}\n'
    option = "max_in_flight" if "http" in source else "parallel"
    return f'{keys}source = "{source}"\n{option} = {places}\n'


class Asking:
    """Requests to a server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, f"{url}/chat/completions"
        self.flood_s: list[float] = []

    async def ask(self, key: str, number: int) -> tuple[float, float]:
        """Seconds to the first token of an answer, and to its end."""
        messages = [{"role": "user", "content": f"{number}: {TEXT}"}]
        body = {"messages": messages, "max_tokens": 60, "stream": True}
        began, first = time.perf_counter(), 0.0
        headers = {"Authorization": f"Bearer {key}"}
        async with self._session.post(self._url, json=body, headers=headers) as response:
            response.raise_for_status()
            async for line in response.content:
                if not first and b'"content":"' in line.replace(b'"content":""', b""):
                    first = time.perf_counter() - began
        return first, time.perf_counter() - began

    async def one_at_a_time(self, count: int) -> list[tuple[float, float]]:
        """The times of answers, each asked for when the last has ended."""
        return [await self.ask(ONE, number) for number in range(count)]

    async def flood(self, enough: asyncio.Event, number: int) -> int:
        """One stream after the other until it is enough; how many there were."""
        count = 0
        while not enough.is_set():
            first, whole = await self.ask(FLOOD, number)
            self.flood_s.append(whole - first)
            count += 1
        return count


async def measure(url: str, streams: int, asks: int) -> dict[str, list[float]]:
    """The seconds of each kind."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        asking, enough = Asking(session, url), asyncio.Event()
        await asking.one_at_a_time(1)  # the model is loaded
        alone = await asking.one_at_a_time(asks)
        floods = [asyncio.create_task(asking.flood(enough, n)) for n in range(streams)]
        while not asking.flood_s:
            await asyncio.sleep(0.01)
        beside = await asking.one_at_a_time(asks)
        enough.set()
        answered = sum(await asyncio.gather(*floods))
    print(f"{answered} answers of the flood")
    return {
        "alone, first token": [first for first, _ in alone],
        "alone, whole": [whole for _, whole in alone],
        "beside the flood, first token": [first for first, _ in beside],
        "beside the flood, whole": [whole for _, whole in beside],
        "an answer of the flood, from its first token": asking.flood_s,
    }


def main() -> int:
    """Measure, and print the table; 1 where the promise is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[1])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--places", type=int, default=4)
    parser.add_argument("--asks", type=int, default=20)
    parser.add_argument("--source")
    args = parser.parse_args()
    with serve(config=configuration(args.source, args.places)) as server:
        times = asyncio.run(measure(server.url, args.streams, args.asks))
    rows = [
        [what, statistics.median(values), max(values)] for what, values in times.items() if values
    ]
    print(table(["seconds", "median", "most"], rows))
    most = 1.5 * max(times["alone, whole"]) + max(rows[-1][2:])
    worst = max(times["beside the flood, whole"])
    print(f"worst beside the flood {worst:.2f} s, promised {most:.2f} s")
    write("fairness", versions("aiohttp"), seconds=times, promised_s=most)
    return int(worst > most)


if __name__ == "__main__":
    sys.exit(main())
