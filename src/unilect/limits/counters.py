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
NO_TIME = -1
#: A budget of a day or a month stays for so long after its end: a clock may be put back, or be another one than that of a Redis server.
KEPT_S = 2 * 86_400


class Claim(Struct, frozen=True, kw_only=True, gc=False):
    """
    The amount that a request claims of one counter.

    Attributes:
        name: The counter's.
        leaks: It is a minute; else it counts until it ends.
        most: What it may count, used and held together; what leaks in a minute.
        need: The amount to hold.
        room: The amount that must be free for that: as much, or more.
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
        wait_us: Microseconds until a minute has room for the claim that was made, 0 where the counter has it, and `NO_TIME` of a budget
            and of requests at a time, to which time alone brings none.
    """

    used: int
    held: int = 0
    wait_us: int = 0


class ReserveResult(NamedTuple):
    """
    The answer to a request's claims.

    Attributes:
        ok: All are held for it; else none is.
        states: The counters, in the order of the claims: with what is held now, or as they are.
    """

    ok: bool
    states: list[State]


class Counters(Protocol):
    """
    The counters of a server, or of several. Every method but `aclose` may raise `LimitsUnavailable`.

    Attributes:
        is_away: Where they are did not answer last.
    """

    is_away: bool

    async def open(self) -> None:
        """Make ready; what fails is tried again later. Idempotent."""

    async def take(self, request: str, claims: Sequence[Claim]) -> ReserveResult:
        """Hold what a request claims, each of another counter, if all is free. `request` is the id that it is settled by."""

    async def settle(self, request: str, claims: Sequence[Claim], used: Sequence[int]) -> None:
        """
        Count what a request that has ended has used of each claim, and hold nothing for it any more. It is done in the end, also where it
        cannot be done now, and never waits for long.
        """

    async def raise_to(self, used: Mapping[str, tuple[int, float]], *, are_all: bool = True) -> None:  # fmt: skip
        """
        Raise counters, by name, to at least the use that a ledger has, each with the time at which it ends, in seconds since 1970.

        Args:
            are_all: These are all budgets that the ledger has.
        """

    async def look(self, claims: Sequence[Claim]) -> list[State]:
        """Return the counters of claims as they are; nothing is held."""

    async def aclose(self) -> None:
        """Release what is held. Idempotent."""


class Counter:
    """
    A budget, which counts until it ends, or a minute, a bucket that leaks.

    Attributes:
        used: What was used; of a minute what is in it, in units of a sixty-millionth, at `at_us`.
        held: What is held for running requests; of a minute that is used at once.
        most: What leaks in a minute; 0 of a budget.
        at_us: A monotonic time, in microseconds.
        ends_at: As of a claim.
    """

    __slots__ = ("at_us", "ends_at", "held", "most", "used")

    def __init__(self, most: int, at_us: int, ends_at: float | None) -> None:
        self.used = self.held = 0
        self.most, self.at_us, self.ends_at = most, at_us, ends_at

    def state(self, claim: Claim, now_us: int) -> State:
        """
        Return the counter as it is now, for a claim.

        A changed limit is in force at once, and what is in a minute at that moment never takes longer than two minutes to leak.
        """
        if not claim.leaks:
            fits = self.used + self.held + claim.room <= claim.most
            return State(self.used, self.held, 0 if fits else NO_TIME)
        self.used, self.at_us = max(0, self.used - self.most * (now_us - self.at_us)), now_us
        if claim.most != self.most:
            self.most = claim.most
            self.used = min(self.used, self.most * _LONGEST_US)
        over = self.used - (self.most - claim.room) * MINUTE_US
        return State(-(-self.used // MINUTE_US), 0, -(-over // self.most) if over > 0 else 0)

    def is_empty(self, now: float, now_us: int) -> bool:
        """Return True if it may be forgotten."""
        has_ended = self.ends_at is not None and self.ends_at + KEPT_S <= now
        return not self.held and (has_ended or self.used <= self.most * (now_us - self.at_us))


class MemoryCounters:
    """
    Counters of one server, in memory.

    Args:
        clock_ns: A monotonic clock, in nanoseconds.
        clock: Seconds since 1970, for what is not needed any more.

    Attributes:
        is_away: False: memory is always there.
    """

    is_away = False

    def __init__(
        self,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock_ns, self._clock = clock_ns, clock
        self._all: dict[str, Counter] = {}
        self._crowded = 1024

    async def open(self) -> None:
        """See `Counters`."""

    async def take(self, request: str, claims: Sequence[Claim]) -> ReserveResult:
        """See `Counters`."""
        if len(self._all) >= self._crowded:
            self._forget()
        now_us, ok = self._clock_ns() // 1000, True
        found: list[Counter] = []
        states: list[State] = []
        for claim in claims:
            one = self._all.get(claim.name) or self._make(claim, now_us)
            state = one.state(claim, now_us)
            ok = ok and not state.wait_us
            found.append(one)
            states.append(state)
        for place, claim in enumerate(claims if ok else ()):
            one = found[place]
            if claim.leaks:
                one.used += claim.need * MINUTE_US
            else:
                one.held += claim.need
            states[place] = one.state(claim, now_us)
        return ReserveResult(ok, states)

    async def settle(self, request: str, claims: Sequence[Claim], used: Sequence[int]) -> None:
        """See `Counters`."""
        now_us = self._clock_ns() // 1000
        for claim, units in zip(claims, used, strict=True):
            one = self._all.get(claim.name) or self._make(
                claim, now_us
            )  # it may have been forgotten
            if not claim.leaks:
                one.held -= claim.need
                one.used += units
            elif units != claim.need:  # else the claim may be one of an older limit
                one.state(claim, now_us)
                level = one.used + (units - claim.need) * MINUTE_US
                one.used = max(0, min(level, claim.most * _LONGEST_US))

    async def raise_to(self, used: Mapping[str, tuple[int, float]], *, are_all: bool = True) -> None:  # fmt: skip
        """See `Counters`."""
        for name, (units, ends_at) in used.items():
            budget = self._all.setdefault(name, Counter(0, 0, ends_at))
            budget.used = max(budget.used, units)

    async def look(self, claims: Sequence[Claim]) -> list[State]:
        """See `Counters`."""
        now_us = self._clock_ns() // 1000
        return [
            State(0) if (one := self._all.get(claim.name)) is None else one.state(claim, now_us)
            for claim in claims
        ]

    def move(self, old: str, new: str, ends_at: float) -> None:
        """Count what budgets whose names end with `old` have used with those that end with `new`, also where these are not there yet."""
        for name, one in list(self._all.items()):
            if name.endswith(old):
                other = self._all.setdefault(name.removesuffix(old) + new, Counter(0, 0, ends_at))
                other.used += one.used
                one.used = 0

    async def aclose(self) -> None:
        """See `Counters`."""

    def _make(self, claim: Claim, now_us: int) -> Counter:
        one = Counter(claim.most if claim.leaks else 0, now_us, claim.ends_at)
        self._all[claim.name] = one
        return one

    def _forget(self) -> None:
        """Forget what says nothing any more; again where there are twice as many counters as are left."""
        now, now_us = self._clock(), self._clock_ns() // 1000
        self._all = {name: one for name, one in self._all.items() if not one.is_empty(now, now_us)}
        self._crowded = max(1024, 2 * len(self._all))
