#!/usr/bin/env python3
"""
What a server with everything on holds and loses while it works for a long time, and while things go wrong.

One `unilect serve` with keys and limits in the store, a ledger, queues, the admin API, metrics for each key and a JSON log serves the bundled
model on both engines (one thread each), an `echo:` model, and two upstreams that fail, break off, hang and restart. Clients of all dialects ask
at a pace (bench/soak_clients.py); a tenth leave, some with RST, some read slowly, a tenth have keys that are refused, limited, used up or
revoked. Every 40 s an engine, or the helper that compiles grammars, gets `kill -9`; every minute the configuration is reloaded
(bench/soak_faults.py). Every 5 s it is written down what the server holds (bench/soak_watch.py).

Promises, each of which is held or makes the exit code 1: the gateway's memory, and that of engines of the same age, is in the second half
within `--growth` of the first, and after an hour it grows by less than 1 MB an hour; at rest there are as many threads and tasks as after the
warm-up, and as many files, +- 5; nothing runs or is reserved; each answer that was whole has one row in the ledger, with the same tokens, and
no other has two; no request fails that no fault explains; nothing in the log is a flaw; the server ends with code 0 and leaves nothing behind.

usage: bench/soak.py [--minutes 20] [--rate 20] [--warm-up 90] [--rest 10] [--pace 1] [--growth 0.05] [--json FILE]
Without the extra transformers, or with `--no-transformers`, the second engine is left out.
"""

import argparse
import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import processes
import psutil
import report
import soak_clients
from soak_clients import Clients, Outcome, by_class, unexpected
from soak_faults import Admin, Faults, Upstream
from soak_watch import GATEWAY, Sample, Watch, cpu_of, ledger_rows, slope_per_hour

from unilect.auth.keys import digest
from unilect.auth.secret import id_of, new_secret
from unilect.demo import FOLDER
from unilect.store.database import Database
from unilect.store.keys import KeyStore

CLIENTS, PARALLEL, DAY = 20, 24, 1e9
HOUR_S, GROWTH_MB = 3600.0, 1.0
#: Of an answer with one of these codes there is no row: no backend was asked.
NOT_ASKED = {"permission_denied", "invalid_value", "model_not_found", "insufficient_quota"}
CONFIG = """
port = {port}
log_format = "json"
metrics_per_key = true
[store]
url = "sqlite:///unilect.db"
ledger = "required"
max_count = 200
[admin]
listen = "./admin.sock"
[models.gguf]
source = "demo:"
threads = 1
parallel = {parallel}
cache_ram_mib = 16
[models.echo]
source = "echo:"
max_in_flight = 16
max_queue = 64
price = {{ prompt = {price}, completion = 2 }}
limits = {{ parallel = 200 }}
[models.up]
source = [{sources}]
model = "m"
timeout_s = 3
max_in_flight = 32
"""
HF = """
[models.hf]
source = {folder}
threads = 1
parallel = 4
cache_ram_mib = 16
"""
EXTRA = """
[models.extra]
source = "echo:"
aliases = ["more"]
"""


class Server:
    """
    The server that is soaked, in a folder of its own.

    Attributes:
        folder: Its configuration, its store and its log.
        url: Without `/v1`.
        secrets: The keys of clients, by number, and of the others by name.
    """

    def __init__(self, folder: Path, upstreams: list[Upstream], transformers: bool) -> None:
        self.folder, self.port = folder, processes.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._upstreams, self._transformers = upstreams, transformers
        self.secrets: dict[str, str] = {}

    def configuration(self, number: int) -> str:
        """The text of a configuration: those of odd numbers have a model more and another price, each fourth one another engine."""
        text = CONFIG.format(
            port=self.port,
            parallel=3 if number % 4 == 1 else 4,
            price=1 + number % 2,
            sources=", ".join(f'"http://127.0.0.1:{one.port}/v1"' for one in self._upstreams),
        )
        if self._transformers:
            text += HF.format(folder=json.dumps(str(FOLDER / "hf")))
        return text + EXTRA * (number % 2)

    async def add_keys(self) -> None:
        """Put the keys of all clients into the store."""
        database = Database(f"sqlite:///{self.folder / 'unilect.db'}")
        stored = KeyStore(database)
        limits: dict[str, dict[str, float]] = {
            "hasty": {"requests_per_minute": 5.0},
            "spent": {"tokens_per_day": 60.0},
        }
        free = {"tokens_per_day": DAY, "parallel": float(PARALLEL), "requests_per_minute": 1e6}
        for name in [f"client{number}" for number in range(CLIENTS)] + ["fresh", "hasty", "spent", "bound"]:  # fmt: skip
            self.secrets[name] = secret = new_secret()
            models = ("echo",) if name == "bound" else None
            await stored.create(name, id_of(secret) or "", digest(secret), owner="soak", models=models, limits=limits.get(name, free))  # fmt: skip
        await database.aclose()

    @contextmanager
    def running(self) -> Iterator[int]:
        """Run it; yields its process id."""
        (self.folder / "unilect.toml").write_text(self.configuration(0))
        command = [str(processes.unilect()), "serve", "--config", "unilect.toml"]
        with open(self.folder / "log", "ab") as log:  # its writes go to the end, also after a cut
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"XDG_DATA_HOME": str(self.folder), "TMPDIR": str(self.folder)},
                start_new_session=True,
            )
        try:
            processes.wait_for_port(self.process, self.port, self.folder / "log")
            while not (self.folder / "admin.sock").exists() and self.process.poll() is None:
                time.sleep(0.01)  # it listens there next
            yield self.process.pid
        finally:
            processes.stop(self.process)

    async def stop(self) -> list[str]:
        """Stop it as a service manager does; what it has left behind."""
        assert self.process is not None
        children = processes.tree(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        left: list[str] = []
        try:
            code = await asyncio.to_thread(self.process.wait, 60)
            left += [f"exit code {code}"] * (code != 0)
        except subprocess.TimeoutExpired:
            left.append("it does not end")
        left += [f"process {pid}" for pid in children if psutil.pid_exists(pid)]
        left += [str(file) for file in self.folder.rglob("unilect-*")]
        left += [str(file) for file in self.folder.rglob("*.running-*")]
        return left + [str(file) for file in self.folder.rglob("*.sock")]


class Promises:
    """
    What is promised, and whether it is held.

    Attributes:
        rows: Each as it is told: what, the figure, what it may be, and whether that holds.
    """

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []

    @property
    def held(self) -> bool:
        """Whether all are."""
        return all(row[-1] == "held" for row in self.rows)

    def add(self, what: str, found: Any, may_be: str, holds: bool) -> None:
        """Add one."""
        self.rows.append([what, found, may_be, "held" if holds else "BROKEN"])

    def memory(self, watch: Watch, begin: float, end: float, growth: float) -> None:
        """The gateway's memory, and that of engines of the same age, in both halves."""
        middle = (begin + end) / 2
        roles = {name for one in watch.samples for name in one.processes} - {"another"}
        for name in sorted(roles):
            # a process that has just started holds less, and a restarted one is compared with what the one before was then
            ages = (0.0, math.inf) if name == GATEWAY else (min(20.0, (end - begin) / 20), 300.0)
            halves = [watch.of_age(name, *half, *ages) for half in ((begin, middle), (middle, end))]
            if not all(halves):
                continue
            before, after = map(median, halves)
            self.add(f"memory of {name}, MB, first and second half", f"{before:.1f}, {after:.1f}", f"+{growth:.0%}", after <= before * (1 + growth))  # fmt: skip

    def slope(self, samples: list[Sample], begin: float) -> None:
        """The gateway's growth after the first hour, where at least half an hour follows it."""
        late = [one for one in samples if one.at > begin + HOUR_S]
        if late and late[-1].at - late[0].at >= HOUR_S / 2:
            grows = slope_per_hour(late, "anonymous")
            self.add("growth of the gateway after the first hour, MB/h", f"{grows:.2f}", f"< {GROWTH_MB}", grows < GROWTH_MB)  # fmt: skip

    def rest(self, before: Sample, after: Sample) -> None:
        """What is there at rest, after the warm-up and at the end."""
        for name in sorted(before.processes.keys() | after.processes.keys()):
            for what, most in (("threads", 0), ("files", 5)):
                counts = [[int(held[what]) for held in one.processes.get(name, ())] for one in (before, after)]  # fmt: skip
                holds = len(counts[0]) == len(counts[1]) and abs(sum(counts[1]) - sum(counts[0])) <= most  # fmt: skip
                self.add(f"{what} of {name} at rest, before and after", f"{counts[0]}, {counts[1]}", f"+- {most}", holds)  # fmt: skip
        grown = Counter(after.tasks) - Counter(before.tasks)
        tasks = sum(before.tasks.values()), sum(after.tasks.values())
        self.add("tasks at rest, before and after", f"{tasks[0]}, {tasks[1]} {dict(grown) or ''}", "equal", not grown)  # fmt: skip
        self.add("requests that run at rest", after.running, "0", after.running == 0)

    def answers(self, outcomes: list[Outcome], cancelled: int) -> None:
        """No request has failed without a fault."""
        wrong = [one for one in outcomes if unexpected(one, cancelled)]
        ended = sum(one.result == "request_cancelled" for one in outcomes)
        shown = dict(Counter(f"{one.kind} of {one.model} by {one.caller}: {one.result} {one.why}" for one in wrong).most_common(8)) or 0  # fmt: skip
        self.add("failures that no fault explains", shown, "0", not wrong)
        self.add(
            "requests that were told of an operator", ended, f"<= {cancelled}", ended <= cancelled
        )

    def ledger(self, outcomes: list[Outcome], rows: list[dict[str, Any]]) -> None:
        """Every answer that was whole has one row with its tokens; no other request has two."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            found.setdefault(row["id"].partition(".")[2], []).append(row)
        recorded = {kind.name for kind in soak_clients.KINDS if kind.recorded}
        lost, double, different, needless = (list[str]() for _ in range(4))
        for one in outcomes:
            own = found.pop(one.id, []) if one.id else []
            whole = one.result == "ok" and one.kind in recorded
            if whole and not own:
                lost.append(f"{one.kind} {one.model}")
            if len(own) > 1:
                double.append(f"{one.kind} {one.model}")
            if one.result in NOT_ASKED and own:
                needless.append(f"{one.kind} {one.result}")
            if whole and own and any(told is not None and told != own[0][name] for told, name in zip(one.usage, ("prompt", "completion"), strict=True)):  # fmt: skip
                different.append(f"{one.kind} {one.model} {one.usage}: {own[0]['prompt']}, {own[0]['completion']}")  # fmt: skip
        nameless = sum(not one.id for one in outcomes)
        self.add("rows in the ledger", len(rows), "one an answer", bool(rows))
        for what, wrong in (("answers without a row", lost), ("requests with two rows", double), ("rows with other tokens", different), ("rows of refused requests", needless)):  # fmt: skip
            self.add(what, dict(Counter(wrong).most_common(5)) or 0, "0", not wrong)
        unknown = sum(map(len, found.values()))
        self.add("rows of requests whose client has left early", unknown, f"<= {nameless}", unknown <= nameless)  # fmt: skip


async def reserved(server: Server, rows: list[dict[str, Any]]) -> dict[str, int]:
    """
    Of each client what its budget counts beyond what the ledger says: tokens that are still reserved, or were counted twice.

    What is left is told with what the request itself reserves, which is the same for a key that nobody else uses.
    """
    body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5})  # fmt: skip
    used = Counter[str]()
    for row in rows:
        used[row["key"]] += row["prompt"] + row["completion"]

    async with aiohttp.ClientSession(server.url) as session:

        async def left(name: str) -> int:
            headers = {"Authorization": f"Bearer {server.secrets[name]}"}
            async with session.post("/v1/chat/completions", data=body, headers=headers) as answer:
                await answer.read()
                remaining = int(answer.headers["x-ratelimit-remaining-tokens"])
            return remaining + used[f"key_{id_of(server.secrets[name])}"]

        fresh, found = await left("fresh"), dict[str, int]()
        for number in range(CLIENTS):
            name = f"client{number}"
            beyond = fresh - await left(name)
            if beyond:
                found[name] = beyond
    return found


async def held_places(server: Server) -> int:
    """How many of the requests that a key may run at once are refused, of one key after the other."""
    text = "Hello " * 200
    body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": text}]})
    async with aiohttp.ClientSession(server.url) as session:

        async def ask(secret: str) -> int:
            headers = {"Authorization": f"Bearer {secret}"}
            async with session.post("/v1/chat/completions", data=body, headers=headers) as answer:
                await answer.read()
                return answer.status

        refused = 0
        for number in range(3):
            secret = server.secrets[f"client{number}"]
            statuses = await asyncio.gather(*(ask(secret) for _ in range(PARALLEL)))
            refused += sum(status != 200 for status in statuses)
    return refused


async def at_rest(server: Server, watch: Watch, faults: Faults, seconds: float) -> Sample:
    """Have all engines started that a request starts, wait until nothing happens, and look."""
    await faults.settle()
    watch.phase = "idle"
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/embeddings", {"model": "gguf", "input": "Hello"}),
        ("/v1/completions", {"model": "gguf", "prompt": "A", "max_tokens": 3, "grammar": 'root ::= "a"'}),
    ]  # fmt: skip
    headers = {"Authorization": f"Bearer {server.secrets['fresh']}"}
    async with aiohttp.ClientSession(server.url, headers=headers) as session:
        for path, body in asked:
            async with session.post(path, json=body) as answer:
                answer.raise_for_status()
    await asyncio.sleep(seconds)
    found = await watch.sample()
    watch.phase = "load"
    return found


async def soak(given: argparse.Namespace, folder: Path) -> tuple[Promises, dict[str, Any]]:
    """Soak a server; what is promised, and what was found."""
    promises, guests = Promises(), list[str]()
    async with AsyncExitStack() as stack:
        upstreams = [Upstream(1), Upstream(2)]
        for upstream in upstreams:
            await upstream.start()
            stack.push_async_callback(upstream.stop)
        server = Server(folder, upstreams, given.transformers)
        await server.add_keys()
        pid = stack.enter_context(server.running())
        admin = Admin(folder / "admin.sock")
        stack.push_async_callback(admin.aclose)
        if not given.transformers:
            leave_out_transformers()
        names = [f"client{number}" for number in range(CLIENTS)]
        others = {name: [server.secrets[name]] for name in ("hasty", "spent", "bound")}
        others |= {"stranger": ["sk-nobodys", new_secret()], "guest": guests}
        clients = Clients(server.url, [server.secrets[name] for name in names], others, given.rate)
        watch = Watch(pid, folder, admin, clients.outcomes)
        faults = Faults(pid, folder, admin, upstreams, server.configuration, guests, given.pace)

        looking = asyncio.create_task(watch.look_on())
        await asyncio.gather(clients.ask(given.warm_up), faults.go_on(given.warm_up * 0.8))
        await (
            clients.crowd()
        )  # what a peak needs of memory stays with the process, whenever it comes
        before = await at_rest(server, watch, faults, given.rest)
        begin = before.at
        begun, cpu_before = time.monotonic(), cpu_of(pid)
        seconds = given.minutes * 60
        await asyncio.gather(clients.ask(seconds), faults.go_on(seconds - 5))
        took, cpu = time.monotonic() - begun, cpu_of(pid) - cpu_before
        after = await at_rest(server, watch, faults, given.rest)
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking

        outcomes, rows = list(clients.outcomes), ledger_rows(folder / "unilect.db")
        own = f"key_{id_of(server.secrets['fresh'])}"
        promises.memory(watch, begin, after.at, given.growth)
        promises.slope(watch.samples, begin)
        promises.rest(before, after)
        promises.answers(outcomes, faults.done["request cancelled"])
        promises.ledger(outcomes, [row for row in rows if row["key"] != own])
        beyond = await reserved(server, rows)
        promises.add("tokens reserved, or counted and not in the ledger", beyond or 0, "0", not beyond)  # fmt: skip
        refused = await held_places(server)
        promises.add("requests that find no place of their key free", refused, "0", not refused)
        left = await server.stop()
        promises.add("left behind by the server's end", left or 0, "0", not left)
        watch.read_log()
        promises.add("flaws in the log", watch.flaws[:3] or 0, "0", not watch.flaws)
    found = {
        "requests": len(outcomes),
        "requests_per_s": len([one for one in outcomes]) / (took + given.warm_up),
        "held_back": clients.held_back,
        "cores": cpu / took,
        "results": by_class(outcomes),
        "ok": sum(one.result == "ok" for one in outcomes),
        "left": sum(one.result == "left" for one in outcomes),
        "faults": dict(faults.done),
        "upstreams": dict(sum((one.done for one in upstreams), Counter())),
        "log_lines": watch.lines,
        "warnings": dict(watch.told),
        "slope_mb_per_hour": slope_per_hour(
            [one for one in watch.samples if one.at > begin], "anonymous"
        ),
        "samples": [asdict(one) for one in watch.samples],
        "begin": begin,
        "table": windows(watch, begin),
    }
    return promises, found


def leave_out_transformers() -> None:
    """Have the clients ask the models that there are."""
    kinds = [
        soak_clients.Kind(**{**vars(kind), "models": tuple("gguf" if name == "hf" else name for name in kind.models)})
        for kind in soak_clients.KINDS
    ]  # fmt: skip
    soak_clients.KINDS = tuple(kinds)


def windows(watch: Watch, begin: float, count: int = 8) -> str:
    """A table of what was held, in so many windows of time after the warm-up: medians; of several processes of a role their sum."""
    seen = [one for one in watch.samples if one.phase == "load" and one.at > begin]
    roles = sorted({name for one in seen for name in one.processes} - {GATEWAY, "another"})
    columns = ["minutes", "requests", "gateway MB", "PSS", "threads", "files", "tasks", *(f"{name} MB" for name in roles), "store MB", "rows"]  # fmt: skip
    rows = []
    for number in range(count):
        some = seen[number * len(seen) // count : (number + 1) * len(seen) // count]
        if not some:
            continue
        first, last = some[0], some[-1]
        row: list[Any] = [f"{(first.at - begin) / 60:.1f} to {(last.at - begin) / 60:.1f}", last.asked]  # fmt: skip
        row += [round(median(one.one(what) for one in some), 1) for what in ("anonymous", "pss")]
        row += [int(median(one.one(what) for one in some)) for what in ("threads", "files")]
        row.append(int(median(sum(one.tasks.values()) for one in some)))
        for name in roles:
            held = watch.of_age(name, first.at, last.at, 0.0, math.inf)
            row.append(round(median(held), 1) if held else None)
        rows.append([*row, round(last.store_mb, 1), last.rows])
    return report.table(columns, rows)


def main() -> None:
    """Soak, print and write; exit code 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description="What a server holds and loses in a long time.")
    parser.add_argument("--minutes", type=float, default=20.0, help="after the warm-up")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--warm-up", type=float, default=90.0, help="seconds")
    parser.add_argument("--rest", type=float, default=10.0, help="seconds without a request before things are compared")  # fmt: skip
    parser.add_argument("--pace", type=float, default=1.0, help="of the faults; 0.2: five times as often")  # fmt: skip
    parser.add_argument("--growth", type=float, default=0.05, help="of memory, at most")
    parser.add_argument("--no-transformers", dest="transformers", action="store_false")
    parser.add_argument("--json", type=Path, help="write to this file instead of bench/results")
    given = parser.parse_args()
    given.transformers = given.transformers and all(find_spec(name) for name in ("torch", "transformers"))  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        promises, found = asyncio.run(soak(given, Path(folder)))
    print(found.pop("table"))
    print(report.table(["promise", "found", "may be", ""], promises.rows))
    told = {name: value for name, value in found.items() if name not in ("samples", "begin")}
    print(json.dumps(told, indent=1))
    versions = report.versions("unilect", "aiohttp", "uvloop", "xllamacpp", "torch", "transformers")  # fmt: skip
    settings = {name: str(value) for name, value in vars(given).items()}
    report.write("soak", versions, given.json, settings=settings, promises=promises.rows, **found)
    sys.exit(not promises.held)


if __name__ == "__main__":
    main()
