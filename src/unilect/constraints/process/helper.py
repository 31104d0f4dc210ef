"""A helper process that compiles constraints: it is started when it is asked, and replaced after it has ended or was killed."""

import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from unilect.constraints import ConstraintError
from unilect.core.errors import CheckerUnavailable
from unilect.runtime.child_environment import child_environment

log = logging.getLogger("unilect")
_Kind = TypeVar("_Kind")
QUICK_S = 0.5
PATIENT_S = 2.0
_WALL = 3  # times as long, where the helper is not given the processor
_START_S = 30.0
_LINE_BYTES = 64 * 1024 * 1024
_LOOK_S = 0.1
_TOLD_BYTES = 4096  # of what a helper wrote to stderr
_TOO_LONG = "compiling it takes too long. Make it smaller, with fewer alternatives and repetitions."


class TooLong(ConstraintError):
    """A job exceeded its time limit."""


class Answer(Struct):
    """
    The answer of a helper to a job.

    Attributes:
        done: The job's value.
        refused: Why the constraint is refused.
        flaw: The traceback of an error that is no refusal.
        last: The helper must be replaced.
    """

    done: Any = UNSET
    refused: str | UnsetType = UNSET
    flaw: str = ""
    last: bool = False

    @property
    def is_any(self) -> bool:
        """It says something to the job."""
        return self.done is not UNSET or self.refused is not UNSET or bool(self.flaw)


class Ended(Struct, frozen=True):
    """
    A helper has ended instead of answering.

    Attributes:
        status: Its exit status, or a negative signal.
        words: The end of what it wrote to stderr.
        babbled: It said what is no answer, and was killed by us.
    """

    status: int
    words: str
    babbled: bool = False

    def __str__(self) -> str:
        """Return the status in words, and the helper's own."""
        if self.babbled:
            return "it said what is no answer"
        if self.status < 0:
            return f"signal {signal.strsignal(-self.status) or -self.status}"
        return f"exit status {self.status}{self.words and ': '}{self.words}"


class Helper:
    """
    One process, or none. It is asked by one task at a time.

    Args:
        command: Its command line.

    Attributes:
        used_s: The processor's time that its jobs have taken.
        start_s: The time that its starts have taken.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: IO[bytes] | None = None
        self.used_s = self.start_s = 0.0

    @property
    def pid(self) -> int | None:
        """Its process id; None where no process runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def ask(self, line: bytes, budget_s: float) -> Answer | Ended:
        """
        Return the helper's answer to a job.

        Args:
            budget_s: CPU time; it may take three times as long by the clock.

        Raises:
            TooLong: It did not answer in time, and was killed.
            CheckerUnavailable: It cannot be started.
        """
        process = self._process
        if process is None or process.returncode is not None:
            begun = time.monotonic()
            try:
                process = await self._start()
            finally:
                self.start_s += time.monotonic() - begun
        talk = asyncio.create_task(_talk(process, line))
        try:
            await self._wait(process, talk, budget_s)
            said = talk.result()
        except BaseException:
            talk.cancel()
            await self.kill()  # it is at work on what nobody waits for
            raise
        if not said:
            return await self._end()
        answer = _decode(said, Answer)
        if answer is None or not answer.is_any:
            self._signal()
            return await self._end(babbled=True)
        return answer

    async def kill(self) -> None:
        """End the process, if one runs."""
        if self._process is not None:
            self._signal()
            await self._end()
        elif self._stderr is not None:  # there was to be one
            self._stderr.close()
            self._stderr = None

    def _signal(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()

    async def _wait(
        self, process: asyncio.subprocess.Process, talk: "asyncio.Task[Any]", budget_s: float
    ) -> None:
        """Wait for an answer; errors as `ask`."""
        begun, used = time.monotonic(), _processor_s(process.pid)
        busy_s = 0.0
        try:
            while not talk.done():
                await asyncio.wait({talk}, timeout=_LOOK_S)
                elapsed_s = time.monotonic() - begun
                now = _processor_s(process.pid)
                busy_s = elapsed_s if now is None or used is None else now - used
                if not talk.done() and max(busy_s, elapsed_s / _WALL) >= budget_s:
                    raise TooLong(_TOO_LONG)
        finally:
            self.used_s += busy_s

    async def _start(self) -> asyncio.subprocess.Process:
        """
        Start a new process that is ready.

        Raises:
            CheckerUnavailable: There is none.
        """
        await self.kill()
        try:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the process
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._stderr,
                env=child_environment(),
                limit=_LINE_BYTES,
                start_new_session=True,
            )
            async with asyncio.timeout(_START_S):
                line = await _read(self._process)
        except (OSError, TimeoutError) as error:
            await self.kill()
            raise _not_started(str(error) or "it took too long") from error
        except asyncio.CancelledError:
            await self.kill()
            raise
        said = _decode(line, dict[str, Any])
        if said is None or "ready" not in said:
            self._signal()
            ended = await self._end()
            raise _not_started((said or {}).get("failed") or ended.words or "it ended at once")
        return self._process

    async def _end(self, babbled: bool = False) -> Ended:
        """Wait for the end of the process, which has ended or was killed, and forget it; two may wait for it at once."""
        process, stderr = self._process, self._stderr
        assert process is not None
        assert stderr is not None
        status = await process.wait()
        ended = Ended(status, "" if stderr.closed else _last_words(stderr), babbled)
        if self._process is process:
            self._process = self._stderr = None
        stderr.close()
        return ended


def command(standing: Path) -> list[str]:
    """
    Return the helper's command line.

    Args:
        standing: A GGUF file with which llama.cpp runs grammars.
    """
    return [
        sys.executable,
        "-m",
        "unilect.constraints.process.child",
        str(os.getpid()),
        str(standing),
    ]


async def _talk(process: asyncio.subprocess.Process, line: bytes) -> bytes:
    """Send a line to a helper, and return its answer; empty where it has ended."""
    assert process.stdin is not None
    try:
        process.stdin.write(line)
        await process.stdin.drain()
    except ConnectionError:
        return b""
    return await _read(process)


async def _read(process: asyncio.subprocess.Process) -> bytes:
    """Read the next line of a helper; empty where it has ended, and no answer where it is longer than any."""
    assert process.stdout is not None
    try:
        return await process.stdout.readline()
    except ConnectionError:
        return b""
    except ValueError:
        return b"too long"


def _decode(line: bytes, kind: type[_Kind]) -> _Kind | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _last_words(stderr: IO[bytes]) -> str:
    size = stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, size - _TOLD_BYTES))
    return stderr.read(_TOLD_BYTES).decode(errors="replace").strip()


def _processor_s(pid: int) -> float | None:
    """Return the CPU time of a process; None if the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _not_started(why: str) -> CheckerUnavailable:
    log.error(
        "the helper that compiles constraints cannot be started: %s; it is tried again with the next constraint",
        why,
    )
    return CheckerUnavailable(
        "The process that compiles grammars and schemas cannot be started; the reason is in the server's log.",
        retry_after_s=5,
    )
