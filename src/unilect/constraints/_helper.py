"""
Helper processes that run jobs, each one job at a time, with a time limit; a helper that ended or was killed is replaced by the next job.

Two lanes prevent slow jobs of one client from delaying all others: a job that the quick lane does not finish in time is moved to
the patient lane, which has a short queue.
"""

import asyncio
import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from unilect.child_environment import child_environment
from unilect.constraints import ConstraintError
from unilect.errors import CheckerUnavailable
from unilect.tasks import apart

log = logging.getLogger("unilect")
QUICK_S = 0.5
PATIENT_S = 2.0
_WALL = 3  # times as long, where the helper is not given the processor
_START_S = 30.0
_LINE_BYTES = 64 * 1024 * 1024
_LOOK_S = 0.1
_TOO_LONG = "compiling it takes too long. Make it smaller, with fewer alternatives and repetitions."
_TOO_DEEP = "it is nested too deep or too large. Make it smaller, and flatten it."


class TooLong(ConstraintError):
    """A job exceeded its time limit."""


class Job(msgspec.Struct):
    """A job, and the future of its answer."""

    name: str
    arguments: dict[str, Any]
    answer: "asyncio.Future[Any]"


class Lane:
    """
    One helper process and its queue of jobs, urgent ones first.

    Args:
        command: The helper's command line.
        budget_s: The CPU time limit of a job.
        most: The length of the queue.
    """

    def __init__(self, command: Sequence[str], budget_s: float, most: int) -> None:
        self._command = list(command)
        self._budget_s = budget_s
        self._most = most
        self._jobs: asyncio.PriorityQueue[tuple[bool, int, Job]] = asyncio.PriorityQueue()
        self._numbers = itertools.count()
        self._worker: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The helper's process id, if one runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def do(self, name: str, arguments: dict[str, Any], urgent: bool = False) -> Any:
        """
        Run a job.

        Args:
            urgent: It is queued before others, even if the queue is full.

        Raises:
            ConstraintError: The constraint is refused; TooLong for an exceeded time limit.
            CheckerUnavailable: The queue is full, or the helper cannot be started, or is being stopped.
        """
        if self._closed:
            raise _stopped()
        if self._jobs.qsize() >= self._most and not urgent:
            raise CheckerUnavailable(
                "The queue of grammars and schemas to compile is full. Try again in a moment.",
                retry_after_s=2,
            )
        answer = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((not urgent, next(self._numbers), Job(name, arguments, answer)))
        if self._worker is None or self._worker.done():
            self._worker = apart(self._work())
        return await answer

    async def aclose(self) -> None:
        """Kill the helper for good; waiting jobs fail."""
        self._closed = True
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
            self._worker = None
        while not self._jobs.empty():
            _fail(self._jobs.get_nowait()[2].answer, _stopped())
        await self._kill()

    async def _work(self) -> None:
        while True:
            job = (await self._jobs.get())[2]
            if job.answer.done():  # nobody waits for it any longer
                continue
            try:
                value = await self._done(job)
            except (ConstraintError, CheckerUnavailable) as error:
                _fail(job.answer, error)
            except BaseException:
                _fail(job.answer, _stopped())
                raise
            else:
                if not job.answer.done():
                    job.answer.set_result(value)

    async def _done(self, job: Job) -> Any:
        """A job's answer. If the helper was killed from outside, the job is tried once more."""
        line = msgspec.json.encode({"job": job.name, "arguments": job.arguments}) + b"\n"
        for _ in range(2):
            process = await self._started()
            said = await self._ask(process, line)
            if said is not None:
                if said.get("last"):
                    await self._kill()
                if "refused" in said:
                    raise ConstraintError(str(said["refused"]))
                return said["done"]
            status = await process.wait()
            self._process = None
            log.warning("the helper that compiles constraints ended: %s", _status(status))
            if status not in (-signal.SIGKILL, -signal.SIGTERM):
                raise ConstraintError(_TOO_DEEP)
        raise CheckerUnavailable(
            "The process that compiles grammars and schemas was killed twice. Try again.",
            retry_after_s=2,
        )

    async def _ask(self, process: asyncio.subprocess.Process, line: bytes) -> dict[str, Any] | None:
        """
        A helper's answer to a job; None if the helper ended.

        Raises:
            TooLong: It did not answer in time, and was killed.
        """
        assert process.stdin is not None
        begun, used = time.monotonic(), _processor_s(process.pid)
        talk = asyncio.create_task(_talk(process, line))
        try:
            while not talk.done():
                await asyncio.wait({talk}, timeout=_LOOK_S)
                elapsed_s = time.monotonic() - begun
                now = _processor_s(process.pid)
                busy_s = elapsed_s if now is None or used is None else now - used
                if not talk.done() and max(busy_s, elapsed_s / _WALL) >= self._budget_s:
                    await self._kill()
                    raise TooLong(_TOO_LONG)
            return talk.result()
        finally:
            talk.cancel()
            if not talk.done():
                await self._kill()

    async def _started(self) -> asyncio.subprocess.Process:
        """
        The helper, started if none runs.

        Raises:
            CheckerUnavailable: It cannot be started.
        """
        process = self._process
        if process is not None and process.returncode is None:
            return process
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=child_environment(),
                limit=_LINE_BYTES,
                start_new_session=True,
            )
            async with asyncio.timeout(_START_S):
                said = await _read(process)
        except (OSError, TimeoutError) as error:
            await self._kill()
            raise _not_started(str(error) or "it took too long") from error
        if said is None or "ready" not in said:
            await self._kill()
            raise _not_started((said or {}).get("failed") or "it ended at once")
        return process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def command(standing: Path) -> list[str]:
    """
    The helper's command line.

    Args:
        standing: A GGUF file with which llama.cpp runs grammars.
    """
    return [sys.executable, "-m", "unilect.constraints._child", str(os.getpid()), str(standing)]


async def _talk(process: asyncio.subprocess.Process, line: bytes) -> dict[str, Any] | None:
    assert process.stdin is not None
    try:
        process.stdin.write(line)
        await process.stdin.drain()
    except ConnectionError:
        return None
    return await _read(process)


async def _read(process: asyncio.subprocess.Process) -> dict[str, Any] | None:
    """The next line of a helper; None if it ended."""
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        return msgspec.json.decode(line, type=dict[str, Any]) if line.endswith(b"\n") else None
    except (ValueError, ConnectionError):  # longer than any answer, or none
        with suppress(ProcessLookupError):
            process.kill()
        return None


def _processor_s(pid: int) -> float | None:
    """The CPU time of a process; None if the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _fail(answer: "asyncio.Future[Any]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _stopped() -> CheckerUnavailable:
    return CheckerUnavailable("The server is stopping. Try again soon.", retry_after_s=5)


def _not_started(why: str) -> CheckerUnavailable:
    log.error("the helper that compiles constraints cannot be started: %s", why)
    return CheckerUnavailable(
        "The process that compiles grammars and schemas cannot be started; the reason is in the server's log.",
        retry_after_s=5,
    )


def _status(code: int) -> str:
    return f"signal {signal.strsignal(-code) or -code}" if code < 0 else f"exit status {code}"
