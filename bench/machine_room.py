#!/usr/bin/env python3
"""
What exchanging models costs: three models of which two fit, a client of each, and who waits how long.

One client asks for `steady` all the time, two others for `left` and `right`, each again as soon as it has its answer. The same engines are
exchanged by three policies: unilect's own (`memory`), and two that this bench has before a server without a budget: the least recently used
model that answers nobody goes as soon as another one is asked for, until the bytes fit (as Ollama), or until there are two (as llama.cpp's
router). Memory is the proportional set size (PSS) of the engines, four times a second.

usage: bench/machine_room.py [--seconds 20] [--model FILE.gguf] [--small FILE.gguf] [--policy NAME ...]
`--model` is `left` and `right`, `--small` is `steady`; by default all are the bundled model. A run takes so many seconds for each policy.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

import aiohttp
import processes
import report

MODELS = ("steady", "left", "right")
PAUSES_S = {"steady": 0.02, "left": 0.1, "right": 0.1}
BODY = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
BUNDLED = Path(__file__).parent.parent / "src" / "unilect" / "demo" / "model.gguf"


class Server:
    """A server with the three models, none of them loaded."""

    def __init__(
        self, client: aiohttp.ClientSession, admin: aiohttp.ClientSession, port: int
    ) -> None:
        self.client, self.admin = client, admin
        self.url = f"http://127.0.0.1:{port}"

    async def ask(self, model: str) -> float:
        """Ask a model; returns the seconds until its answer."""
        began = time.monotonic()
        body = {**BODY, "model": model}
        async with self.client.post(f"{self.url}/v1/completions", json=body) as response:
            told = await response.json()
            if response.status != 200:
                raise RuntimeError(json.dumps(told))
        return time.monotonic() - began

    async def models(self) -> dict[str, dict[str, Any]]:
        """The models, as the admin API tells them."""
        async with self.admin.get("http://admin/models") as response:
            return {one["name"]: one for one in (await response.json())["models"]}

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

    async def ask(self, model: str) -> float:
        """As of the server."""
        began = time.monotonic()
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
        return time.monotonic() - began

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


async def drive(ask: Callable[[str], Awaitable[float]], pid: int, seconds: float) -> dict[str, Any]:
    """Let the three clients ask, and look at the memory of the engines."""
    end = time.monotonic() + seconds
    waits: dict[str, list[float]] = {model: [] for model in MODELS}
    failures, most = list[str](), 0

    async def client(model: str) -> None:
        while time.monotonic() < end:
            try:
                waits[model].append(await ask(model))
            except (RuntimeError, aiohttp.ClientError) as error:
                failures.append(f"{model}: {error}")
            await asyncio.sleep(PAUSES_S[model])

    async def look() -> None:
        nonlocal most
        while time.monotonic() < end:
            most = max(most, await asyncio.to_thread(engines_bytes, pid))
            await asyncio.sleep(0.25)

    await asyncio.gather(look(), *map(client, MODELS))
    return {"waits": waits, "failures": failures, "bytes": most}


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


async def measure(
    policy: str, files: dict[str, Path], folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """Run one policy."""
    port, socket = processes.free_port(), folder / f"{policy.replace(' ', '-')}.sock"
    config = folder / "server.toml"
    tables = "".join(
        f'[models.{name}]\nsource = "{file}"\nload = "demand"\ncontext = 512\nparallel = 2\ncache_ram_mib = 8\nthreads = 1\n'
        for name, file in files.items()
    )
    budget = f'memory = "{args.budget}"\n' if policy == "unilect" else 'memory = "1TiB"\n'
    config.write_text(f'port = {port}\n{budget}[admin]\nlisten = "{socket}"\n{tables}')
    command = [str(processes.unilect()), "serve", "--config", str(config)]
    with processes.running(command, port=port) as pid:
        async with (
            aiohttp.ClientSession() as client,
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as admin,
        ):
            while not socket.exists():
                await asyncio.sleep(0.01)
            server = Server(client, admin, port)
            needs = {
                name: one["memory_need_bytes"] for name, one in (await server.models()).items()
            }
            if policy == "LRU by bytes":
                ask = Naive(server, needs, lambda sizes: sum(sizes) <= args.budget).ask
            elif policy == "LRU by count":
                ask = Naive(server, needs, lambda sizes: len(sizes) <= 2).ask
            else:
                ask = server.ask
            found = await drive(ask, pid, args.seconds)
            return {**found, "loads": await server.count_loads(), "needs": needs}


async def budget_of(files: dict[str, Path], folder: Path) -> int:
    """Return bytes for the small model and one of the large ones."""
    probe = argparse.Namespace(budget=2**40, seconds=0)
    needs = (await measure("needs", files, folder, probe))["needs"]
    return int((needs["steady"] + max(needs["left"], needs["right"])) * 1.1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--model", type=Path, default=BUNDLED)
    parser.add_argument("--small", type=Path, default=BUNDLED)
    parser.add_argument("--policy", nargs="+", default=["unilect", "LRU by bytes", "LRU by count"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, files = Path(name), dict[str, Path]()
        for model in MODELS:  # copies: a file that two engines map counts half for each
            files[model] = folder / f"{model}.gguf"
            files[model].write_bytes((args.small if model == "steady" else args.model).read_bytes())
        args.budget = asyncio.run(budget_of(files, folder))
        rows = list[list[Any]]()
        for policy in args.policy:
            found = asyncio.run(measure(policy, files, folder, args))
            rows.append(row_of(policy, found, args.budget))
            for failure in found["failures"][:3]:
                print(f"{policy}: {failure}")
    columns = [
        "policy",
        "loads",
        "failures",
        "memory",
        *(f"{one}: answers, p50, p95, most s" for one in MODELS),
    ]
    print(report.table(columns, rows))


def row_of(policy: str, found: dict[str, Any], budget: int) -> list[Any]:
    """Make a row of the table."""
    row: list[Any] = [
        policy,
        found["loads"],
        len(found["failures"]),
        f"{found['bytes'] / budget:.0%} of {budget / 1e6:.0f} MB",
    ]
    for waits in found["waits"].values():
        cuts = quantiles(waits, n=20) if len(waits) > 1 else [0.0] * 19
        row.append(f"{len(waits)}, {cuts[9]:.2f}, {cuts[18]:.2f}, {max(waits, default=0):.2f}")
    return row


if __name__ == "__main__":
    main()
