#!/usr/bin/env python3
"""
What exchanging models costs: three models of which two fit, clients that ask them in turn, a steady one, and who waits how long.

A steady client asks `steady` all the time. Two others ask all three in turn, one of them in the opposite order (`--clients each`: one asks
`left` and one `right`), at the times of one trace that is replayed for every policy: every `--every` seconds in the mean, whether they have
their answers or not; by default 0.75 of what a first answer takes here, as often as the other policies can just bear. The same engines are exchanged by three policies: unilect's own (`memory`), and two that this bench has before a server
without a budget: the least recently used model that answers nobody goes as soon as another one is asked for, until the bytes fit (as Ollama),
or until there are two (as llama.cpp's router).

`--every 0` lets each ask again as soon as it has its answer. Two that alternate soon wait for the same model then, no two requests of it more
can be gathered, and every policy needs one swap for three answers: their number says how many answers there were, and not how well they were
gathered.

* swaps: loads beyond the first two, and for each answer of the two clients. unilect's are to be half of those of each other policy at most.
* waits: each that the server told a bound for ("waits for `left` for 4.2 s at most" in a model's events) until the model was loaded. It is
  to be no longer than that bound, the longest answer that needed no load, the load itself, and a second in which an engine is stopped.
  A request may find one other model in line before its own: the longest answer is to be no longer than two such waits with the longest turn.
* the steady client's speed: its answers each second of the whole mix, its own waits too, beside those of the time before and after it,
  in which nobody else asks and its model is loaded (a tenth of the seconds each). It is to keep 80 %.
* memory: the proportional set size (PSS) of the engines from /proc, four times a second. No look is to find more than 1.05 of the budget.
* failures: answers that are none, and engines that died. There are to be none.

usage: bench/machine_room.py [--seconds 60] [--clients alternate|each] [--every SECONDS] [--model FILE.gguf] [--small FILE.gguf] [--policy NAME ...]
`--model` is `left` and `right`, `--small` is `steady`; by default all are the bundled model. A run takes 1.2 times the seconds for each
policy. The exit status is 1 where unilect misses one of these.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any, NamedTuple

import aiohttp
import processes
import report

from unilect.residency.policy import TURN

MODELS = ("steady", "left", "right")
#: The models that each client asks in turn, by the name of the mode.
CLIENTS = {
    "alternate": {"steady": ["steady"], "first": [*MODELS], "second": [*reversed(MODELS)]},
    "each": {"steady": ["steady"], "first": ["left"], "second": ["right"]},
}
PACE = 0.75  # of a first answer, from one request of a client to its next: with less there is nothing to gather
PAUSES_S = {"steady": 0.02, "first": 0.1, "second": 0.1}
STOP_S = 1.0  # in which an engine is stopped, and who waits looks again
POLICIES = ("unilect", "LRU by bytes", "LRU by count")
SWAP_WAIT_S = 5.0  # the default of `swap_wait_s`
BODY = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
BUNDLED = Path(__file__).parent.parent / "src" / "unilect" / "demo" / "model.gguf"


class Answer(NamedTuple):
    """The seconds until an answer, and True if its model was loaded for it."""

    seconds: float
    loaded: bool


class Server:
    """A server with the three models, none of them loaded."""

    def __init__(
        self, client: aiohttp.ClientSession, admin: aiohttp.ClientSession, port: int
    ) -> None:
        self.client, self.admin = client, admin
        self.url = f"http://127.0.0.1:{port}"

    async def ask(self, model: str) -> "Answer":
        """Ask a model."""
        began = time.monotonic()
        body = {**BODY, "model": model}
        async with self.client.post(f"{self.url}/v1/completions", json=body) as response:
            told = await response.json()
            if response.status != 200:
                raise RuntimeError(json.dumps(told))
            loaded = "X-Unilect-Loaded-In" in response.headers
        return Answer(time.monotonic() - began, loaded)

    async def models(self) -> dict[str, dict[str, Any]]:
        """The models, as the admin API tells them."""
        async with self.admin.get("http://admin/models") as response:
            return {one["name"]: one for one in (await response.json())["models"]}

    async def events(self, model: str) -> list[dict[str, Any]]:
        """What has happened to a model, the last hundred of it."""
        async with self.admin.get(f"http://admin/models/{model}/events") as response:
            return list((await response.json())["events"])

    async def act(self, model: str, what: str) -> None:
        """Load or stop a model."""
        async with self.admin.post(f"http://admin/models/{model}/{what}") as response:
            if response.status != 200:
                raise RuntimeError(await response.text())

    async def count_loads(self) -> int:
        """Count the loads of all models."""
        async with self.client.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(
            int(float(line.split()[-1]))
            for line in lines
            if line.startswith("unilect_engine_starts_total")
        )


class Naive:
    """A policy before a server without a budget: the least recently used idle model goes as soon as another one is asked for."""

    def __init__(
        self, server: Server, needs: dict[str, int], fits: Callable[[list[int]], bool]
    ) -> None:
        self._server, self._needs, self._fits = server, needs, fits
        self._used = dict[str, float]()
        self._running, self._changed = Counter[str](), asyncio.Condition()

    async def ask(self, model: str) -> Answer:
        """As of the server."""
        began = time.monotonic()
        loads = model not in self._used
        async with self._changed:
            if model not in self._used:
                await self._make_room(model)
                await self._server.act(model, "load")
            self._used[model] = time.monotonic()
            self._running[model] += 1
        try:
            await self._server.ask(model)
        finally:
            async with self._changed:
                self._running[model] -= 1
                self._changed.notify_all()
        return Answer(time.monotonic() - began, loads)

    async def _make_room(self, model: str) -> None:
        while not self._fits([self._needs[one] for one in (*self._used, model)]):
            await self._changed.wait_for(lambda: any(not self._running[one] for one in self._used))
            victim = min(
                (one for one in self._used if not self._running[one]), key=self._used.__getitem__
            )
            del self._used[victim]
            await self._server.act(victim, "stop")
            while (await self._server.models())[victim]["state"] != "stopped":
                await asyncio.sleep(0.01)


class Found:
    """
    What a run has shown.

    Attributes:
        answers: By client.
        failures: What was answered instead, or said of a process that ended.
        alone, mixed: Answers each second of the steady client.
        sizes: Bytes of the engines at each look.
        events: What has happened to the models, by model and time.
        loads: Of all models.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.failures: list[str] = []
        self.alone: list[float] = []
        self.mixed = 0.0
        self.sizes: list[int] = []
        self.events: dict[tuple[str, float], dict[str, Any]] = {}
        self.loads = 0

    async def read(self, server: Server) -> None:
        """Keep the events of the models, of which the server forgets the oldest."""
        for model in MODELS:
            self.events |= {(model, one["time"]): one for one in await server.events(model)}

    async def watch(self, server: Server, pid: int) -> None:
        """Look at the memory of the engines, and read the events, until it is cancelled."""
        while True:
            self.sizes.append(await asyncio.to_thread(engines_bytes, pid))
            if (
                len(self.sizes) % 20 == 0
            ):  # a hundred events of a model come in no less than a minute
                await self.read(server)
            await asyncio.sleep(0.25)

    @property
    def waits(self) -> list[tuple[float, float, float]]:
        """Seconds of each wait with a bound, the bound that was told, and the load at its end."""
        found, since = list[tuple[float, float, float]](), dict[str, dict[str, Any]]()
        for (model, at), one in sorted(self.events.items(), key=lambda item: item[0][1]):
            if one["kind"] == "waits":
                since[model] = one
            elif one["kind"] == "loaded" and (began := since.pop(model, None)) is not None:
                most_s = began["numbers"].get("most_s")
                if most_s is not None:
                    found.append((at - began["time"], most_s, one["numbers"]["load_s"]))
        return found

    @property
    def load_s(self) -> float:
        """The longest load."""
        loads = (one for one in self.events.values() if one["kind"] == "loaded")
        return max((one["numbers"]["load_s"] for one in loads), default=0.0)

    @property
    def answer_s(self) -> float:
        """The longest answer for which nothing was loaded or waited for."""
        whole = (one for of in self.answers.values() for one in of if not one.loaded)
        return max((one.seconds for one in whole), default=0.0)


async def drive(
    ask: Callable[[str], Awaitable[Answer]], server: Server, pid: int, args: argparse.Namespace
) -> Found:
    """Let the steady client ask alone, all of them together, and it alone again; look at the memory of the engines all the time."""
    found, clients = Found(), CLIENTS[args.clients]
    found.answers = {name: [] for name in clients}

    async def request(name: str, model: str) -> None:
        try:
            found.answers[name].append(await ask(model))
        except (RuntimeError, aiohttp.ClientError) as error:
            found.failures.append(f"{name}: {error}")

    async def client(name: str, seconds: float) -> float:
        began, before = time.monotonic(), len(found.answers[name])
        for model in cycle(clients[name]):
            if (elapsed_s := time.monotonic() - began) >= seconds:
                break
            await request(name, model)
            await asyncio.sleep(PAUSES_S[name])
        return (len(found.answers[name]) - before) / elapsed_s

    async def replay(name: str) -> None:
        began = time.monotonic()
        async with asyncio.TaskGroup() as requests:
            for at, model in zip(trace(name, args), cycle(clients[name])):
                await asyncio.sleep(at - (time.monotonic() - began))
                requests.create_task(request(name, model))

    async def alone() -> None:
        await ask("steady")  # loaded
        found.alone.append(await client("steady", args.seconds / 10))

    looking = asyncio.create_task(found.watch(server, pid))
    await alone()
    others = [
        replay(name) if args.every else client(name, args.seconds)
        for name in clients
        if name != "steady"
    ]
    steady = asyncio.create_task(client("steady", args.seconds))
    await asyncio.gather(steady, *others)
    found.mixed = steady.result()
    await alone()
    looking.cancel()
    await asyncio.wait([looking])
    await found.read(server)
    found.loads = await server.count_loads()
    for (model, _), one in found.events.items():
        if one["kind"] == "failed":
            found.failures.append(f"{model}: {one['reason']}")
    return found


def trace(name: str, args: argparse.Namespace) -> Iterator[float]:
    """Yield the seconds after the start at which a client asks: a Poisson process that is the same for every policy."""
    chance, at = random.Random(name), 0.0
    while (at := at + chance.expovariate(1 / args.every)) < args.seconds:
        yield at


def engines_bytes(pid: int) -> int:
    """Measure the proportional set size of a server's children."""
    size = 0
    for child in processes.tree(pid):
        if child != pid:
            try:
                lines = Path(f"/proc/{child}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            size += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return size


@asynccontextmanager
async def serving(
    policy: str, files: dict[str, Path], folder: Path, budget: int
) -> AsyncGenerator[tuple[Server, int]]:
    """A server with the models, with a budget if the policy is its own; and its process."""
    port, socket = processes.free_port(), folder / f"{policy.replace(' ', '-')}.sock"
    config = folder / "server.toml"
    tables = "".join(
        f'[models.{name}]\nsource = "{file}"\nload = "demand"\ncontext = 512\nparallel = 3\ncache_ram_mib = 8\nthreads = 1\n'
        for name, file in files.items()
    )
    memory = f'memory = "{budget}"\n' if policy == "unilect" else 'memory = "1TiB"\n'
    config.write_text(f'port = {port}\n{memory}[admin]\nlisten = "{socket}"\n{tables}')
    command = [str(processes.unilect()), "serve", "--config", str(config)]
    own = {"XDG_DATA_HOME": str(folder / policy)}  # nothing is known of earlier loads
    with processes.running(command, port=port, environment=own) as pid:
        async with (
            aiohttp.ClientSession() as client,
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as admin,
        ):
            while not socket.exists():
                await asyncio.sleep(0.01)
            yield Server(client, admin, port), pid


async def needs_of(server: Server) -> dict[str, int]:
    """What each model is reckoned to take."""
    return {name: one["memory_need_bytes"] for name, one in (await server.models()).items()}


async def measure(
    policy: str, files: dict[str, Path], folder: Path, budget: int, args: argparse.Namespace
) -> Found:
    """Run one policy."""
    async with serving(policy, files, folder, budget) as (server, pid):
        ask = server.ask
        if policy != "unilect":
            needs = await needs_of(server)
            by_bytes = policy == "LRU by bytes"
            ask = Naive(
                server, needs, lambda sizes: sum(sizes) <= budget if by_bytes else len(sizes) <= 2
            ).ask
        return await drive(ask, server, pid, args)


async def look_at(files: dict[str, Path], folder: Path) -> tuple[int, float]:
    """Return bytes for two of the models, whichever, and the seconds of a first answer, most of which are those of a load."""
    async with serving("needs", files, folder, 0) as (server, _):
        two = sorted((await needs_of(server)).values())[-2:]
        loads = [(await server.ask(model)).seconds for model in MODELS]
    return int(sum(two) * 1.1), median(loads)


def row_of(policy: str, found: Found, budget: int) -> list[Any]:
    """Make a row of the table."""
    over = sum(size > 1.05 * budget for size in found.sizes)
    turns = sum(len(of) for client, of in found.answers.items() if client != "steady")
    late = sum(wait > bound_of(found, most, load) for wait, most, load in found.waits)
    row: list[Any] = [
        policy,
        f"{swaps(found)}, {swaps(found) / max(1, turns):.2f} an answer",
        len(found.failures),
        f"{max(found.sizes) / budget:.0%} of {budget / 1e6:.0f} MB, {over} of {len(found.sizes)} looks over",
        f"{found.mixed:.1f} of {mean(found.alone):.1f}/s: {found.mixed / mean(found.alone):.0%}",
        f"{late} of {len(found.waits)} late" if policy == "unilect" else None,
    ]
    for answers in found.answers.values():
        waits = [one.seconds for one in answers]
        cuts = quantiles(waits, n=20, method="inclusive") if len(waits) > 1 else [0.0] * 19
        row.append(f"{len(waits)}, {cuts[9]:.2f}, {cuts[18]:.2f}, {max(waits, default=0):.2f}")
    return row


def swaps(found: Found) -> int:
    """Loads beyond the first two, for which nobody had to leave."""
    return max(0, found.loads - 2)


def bound_of(found: Found, most_s: float, load_s: float) -> float:
    """The seconds that a wait may take: until those leave that it is for, the answers that run then, the engine's end, and the load."""
    return most_s + found.answer_s + STOP_S + load_s


def verdicts(found: dict[str, Found], budget: int) -> list[list[Any]]:
    """What unilect has to reach, and has: a row for each."""
    own = found["unilect"]
    others = [swaps(one) for policy, one in found.items() if policy != "unilect"]
    ratios = [wait / bound_of(own, most, load) for wait, most, load in own.waits]
    turn_s = max(SWAP_WAIT_S, TURN * own.load_s)
    longest = max(one.seconds for of in own.answers.values() for one in of)
    bound = 2 * bound_of(own, turn_s, own.load_s)
    over = max(own.sizes) / budget
    steady = own.mixed / mean(own.alone)
    rows: list[tuple[str, str, bool]] = [
        ("failures: 0", str(len(own.failures)), not own.failures),
        ("longest wait, of the bound that was told: at most 1", f"{max(ratios, default=0):.2f} ({len(ratios)} waits)", max(ratios, default=0) <= 1),
        ("longest answer, of two turns and loads: at most 1", f"{longest / bound:.2f} ({longest:.1f} of {bound:.1f} s)", longest <= bound),
        ("most memory, of the budget: at most 1.05", f"{over:.2f}", over <= 1.05),
        ("the steady client's speed, of that alone: at least 0.8", f"{steady:.2f}", steady >= 0.8),
    ]  # fmt: skip
    if others:
        least = min(others)
        part = f"{swaps(own)} of {least}"
        rows.insert(0, ("swaps, of the least of the others: at most half", part, swaps(own) <= least / 2))  # fmt: skip
    return [[what, reached, "yes" if good else "NO"] for what, reached, good in rows]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", choices=CLIENTS, default="alternate")
    parser.add_argument("--every", type=float)
    parser.add_argument("--model", type=Path, default=BUNDLED)
    parser.add_argument("--small", type=Path, default=BUNDLED)
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=[*POLICIES])
    args = parser.parse_args()
    found = dict[str, Found]()
    with tempfile.TemporaryDirectory() as name:
        folder, files = Path(name), dict[str, Path]()
        for model in MODELS:  # copies: a file that two engines map counts half for each
            files[model] = folder / f"{model}.gguf"
            files[model].write_bytes((args.small if model == "steady" else args.model).read_bytes())
        budget, first_s = asyncio.run(look_at(files, folder))
        args.every = PACE * first_s if args.every is None else args.every
        print(
            f"a first answer takes {first_s:.2f} s; each asks every {args.every:.2f} s",
            file=sys.stderr,
        )
        for policy in args.policy:
            print(f"{policy}: {1.2 * args.seconds:.0f} s", file=sys.stderr)
            found[policy] = asyncio.run(measure(policy, files, folder, budget, args))
    for policy, one in found.items():
        for failure in one.failures[:3]:
            print(f"{policy}: {failure}")
    columns = [
        "policy",
        "swaps",
        "failures",
        "memory",
        "steady client, mixed and alone",
        "told waits",
    ]
    columns += [f"{one}: answers, p50, p95, most s" for one in CLIENTS[args.clients]]
    rows = [row_of(policy, one, budget) for policy, one in found.items()]
    print(report.table(columns, rows))
    reached = verdicts(found, budget) if "unilect" in found else []
    print("\n" + report.table(["of unilect", "measured", "reached"], reached))
    settings = {**vars(args), "model": args.model.name, "small": args.small.name}
    used = report.versions("unilect", "xllamacpp")
    report.write("machine_room", used, settings=settings, columns=columns, rows=rows, reached=reached)  # fmt: skip
    sys.exit(any(row[-1] == "NO" for row in reached))


if __name__ == "__main__":
    main()
