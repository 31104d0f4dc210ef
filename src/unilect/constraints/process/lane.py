"""
Lanes of jobs: each has one helper process that runs one job at a time, with a time limit.

Two lanes prevent hard jobs from delaying all others: a job that the quick lane does not finish in time is moved to the patient lane.
"""

import asyncio
import logging
import signal
from collections.abc import Sequence
from typing import Any

import msgspec

from unilect.constraints import ConstraintError
from unilect.constraints.process.helper import Ended, Helper
from unilect.constraints.process.turns import Job, Turns
from unilect.core.errors import CheckerUnavailable, InternalError
from unilect.runtime.tasks import spawn_detached

log = logging.getLogger("unilect")
_TOO_DEEP = "it is nested too deep or too large. Make it smaller, and flatten it."
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)  # from outside: no job does that


class _Traceback(Exception):
    """Stands in the log for the traceback of an error in the helper."""


class Lane:
    """
    The jobs of one helper. It is closed, or it runs a job in a task of that job's own, or it is idle; no job waits while it is idle.

    Args:
        command: The helper's command line.
        budget_s: The CPU time limit of a job.
        most: How many jobs may wait.
    """

    def __init__(self, command: Sequence[str], budget_s: float, most: int) -> None:
        self._helper = Helper(command)
        self._budget_s = budget_s
        self._turns = Turns(most)
        self._ended_by: str | None = (
            None  # the caller for whose job the next helper has to be started
        )
        self._running: tuple[Job, asyncio.Task[None]] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The helper's process id, if one runs."""
        return self._helper.pid

    @property
    def waiting(self) -> int:
        """The number of jobs that wait."""
        return len(self._turns)

    async def do(
        self, name: str, arguments: dict[str, Any], caller: str = "", urgent: bool = False
    ) -> Any:
        """
        Run a job in its caller's turn.

        Args:
            urgent: It goes before the caller's others, also where there is no more room.

        Raises:
            ConstraintError: The constraint is refused; TooLong for an exceeded time limit.
            TooManyWaiting: There is no room, and the caller has more than a share of it.
            CheckerUnavailable: There is no room, or the helper cannot be started, or is being stopped.
            InternalError: The helper has a flaw, which the log tells.
        """
        if self._closed:
            raise _stopping_error()
        answer = asyncio.get_running_loop().create_future()
        self._turns.add(Job(name, arguments, answer, caller, urgent))
        if self._running is None:
            self._begin_next()
        return await answer

    async def aclose(self) -> None:
        """Kill the helper for good; waiting jobs fail."""
        self._closed = True
        self._turns.clear(_stopping_error())
        if self._running is not None:
            job, task = self._running
            job.fail(_stopping_error())
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._helper.kill()

    def _begin_next(self) -> None:
        """Begin the next job for which somebody waits; called where none runs."""
        self._running = None
        while (job := self._turns.take()) is not None:
            if not job.answer.done():
                task = spawn_detached(self._run(job), "the check of a constraint")
                self._running = (job, task)
                task.add_done_callback(self._end)
                return

    def _end(self, _: "asyncio.Task[None]") -> None:
        """Tell who waits for a job whose task has ended, in whatever way, and begin the next one."""
        assert self._running is not None
        self._running[0].fail(_flaw())
        if not self._closed:
            self._begin_next()

    async def _run(self, job: Job) -> None:
        used_s, start_s = self._helper.used_s, self._helper.start_s
        try:
            value = await self._ask(job)
        except (ConstraintError, CheckerUnavailable, InternalError) as error:
            job.fail(error)
        else:
            if not job.answer.done():
                job.answer.set_result(value)
        finally:
            self._turns.charge(job.caller, self._helper.used_s - used_s)
            if self._ended_by is not None:
                self._turns.charge(self._ended_by, self._helper.start_s - start_s)
            self._ended_by = job.caller if self._helper.pid is None else None

    async def _ask(self, job: Job) -> Any:
        """Return a job's answer. If the helper was killed from outside, the job is tried once more."""
        line = msgspec.json.encode({"job": job.name, "arguments": job.arguments}) + b"\n"
        babbled = False
        for _ in range(2):
            said = await self._helper.ask(line, self._budget_s)
            if isinstance(said, Ended):
                log.warning(
                    "the helper that compiles constraints ended, and is started again: %s", said
                )
                babbled = said.babbled
                if babbled or said.status in _KILLED:
                    continue
                if said.status < 0:
                    raise ConstraintError(_TOO_DEEP)
                raise _flaw()
            if said.last or said.flaw:
                await self._helper.kill()
            if said.flaw:
                log.error("the helper that compiles constraints failed on a job, which is a bug in unilect: report it", exc_info=_Traceback(said.flaw))  # fmt: skip
            if isinstance(said.refused, str):
                raise ConstraintError(said.refused)
            if said.flaw:
                raise _flaw()
            return said.done
        if babbled:
            raise _flaw()
        raise CheckerUnavailable(
            "The process that compiles grammars and schemas was killed twice. Try again.",
            retry_after_s=2,
        )


def _stopping_error() -> CheckerUnavailable:
    return CheckerUnavailable("The server is stopping. Try again soon.", retry_after_s=5)


def _flaw() -> InternalError:
    return InternalError(
        "The server failed on this grammar or schema; this is a bug in unilect. The server's log has the reason."
    )
