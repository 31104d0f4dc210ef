#!/usr/bin/env python3
"""
What unilect's own HTTP client costs, against aiohttp's: CPU time of one exchange with the mock, alone in one process.

Both send the same request, on fresh and on kept connections, and read the answer to its end as it comes: a JSON body, and a
stream of 67 chunks, whose bytes nobody looks at. 16 exchanges run at once. The clients take turns; the median of the rounds
counts.

usage: bench/client.py [--rounds 5] [--exchanges 2000]
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, aclosing
from statistics import median

import aiohttp
import gateway
import report
import uvloop

from unilect.http.client import HttpServer

AT_ONCE = 16
Exchange = Callable[[bool], Awaitable[int]]
Client = tuple[Exchange, Callable[[], Awaitable[None]]]


def own(mock: int, reuse: bool) -> Client:
    """One exchange through unilect's client, and how to close it."""
    server = HttpServer(f"http://127.0.0.1:{mock}", reuse_connections=reuse)

    async def exchange(stream: bool) -> int:
        if not stream:
            return len(await server.post(gateway.PATH, gateway.body(False)))
        size = 0
        async with aclosing(await server.stream(gateway.PATH, gateway.body(True))) as pieces:
            async for piece in pieces:
                size += len(piece)
        return size

    return exchange, server.aclose


def others(mock: int, reuse: bool) -> Client:
    """One exchange through aiohttp's client, set as lean as it can be, and how to close it."""
    session = aiohttp.ClientSession(
        f"http://127.0.0.1:{mock}",
        connector=aiohttp.TCPConnector(force_close=not reuse, limit=0),
        headers={"Content-Type": "application/json"},
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=2**18,
    )

    async def exchange(stream: bool) -> int:
        size = 0
        async with session.post(gateway.PATH, data=gateway.body(stream)) as response:
            while piece := await response.content.readany():
                size += len(piece)
        return size

    return exchange, session.close


async def cost_us(
    make: Callable[[int, bool], Client], mock: int, reuse: bool, stream: bool, exchanges: int
) -> float:
    """
    CPU time of one exchange, in microseconds.

    Raises:
        RuntimeError: An answer has another length than the first.
    """
    exchange, close = make(mock, reuse)
    size = await exchange(stream)

    async def several() -> None:
        for _ in range(exchanges // AT_ONCE):
            if await exchange(stream) != size:
                raise RuntimeError("an answer was cut")

    begin = time.process_time()
    await asyncio.gather(*(several() for _ in range(AT_ONCE)))
    taken = time.process_time() - begin
    await close()
    return taken / (exchanges // AT_ONCE * AT_ONCE) * 1e6


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="What unilect's own HTTP client costs.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--exchanges", type=int, default=2000, help="for each figure")
    given = parser.parse_args()
    cases = [(reuse, stream) for stream in (False, True) for reuse in (False, True)]
    found: dict[tuple[bool, bool], list[tuple[float, float]]] = {case: [] for case in cases}
    with ExitStack() as stack:
        mock = gateway.start_mock(stack, {})
        os.sched_setaffinity(0, {gateway.GATEWAY_CORE})
        for number in range(given.rounds):
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
            for case in cases:
                pair = [
                    uvloop.run(cost_us(make, mock, *case, given.exchanges))
                    for make in (own, others)
                ]
                found[case].append((pair[0], pair[1]))
    rows: list[list[object]] = []
    for (reuse, stream), pairs in found.items():
        name = f"{'stream' if stream else 'JSON'}, {'kept' if reuse else 'fresh'} connections"
        ratio = median(mine / its for mine, its in pairs)
        rows.append([name, *(median(side) for side in zip(*pairs, strict=True)), f"{ratio:.2f}x"])
    print(report.table(["exchange", "unilect, us", "aiohttp, us", "unilect / aiohttp"], rows))
    records = [
        {"reuse": reuse, "stream": stream, "us": us} for (reuse, stream), us in found.items()
    ]
    used = report.versions("unilect", "aiohttp", "uvloop")
    report.write("client", used, settings=vars(given), rows=records)


if __name__ == "__main__":
    main()
