#!/usr/bin/env python3
"""
How many instructions of the processor a request takes in user space: what a change costs, told within one percent on a machine that is busy.

`unilect serve` runs in valgrind's callgrind, in front of the mock, as in `bench/books.py`: *plain* has a key of the configuration, *all on* a key
of the store with limits and a budget, a queue and the ledger. 32 clients send `--requests` requests, whole and streamed, after some that are not
counted. What the kernel does is not counted, nor does an instruction that misses a cache cost more than another one; a process is some fifty times
slower, so that timers find less together than they would.

usage: bench/instructions.py [--requests 1000] [--against CHECKOUT [--plain-only]]
With `--against` the unilect of another checkout takes part; as plain only, where it has no store yet. Needs valgrind (Debian: apt-get install valgrind).
"""

import argparse
import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import books
import gateway
import processes
import report

from unilect.auth.secret import new_secret

CLIENTS, WARM_UP = 32, 320
_SUM = re.compile(r"^(?:totals|summary): (\d+)$", re.MULTILINE)


async def send(port: int, stream: bool, count: int) -> None:
    """
    Send so many requests.

    Raises:
        RuntimeError: One is not answered.
    """
    left = iter(range(count))
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {gateway.KEY}"}

    async def one(session: aiohttp.ClientSession) -> None:
        for _ in left:
            asked = session.post(gateway.PATH, data=gateway.body(stream), headers=headers)
            async with asked as answer:
                text = await answer.text()
                if answer.status != 200:
                    raise RuntimeError(f"status {answer.status}: {text}")

    everyone = aiohttp.TCPConnector(limit=CLIENTS)
    timeout = aiohttp.ClientTimeout(600)
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{port}", connector=everyone, timeout=timeout
    ) as session:
        await asyncio.gather(*(one(session) for _ in range(CLIENTS)))


def tell(pid: int, *what: str) -> None:
    """Tell callgrind something."""
    subprocess.run(["callgrind_control", *what, str(pid)], check=True, capture_output=True)


def measure(python: Path, kept: bool, stream: bool, count: int) -> float:
    """Instructions for one request, in thousands."""
    folder = Path(tempfile.mkdtemp(prefix="unilect-bench-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        mock, port = gateway.start_mock(stack, {}), processes.free_port()
        text, flags = books.models(1, mock, kept), ["--api-key", gateway.KEY]
        if kept:
            url, flags = f"sqlite:///{folder}/unilect.db", []
            asyncio.run(books.add_keys(url, gateway.KEY, 1))
            text = f'[store]\nurl = "{url}"\n' + text
        (folder / "unilect.toml").write_text(text)
        watched = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]  # fmt: skip
        serve = [
            "-m",
            "unilect",
            "serve",
            "--config",
            str(folder / "unilect.toml"),
            "--port",
            str(port),
        ]
        pid = stack.enter_context(
            processes.running(
                [*watched, python, *serve, *flags, "--log-level", "warning"],
                port=port,
                environment={"XDG_DATA_HOME": str(folder), "PYTHONHASHSEED": "1"},
                log=folder / "log",
            )
        )
        asyncio.run(send(port, stream, WARM_UP))
        tell(pid, "--instr=on")
        asyncio.run(send(port, stream, count))
        tell(pid, "--instr=off")
        tell(pid, "--dump")
        sums = [int(found) for file in folder.glob("out*") for found in _SUM.findall(file.read_text(errors="replace"))]  # fmt: skip
        return max(sums) / count / 1000


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="How many instructions a request takes.")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--against", type=Path, help="another checkout, to compare with")
    parser.add_argument("--plain-only", action="store_true", help="that has no store")
    given = parser.parse_args()
    if not shutil.which("callgrind_control"):
        sys.exit("bench/instructions.py needs valgrind: apt-get install valgrind")
    gateway.KEY = new_secret()
    pythons = {"": Path(sys.executable)}
    if given.against:
        before = given.against.resolve() / ".venv" / "bin" / "python"
        pythons = {gateway.BEFORE: before, **pythons}
    rows: list[list[object]] = []
    for name, kept in ((books.PLAIN, False), (books.ON, True)):
        for when, python in pythons.items():
            if when and kept and given.plain_only:
                continue
            print(f"{name}{when}", file=sys.stderr)
            found = [measure(python, kept, stream, given.requests) for stream in (False, True)]
            first = found if not rows else [float(str(rows[0][at])) for at in (1, 3)]
            ratios = [f"{own / other:.3f}x" for own, other in zip(found, first, strict=True)]
            rows.append([name + when, found[0], ratios[0], found[1], ratios[1]])
    columns = ["", "thousand, JSON", "to the first", "thousand, stream", "to the first"]
    print(report.table(columns, rows))
    settings = {name: str(value) for name, value in vars(given).items()}
    versions = report.versions("unilect", "aiohttp", "uvloop", "msgspec")
    report.write("instructions", versions, settings=settings, rows=rows)


if __name__ == "__main__":
    main()
