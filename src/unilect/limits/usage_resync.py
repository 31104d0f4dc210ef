"""
Keys whose limits change while a server runs: what such a key has used is read from the ledger, as a new limit was not counted before.

1. It is read before the next request of the key that has a budget.
2. What ran when the key changed may have been let in without the limit: it is read again once some of that has ended.
3. It is read once more, at the earliest `SETTLED_S` after the change: other servers see a change within a second, and count like this one from
   then on. A key that nobody has used until then is only remembered, since it may have no budget.
4. A reload may change all keys, their owners and the models. All that was used is read for it, not each time that something has ended, but when
   half of what ran has, and half of the rest: the ledger may be large.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from unilect.core.errors import LimitsUnavailable
from unilect.runtime.context import Context, Requests
from unilect.runtime.tasks import Tasks

#: Stands for all keys, their owners and the models.
EVERY = ""
LOOK_S = 0.5
SETTLED_S = 2.0


class _Changed:
    """
    A key that has changed.

    Attributes:
        running: What ran then, and still does, by the ids of the requests.
        at: When, by a monotonic clock.
        read: What it had used was read once.
        has_budget: It is known to have one.
        is_followed: It is looked at; else it was not used, and is only remembered.
    """

    __slots__ = ("at", "has_budget", "is_followed", "read", "running")

    def __init__(self, running: dict[str, Context]) -> None:
        self.running, self.at = running, time.monotonic()
        self.read = self.has_budget = False
        self.is_followed = True


class UsageResync:
    """
    The keys that have changed.

    Args:
        read: Reads what a key has used.
        has_budget: Whether a request counts against a budget.
        requests: The requests that are being answered.

    Attributes:
        changed: Those that have changed, by their ids, and may have to be read.
    """

    def __init__(
        self,
        read: Callable[[str], Awaitable[None]],
        has_budget: Callable[[Context], bool],
        requests: Requests,
    ) -> None:
        self._read, self._has_budget, self._requests = read, has_budget, requests
        self.changed: dict[str, _Changed] = {}
        self._tasks = Tasks()
        self._follower: asyncio.Task[None] | None = None

    def note_change(self, keys: Iterable[str]) -> None:
        """Follow keys that have changed."""
        running: dict[str, dict[str, Context]] = {key: {} for key in keys}
        for id, context in self._requests.items():
            for key in (context.caller, EVERY):
                if key in running:
                    running[key][id] = context
        self.changed |= {key: _Changed(of_key) for key, of_key in running.items()}
        if self._follower is None or self._follower.done():
            self._follower = self._tasks.start("the look at changed keys", self._follow())

    async def before(self, key: str) -> None:
        """
        Read what a key has used, before a request of it that has a budget.

        Raises:
            LimitsUnavailable: What the key has used cannot be read now.
        """
        one = self.changed.get(key)
        if one is None:
            return
        one.has_budget = True
        if not one.read:
            await self._read(key)
            one.read = True
        if not one.is_followed and self.changed.get(key) is one:
            del self.changed[key]

    async def aclose(self) -> None:
        """Look no more. Idempotent."""
        await self._tasks.aclose()

    async def _follow(self) -> None:
        while any(one.is_followed for one in self.changed.values()):
            await asyncio.sleep(LOOK_S)
            for key, one in list(self.changed.items()):
                if one.is_followed:
                    with suppress(LimitsUnavailable):  # it is tried again
                        await self._look(key, one)

    async def _look(self, key: str, one: _Changed) -> None:
        """Read again what a key has used, where something has ended that was not counted; at last a look after the last of it has."""
        is_last = not one.running and time.monotonic() >= one.at + SETTLED_S
        running = {id: context for id, context in one.running.items() if id in self._requests}
        ended = len(one.running) - len(running)
        if not is_last and (not ended or (key == EVERY and ended < len(running))):
            return
        one.has_budget = one.has_budget or any(map(self._has_budget, one.running.values()))
        if one.has_budget:
            await self._read(key)
        one.running = running
        if is_last and self.changed.get(key) is one:
            one.is_followed = False
            if one.has_budget or key == EVERY:
                del self.changed[key]
