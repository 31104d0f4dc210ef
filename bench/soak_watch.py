"""What a soaked server holds, sampled while it works: memory, threads, files and tasks, the size of its store and log, the ledger's rows."""

import asyncio
import json
import os
import re
import sqlite3
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import Any

from processes import TICKS_PER_S, tree
from soak_clients import Outcome
from soak_faults import Admin, role

EVERY_S = 5.0
MIB = 2**20
GATEWAY = "gateway"
#: Errors in the log that the faults of a soak explain.
EXPECTED = ("the engine died: killed (SIGKILL)", "the reload of the configuration failed")


def process_held(pid: int) -> dict[str, float] | None:
    """
    What a process holds.

    Returns:
        In MiB `anonymous` (memory that is no file's, so that other processes that use the same libraries do not change it), `pss` and `rss`;
        `threads`, `files`, and `age` in seconds; None where it has ended.
    """
    folder = Path(f"/proc/{pid}")
    try:
        sizes = Counter[str]()
        for line in (folder / "smaps_rollup").read_text().splitlines()[1:]:
            name, _, rest = line.partition(":")
            sizes[name] += int(rest.split()[0])
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        files = len(os.listdir(folder / "fd"))
    except (OSError, IndexError):
        return None
    up = float(Path("/proc/uptime").read_text().split()[0])
    return {
        "pss": sizes["Pss"] / 1024,
        "rss": sizes["Rss"] / 1024,
        "anonymous": sizes["Anonymous"] / 1024,
        "threads": int(fields[17]),
        "files": files,
        "age": up - int(fields[19]) / TICKS_PER_S,
    }


@dataclass
class Sample:
    """
    What is there at a moment.

    Attributes:
        at: Seconds since the first.
        phase: `load` or `idle`.
        processes: By role, what each process of it holds.
        tasks: asyncio tasks by name.
        running: Requests that are being answered.
        store_mb: The size of the database's files.
        rows: Of the ledger.
        asked: Requests whose outcome is known.
        cpu_s: User and system time of the server and its children so far.
    """

    at: float
    phase: str
    processes: dict[str, list[dict[str, float]]]
    tasks: dict[str, int]
    running: int
    store_mb: float
    rows: int
    asked: int
    cpu_s: float

    def one(self, what: str) -> float:
        """A figure of the gateway."""
        return self.processes[GATEWAY][0][what]


@dataclass
class Watch:
    """
    Looks at a server again and again.

    Attributes:
        samples: What was seen.
        phase: What the clients do.
        flaws: Lines of the log that no fault explains.
        lines: Lines of the log.
        told: Its warnings and errors, and how often each came.
    """

    pid: int
    folder: Path
    admin: Admin
    outcomes: list[Outcome]
    samples: list[Sample] = field(default_factory=list)
    phase: str = "load"
    flaws: list[str] = field(default_factory=list)
    lines: int = 0
    told: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._turn = asyncio.Lock()  # a connection to the admin API is a task of the server

    async def look_on(self) -> None:
        """Sample every `EVERY_S`, and cut the log at every twelfth look, as `copytruncate` of logrotate does."""
        while True:
            await self.sample()
            if len(self.samples) % 12 == 0:
                self.read_log()
            await asyncio.sleep(EVERY_S)

    async def sample(self) -> Sample:
        """Look once; one look at a time."""
        async with self._turn:
            return await self._sample()

    async def _sample(self) -> Sample:
        told = (await self.admin.get("/debug/tasks"))["tasks"]
        running = (await self.admin.get("/requests"))["requests"]
        processes: dict[str, list[dict[str, float]]] = {}
        for pid in tree(self.pid):
            held = process_held(pid)
            name = GATEWAY if pid == self.pid else role(pid)
            if held is not None and name:
                processes.setdefault(name, []).append(held)
        found = Sample(
            at=time.monotonic() - self._began,
            phase=self.phase,
            processes=processes,
            tasks=told,
            running=len(running),
            store_mb=sum(file.stat().st_size for file in self.folder.glob("unilect.db*")) / MIB,
            rows=await asyncio.to_thread(count_rows, self.folder / "unilect.db"),
            asked=len(self.outcomes),
            cpu_s=cpu_of(self.pid),
        )
        self.samples.append(found)
        return found

    def read_log(self) -> None:
        """Look for flaws in what was logged, and cut it."""
        file = self.folder / "log"
        text = file.read_text(errors="replace")
        os.truncate(file, 0)
        for line in text.splitlines():
            self.lines += 1
            try:
                entry = json.loads(line)
            except ValueError:
                if line.startswith("{"):  # what was cut while it was written would not be whole
                    self.flaws.append(line[:500])
                continue
            if entry["level"] in ("debug", "info"):
                continue
            self.told[re.sub(r"\d+|req_\w+", "N", entry["message"])[:100]] += 1
            known = any(part in entry["message"] for part in EXPECTED)
            if "exception" in entry or (entry["level"] != "warning" and not known):
                self.flaws.append(line[:2000])

    def of_age(self, name: str, begin: float, end: float, least: float, most: float) -> list[float]:
        """
        The memory of the processes of a role together, between two moments, where all have some age: a restarted one holds less at first.
        """
        usual = median_low(len(one.processes.get(name, ())) for one in self.samples)
        seen = (
            one.processes.get(name, [])
            for one in self.samples
            if one.phase == "load" and begin <= one.at <= end
        )
        return [
            sum(held["anonymous"] for held in some)
            for some in seen
            if len(some) == usual and all(least <= held["age"] <= most for held in some)
        ]


def cpu_of(pid: int) -> float:
    """User and system time of a process, its children, and those of its children that have ended, in seconds."""
    ticks = 0
    for one in tree(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS_PER_S


def count_rows(file: Path) -> int:
    """The rows of a ledger."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:  # fmt: skip
        return int(database.execute("SELECT count(*) FROM ledger").fetchone()[0])
    return 0


def ledger_rows(file: Path) -> list[dict[str, Any]]:
    """
    The rows of a ledger.

    Raises:
        RuntimeError: The file is damaged.
    """
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        if database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            raise RuntimeError(f"{file} is damaged")
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute("SELECT * FROM ledger")]


def slope_per_hour(samples: list[Sample], what: str) -> float:
    """The growth of a figure of the gateway, per hour: least squares."""
    points = [(one.at / 3600, one.one(what)) for one in samples if one.phase == "load"]
    mid = sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)
    spread = sum((x - mid[0]) ** 2 for x, _ in points)
    return sum((x - mid[0]) * (y - mid[1]) for x, y in points) / spread if spread else 0.0
