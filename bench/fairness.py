#!/usr/bin/env python3
"""
What a key that floods a model costs another that asks one at a time: seconds of the second's answers beside the flood, and alone.

usage: fairness.py [--streams N] [--places N] [--asks N] [--seconds S] [--source SOURCE]

It starts `unilect serve` with two keys. Without --source the model is an `echo:` of 100 tokens a second, so that only the queue is measured.
The most that is promised is 1.5 times the time alone, and the time of one place more, which is that of the flood's longest answer.
Then ten times as many clients as places ask a server whose queue is short: what it answers, and how soon it refuses.
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

from support.servers.serving import serve  # noqa: E402

FLOOD, ONE = "sk-flood-0123456789abcdef", "sk-one-0123456789abcdef"
TEXT = "count from one to twenty, please, and then back again to one"


def configuration(source: str | None, places: int, max_queue: int) -> str:
    """The server's: two keys, and a model with so many places."""
    keys = f'api_keys = ["{FLOOD}", "{ONE}"]\n[models.m]\nmax_queue = {max_queue}\n'
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


async def overload(url: str, clients: int, seconds: float) -> tuple[float, list[float]]:
    """Answers a second to so many clients that ask again at once, and the seconds of each refusal."""
    answered, refused = 0, list[float]()
    begin = time.perf_counter()
    end = begin + seconds
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        asking = Asking(session, url)

        async def client(number: int) -> None:
            nonlocal answered
            while time.perf_counter() < end:
                began = time.perf_counter()
                try:
                    await asking.ask(FLOOD, number)
                    answered += 1
                except aiohttp.ClientResponseError as error:
                    if error.status not in (429, 503):
                        raise
                    refused.append(time.perf_counter() - began)
                    await asyncio.sleep(0.5)  # less than the `Retry-After` of a second

        await asyncio.gather(*map(client, range(clients)))
    return answered / (time.perf_counter() - begin), refused


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
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--source")
    args = parser.parse_args()
    with serve(config=configuration(args.source, args.places, 512)) as server:
        times = asyncio.run(measure(server.url, args.streams, args.asks))
    with serve(config=configuration(args.source, args.places, 2 * args.places)) as server:
        peak, _ = asyncio.run(overload(server.url, args.places, args.seconds))
        goodput, refused = asyncio.run(overload(server.url, 10 * args.places, args.seconds))
    if refused:
        times["a refusal, 10 times overloaded"] = refused
    rows = [
        [what, statistics.median(values), max(values)] for what, values in times.items() if values
    ]
    print(table(["seconds", "median", "most"], rows))
    flood = max(times["an answer of the flood, from its first token"])
    most = 1.5 * max(times["alone, whole"]) + flood
    worst = max(times["beside the flood, whole"])
    print(f"worst beside the flood {worst:.2f} s, promised {most:.2f} s")
    print(f"10 times overloaded {goodput:.1f} answers a second, at its best {peak:.1f}")
    figures = {"peak_per_s": peak, "overloaded_per_s": goodput}
    write("fairness", versions("aiohttp"), seconds=times, promised_s=most, overload=figures)
    return int(worst > most)


if __name__ == "__main__":
    sys.exit(main())
