"""
Counters of limits: what was used, what running requests may still use, and how full a minute is. Those here are in memory.

1. A request takes from all of its counters or from none, in one step: no other request comes between.
2. What a request may use at most is held for it from its beginning to its end; then what it has used is counted, and the rest is free
   again. So used and held together never pass a budget.
3. A minute is a bucket that leaks: it holds as much as the limit and empties evenly within a minute. Its level is an exact integer, in units
   of a sixty-millionth, and its clock is monotonic, so that a changed system time changes nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

MINUTE_US = 60_000_000
_LONGEST_US = 2 * MINUTE_US  # until a minute is empty


class Claim(Struct, frozen=True, kw_only=True):
    """
    What a request asks of one counter.

    Attributes:
        name: The counter's.
        leaks: It is a minute; else it counts until it ends.
        most: What it may count, used and held together; what leaks in a minute.
        need: What is held.
        room: What must be free for that: as much, or more.
        ends_at: When it is not needed any more, in seconds since 1970; None for never.
    """

    name: str
    leaks: bool = False
    most: int
    need: int
    room: int
    ends_at: float | None = None


class State(NamedTuple):
    """
    A counter.

    Attributes:
        used: What was used; of a minute what it holds.
        held: What is held for running requests.
        wait_us: Microseconds until a minute has room for the claim; 0 where it has it.
    """

    used: int
    held: int = 0
    wait_us: int = 0


class Taken(NamedTuple):
    """
    How a request's claims were answered.

    Attributes:
        ok: All are held for it; else none is.
        states: The counters, in the order of the claims: with what is held now, or as they are.
    """

    ok: bool
    states: list[State]


class Counters(Protocol):
    """The counters of a server, or of several. Every method but `aclose` may raise `LimitsUnavailable`."""

    async def open(self) -> None:
        """Make ready; what fails is tried again later. Idempotent."""

    async def take(self, request: str, claims: Sequence[Claim]) -> Taken:
        """Hold what a request claims, each of another counter, if all is free. `request` is the id that it is settled by."""

    async def settle(self, request: str, claims: Sequence[Claim], used: Sequence[int]) -> None:
        """
        A request has ended: count what it has used of each claim, and hold nothing for it any more. It is done in the end, also where it
        cannot be done now, and never waits for long.
        """

    async def raise_to(self, used: Mapping[str, tuple[int, float]]) -> None:
        """What was used is at least so much, by the counters' names, each with when it ends: what a ledger says."""

    async def aclose(self) -> None:
        """Release what is held. Idempotent."""


def fits(claim: Claim, state: State) -> bool:
    """Whether a counter, as it is before it is claimed, has room for a claim."""
    if claim.leaks:
        return state.wait_us == 0
    return state.used + state.held + claim.room <= claim.most


def _state(used: int, held: int, wait_us: int) -> State:
    """A `State`, without the arguments by name that its own constructor handles: several are made for each request."""
    return tuple.__new__(State, (used, held, wait_us))


class _Budget:
    """A counter that counts until it ends."""

    __slots__ = ("ends_at", "held", "used")

    def __init__(self, ends_at: float | None) -> None:
        self.used = self.held = 0
        self.ends_at = ends_at

    def has_room(self, claim: Claim, now_us: int) -> bool:
        """Whether a claim fits in."""
        return self.used + self.held + claim.room <= claim.most

    def hold(self, claim: Claim) -> None:
        """Hold what was found to fit in."""
        self.held += claim.need

    def state(self, claim: Claim) -> State:
        """How it is, for a claim."""
        return _state(self.used, self.held, 0)


class _Minute:
    """A bucket that leaks `most` a minute; `level` in units of a sixty-millionth."""

    __slots__ = ("at_us", "level", "most")

    def __init__(self, most: int, at_us: int) -> None:
        self.level, self.at_us, self.most = 0, at_us, most

    def leak(self, most: int, now_us: int) -> None:
        """Let out what has leaked until now; a limit that was changed is in force at once."""
        if self.level:
            passed = now_us - self.at_us
            left = self.level - (passed if passed < _LONGEST_US else _LONGEST_US) * self.most
            self.level = left if left > 0 else 0
        self.at_us = now_us
        self.most = most

    def add(self, units: int) -> None:
        """Fill it; it never takes longer than two minutes to leak."""
        self.level = max(0, min(self.level + units * MINUTE_US, self.most * _LONGEST_US))

    def has_room(self, claim: Claim, now_us: int) -> bool:
        """Whether a claim fits in now."""
        self.leak(claim.most, now_us)
        return self.level + (claim.room - claim.most) * MINUTE_US <= 0

    def hold(self, claim: Claim) -> None:
        """Hold what was found to fit in."""
        self.level += claim.need * MINUTE_US

    def state(self, claim: Claim) -> State:
        """How it is, for a claim."""
        level = self.level
        over = level + (claim.room - claim.most) * MINUTE_US
        return _state(-(-level // MINUTE_US), 0, -(-over // claim.most) if over > 0 else 0)


class MemoryCounters:
    """
    Counters of one server, in memory.

    Args:
        now_us: A monotonic clock, in microseconds.
        clock: Seconds since 1970, for what is not needed any more.
    """

    def __init__(
        self,
        now_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._now_us, self._clock = now_us, clock
        self._budgets: dict[str, _Budget] = {}
        self._minutes: dict[str, _Minute] = {}
        self._crowded = 1024

    async def open(self) -> None:
        """See `Counters`."""

    async def take(self, request: str, claims: Sequence[Claim]) -> Taken:
        """See `Counters`."""
        if len(self._budgets) + len(self._minutes) >= self._crowded:
            self._forget()
        now_us = self._now_us()
        ok, found = True, list[tuple[_Minute | _Budget, Claim]]()
        for claim in claims:
            one = self._minute(claim, now_us) if claim.leaks else self._budget(claim.name, claim.ends_at)  # fmt: skip
            found.append((one, claim))
            if not one.has_room(claim, now_us):
                ok = False
        states = list[State]()
        for one, claim in found:
            if ok:
                one.hold(claim)
            states.append(one.state(claim))
        return Taken(ok, states)

    async def settle(self, request: str, claims: Sequence[Claim], used: Sequence[int]) -> None:
        """See `Counters`."""
        now_us = self._now_us()
        for claim, units in zip(claims, used, strict=True):
            if claim.leaks:
                if units != claim.need:  # else the minute holds it already
                    minute = self._minute(claim, now_us)
                    minute.leak(claim.most, now_us)
                    minute.add(units - claim.need)
            else:
                budget = self._budget(claim.name, claim.ends_at)
                budget.held -= claim.need
                budget.used += units

    async def raise_to(self, used: Mapping[str, tuple[int, float]]) -> None:
        """See `Counters`."""
        for name, (units, ends_at) in used.items():
            budget = self._budget(name, ends_at)
            budget.used = max(budget.used, units)

    async def aclose(self) -> None:
        """See `Counters`."""

    def _minute(self, claim: Claim, now_us: int) -> _Minute:
        minute = self._minutes.get(claim.name)
        if minute is None:
            minute = self._minutes[claim.name] = _Minute(claim.most, now_us)
        return minute

    def _budget(self, name: str, ends_at: float | None) -> _Budget:
        budget = self._budgets.get(name)
        if budget is None:
            budget = self._budgets[name] = _Budget(ends_at)
        return budget

    def _forget(self) -> None:
        """Forget what says nothing any more; again where there are twice as many counters as are left."""
        now, now_us = self._clock(), self._now_us()
        self._minutes = {
            name: one
            for name, one in self._minutes.items()
            if one.level > (now_us - one.at_us) * one.most
        }
        self._budgets = {
            name: one
            for name, one in self._budgets.items()
            if one.held or (one.used and (one.ends_at is None or one.ends_at > now))
        }
        self._crowded = max(1024, 2 * (len(self._budgets) + len(self._minutes)))
