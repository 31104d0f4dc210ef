"""
The keeper of a server that a command line starts: starts it, says when it can be asked, and leaves none of its processes behind.

It is the child that `ChildProcess` knows, and the parent of the server. Everything that the server starts stays below it, also what leaves
the group or loses its own parent, since it is a subreaper: so it finds all of them when they are to end. When unilect dies, however it
dies, the kernel tells the keeper, which then ends them in order.

1. The server gets a port that was free, and was held until the server ran. If it ends because somebody else has that port, it gets another.
2. It is ready once it answers 200. If it ends before, or shows no progress for long, that is the failure, with the last lines of its log.
3. To end it: the stop command, then SIGTERM to all of its processes, then SIGKILL to those that are left.

Source: prctl(2) (PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG)
"""

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from unilect.engines.process.child import clean_up
from unilect.engines.process.tree import descendants, listening_ports, listening_sockets
from unilect.runtime.child_limits import die_with, go_first, ignore_user_signals, name_signal

PORT, PID = "\0port\0", "\0pid\0"  # what they stand for is known here only
KEPT_LINES = 20
HIDDEN = "[hidden]"
_MOST_LINE_BYTES = 16_384
_TRIES = 5
_PAUSES_S = 0.02, 0.1  # between two looks at a server that starts: at first, and in the end
_QUICK_S = 3.0
_LOOK_S = 1.0  # between two looks at its progress
_ASK_TIMEOUT_S = 2.0
_SETTLES_S = 1.0  # a server whose port another process answers on may be about to fail
_REAPED_S = 5.0  # from SIGKILL to the end
#: In one look: what a server that waits for nothing takes to answer our own questions is less.
_PROGRESS_CPU_S, _PROGRESS_BYTES = 0.1, 2**20
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_FAILED = "The model's server could not be started. Try again, or ask its operator."
_NOT_YET, _STOPPED = "not yet", "It was stopped."
_libc = ctypes.CDLL(None, use_errno=True)


class Log:
    """The output of the server, handed on to our stderr line by line without secrets; the last lines are kept."""

    def __init__(self, secrets: list[str]) -> None:
        # line by line, as the log is read; of two values that begin alike the longer one goes first
        lines = {line.strip() for one in secrets for line in one.splitlines()}
        hidden = sorted((line for line in lines if len(line) > 3), key=len, reverse=True)
        self._secrets = list(map(os.fsencode, hidden))
        self.tail: deque[str] = deque(maxlen=KEPT_LINES)
        self.size_bytes = 0

    def follow(self, pipe: IO[bytes]) -> None:
        """Read a pipe to its end."""
        begun = b""
        while data := os.read(pipe.fileno(), 65_536):
            self.size_bytes += len(data)
            *lines, begun = (begun + data.replace(b"\r", b"\n")).split(b"\n")
            for line in lines:
                self._take(line)
            begun = begun[: 4 * _MOST_LINE_BYTES]  # a line without an end is cut
        self._take(begun)

    def _take(self, line: bytes) -> None:
        for secret in self._secrets:
            line = line.replace(secret, HIDDEN.encode())
        if line := line[:_MOST_LINE_BYTES].strip():
            self.tail.append(line.decode(errors="replace"))
            with suppress(OSError):
                os.write(2, line + b"\n")


class Keeper:
    """
    A server and its processes.

    Args:
        settings: `name` of the model, `words`, `stop_words` and `environment` (with PORT and PID in them), `secrets`, `socket` (empty for a port), `socket_path` (in a folder that goes with the server), `finds`
            (it listens where it will, and is to be found there), `health` (empty for the usual paths), `headers` of each question, `silence_s`, `stop_timeout_s`.

    Attributes:
        event: It has ended, or is to end.
        is_stopping: It is to end.
        port: The one that it was given, or was found at.
        pid: The server's process; 0 before it runs.
        socket: Its unix socket; empty where it has a port.
        health: The path whose answer showed that it is ready.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self.event = threading.Event()
        self.is_stopping = False
        self.port = self.pid = 0
        self._answered = 0  # the status with which it answered last; 0 for none in HTTP
        self.socket: str = settings["socket"]
        self.health = ""
        self._statuses: dict[int, int] = {}  # of what has ended
        self._log = Log(settings["secrets"])
        self._server = f"The server of the model {settings['name']}"
        self._spawned = list[
            subprocess.Popen[bytes]
        ]()  # one that is dropped waits for its process, and takes its status from us
        self._threads: list[threading.Thread] = []

    def stop(self, *_: object) -> None:
        """Have it end, as SIGTERM asks."""
        self.is_stopping = True
        self.event.set()

    def start(self) -> str:
        """Start the server; returns an empty text when it can be asked, else why it cannot."""
        for _ in range(_TRIES):
            self.event.clear()
            if self.is_stopping:
                return _STOPPED
            why = self._launch() or self._await_ready()
            if not why or self.is_stopping or not self._has_clash():
                break
            self.end()
        return why

    def _launch(self) -> str:
        """Start the process; returns why that is not possible."""
        self.pid, self._answered = 0, 0
        held = socket.socket()
        held.bind(("127.0.0.1", 0))
        self.port = held.getsockname()[1]
        try:
            self.pid = self._spawn(self._settings["words"])
        except OSError as error:
            return f"`{self._settings['words'][0]}` cannot be run: {error.strerror}."
        finally:
            held.close()
        self._attend(self._log)
        return ""

    def _spawn(self, words: list[str]) -> int:
        """Start a process; returns its pid."""
        own = os.getpid()

        def die_with_keeper() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != own:
                os._exit(1)

        environment = self._settings["environment"]
        process = subprocess.Popen(
            list(map(self._fill, words)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={name: self._fill(value) for name, value in environment.items()},
            preexec_fn=die_with_keeper,  # no thread of ours holds a lock that it takes
        )
        self._spawned.append(process)
        return process.pid

    def _attend(self, log: Log) -> None:
        """Follow the output of the process that was spawned last, and reap it."""
        follow = threading.Thread(target=log.follow, args=(self._spawned[-1].stdout,), daemon=True)
        begun = [follow, threading.Thread(target=self._reap, daemon=True)]
        for thread in begun:
            thread.start()
        self._threads += begun

    def _fill(self, word: str) -> str:
        return word.replace(PORT, str(self.port)).replace(PID, str(self.pid))

    def _reap(self) -> None:
        """Reap what ends below us until nothing is left, and note how."""
        with suppress(ChildProcessError):
            while True:
                ended, status = os.wait()
                self._statuses[ended] = os.waitstatus_to_exitcode(status)
                if ended == self.pid:
                    self.event.set()

    @property
    def _status(self) -> int | None:
        """The exit status of the server; None while it runs."""
        return self._statuses.get(self.pid)

    def _await_ready(self) -> str:
        began = looked = changed = time.monotonic()
        before = self._measure()
        while not self.event.is_set():
            now = time.monotonic()
            if now - looked >= _LOOK_S:
                looked, after = now, self._measure()
                shows_progress, before = self._shows_progress(before, after), after
                if shows_progress:
                    changed = now
                elif now - changed > self._settings["silence_s"]:
                    return self._describe_silence()
            if (answer := self._ask()) != _NOT_YET:
                return answer or self._settle()
            self.event.wait(_PAUSES_S[now - began > _QUICK_S])
        return _STOPPED if self.is_stopping else f"{self._server} ended: {self._ending}."

    def _describe_silence(self) -> str:
        showed = f"showed no progress for {self._settings['silence_s']:g} s (`start_silence_s`)"
        if not self._answered:
            return f"{self._server} {showed}: nothing in its log, no CPU time, no memory."
        return (
            f"{self._server} answers {self._answered} to {self.health} and {showed}. If it answers 200 elsewhere once it is ready, "
            "name that path in `health`."
        )

    def _measure(self) -> tuple[int, float, int]:
        processes = descendants(os.getpid()).values()
        cpu_s = sum(one.cpu_s for one in processes)
        return self._log.size_bytes, cpu_s, sum(one.resident for one in processes)

    def _shows_progress(self, before: tuple[int, float, int], after: tuple[int, float, int]) -> bool:  # fmt: skip
        return (
            # one that answers may log that we ask
            (after[0] > before[0] and not self._answered)
            or after[1] > before[1] + _PROGRESS_CPU_S
            or after[2] > before[2] + _PROGRESS_BYTES
        )

    def _settle(self) -> str:
        """Make sure that it is our server that answers, as far as can be seen: a container's port is opened by another process."""
        if self._settings["finds"] or self.socket:
            return ""
        if self.port in listening_ports(descendants(os.getpid())):
            return ""
        if self.event.wait(_SETTLES_S) and not self.is_stopping:
            return f"{self._server} ended: {self._ending}."
        return ""

    def _ask(self) -> str:
        """Ask the server, wherever it listens; returns an empty text if it is ready, `_NOT_YET`, or why it never will be."""
        if not self._settings["finds"]:
            return self._ask_there()
        processes, line = descendants(os.getpid()), "\0".join(self._settings["words"])
        ports = sorted(listening_ports(processes))
        for self.port in [port for port in ports if str(port) in line] or ports:
            if (answer := self._ask_there()) != _NOT_YET:
                return answer
        # one that it does not name is between its own processes
        for self.socket in (path for path in listening_sockets(processes) if path in line):
            if (answer := self._ask_there()) != _NOT_YET:
                return answer
        self.socket = ""
        return _NOT_YET

    def _ask_there(self) -> str:
        """Ask the server at its port or socket; returns an empty text if it is ready, `_NOT_YET`, or why it never will be."""
        self.health = self._settings["health"] or "/health"
        status = self._status_of(self.health)
        if self._settings["health"] or status not in (401, 403, 404, 405, 501):
            return "" if status == 200 else _NOT_YET
        self.health = "/v1/models"
        status = self._status_of(self.health)
        if status in (401, 403):
            return f"{self._server} answers {status} to /v1/models: it asks for a key. Give it ours with {{key}}, or set `api_key`."
        return "" if status == 200 else _NOT_YET

    def _status_of(self, path: str) -> int:
        """Return the status of the answer to a GET request; 0 where none comes."""
        headers = {"Host": "127.0.0.1", "Connection": "close", **self._settings["headers"]}
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        family = socket.AF_UNIX if self.socket else socket.AF_INET
        with (
            socket.socket(family, socket.SOCK_STREAM) as connection,
            suppress(OSError, ValueError, IndexError),
        ):
            connection.settimeout(_ASK_TIMEOUT_S)
            connection.connect(self.socket or ("127.0.0.1", self.port))
            connection.sendall("\r\n".join((*lines, "", "")).encode())
            begin = b""
            while len(begin) < 13 and (piece := connection.recv(64)):
                begin += piece
            if begin.startswith(b"HTTP/1."):
                self._answered = int(begin.split(b" ", 2)[1])
                return self._answered
        return 0

    def _has_clash(self) -> bool:
        """Return True if the server ended, and somebody else has the port that it was given."""
        if self._status is None or self._settings["socket"] or self._settings["finds"]:
            return False
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", self.port))
            except OSError:
                return True
        return False

    @property
    def _ending(self) -> str:
        """The end of the server, in words."""
        status = self._status
        if status is None or status >= 0:
            return f"exit status {status}"
        return f"killed ({name_signal(-status)})"

    def end(self) -> None:
        """
        End all processes of the server. Where it has ended itself, what is left has its time, too: Python's tracker removes shared memory then. What
        is not below us is the stop command's to end.
        """
        until = time.monotonic() + self._settings["stop_timeout_s"]
        if self.pid and self._settings["stop_words"]:
            with suppress(OSError):
                stopper = self._spawn(self._settings["stop_words"])
                self._attend(
                    Log(self._settings["secrets"])
                )  # no part of the reason why the server ended
                while stopper not in self._statuses and time.monotonic() < until:
                    time.sleep(_PAUSES_S[0])
        self._signal(signal.SIGTERM)
        if not self._wait_for_end(until):
            until = time.monotonic() + _REAPED_S
            while time.monotonic() < until:
                self._signal(signal.SIGKILL)
                if self._wait_for_end(time.monotonic() + _PAUSES_S[1]):
                    break
        while self._threads:
            self._threads.pop().join(_REAPED_S)

    def _signal(self, number: signal.Signals) -> None:
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _wait_for_end(self, until: float) -> bool:
        """Wait until nothing is left below us; false if something is at this time."""
        while descendants(os.getpid()):
            if time.monotonic() >= until:
                return False
            time.sleep(_PAUSES_S[0])
        return True

    def explain(self, why: str) -> str:
        """Return a reason with the last lines of the server's log."""
        return f"{why} Its log ends: {' | '.join(self._log.tail) or 'nothing was written'}"

    def end_likewise(self) -> None:
        """End as the server did, for whoever looks at how we end."""
        status = self._status or 0
        if status < 0:
            with suppress(OSError, ValueError):
                signal.signal(-status, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it is not our fault
            os.kill(os.getpid(), -status)
        os._exit(max(0, status))


def main() -> None:
    """Keep the server of the settings on stdin, until it ends or we are told to end it."""
    words = os.fdopen(os.dup(1), "w", errors="replace")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    keeper = Keeper(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, keeper.stop)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    die_with(settings["parent"])
    ignore_user_signals()
    go_first()
    try:
        why = keeper.start()
        if not why:
            at = {"port": keeper.port, "socket": keeper.socket, "health": keeper.health}
            _say(words, {"ready": {**at, "pid": keeper.pid}})
            keeper.event.wait()
    finally:  # also after a fault of ours
        keeper.end()
        clean_up(Path(settings["socket_path"]))
    if why:
        _say(words, {"failed": _FAILED, "reason": keeper.explain(why)})
        os._exit(1)
    if keeper.is_stopping:
        os._exit(0)
    keeper.end_likewise()


def _say(words: IO[str], what: dict[str, Any]) -> None:
    with suppress(OSError):
        print(json.dumps(what, ensure_ascii=False), file=words, flush=True)


if __name__ == "__main__":
    main()
