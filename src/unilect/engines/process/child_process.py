"""
A child process that serves one model on a unix socket: start, readiness, monitoring, restart, stop.

It knows nothing of models and of requests. The child reads its settings (one JSON line) from stdin, and says on stdout, one JSON
line each: `{"ready": {...}}` when it serves, `{"failed": "why"}` when it never will. What it writes to stderr is kept: the last lines
are the reason when it dies without a word.

1. Children die with us: the child asks the kernel for SIGTERM at its parent's death, and its socket's folder is ours.
2. A start belongs to the engine and not to the request that caused it: it is one task, whose result all who wait share, also
   its failure. Only `aclose` cancels it.
3. A child that dies is started again, when `_restarts.py` says; who wants to know is told (`witnesses`).
4. A child whose socket somebody has removed cannot be reached any more, and is started again.
"""

import asyncio
import fcntl
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from unilect.api.backend import Happening, Witness
from unilect.core.errors import BackendUnavailable, ModelTooLarge
from unilect.engines.process._processes import is_ending, kill_group, read_lines
from unilect.engines.process._restarts import Restarts
from unilect.engines.process._stderr_tail import StderrTail, describe_exit
from unilect.engines.process.loads import LoadRecorder
from unilect.engines.process.tree import descendants
from unilect.residency.ledger import LEDGER
from unilect.runtime.child_environment import child_environment
from unilect.runtime.line_log import Line, LineLog
from unilect.runtime.memory import proportional_bytes, resident_bytes
from unilect.runtime.socket_folders import make_folder
from unilect.runtime.tasks import join_shared, spawn_detached

log = logging.getLogger("unilect")
STOP_TIMEOUT_S = 5.0
_DYING_S = 0.2  # from a broken connection to the first sign that the process ends
_REAPED_S = 30.0  # from that sign to its end: a large process is taken apart first
_SOCKET = "engine.sock"

#: stopped: not started yet, or stopped. died: it comes back. failed: the last start failed; the next request tries again.
State: TypeAlias = Literal["stopped", "loading", "ready", "stopping", "died", "failed"]


class _Killed(BackendUnavailable):
    """The child was killed before it was ready."""


class ChildProcess:
    """
    One supervised child.

    Args:
        name: For logs.
        command: The command line; the child gets `settings` on stdin.
        settings: Given the path of the socket to listen on, the child's settings.
        start_timeout_s: The longest time until it is ready; None for one that watches its start itself.
        on_progress: Called several times a second while it starts, with its pid.
        takes_bytes: What it takes of memory while it starts, beside files that it maps, as far as that is known.
        environment: Variables for it, beside ours.
        loads: Measures its memory when it is ready, and before it is stopped.
        stop_timeout_s: How long it may take to end when it is told to.
        is_keeper: It keeps a server of another make, which listens where it will: it has no socket of its own, it is told to end at any time, so
            that it ends that server, and the lines of its log are the reason when it dies.

    Attributes:
        state: What it is doing.
        starts: How often it has become ready; tells one life from the next.
        deaths: How often it ended unasked after it had been ready.
        hangs: How often it was killed because it hung.
        restarts: When it may be started again.
        witnesses: Told when it dies, is started again, or is not.
        replaced: The last life that we ended ourselves: it was stopped, or could not be reached any more.
        socket_path: The path of its socket, which changes at every start; empty where there is none.
        log: What it wrote to stderr, in this life and in those before.
        before_stop: Called before a child that serves is stopped; takes no longer than it may. Who wants to start it waits.
        on_death: Told which life has ended unasked; returns how many of the deaths so far one request is to blame for.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        settings: Callable[[str], dict[str, Any]],
        *,
        start_timeout_s: float | None,
        on_progress: Callable[[int], None] | None = None,
        environment: Mapping[str, str] | None = None,
        takes_bytes: int = 0,
        loads: LoadRecorder | None = None,
        stop_timeout_s: float = STOP_TIMEOUT_S,
        is_keeper: bool = False,
    ) -> None:
        self.name = name
        self._environment = dict(environment or {})
        self._command = list(command)
        self._settings = settings
        self._start_timeout_s = start_timeout_s
        self._takes_bytes, self._loads = takes_bytes, loads
        self._on_progress = on_progress
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[dict[str, Any]] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._reviving: asyncio.Task[None] | None = None
        self._folder: Path | None = None
        self._folder_lock: int | None = None
        self._stop_timeout_s, self._is_keeper = stop_timeout_s, is_keeper
        self._stderr_tail = StderrTail(is_keeper)
        self.restarts = Restarts()
        self.witnesses = set[Witness]()
        self._ready_at = 0.0
        self._hung = ""  # how it did, of one that was killed for that
        self._ready: dict[str, Any] = {}
        self.state: State = "stopped"
        self.starts = 0
        self.deaths = 0
        self.hangs = 0
        self.replaced = 0
        self.socket_path = ""
        self.log = LineLog()
        self.before_stop: Callable[[], Awaitable[None]] | None = None
        self.on_death: Callable[[int], int] = lambda life: 0

    @property
    def alive(self) -> bool:
        """True while the child serves, and can be reached."""
        path = self._ready.get("socket") if self._is_keeper else self.socket_path
        return self.pid is not None and (not path or os.path.exists(path))

    @property
    def pid(self) -> int | None:
        """The child's process id while it serves."""
        process = self._process
        serves = self.state == "ready" and process is not None and process.returncode is None
        return process.pid if process is not None and serves else None

    @property
    def pids(self) -> list[int]:
        """Its process while it serves, and those that it keeps."""
        if (pid := self.pid) is None:
            return []
        return [pid, *descendants(pid)] if self._is_keeper else [pid]

    @property
    def starting_pid(self) -> int | None:
        """The child's process id while it starts or serves."""
        return None if self._process is None else self._process.pid

    @property
    def processes(self) -> int:
        """1 while the child serves, else 0."""
        return int(self.pid is not None)

    @property
    def resident_memory_bytes(self) -> int:
        """The bytes that the child has in memory; 0 while it does not run."""
        return sum(map(resident_bytes, self.pids))

    @property
    def proportional_memory_bytes(self) -> int:
        """The bytes that the child has in memory, its part of what it shares with others; 0 while it does not run. See `proportional_bytes`."""
        return sum(map(proportional_bytes, self.pids))

    @property
    def comes_back(self) -> bool:
        """True if it has been ready, and serves or will serve again by itself."""
        return self.starts > 0 and self.state in ("ready", "died", "loading")

    @property
    def ended_from_outside(self) -> bool:
        """True if the child that served was ended by somebody else: by SIGKILL, as the kernel does for want of memory, or in order."""
        process = self._process
        return process is not None and process.returncode in (-signal.SIGKILL, -signal.SIGTERM, 0)

    @property
    def ended_for_memory(self) -> bool:
        """Return True if the child that served said that it had no memory left."""
        return self._stderr_tail.of_memory()

    @property
    def closed(self) -> bool:
        """True after `aclose`, until the next `start`."""
        return self.state in ("stopped", "stopping")

    async def start(self) -> dict[str, Any]:
        """
        Make sure that the child serves. A caller that gives up does not stop what others wait for.

        Returns:
            Its words when it became ready.

        Raises:
            BackendUnavailable: It cannot be started, or has died too often, or was stopped meanwhile.
        """
        if self.alive:
            return self._ready
        while self._stopping is not None and not self._stopping.done():
            await asyncio.shield(self._stopping)
        if self._starting is None or self._starting.done():
            self._starting = spawn_detached(self._bring_up())
        return await join_shared(self._starting)

    def forgive(self) -> None:
        """Forget its deaths and the starts that failed: somebody who has looked into them wants it to be tried at once."""
        self.restarts.forgive()

    async def has_ended(self, life: int) -> bool:
        """Return True if this life of the child is over, or ends just now (its broken connections are seen first)."""
        process = self._process
        if life != self.starts or self.state != "ready" or process is None:
            return True
        pids = {process.pid, self._ready.get("pid", process.pid)}  # a keeper ends after its server
        for within_s in (_DYING_S, _REAPED_S):
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await process.wait()
            if process.returncode is not None or not any(map(is_ending, pids)):
                break
        if process.returncode is not None and self._watcher is not None:
            with suppress(TimeoutError):  # it hears why
                async with asyncio.timeout(_DYING_S):
                    await asyncio.shield(self._watcher)
        return process.returncode is not None

    def kill_hung(self, how: str) -> None:
        """Kill a child that hangs, or the server that it keeps; it is started again like any that died. `how` is a sentence's end, for the operator."""
        self.hangs += 1
        self._hung = how
        if self._process is not None and self._process.returncode is None:
            log.error("%s: the engine is unresponsive; killing it", self.name)
            own = self._process.pid
            pid = int(self._ready["pid"]) if self._is_keeper else own
            with suppress(ProcessLookupError):
                os.kill(pid if pid in descendants(own) else own, signal.SIGKILL)

    async def aclose(self) -> None:
        """Stop the child: SIGTERM, and SIGKILL after its time. One that still loads, and keeps nothing, is not waited for."""
        if self._stopping is None or self._stopping.done():
            serves, self.state = self.state == "ready", "stopping"  # at once: who comes now waits
            self.replaced = self.starts
            if self._starting is not None:
                self._starting.cancel()  # at once, too: it may have been told that the child is ready
            self._stopping = spawn_detached(self._shut_down(serves))
        await asyncio.shield(self._stopping)

    async def _bring_up(self) -> dict[str, Any]:
        """Start a child in place of what there is: none, one that died, or one whose socket is lost."""
        try:
            if self.pid is not None:
                log.error("%s: the engine's socket was removed; it is started again", self.name)
                self.replaced, self.state = self.starts, "loading"
                await self._end()
            elif self._watcher is not None:
                # The watcher of a dead child counts the death and cleans up; it must not meet the next one's folder.
                await asyncio.shield(self._watcher)
            if self.state != "died":  # that is what it is until the pause is over
                self.state = "loading"
            await self._pause()
            self.state = "loading"
            began = time.monotonic()
            with LEDGER.reserve(self, self._takes_bytes):
                try:
                    self._ready = await self._launch()
                except _Killed:  # somebody else has done it, or it was no better than any other process to the kernel
                    log.warning("%s: the engine was killed while it loaded; it is started again", self.name)  # fmt: skip
                    self._ready = await self._launch()
                self._stderr_tail.serves = True
                if self._loads is not None and self._process is not None:
                    took = time.monotonic() - began, self._ready
                    await asyncio.to_thread(self._loads.note_ready, self._process.pid, *took)
        except BackendUnavailable as error:
            if self.state == "loading":  # else it was given up, and nothing was tried
                self.restarts.note_failure(error)
            self.state = "failed"
            raise
        self.restarts.failures = 0
        self.state, self._ready_at, self._hung = "ready", time.monotonic(), ""
        self.starts += 1
        return self._ready

    async def _pause(self) -> None:
        """
        Wait until a child may be started after those that died, and after starts that failed.

        Raises:
            BackendUnavailable: That is too long.
        """
        try:
            self.restarts.check()
        except BackendUnavailable:
            self.state = "failed"
            raise
        await asyncio.sleep(self.restarts.rest_s)

    async def _launch(self) -> dict[str, Any]:
        self._stderr_tail = StderrTail(self._is_keeper)
        try:
            self._make_folder()
            process = await self._spawn()
        except OSError as error:  # no memory, no more files, no space
            self._forget()
            raise BackendUnavailable(
                f"The engine's process cannot be started: {error.strerror or error}. Free memory or processes on its machine, and try again."
            ) from error
        self._process = process
        self._watcher = spawn_detached(self._watch(process))
        try:
            async with asyncio.timeout(self._start_timeout_s):
                return await self._handshake(process)
        except TimeoutError as error:
            await self._end()
            raise BackendUnavailable(
                f"The model did not load within {self._start_timeout_s:.0f} s (`start_timeout_s`)."
            ) from error
        except BaseException:
            await self._end()
            raise

    def _make_folder(self) -> None:
        self._folder = make_folder(_SOCKET)
        self.socket_path = str(self._folder / _SOCKET)
        self._folder_lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._folder_lock, fcntl.LOCK_SH)  # systemd-tmpfiles spares what is locked

    async def _spawn(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment() | self._environment,
            limit=2**20,
            start_new_session=True,  # Ctrl-C in the terminal is ours to handle
        )

    async def _handshake(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        """
        Give the child its settings and wait for its word.

        Raises:
            BackendUnavailable: It failed, or ended without a word.
        """
        assert process.stdin is not None
        assert process.stdout is not None
        settings = self._settings(self.socket_path) | {
            "parent": os.getpid(),
            "reserved_bytes": LEDGER.of_others(self),
            "verbose": log.isEnabledFor(logging.DEBUG),
        }
        try:
            # in ASCII: paths and variables may be no UTF-8
            process.stdin.write(json.dumps(settings, default=msgspec.to_builtins).encode() + b"\n")
            await process.stdin.drain()
        except ConnectionError:
            log.debug("%s: the child closed its stdin", self.name)
        progress = asyncio.create_task(self._report_progress(process))
        try:
            async for line in read_lines(process.stdout):
                try:
                    said = msgspec.json.decode(line, type=dict[str, Any])
                except msgspec.DecodeError:
                    continue  # a library that prints
                if "ready" in said and process.returncode is None:
                    return dict(said["ready"])
                if "failed" in said:
                    kind = ModelTooLarge if "too_large" in said else BackendUnavailable
                    raise kind(str(said["failed"]), reason=said.get("reason"))
        finally:
            progress.cancel()
        if self._watcher is not None:  # it reads stderr to its end
            await asyncio.shield(self._watcher)
        kind = _Killed if process.returncode == -signal.SIGKILL else BackendUnavailable
        told = f"The engine ended while it loaded the model {self.name}"
        why = self._stderr_tail.of_load(process.returncode)
        # the log of another's server is its operator's alone
        raise kind(f"{told}.", reason=why) if self._is_keeper else kind(f"{told}: {why}")

    async def _report_progress(self, process: asyncio.subprocess.Process) -> None:
        while self._on_progress is not None:
            self._on_progress(process.pid)
            await asyncio.sleep(0.1)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Keep the last lines of stderr; when a child that served ends unasked, clean up after it and have it come back."""
        assert process.stderr is not None
        words = self._stderr_tail
        async for line in read_lines(process.stderr):
            text = words.append(line)
            if text:
                log.debug("%s: %s", self.name, text)
                self._keep(process, text)
        await process.wait()
        self._keep(process, f"[ended: {describe_exit(process.returncode)}]")
        if self._process is not process or self.state != "ready":
            return
        self.deaths += 1
        if self._is_keeper:
            kill_group(process)
        self.restarts.note_death(self.on_death(self.starts))
        log.error("%s: the engine died: %s", self.name, words.of_death(process.returncode))
        self._tell_death(process.returncode)
        self._forget()
        self.state = "died"
        self._reviving = spawn_detached(self._restart())

    def _keep(self, process: asyncio.subprocess.Process, text: str) -> None:
        self.log.append(Line(time.time(), process.pid, text))

    def _tell_death(self, status: int | None) -> None:
        ran_s, line = time.monotonic() - self._ready_at, self._stderr_tail.last_word
        how = f"{self._hung}, and was killed" if self._hung else describe_exit(status)
        told = f"{'hung' if self._hung else 'died'} after {ran_s:.0f} s: {how}; {self.restarts.describe()}"
        told += f"; its log says: {line}" if line else ""
        numbers = {"ran_s": ran_s, "restart_s": self.restarts.rest_s}
        if status is not None:
            numbers["status"] = status
        self._tell("hung" if self._hung else "died", told, **numbers)

    def _tell(self, kind: Happening, reason: str, **numbers: float) -> None:
        for witness in self.witnesses:
            witness(kind, reason, **numbers)

    async def _restart(self) -> None:
        if self.closed:  # stopped between the death and now: nobody wants it back
            return
        began = time.monotonic()
        try:
            await self.start()
            down_s = time.monotonic() - began
            log.info("%s: the engine is back", self.name)
            self._tell("restarted", f"restarted, in {down_s:.1f} s", down_s=down_s)
        except BackendUnavailable as error:
            if not self.closed:
                log.error("%s: %s", self.name, error.for_operator)
                self._tell("failed", f"not restarted: {error.for_operator}")

    async def _shut_down(self, serves: bool) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})
        process = self._process
        try:
            if serves and self.before_stop is not None:
                await self.before_stop()
            if serves and process is not None and self._loads is not None:
                await asyncio.to_thread(self._loads.note_end, process.pid)
        finally:
            await self._end(in_order=serves)
            self.state = "stopped"

    async def _end(self, in_order: bool = False) -> None:
        """End the child where it lives, and clean up; in order it has time to do it itself."""
        process = self._process
        if process is not None and process.returncode is None:
            if in_order or self._is_keeper:
                process.terminate()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._stop_timeout_s):
                        await process.wait()
            if self._is_keeper:
                kill_group(process)
            else:
                with suppress(ProcessLookupError):
                    process.kill()
            await process.wait()
        if self._watcher is not None:
            await asyncio.shield(self._watcher)  # who is cancelled here leaves it to the stop
            self._watcher = None
        self._forget()

    def _forget(self) -> None:
        self._ready = {}
        self._process = None
        if self._folder_lock is not None:
            os.close(self._folder_lock)
            self._folder_lock = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder, self.socket_path = None, ""


def python_command(module: str) -> list[str]:
    """Return the command line that runs a module of ours in a child."""
    return [sys.executable, "-m", module]
