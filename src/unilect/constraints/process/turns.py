"""
The jobs that wait for a helper: callers take turns by the time that their jobs have taken, as they do in the queues of the models.

A caller who comes is level with whoever is next, so that its first job waits for the one that runs and no other.
"""

import asyncio
from bisect import insort
from typing import Any

from msgspec import Struct

from unilect.core.errors import CheckerUnavailable, TooManyWaiting, UnilectError

_LEAST_S = 0.001  # what a job costs at least, so that equals take turns
_RETRY_S = 2.0
_KEPT = 1024  # callers whose time is known, before those that owe nothing are forgotten


class Job(Struct, eq=False):
    """
    A job, and the future of its answer.

    Attributes:
        urgent: It goes before the others of its caller, also where there is no more room.
    """

    name: str
    arguments: dict[str, Any]
    answer: "asyncio.Future[Any]"
    caller: str = ""
    urgent: bool = False

    def fail(self, error: Exception) -> None:
        """Tell who waits for it, if anybody still does."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Turns:
    """
    Jobs in the order of their turns.

    Args:
        most: How many may wait; urgent ones may always.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[str, list[Job]] = {}
        self._used_s: dict[str, float] = {}
        self._level_s = 0.0  # what the caller had used whose turn was the last

    def __len__(self) -> int:
        """Return the number of jobs that wait."""
        return sum(map(len, self._waiting.values()))

    def add(self, job: Job) -> None:
        """Let a job wait. Where there is no room, the newest one of the caller with the most fails."""
        mine = self._waiting.setdefault(job.caller, [])
        used_s = self._used_s.get(job.caller, 0.0)
        self._used_s[job.caller] = used_s if mine else max(used_s, self._level_s)
        insort(mine, job, key=_rank)
        if not job.urgent and len(self) > self._most:
            self._make_room(job.caller)

    def take(self) -> Job | None:
        """Take out the next job; None where none waits."""
        if not self._waiting:
            self._used_s.clear()
            self._level_s = 0.0
            return None
        caller = min(self._waiting, key=self._used_s.__getitem__)
        self._level_s = max(self._level_s, self._used_s[caller])
        if len(self._used_s) > _KEPT:
            self._used_s = {
                one: used_s
                for one, used_s in self._used_s.items()
                if used_s > self._level_s or one in self._waiting
            }
        jobs = self._waiting[caller]
        job = jobs.pop(0)
        if not jobs:
            del self._waiting[caller]
        return job

    def charge(self, caller: str, time_s: float) -> None:
        """Charge a caller for the time of the helper that its job has taken."""
        used_s = self._used_s.get(caller, self._level_s)
        self._used_s[caller] = used_s + max(time_s, _LEAST_S)

    def clear(self, error: UnilectError) -> None:
        """Fail all that wait."""
        for jobs in self._waiting.values():
            for job in jobs:
                job.fail(error)
        self._waiting.clear()

    def _make_room(self, caller: str) -> None:
        """Fail the newest job of the caller for whom the most wait; where others have as many, of this one."""
        most = max(self._waiting, key=lambda one: (len(self._waiting[one]), one == caller))
        jobs = self._waiting[most]
        job = jobs.pop()
        full = "The queue of grammars and schemas to compile is full"
        if jobs:
            why = f"{full}, and your share of it is taken by your own. Wait for some of them, or send fewer at a time."
            job.fail(TooManyWaiting(why, retry_after_s=_RETRY_S))
        else:
            del self._waiting[most]
            why = f"{full}. Try again in a moment."
            job.fail(CheckerUnavailable(why, retry_after_s=_RETRY_S))


def _rank(job: Job) -> bool:
    return not job.urgent
