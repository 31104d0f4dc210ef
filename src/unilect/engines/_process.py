"""
A child process that serves one model on a unix socket: start, ready, watch, restart, stop.

It knows nothing of models. The child reads its settings (one JSON line) from stdin, and says on stdout, one JSON line each:
`{"ready": {...}}` when it serves, `{"failed": "why"}` when it never will. What it writes to stderr is kept: the last lines are the
reason when it dies without a word.

1. Children die with us: the child asks the kernel for SIGTERM at its parent's death, and its socket's folder is ours.
2. A child that dies is started again at once, and by the next `start`, after a pause that doubles with every death in
   `FORGIVEN_AFTER_S`; after `MAX_DEATHS` of them it is given up until that time has passed.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from unilect.errors import BackendUnavailable, EngineDied, UnilectError

log = logging.getLogger("unilect")
STOP_TIMEOUT_S = 5.0
FORGIVEN_AFTER_S = 600.0
MAX_DEATHS = 5
FIRST_PAUSE_S = (
    0.25  # the first death is usually an accident; running clients retry within a second
)
_STDERR_LINES = 40


class ChildProcess:
    """
    One supervised child.

    Args:
        name: For logs.
        command: The command line; the child gets `settings` on stdin.
        settings: Given the path of the socket to listen on, the child's settings.
        start_timeout_s: The longest time until it is ready.
        on_progress: Called several times a second while it starts, with its pid.
        environment: Variables for it, beside ours.

    Attributes:
        closed: True after `aclose`, until the next `start`.
        hangs: How often it was killed because it hung.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        settings: Callable[[str], dict[str, Any]],
        *,
        start_timeout_s: float,
        on_progress: Callable[[int], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._environment = dict(environment or {})
        self._command = list(command)
        self._settings = settings
        self._start_timeout_s = start_timeout_s
        self._on_progress = on_progress
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._folder: Path | None = None
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._ready: dict[str, Any] = {}
        self._closing = 0  # calls of `aclose` that have not ended
        self.closed = False
        self.hangs = 0

    @property
    def alive(self) -> bool:
        """True while the child serves."""
        return self._process is not None and self._process.returncode is None and bool(self._ready)

    @property
    def pid(self) -> int | None:
        """The child's process id while it serves."""
        return self._process.pid if self.alive and self._process is not None else None

    @property
    def socket_path(self) -> str:
        """Where the child listens; another path after every start."""
        return str(self._folder / "engine.sock") if self._folder is not None else ""

    async def start(self) -> dict[str, Any]:
        """
        Make sure that the child serves.

        Returns:
            What it said when it became ready.

        Raises:
            BackendUnavailable: It cannot be started, or has died too often.
        """
        if self.alive:
            return self._ready
        async with self._lock:
            self.closed = False
            await self._ensure()
        return self._ready

    async def has_died(self, within_s: float = 0.2) -> bool:
        """True when the child that served is gone, or goes within a moment (its broken connections are seen first)."""
        process = self._process
        if process is None:
            return True
        try:
            async with asyncio.timeout(within_s):
                await process.wait()
        except TimeoutError:
            return False
        return True

    async def judge(self, error: UnilectError, hangs: int, last: bool) -> None:
        """
        What it means that an answer of the child broke: returns where the child died and the answer may be begun once more.

        Args:
            error: How it broke.
            hangs: `hangs` when the answer was begun.
            last: It has begun, or was begun again already.

        Raises:
            UnilectError: The error itself where the child lives, or cannot be started again; BackendUnavailable when it was
                stopped; EngineDied.
        """
        if self.closed:
            raise BackendUnavailable("The model was stopped.", retry_after_s=5) from error
        if not await self.has_died():
            raise error
        if self.hangs > hangs:
            raise EngineDied(
                "The model's engine hung, perhaps on a grammar or schema that is too hard for it, "
                "and is being started again."
            ) from error
        if last and type(error) is BackendUnavailable:  # it says itself why it was not started
            raise error
        if last:
            raise EngineDied(
                "The model's engine died in the middle of the answer and is being started "
                "again. Send the request again."
            ) from error

    def kill_hung(self) -> None:
        """Kill a child that answers nobody; it is started again like any that died."""
        self.hangs += 1
        if self._process is not None and self._process.returncode is None:
            log.error("%s: the engine hangs and is killed", self._name)
            self._process.kill()

    async def aclose(self) -> None:
        """Stop the child: SIGTERM, and SIGKILL after STOP_TIMEOUT_S. One that still loads is not waited for."""
        self._closing += 1
        try:
            if self._process is not None and self._process.returncode is None and not self._ready:
                self._process.terminate()
            async with self._lock:
                self.closed = True
                await self._stop()
        finally:
            self._closing -= 1

    async def _ensure(self) -> None:
        """Start the child where it does not serve; the lock is held."""
        if self.alive:
            return
        if self._watcher is not None:
            # The watcher of a dead child cleans up; it must not meet the next one's folder.
            await asyncio.shield(self._watcher)
        await self._pause_after_deaths()
        await self._start()

    async def _pause_after_deaths(self) -> None:
        now = time.monotonic()
        while self._deaths and now - self._deaths[0] > FORGIVEN_AFTER_S:
            self._deaths.popleft()
        if len(self._deaths) == MAX_DEATHS:
            raise BackendUnavailable(
                f"The engine of this model died {MAX_DEATHS} times within {FORGIVEN_AFTER_S:.0f} s and "
                "is not started again for now. The server's log says why.",
                retry_after_s=FORGIVEN_AFTER_S - (now - self._deaths[0]),
            )
        if self._deaths:
            pause_s = FIRST_PAUSE_S * 2.0 ** (len(self._deaths) - 1)
            await asyncio.sleep(max(0.0, self._deaths[-1] + pause_s - now))

    async def _start(self) -> None:
        if self._closing:
            raise BackendUnavailable("The model was stopped.", retry_after_s=5)
        self._stderr.clear()
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="unilect-"))  # mode 0700
            process = await self._spawn()
        except OSError as error:  # no memory, no more files, no space
            self._forget()
            raise BackendUnavailable(
                f"The engine's process cannot be started: {error.strerror or error}."
            ) from error
        self._process = process
        self._watcher = asyncio.create_task(self._watch(process))
        try:
            async with asyncio.timeout(self._start_timeout_s):
                self._ready = await self._handshake(process)
        except TimeoutError as error:
            await self._stop()
            raise BackendUnavailable(
                f"The model did not load within {self._start_timeout_s:.0f} s (`start_timeout_s`)."
            ) from error
        except BaseException:
            await self._stop()
            raise

    async def _spawn(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_child_environment() | self._environment,
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
        settings = self._settings(self.socket_path) | {"parent": os.getpid()}
        try:
            process.stdin.write(msgspec.json.encode(settings) + b"\n")
            await process.stdin.drain()
        except ConnectionError:
            log.debug("%s: the child closed its stdin", self._name)
        progress = asyncio.create_task(self._report_progress(process))
        try:
            async for line in _lines(process.stdout):
                try:
                    said = msgspec.json.decode(line, type=dict[str, Any])
                except msgspec.DecodeError:
                    continue  # a library that prints
                if "ready" in said:
                    return dict(said["ready"])
                if "failed" in said:
                    raise BackendUnavailable(str(said["failed"]))
        finally:
            progress.cancel()
        await process.wait()
        raise BackendUnavailable(f"The engine ended while it loaded the model: {self._reason()}")

    async def _report_progress(self, process: asyncio.subprocess.Process) -> None:
        while self._on_progress is not None:
            self._on_progress(process.pid)
            await asyncio.sleep(0.1)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Keep the last lines of stderr; when the child ends, clean up after it."""
        assert process.stderr is not None
        async for line in _lines(process.stderr):
            text = line.decode(errors="replace").rstrip()
            self._stderr.append(text)
            log.debug("%s: %s", self._name, text)
        await process.wait()
        if self._process is process and not self.closed and self._ready:
            self._deaths.append(time.monotonic())
            log.error("%s: the engine died (%s): %s", self._name, _status(process), self._reason())
            self._forget()
            asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        try:
            async with self._lock:
                if self.closed:  # stopped between the death and now: nobody wants it back
                    return
                await self._ensure()
            log.info("%s: the engine is back", self._name)
        except BackendUnavailable as error:
            log.error("%s: %s", self._name, error.message)

    async def _stop(self) -> None:
        process, self._ready = self._process, {}
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.send_signal(signal.SIGKILL)
                await process.wait()
        if self._watcher is not None:
            await self._watcher
            self._watcher = None
        self._forget()

    def _forget(self) -> None:
        self._ready = {}
        self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _reason(self) -> str:
        """The first line on stderr that speaks of an error, else the last line."""
        lines = [line for line in self._stderr if line.strip()]
        telling = [line for line in lines if "error" in line.lower() or "failed" in line.lower()]
        return (telling or lines[-1:] or ["it said nothing"])[0][-300:]


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a stream, but for those without an end (a bar of progress): a reader that gave up would stop the writer."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # what came of it is dropped
            continue
        if not line:
            return
        yield line


def python_command(module: str) -> list[str]:
    """The command line that runs a module of ours in a child."""
    return [sys.executable, "-m", module]


def _child_environment() -> dict[str, str]:
    """Ours, without proxies and secrets: a child talks to nobody but us."""
    hidden = ("_PROXY", "_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
    return {name: value for name, value in os.environ.items() if not name.upper().endswith(hidden)}


def _status(process: asyncio.subprocess.Process) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"
