"""
What others feel while a server is attacked: how long its `/healthz` and another client's stream stand still, and what memory it takes.

It runs in a process of its own, so that making bodies of megabytes in the test does not look like a stall of the server.
"""

import json
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

#: Between two questions, and between two stories. Only where the seconds are held against the promise must none be missed.
PAUSE_S = 0.01 if "UNILECT_HOSTILE" in os.environ else 0.1
_CHAT = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 60,
    "stream": True,
}


@dataclass
class Felt:
    """
    What the others felt since the last look.

    Attributes:
        healthz_s: The longest wait for `/healthz`, in seconds.
        busy_s: The longest time of the processor that the server's event loop took within one wait for `/healthz`: a stall of its
            making, and no noise.
        busy_gap_s: The same, between two reads of the other stream.
        gap_s: The longest silence of the other stream between two reads, once it had begun.
        healthz_own_s, gap_own_s: The same without the time in which those concerned stood in the queue for a processor, which the
            kernel counts: what is left where a machine has enough of them.
        broken: How often the other stream ended in anything but `[DONE]`.
        finished: How often it ended well.
        grown_bytes: How far each process grew, at most, by its pid.
    """

    healthz_s: float = 0.0
    busy_s: float = 0.0
    busy_gap_s: float = 0.0
    gap_s: float = 0.0
    healthz_own_s: float = 0.0
    gap_own_s: float = 0.0
    broken: list[str] = field(default_factory=list)
    finished: int = 0
    grown_bytes: dict[int, int] = field(default_factory=dict)


@contextmanager
def watching(port: int, pid: int, key: str) -> Iterator["Watch"]:
    """Watch a server until the block ends."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_watch, args=(theirs, port, pid, key), daemon=True
    )
    process.start()
    theirs.close()
    try:
        yield Watch(ours)
    finally:
        ours.send("end")
        process.join(30)
        process.kill()


class Watch:
    """The watching process, seen from the test."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.recv()  # it watches

    def felt(self) -> Felt:
        """What was felt since the last call."""
        self._connection.send("felt")
        felt: Felt = self._connection.recv()
        return felt


def _watch(connection: Connection, port: int, pid: int, key: str) -> None:
    state = _State(port, pid, key)
    for task in (state.ask_health, state.read_streams, state.measure_memory):
        threading.Thread(target=task, daemon=True).start()
    connection.send("ready")
    while connection.recv() == "felt":
        connection.send(state.take())


class _State:
    """What three threads have seen."""

    def __init__(self, port: int, pid: int, key: str) -> None:
        self._port, self._pid, self._key = port, pid, key
        self._felt = Felt()
        self._lock = threading.Lock()
        self._first: dict[int, int] = {}

    def take(self) -> Felt:
        """What has been seen, and begin anew."""
        with self._lock:
            felt, self._felt = self._felt, Felt()
        return felt

    def ask_health(self) -> None:
        """Ask `/healthz` over one kept connection, again and again."""
        request = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n".encode()
        while True:
            with suppress(OSError), self._connected() as connection:
                threads = _threads(self._pid, engines=False)
                while True:
                    begun, busy = time.monotonic(), loop_s(self._pid)
                    queue = _Queue(threads)
                    connection.sendall(request)
                    if not connection.recv(65536):
                        break
                    waited = time.monotonic() - begun
                    own_s = waited - queue.waited_s()
                    with self._lock:
                        self._felt.healthz_own_s = max(self._felt.healthz_own_s, own_s)
                        self._felt.healthz_s = max(self._felt.healthz_s, waited)
                        self._felt.busy_s = max(self._felt.busy_s, loop_s(self._pid) - busy)
                    time.sleep(PAUSE_S)

    def read_streams(self) -> None:
        """Read stories, one after the other, as a client that has nothing to do with the attack."""
        body = json.dumps(_CHAT).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Authorization: Bearer {self._key}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        while True:
            try:
                with self._connected() as connection:
                    connection.sendall(head.encode() + body)
                    self._read_stream(connection)
                time.sleep(PAUSE_S)
            except OSError as error:
                with self._lock:
                    self._felt.broken.append(repr(error))

    def _read_stream(self, connection: socket.socket) -> None:
        threads = _threads(self._pid, engines=True)
        told, last, queue, busy = b"", 0.0, _Queue(threads), loop_s(self._pid)
        while data := connection.recv(65536):
            now, busy_before, busy = time.monotonic(), busy, loop_s(self._pid)
            if last:
                with self._lock:
                    self._felt.busy_gap_s = max(self._felt.busy_gap_s, busy - busy_before)
            if last and now - last > self._felt.gap_own_s:
                own_s = now - last - queue.waited_s()
                with self._lock:
                    self._felt.gap_s = max(self._felt.gap_s, now - last)
                    self._felt.gap_own_s = max(self._felt.gap_own_s, own_s)
            if now - queue.since > PAUSE_S:
                queue = _Queue(threads)
            told = (told + data)[-2000:]
            last = now if b"data:" in told else 0.0
        with self._lock:
            if b"[DONE]" in told:
                self._felt.finished += 1
            else:
                self._felt.broken.append(told.decode(errors="replace")[-400:])

    def measure_memory(self) -> None:
        """How far the server and its children have grown since each was first seen."""
        while True:
            with suppress(psutil.Error):
                server = psutil.Process(self._pid)
                for process in (server, *server.children(recursive=True)):
                    self._measure(process)
            time.sleep(0.05)

    def _measure(self, process: psutil.Process) -> None:
        with suppress(psutil.Error):
            taken = process.memory_info().rss
            grown = taken - self._first.setdefault(process.pid, taken)
            with self._lock:
                known = self._felt.grown_bytes
                known[process.pid] = max(known.get(process.pid, 0), grown)

    def _connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=60)


class _Queue:
    """How long, from now on, threads stand in the queue for a processor: this process's, a server's, and those of its engines."""

    def __init__(self, threads: list[Path]) -> None:
        self.since = time.monotonic()
        self._threads = [*Path("/proc/self/task").glob("*"), *threads]
        self._before = self._read()

    def waited_s(self) -> float:
        """All of them together so far: they wait for each other."""
        pairs = zip(self._read(), self._before, strict=True)
        return sum(max(now - before, 0.0) for now, before in pairs)

    def _read(self) -> list[float]:
        return [_queued_s(thread) for thread in self._threads]


def _threads(pid: int, engines: bool) -> list[Path]:
    """The threads of a server, and of its engines; what compiles grammars works for others."""
    found = [*Path(f"/proc/{pid}/task").glob("*")]
    with suppress(OSError, psutil.Error):
        for child in psutil.Process(pid).children() if engines else ():
            if not any("unilect.constraints" in part for part in child.cmdline()):
                found += Path(f"/proc/{child.pid}/task").glob("*")
    return found


def _queued_s(task: Path) -> float:
    """How long a thread has stood in the queue for a processor; 0 where the kernel does not tell, or the thread has ended."""
    with suppress(OSError):
        return int((task / "schedstat").read_text().split()[1]) / 1e9
    return 0.0


def loop_s(pid: int) -> float:
    """The processor's time of a process's first thread, which a server's event loop runs in."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
