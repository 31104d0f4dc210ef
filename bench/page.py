#!/usr/bin/env python3
"""
The cost of open pages: CPU time of the server for each request, with three pages' streams of events open, against none.

Both states take turns on one server, whose models are an echo and the bundled one, loaded; 16 connections are kept busy from another core.
The median of the ratios of neighbouring turns counts. Streams that are open at no load show what looking on costs a second.

usage: bench/page.py [--rounds 20] [--seconds 2] [--pages 3]
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import processes
import report

HERE = Path(__file__).parent
PROGRAM = HERE.parent / ".venv" / "bin" / "unilect"
CONNECTIONS = 16
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello there, how are you today?"}]}).encode()  # fmt: skip
KEY = "sk-admin-of-the-bench"
CONFIG = f"""
[admin]
listen = "127.0.0.1:{{admin}}"
api_keys = ["{KEY}"]
[models.m]
source = "echo:"
[models.demo]
source = "demo:"
"""


async def ask(port: int, until: float) -> int:
    """Ask over one kept connection until a time; returns how often."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    count = 0
    while time.monotonic() < until:
        writer.write(head + BODY)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        count += 1
    writer.close()
    return count


async def look_on(port: int) -> None:
    """Read a stream of events as a page does, until it is cancelled."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET /admin/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    writer.write(head.encode())
    try:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        while await reader.read(65536):
            pass
    finally:
        writer.close()


async def turn(port: int, pid: int, seconds: float, pages: int, loaded: bool) -> float:
    """CPU microseconds of the server for a request, or a second where there is no load, while so many pages are open."""
    looking = [asyncio.create_task(look_on(port)) for _ in range(pages)]
    await asyncio.sleep(0.2)
    before = processes.cpu_s(pid, children=False)
    if loaded:
        until = time.monotonic() + seconds
        count = sum(await asyncio.gather(*(ask(port, until) for _ in range(CONNECTIONS))))
    else:
        await asyncio.sleep(seconds)
    used = processes.cpu_s(pid, children=False) - before
    for one in looking:
        assert not one.done(), one
        one.cancel()
        with suppress(asyncio.CancelledError):
            await one
    return 1e6 * used / (count if loaded else seconds)


async def measure(port: int, pid: int, options: argparse.Namespace) -> None:
    """Take the turns, and write the table."""
    none, some = [], []
    for _ in range(options.rounds):
        none.append(await turn(port, pid, options.seconds, 0, loaded=True))
        some.append(await turn(port, pid, options.seconds, options.pages, loaded=True))
    idle = [await turn(port, pid, 10.0, pages, loaded=False) for pages in (0, options.pages)]
    ratio = report.middle([one / other for one, other in zip(some, none, strict=True)])
    rows: list[list[object]] = [
        ["a request, no page", report.middle(none), "us"],
        [f"a request, {options.pages} pages", report.middle(some), "us"],
        ["ratio", ratio, "x"],
        ["a second without requests, no page", idle[0], "us"],
        [f"a second without requests, {options.pages} pages", idle[1], "us"],
    ]
    print(report.table(["what", "CPU", "unit"], rows))
    report.write("page", report.versions("aiohttp", "uvloop"), rows=rows)


def main() -> None:
    """Start the server, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--pages", type=int, default=3)
    options = parser.parse_args()
    port, admin = processes.free_port(), processes.free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "unilect.toml"
        config.write_text(CONFIG.format(admin=admin))
        command: list[str | Path] = [PROGRAM, "serve", "--config", config, "--port", str(port), "--log-level", "warning"]  # fmt: skip
        log = Path(folder) / "log"
        with processes.running(command, port=port, core=0, log=log) as pid:
            os.sched_setaffinity(0, {1})
            asyncio.run(measure(port, pid, options))


if __name__ == "__main__":
    main()
