#!/usr/bin/env python3
"""
What a token costs a gateway when tokens come one at a time, as they do from a model: CPU time of its process tree per token.

A mock sends 100 streams at once of 200 frames each, one every 20 ms; unilect and a bare aiohttp proxy stand in front of it in turn,
on one core, the mock and the clients on the other. Every read then brings one frame, while `bench/gateway.py` has a mock that
sends as fast as it can. The median of the rounds counts; on a machine that does other work only ratios within one run mean
something.

usage: bench/paced.py [--rounds 5] [--streams 100] [--against CHECKOUT]
With `--against` the unilect of another checkout of this repository takes part.
"""

import argparse
import asyncio
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import gateway
import processes
import report

MOCK = {"CHUNKS": "200", "DELAY_S": "0.02"}
NAMES = ("unilect, reuse", "unilect, reuse (before)", "bare aiohttp, reuse")
TIMEOUT_S = 60.0


async def read_one(port: int) -> tuple[int, int]:
    """
    One stream, read to its end.

    Returns:
        Its tokens, and the reads that brought them.
    """
    payload = gateway.body(stream=True)
    head = (
        f"POST {gateway.PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {gateway.KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    tokens = reads = 0
    try:
        writer.write(head.encode() + payload)
        while data := await asyncio.wait_for(reader.read(2**16), TIMEOUT_S):
            tokens, reads = (
                tokens + data.count(b'"content": "h') + data.count(b'"content":"h'),
                reads + 1,
            )
            if data.endswith(b"0\r\n\r\n"):
                return tokens, reads
    finally:
        writer.close()
    raise RuntimeError(f"port {port}: a stream without an end")


async def read_all(port: int, streams: int) -> tuple[int, int]:
    """The same of so many streams at once."""
    found = await asyncio.gather(*(read_one(port) for _ in range(streams)))
    return sum(tokens for tokens, _ in found), sum(reads for _, reads in found)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description="What a token costs a gateway that comes by itself."
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--against", type=Path, help="another checkout, to compare with")
    given = parser.parse_args()
    os.sched_setaffinity(0, {gateway.LOAD_CORE})
    all = gateway.contestants(Path()) + (gateway.before(given.against) if given.against else [])
    all = [one for one in all if one.name in NAMES]
    costs: dict[str, list[float]] = {one.name: [] for one in all}
    reads: dict[str, float] = {}
    with ExitStack() as stack:
        mock = gateway.start_mock(stack, MOCK)
        up = {one.name: stack.enter_context(one.running(mock)) for one in all}
        for port, _ in up.values():
            asyncio.run(read_all(port, 2))
        for number in range(given.rounds):
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
            for name, (port, pid) in up.items():
                before = processes.cpu_s(pid)
                tokens, seen = asyncio.run(read_all(port, given.streams))
                costs[name].append((processes.cpu_s(pid) - before) / tokens * 1e6)
                reads[name] = seen / tokens
    bare = report.middle(costs["bare aiohttp, reuse"]) or 1.0
    rows = []
    for name, values in costs.items():
        middle = report.middle(values) or 0.0
        rows.append([name, f"{middle:.1f}", f"{middle / bare:.2f}x", f"{reads[name]:.2f}"])
    print(report.table(["gateway", "CPU us a token", "bare aiohttp", "reads a token"], rows))
    report.write(
        "paced",
        report.versions("unilect", "aiohttp", "uvloop"),
        settings={name: str(value) for name, value in vars(given).items()},
        rows=[{"name": name, "cpu_us": values} for name, values in costs.items()],
    )


if __name__ == "__main__":
    main()
