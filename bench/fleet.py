#!/usr/bin/env python3
"""
What the fleet costs a model: time to the first token and tokens per second of one GGUF file as a local child, as one replica on a Ray
cluster of this machine, and as two replicas.

Each engine has one thread. "half" is one replica with the places of one of the two, whose steps are as wide as theirs; "local half" and
"2 local" are the same without Ray, in one server: what the machine's cores allow. The load is streamed chat completions of exactly 64 tokens
each, with short prompts of which no two are the same, from 1, 8 and 32 clients at once; every client sends its requests one after the other.
All servers are up at the same time and take turns; the median of the rounds counts, and what the fleet costs is told as a ratio of the same
rounds. The model is that of bench/engine.py, or a wider one.

Two engines fill two cores, and Ray and the gateway need a part of them. `--share 0.5` gives each engine so much of a core, so that there
is room for what stands beside them, as there is on a machine with more cores; it needs root, and control groups of version 1.

usage: bench/fleet.py [--rounds 5] [--width 512] [--clients 1 8 32] [--share 1.0] [--only NAME ...]
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median
from threading import Event, Thread

import engine
import processes
import report

PARALLEL = 32  # places of all replicas together
REQUESTS = {
    1: 6,
    8: 2,
    32: 3,
}  # clients -> requests of each: replicas that end one after the other count little
GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 20_000
LOOK_S = 0.1
SETTLE_S = 1.0  # Ray's processes are never idle
#: name -> what stands in the model's table, and the places of each engine
KINDS = {
    "local": ("", PARALLEL),
    "1 replica": ("replicas = 1", PARALLEL),
    "half": ("replicas = 1", PARALLEL // 2),
    "2 replicas": ("replicas = 2", PARALLEL // 2),
    "local half": ("", PARALLEL // 2),
    "2 local": ("", PARALLEL // 2),
}
#: what is told as a ratio to what
RATIOS = (
    ("1 replica", "local"), ("2 replicas", "1 replica"), ("2 replicas", "half"), ("2 local", "local half"),
)  # fmt: skip
_TABLE = """
[models.m]
source = {source}
threads = 1
parallel = {parallel}
context = {context}
{replicas}
{resources}
"""


def contestants(wanted: Sequence[str], width: int, folder: Path) -> list[engine.Contestant]:
    """The servers that are wanted, all by default, the local one first."""
    found = []
    for name, (replicas, parallel) in KINDS.items():
        if wanted and name not in wanted:
            continue
        file, port = folder / f"{name}.toml", processes.free_port()
        table = _TABLE.format(
            source=json.dumps([str(engine.model(width))] * (2 if name == "2 local" else 1)),
            parallel=parallel,
            context=engine.CONTEXT,
            replicas=replicas,
            resources="resources = { cpu = 0.1 }" if replicas else "",
        )
        file.write_text(table)
        command = [processes.unilect(), "serve", "--config", file, "--port", port]
        command += ["--log-level", "warning"]
        found.append(engine.Contestant(name, [str(part) for part in command], port))
    return found


def ratios(
    found: dict[str, dict[int, list[engine.Figures]]], ours: str, of: str, what: str
) -> list[str]:
    """A figure of one server to that of another, within the rounds."""
    pairs = (zip(found[ours][clients], found[of][clients], strict=True) for clients in found[ours])  # fmt: skip
    return [
        f"{median(getattr(a, what) / getattr(b, what) for a, b in pair):.2f}x" for pair in pairs
    ]


def show(found: dict[str, dict[int, list[engine.Figures]]]) -> None:
    """A table for each figure: medians, and what the fleet costs and brings."""
    loads = list(next(iter(found.values())))
    columns = ["server", *(f"{clients} streams" for clients in loads)]
    for what, title in engine.TITLES.items():
        if what == "gateway_cpu_us":
            continue
        rows: list[list[object]] = [
            [name, *(median(getattr(one, what) for one in figures[count]) for count in loads)]
            for name, figures in found.items()
        ]  # fmt: skip
        for ours, of in RATIOS:
            if ours in found and of in found:
                rows.append([f"{ours} / {of}", *ratios(found, ours, of, what)])
        print(f"\n{title}\n{report.table(columns, rows)}")


@contextmanager
def held_to(share: float) -> Iterator[None]:
    """
    Every engine that is started in the block gets so much of a core.

    Source: https://docs.kernel.org/scheduler/sched-bwc.html
    """
    over, groups = Event(), dict[int, Path]()

    def look() -> None:
        while not over.wait(LOOK_S):
            for pid in processes.tree(os.getpid()):
                if pid not in groups and processes.command(pid).endswith(
                    "unilect.engines.gguf._child"
                ):
                    group = groups[pid] = GROUPS / f"unilect-bench-{pid}"
                    group.mkdir()
                    (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                    (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * share)))
                    (group / "cgroup.procs").write_text(str(pid))

    looking = Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
        for pid, group in groups.items():
            while processes.command(pid):  # of a replica, which ends after its server
                time.sleep(LOOK_S)
            group.rmdir()


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="What the fleet costs a model.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=engine.WIDTH, help="of the model")
    parser.add_argument("--clients", type=int, nargs="+", default=list(REQUESTS), choices=REQUESTS)
    parser.add_argument("--only", nargs="*", default=[], choices=KINDS, help="servers")
    parser.add_argument("--share", type=float, default=1.0, help="of a core, for each engine")
    given = parser.parse_args()
    loads = {clients: REQUESTS[clients] for clients in given.clients}
    held = held_to(given.share) if given.share < 1 else nullcontext()
    with tempfile.TemporaryDirectory() as folder, held:
        all = contestants(given.only, given.width, Path(folder))
        found = engine.measure(all, given.rounds, settle_s=SETTLE_S, loads=loads)
    show(found)
    rows = [
        {"name": name, "clients": clients} | asdict(one)
        for name, loads in found.items()
        for clients, figures in loads.items()
        for one in figures
    ]
    settings = {"tokens": engine.TOKENS, "context": engine.CONTEXT, "parallel": PARALLEL}
    report.write(
        "fleet",
        report.versions("unilect", "xllamacpp", "ray"),
        settings=settings | vars(given),
        rows=rows,
    )


if __name__ == "__main__":
    main()
