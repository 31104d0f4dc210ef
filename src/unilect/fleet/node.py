"""
This machine as a node of a cluster: Ray's processes, which live as long as the command that started them.

`ray start --block` runs below a process of ours (`_node`) that ends with us and takes all along, so neither SIGTERM nor `kill -9` of the
command leaves one. Its ports are a row that begins with a given one.

Source: https://docs.ray.io/en/latest/cluster/cli.html (ray start), https://docs.ray.io/en/latest/ray-core/configure.html (ports)
"""

import json
import logging
import os
import shutil
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from unilect.config.mistakes import ErrorCollector
from unilect.core.errors import ConfigError
from unilect.engines.process.child_process import python_command
from unilect.fleet.environment import is_alone, ray_environment
from unilect.runtime import memory
from unilect.runtime.child_environment import child_environment
from unilect.runtime.socket_folders import make_folder

log = logging.getLogger("unilect")
LOOPBACK = "127.0.0.1"
FIRST_PORT = 6379
WORKERS = (10002, 19999)  # the ports of replicas, where other machines can join
_CHILD = "unilect.fleet.driver.node"
#: What listens, one port each: whose option it is, and whether a head alone has it.
_PORTS = {
    "port": ("cluster state", True),
    "ray-client-server-port": ("Ray clients", True),
    "node-manager-port": ("node", False),
    "object-manager-port": ("objects", False),
    "dashboard-agent-listen-port": ("agent", False),
    "dashboard-agent-grpc-port": ("agent, gRPC", False),
    "runtime-env-agent-port": ("environments", False),
    "metrics-export-port": ("metrics", False),
}
PORTS = len(_PORTS) + 1  # with that of the head's own metrics, which is no option but a variable
_OBJECT_STORE_BYTES = 100 * memory.MIB
_NEEDED_BYTES = 512 * memory.MIB  # the object store, and Ray's processes on a head
_START_TIMEOUT_S = 120.0
#: of Ray's own; the second of a session, and the process that began it, are part of it
_LONGEST_SOCKET = "r/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_HAND_OVER_S = 30.0  # for a node that is told to end: its replicas finish what they answer
_STOP_TIMEOUT_S = _HAND_OVER_S + 20.0
_STARTED = "Ray runtime started"
_WORDS = 60


class NodeSettings(NamedTuple):
    """
    A node that is to be.

    Attributes:
        host: Its address for other nodes, or LOOPBACK for none.
        port: The first of its ports.
        token: The file with the cluster's token.
        resources: What it offers, see `config.fleet.resources_here`; what is not in it Ray finds out.
        head: HOST:PORT of the cluster to join; empty for a cluster of its own.
        version: Of unilect.
    """

    host: str
    port: int
    token: Path
    resources: Mapping[str, float]
    head: str
    version: str

    @property
    def address(self) -> str:
        """HOST:PORT of the cluster's head."""
        return self.head or f"{self.host}:{self.port}"

    @property
    def ports(self) -> dict[int, str]:
        """Its ports but those of workers, and what they are for."""
        ports = {port: use for port, _, use in self.options}
        return ports if self.head else ports | {self.port + PORTS - 1: "metrics of the head"}

    @property
    def options(self) -> Iterator[tuple[int, str, str]]:
        """Its ports that are options of `ray start`, the options, and what they are for."""
        for port, (option, (use, of_head)) in enumerate(_PORTS.items(), self.port):
            if not (of_head and self.head):
                yield port, option, use


def check(settings: NodeSettings) -> None:
    """
    Check that it can be a node.

    Raises:
        ConfigError: An address is not this machine's, a port is taken, or memory is missing; all are listed.
    """
    found = ErrorCollector()
    last = settings.port + PORTS - 1
    if not 1024 <= settings.port <= 65535 - PORTS + 1:
        found.add(
            f"--port: {settings.port} is no first of {PORTS} ports; expected 1024 to {65535 - PORTS + 1}."
        )
    elif settings.host != LOOPBACK and settings.port <= WORKERS[1] and last >= WORKERS[0]:
        found.add(
            f"--port: {settings.port} to {last} are ports of the models' processes ({WORKERS[0]} to {WORKERS[1]}). Choose others."
        )
    elif not _can_listen(settings.host, 0):
        found.add(
            f"--listen: {settings.host} is no address of this machine. Give the one at which the other machines reach it."
        )
    else:
        _check_ports(settings, found)
    _check_memory(settings, found)
    found.raise_all()


def _check_ports(settings: NodeSettings, found: ErrorCollector) -> None:
    # beyond loopback Ray listens on all addresses, whatever it is told
    host = LOOPBACK if settings.host == LOOPBACK else ""
    for port, what in settings.ports.items():
        if not _can_listen(host, port):
            found.add(
                f"--port: port {port} ({what}) is in use. Stop what uses it, or name the first of {PORTS} free ports with --port."
            )


def _check_memory(settings: NodeSettings, found: ErrorCollector) -> None:
    free, total = memory.free_bytes(), memory.total_bytes()
    if free is not None and free < _NEEDED_BYTES:
        found.add(
            f"This machine has {free // memory.MIB} MiB of free memory, and a node takes {_NEEDED_BYTES // memory.MIB} MiB without "
            "any model. End something else."
        )
    asked = settings.resources.get("memory", 0)
    if total is not None and asked > total:
        found.add(
            f"--resources: memory: this machine has {total / 1024**3:.1f} GiB, and {asked / 1024**3:.1f} GiB are to be offered. Offer less."
        )


def _can_listen(host: str, port: int) -> bool:
    """Return True if a port is free at an address of this machine (empty: at all of them)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError:
            return False
    return host not in ("0.0.0.0", "::")


class Node:
    """
    The processes of a node.

    Args:
        settings: Which passed `check`.

    Attributes:
        pid: Of the process that holds all others; 0 while there is none.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._words: deque[str] = deque(maxlen=_WORDS)
        self._said = threading.Event()  # that it runs, or nothing any more
        self._over, self._stopping = threading.Event(), threading.Event()
        self._failure: str | None = None
        self._runs = self._left = False
        self.pid = 0

    @property
    def _hand_over_s(self) -> float:
        return _HAND_OVER_S if self._settings.head else 0.0

    def start(self) -> None:
        """
        Have it run. The thread that calls this must live as long as the node: the kernel ends the node with it.

        Raises:
            ConfigError: It does not, and why.
        """
        self._folder = make_folder(_LONGEST_SOCKET)  # mode 0700, as its sockets have none
        host = self._settings.address.rpartition(":")[0]
        own = {
            "DASHBOARD_METRIC_PORT": str(self._settings.port + PORTS - 1),
            # a head takes the cluster along: nobody is there to hand anything to
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(self._hand_over_s),
        }
        try:
            process = subprocess.Popen(
                python_command(_CHILD),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=child_environment() | ray_environment(host, self._settings.token) | own,
                start_new_session=True,  # Ctrl-C in the terminal is ours to handle
            )
        except OSError as error:  # no memory, no more processes
            raise ConfigError(
                f"Ray cannot be started on this machine: {error.strerror or error}. Install the extra *fleet* anew."
            ) from error
        self._process, self.pid = process, process.pid
        threading.Thread(target=self._read_words, args=[process], daemon=True).start()
        assert process.stdin is not None
        with suppress(ConnectionError), process.stdin as words:  # its words say why
            words.write(msgspec.json.encode(self._child_settings()) + b"\n")
        if not self._said.wait(_START_TIMEOUT_S):
            raise ConfigError(f"Ray did not start within {_START_TIMEOUT_S:.0f} s on this machine.")
        if not self._runs:
            raise ConfigError(self._failure or self._last_words())

    def watch(self, on_end: Callable[[str], None]) -> None:
        """Tell, in a thread, why the node has ended, unless `stop` ended it; empty where it was drained."""
        threading.Thread(target=self._watch, args=(on_end,), daemon=True).start()

    def stop(self) -> None:
        """End its processes, and wait until they are gone."""
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.pid = 0
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _child_settings(self) -> dict[str, Any]:
        return {
            "parent": os.getpid(),
            "head": self._settings.head,
            "version": self._settings.version,
            "hand_over_s": self._hand_over_s,
            "arguments": list(_arguments(self._settings, f"{self._folder}/r")),
        }

    def _read_words(self, process: subprocess.Popen[bytes]) -> None:
        """Read what it says to its end: a pipe that nobody reads would stop it."""
        assert process.stdout is not None
        with process.stdout as lines:
            for raw in lines:
                line = raw.decode(errors="replace").rstrip()
                log.debug("node: %s", line)
                self._words.append(line)
                if line.startswith('{"failed"'):
                    self._failure = str(json.loads(line)["failed"])
                elif line.startswith('{"left"'):
                    self._left = True
                elif _STARTED in line:
                    self._runs = True
                    self._said.set()
        process.wait()
        self._over.set()
        self._said.set()

    def _watch(self, on_end: Callable[[str], None]) -> None:
        self._over.wait()
        if not self._stopping.is_set():
            on_end("" if self._left else self._last_words())

    def _last_words(self) -> str:
        errors = [line for line in self._words if "rror" in line]
        last = (errors or list(self._words) or ["it said nothing"])[-1]
        return f"Ray has ended on this machine: {last[:400]}"


def _arguments(settings: NodeSettings, folder: str) -> Iterator[str]:
    """Yield the command line of `ray start`."""
    yield from ("start", "--block", "--disable-usage-stats", "--include-log-monitor=false")
    yield from (f"--node-ip-address={settings.host}", f"--temp-dir={folder}")
    yield f"--object-store-memory={_OBJECT_STORE_BYTES}"
    yield f"--labels=unilect/version={settings.version}"
    if settings.head:
        yield f"--address={settings.head}"
    else:
        yield from ("--head", "--no-monitor", "--include-dashboard=false")
    for port, option, _ in settings.options:
        yield f"--{option}={port}"
    first, last = (0, 0) if is_alone(settings.host) else WORKERS
    yield from (f"--min-worker-port={first}", f"--max-worker-port={last}")
    others = dict(settings.resources)
    for name, option in (("cpu", "num-cpus"), ("gpu", "num-gpus"), ("memory", "memory")):
        if (given := others.pop(name, None)) is not None:
            yield f"--{option}={given}"
    if others:
        yield f"--resources={json.dumps(others)}"
