"""
The backends of one model: which of them a request goes to.

1. A request goes where its conversation was answered before (`affinity.py`), unless that backend is clearly more loaded, and
   else to the one with the least outstanding work; of those that have about as little, to the one that has served least.
2. A backend that cannot be reached, or keeps failing, gets no requests (`breaker.py`) until it has been seen to be well. It is looked at
   in the background, apart from requests: a look is no load and no request is a trial.
3. A single backend without a fallback is asked in any case, and looked at by nobody: there is nothing to spare it for, the next
   request finds out by itself that it is well again, and until then its own error says most.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable

from unilect.affinity import Affinity, digests
from unilect.backend import Backend
from unilect.breaker import Breaker
from unilect.errors import BackendUnavailable, UnilectError
from unilect.requests import Request
from unilect.turnstile import Turnstile

log = logging.getLogger("unilect")
FIRST_LOOK_S = 0.25
MAX_LOOK_S = 5.0
LOOK_TIMEOUT_S = 5.0
_EQUAL_FACTOR = 1.25  # how much more work counts as the same
_SLACK, _SLACK_FACTOR = 2, 1.5  # how much more work is no reason to leave a cache


class Member:
    """
    One backend of a model.

    Attributes:
        backend: It.
        source: Where it comes from.
        outstanding: Requests that are in it now.
        served: Requests that it has been given.
        breaker: Whether it is worth asking.
    """

    def __init__(self, backend: Backend, source: str = "") -> None:
        self.backend = backend
        self.source = source
        self.outstanding = 0
        self.served = 0
        self.breaker = Breaker()
        self._turnstile: Turnstile | None = None

    async def acquire(self) -> Backend:
        """
        The backend, ready, until `release`; behind a turnstile where it takes only so many requests.

        Raises:
            UnilectError: It cannot be started.
        """
        self.outstanding += 1
        try:
            await self.backend.start()
        except BaseException:
            self.outstanding -= 1
            raise
        self.served += 1
        places = self.backend.capabilities.max_in_flight
        if places is None:
            return self.backend
        if self._turnstile is None:
            self._turnstile = Turnstile(self.backend, places)
        return self._turnstile

    def release(self) -> None:
        """A request has left."""
        self.outstanding -= 1


class Pool:
    """
    The backends of one model.

    Args:
        name: The model's name, for logs and errors.
        members: Its backends, not yet started.
        has_fallback: Another model answers when none of them can.
    """

    def __init__(self, name: str, members: Iterable[Member], has_fallback: bool = False) -> None:
        self.members = tuple(members)
        self._name = name
        self._spares = has_fallback or len(self.members) > 1
        self._affinity: Affinity[Member] = Affinity()
        self._looks: dict[Member, asyncio.Task[None]] = {}

    async def start(self) -> list[UnilectError]:
        """
        Start every backend.

        Returns:
            Why some could not be started; they are looked after.
        """
        starts = (member.backend.start() for member in self.members)
        errors: list[UnilectError] = []
        for member, result in zip(
            self.members, await asyncio.gather(*starts, return_exceptions=True), strict=True
        ):
            if isinstance(result, UnilectError):
                self.saw(member, result)
                errors.append(result)
            elif isinstance(result, BaseException):
                raise result
        return errors

    def choose(self, request: Request | None, tried: Collection[Member]) -> Member | None:
        """The backend for a request; None where there is none that was not tried and is worth asking."""
        if not self._spares:
            return None if tried else self.members[0]
        now_s = asyncio.get_running_loop().time()
        free = [
            member
            for member in self.members
            if member not in tried and member.breaker.allows(now_s)
        ]
        if not free or len(self.members) == 1:
            return free[0] if free else None
        beginnings = digests(request)
        known = self._affinity.find(beginnings)
        least = min(member.outstanding for member in free)
        idlest = [one for one in free if one.outstanding <= _EQUAL_FACTOR * least]
        member = min(idlest, key=lambda one: one.served)
        if known in free and known.outstanding <= _SLACK + _SLACK_FACTOR * least:
            member = known
        self._affinity.note(beginnings, member)
        return member

    def none_left(self) -> BackendUnavailable:
        """The error for a request that no backend can take now."""
        now_s = asyncio.get_running_loop().time()
        rest_s = min((member.breaker.rest_s(now_s) for member in self.members), default=0.0)
        count = len(self.members)
        who = "The backend" if count == 1 else f"None of the {count} backends"
        return BackendUnavailable(
            f"{who} of the model `{self._name}` {'cannot' if count == 1 else 'can'} take the request now. "
            "Try again, or ask the operator.",
            retry_after_s=max(1.0, rest_s),
        )

    def saw(self, member: Member, error: UnilectError | None) -> None:
        """Take note of how a request ended, or an attempt to start the backend."""
        was_out = member.breaker.open
        if error is None:
            member.breaker.close()
            if was_out:
                log.warning("%s: %s is back", self._name, member.source)
            return
        loop = asyncio.get_running_loop()
        member.breaker.saw(error, loop.time())
        if not member.breaker.open:
            return
        if not was_out:
            log.warning("%s: %s is out: %s", self._name, member.source, error.message)
        if self._spares and member not in self._looks:
            self._looks[member] = loop.create_task(self._look(member))

    async def aclose(self) -> None:
        """Stop all backends. What is known of them is forgotten: nobody would find out that one is well again."""
        looks = list(self._looks.values())
        self._looks.clear()
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
        for member in self.members:
            member.breaker.close()
        await asyncio.gather(*(member.backend.aclose() for member in self.members))

    async def _look(self, member: Member) -> None:
        """Look after a backend until it is well again."""
        pause_s = FIRST_LOOK_S
        while member.breaker.open:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_LOOK_S)
            try:
                # it has a deadline of its own: a model may take long to load
                await member.backend.start()
                async with asyncio.timeout(LOOK_TIMEOUT_S):
                    await member.backend.check()
            except (UnilectError, TimeoutError):
                continue
            except Exception:
                log.exception("%s: %s cannot be looked at", self._name, member.source)
                continue  # the last look would leave it out for good
            self.saw(member, None)
        self._looks.pop(member, None)
