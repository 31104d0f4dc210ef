#!/usr/bin/env python3
"""
What keys, limits, the queue and the ledger cost: CPU time of unilect for a request, whole and streamed (67 chunks), of the same mock.

* plain: one key of the configuration, no store.
* all on: the key is in the store (SQLite) and has limits of requests, tokens, parallel requests and a budget, so that the ledger is
  required; its model has a queue.
* all on, many: the same among 100,000 keys and 100 models.

CPU time is user and system time of the process tree (/proc) for each request while `wrk` keeps 32 connections busy. The server has
core 0; the mock and the load have core 1. All take turns of a second, whole answers one after the other and then streams, begun anew in
every round, and the median of the turns counts.
The servers log warnings only, unless `--info`.

usage: bench/books.py [--rounds 4] [--turns 4] [--keys 100000] [--models 100] [--info] [--against CHECKOUT]
With `--against` the unilect of another checkout takes part, as plain. Needs `wrk` (Debian: apt-get install wrk) and `taskset`.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from operator import truediv
from pathlib import Path
from statistics import median

import gateway
import processes
import report

from unilect.auth.keys import digest
from unilect.auth.secret import id_of, new_secret
from unilect.store.database import Database
from unilect.store.records import Key
from unilect.store.sql import keys
from unilect.store.sql.connection import Connection

LIMITS = {
    "requests_per_minute": 1e9,
    "tokens_per_minute": 1e12,
    "parallel": 1000.0,
    "tokens_per_day": 1e15,
}
PLAIN, ON, MANY = "plain", "all on", "all on, many"


async def add_keys(url: str, secret: str, count: int) -> None:
    """Put keys into a store; one of them has the secret."""
    database, now = Database(url), time.time()

    def add(connection: Connection) -> None:
        change = keys.begin(connection)
        for number in range(count):
            text = secret if number == count // 2 else new_secret()
            id = id_of(text) or ""
            key = Key(id=f"key_{id}", name=f"key{number}", owner="bench", limits=LIMITS, created_at=now)  # fmt: skip
            keys.add(connection, key, change)
            keys.add_secret(connection, key.id, id, digest(text))

    await database.write(add)
    await database.aclose()


def models(count: int, mock: int, queue: bool) -> str:
    """The tables of models in front of a mock; `m` is the one that is asked."""
    names = [*(f"m{number}" for number in range(count - 1)), "m"]
    more = "max_in_flight = 256\n" if queue else ""
    return "".join(
        f'[models.{name}]\nsource = "http://127.0.0.1:{mock}/v1"\nmodel = "m"\nreuse_connections = true\n{more}'
        for name in names
    )


def measure(given: argparse.Namespace, secret: str) -> dict[str, list[tuple[float, float]]]:
    """The costs of each contestant, turn by turn: of a whole answer and of a stream, in microseconds."""
    found: dict[str, list[tuple[float, float]]] = {}
    folder = Path(tempfile.mkdtemp(prefix="unilect-bench-"))
    stores = {ON: 1, MANY: given.keys}
    for name, count in stores.items():
        print(f"{name}: {count} keys", file=sys.stderr)
        asyncio.run(add_keys(f"sqlite:///{folder}/{count}.db", secret, count))
    contestants = [PLAIN, ON, MANY]
    if given.against:
        contestants.insert(0, PLAIN + gateway.BEFORE)
    for number in range(given.rounds):
        print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
        with ExitStack() as stack:
            mock = gateway.start_mock(stack, {})
            up = dict[str, tuple[int, int]]()
            for name in contestants:
                config, port = folder / f"{len(up)}.toml", processes.free_port()
                kept, command = name in stores, processes.unilect()
                if name.endswith(gateway.BEFORE):
                    command = given.against.resolve() / ".venv" / "bin" / "unilect"
                text = models(given.models if name == MANY else 1, mock, kept)
                flags = ["--api-key", secret]
                if kept:
                    flags = []
                    text = f'[store]\nurl = "sqlite:///{folder}/{stores[name]}.db"\n' + text
                config.write_text(text)
                level = [] if given.info else ["--log-level", "warning"]
                serve = [str(command), "serve", "--config", str(config), "--port", str(port)]
                serve += flags + level
                running = processes.running(
                    serve,
                    port=port,
                    core=gateway.GATEWAY_CORE,
                    environment={"XDG_DATA_HOME": str(folder)},
                    log=folder / "log",
                )
                up[name] = port, stack.enter_context(running)
                gateway.check(name, port)
                for stream in (False, True):
                    gateway.cost_us(*up[name], stream, 1, folder / "load.lua")
            for turn in range(given.turns):
                order = contestants if (number + turn) % 2 else contestants[::-1]
                costs: dict[str, list[float]] = {name: [] for name in order}
                for stream in (False, True):  # those that are compared are beside each other
                    for name in order:
                        costs[name].append(gateway.cost_us(*up[name], stream, 1, folder / "load.lua"))  # fmt: skip
                        processes.settle(up[name][1])
                for name, (whole, streamed) in costs.items():
                    found.setdefault(name, []).append((whole, streamed))
    shutil.rmtree(folder)
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description="What keys, limits, the queue and the ledger cost."
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=4, help="of a second, of each in a round")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--info", action="store_true", help="log each request")
    parser.add_argument("--against", type=Path, help="another checkout, to compare with")
    given = parser.parse_args()
    if not shutil.which("wrk") or not shutil.which("taskset"):
        sys.exit("bench/books.py needs wrk and taskset: apt-get install wrk util-linux")
    os.sched_setaffinity(0, {gateway.LOAD_CORE})
    gateway.KEY = secret = new_secret()
    found = measure(given, secret)
    first = PLAIN + gateway.BEFORE if given.against else PLAIN
    rows = []
    for name, costs in sorted(found.items(), key=lambda one: one[0] != first):
        row: list[object] = [name]
        for at in (0, 1):
            own, other = ([cost[at] for cost in of] for of in (costs, found[first]))
            row += [median(own), f"{median(map(truediv, own, other)):.3f}x"]
        rows.append(row)
    ratios = [median(map(truediv, (c[at] for c in found[MANY]), (c[at] for c in found[ON]))) for at in (0, 1)]  # fmt: skip
    print(
        report.table(["", "CPU us, JSON", "to the first", "CPU us, stream", "to the first"], rows)
    )
    print(f"{MANY}, to {ON}: JSON {ratios[0]:.3f}x, stream {ratios[1]:.3f}x")
    settings = {name: str(value) for name, value in vars(given).items()}
    versions = report.versions("unilect", "aiohttp", "uvloop", "msgspec")
    results = [{"name": name, "json_stream_cpu_us": costs} for name, costs in found.items()]
    report.write("books", versions, settings=settings, rows=results)


if __name__ == "__main__":
    main()
