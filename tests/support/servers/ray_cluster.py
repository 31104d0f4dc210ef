"""
Ray's processes, for tests of the fleet: raylets with loopback addresses of their own, and the replicas among their descendants.

Only processes that a test has started are ended, by their ids: `ray stop` would end all of the machine's.
"""

import asyncio
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from unilect.fleet.environment import ray_environment

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0
_STORE_BYTES = 100_000_000
_WATCHED_S = 0.3
_REPLICA = "ray::ServeReplica:"
_ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


class Node:
    """
    One node of a cluster.

    Attributes:
        host: Its address.
        port: Of the head.
        folder: For its sockets and logs.
        token: The file that has the cluster's token.
    """

    def __init__(
        self, host: str, head: str, folder: str, cpus: int, within: Sequence[str] = ()
    ) -> None:
        self.host, self.head, self.folder, self._cpus = host, head, folder, cpus
        self._within = within
        self.token = f"{folder}/token"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start its raylet, and wait until it is there."""
        here = self.head.rpartition(":")[0] == self.host
        port = self.head.rpartition(":")[2]
        where = (
            ["--head", f"--port={port}", f"--temp-dir={self.folder}", "--include-dashboard=false"]
            if here
            else [f"--address={self.head}"]
        )
        ray = str(Path(sys.executable).with_name("ray"))
        command = [*self._within, ray, "start", "--block", *where]
        command += [f"--node-ip-address={self.host}", f"--num-cpus={self._cpus}"]
        command += [f"--object-store-memory={_STORE_BYTES}", "--disable-usage-stats"]
        log = Path(self.folder) / f"{self.host}.log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                env=os.environ | ray_environment(self.host, Path(self.token)) | _ENVIRONMENT, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + START_TIMEOUT_S
        while b"Ray runtime started" not in log.read_bytes():
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)

    @property
    def raylet(self) -> int:
        """The raylet's process id."""
        assert self._process is not None
        return next(pid for pid in descendants(self._process.pid) if "/raylet/raylet" in said(pid))

    def replicas(self, model: str) -> list[int]:
        """The processes of the replicas of a model that it has."""
        return replicas_of(self.raylet, model)

    def kill(self) -> None:
        """Kill the raylet; what it has started ends with it."""
        assert self._process is not None
        os.kill(self.raylet, signal.SIGKILL)
        self._process.wait(STOP_TIMEOUT_S)

    def stop(self) -> None:
        """End all of it."""
        if self._process is None:
            return
        for pid in [self._process.pid, *descendants(self._process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def cluster(*cpus: int) -> Iterator[list[Node]]:
    """A cluster of nodes with so many processors, the head first; 127.0.0.1 would be replaced by the machine's own address."""
    with tempfile.TemporaryDirectory(prefix="ur", ignore_cleanup_errors=True) as folder, ExitStack() as stack:  # fmt: skip
        head = f"127.0.0.2:{free_port()}"
        nodes = [
            Node(f"127.0.0.{number}", head, folder, count) for number, count in enumerate(cpus, 2)
        ]
        stack.enter_context(running(nodes))
        yield nodes


@contextmanager
def running(nodes: Sequence[Node]) -> Iterator[None]:
    """Nodes that run, the head first, with a token of their own."""
    token = Path(nodes[0].token)
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    with ExitStack() as stack:
        for node in nodes:
            stack.callback(node.stop)
            node.start()
        yield


def free_port() -> int:
    """A free port that no other process of the machine is given by chance: Ray's servers share a port with whoever has it."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port


def descendants(pid: int) -> list[int]:
    """All processes that a process has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, left = list[int](), [pid]
    while left:
        found += (here := children.get(left.pop(), []))
        left += here
    return found


def said(pid: int) -> str:
    """A process's command line; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def replicas_of(pid: int, model: str) -> list[int]:
    """The processes of a model's replicas among the descendants of a process."""
    return [one for one in descendants(pid) if said(one).startswith(f"{_REPLICA}unilect {model}:")]


def engines_of(replica: int) -> list[int]:
    """The process of a replica's engine; none while it starts."""
    return [pid for pid in descendants(replica) if "unilect.engines.gguf" in said(pid)]


async def is_at_work(pid: int) -> bool:
    """Whether a process uses the processor: for an idle engine it is nothing."""
    before = _ticks(pid)
    await asyncio.sleep(_WATCHED_S)
    return _ticks(pid) - before >= 3


def _ticks(pid: int) -> int:
    """The hundredths of a second of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
