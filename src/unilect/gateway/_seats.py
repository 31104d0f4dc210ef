"""
The usual way through limits that are counted in memory: each counter has room for all that a request may use.

A key's counters are looked up once for many requests. What is unusual `LimitBook` does, with a claim of each counter: it has a prompt counted,
lowers what a request asks for, or tells why it is refused.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

from unilect.context import Rates
from unilect.events import Usage
from unilect.gateway import claims
from unilect.gateway._counters import MINUTE_US, Budget, MemoryCounters, Minute
from unilect.gateway._ratelimit import Shown, tell
from unilect.gateway.claims import LOOSE, Asked, Limit, cost

#: What counts a limit, how much the limit is, and when that ends.
_Counter: TypeAlias = tuple[Minute | Budget, int, float | None]


class Seats:
    """
    The limits of a key, an owner and a model, and what counts them from one time to another.

    Args:
        limits: The limits.
        told: Which of them clients are told of.
        now: Seconds since 1970.
    """

    def __init__(
        self, counters: MemoryCounters, limits: Sequence[Limit], told: Sequence[Shown], now: float
    ) -> None:
        counters.make_room()  # now: what is found below is new, and says nothing yet
        self._counters = counters
        # of requests, of which each needs one; a minute with how much it holds as a level, a budget with what a request has used in the end
        self._ones: list[tuple[Minute, int, int]] = []
        self._counted: list[tuple[Budget, int, int]] = []
        # of tokens and money, of which a request needs as much as it is large
        self._minutes: list[tuple[Minute, int, int, Limit, str]] = []
        self._budgets: list[tuple[Budget, int, Limit]] = []
        every: list[_Counter] = []  # in the order of `limits`
        for limit in limits:
            name, ends_at = claims.counter(limit, now)
            most = limit.most
            found = counters.found(name, limit.leaks, most, ends_at)
            every.append((found, most, ends_at))
            if isinstance(found, Minute):
                if limit.counts_requests:
                    self._ones.append((found, most, most * MINUTE_US))
                else:
                    self._minutes.append((found, most, most * MINUTE_US, limit, name))
            elif limit.counts_requests:
                self._counted.append((found, most, limit.each or 0))
            else:
                self._budgets.append((found, most, limit))
        # of each kind that is told, those that are
        self._told = [(one, [(every[at], text) for at, text in one.places]) for one in told]
        self._generation = counters.generation  # after all were found
        periods = [limit.period for limit in limits if limit.period is not None]
        self._since = max((one.since for one in periods), default=-math.inf)
        self._until = min((one.until for one in periods), default=math.inf)

    def hold_now(self, now: float) -> bool:
        """Whether these are still what counts."""
        return self._since <= now < self._until and self._generation == self._counters.generation

    def hold(self, asked: Asked, now_us: int) -> list[int] | None:
        """
        Hold what a request needs of each.

        Returns:
            How much that is of those of tokens and money; None where one has not as much room as the request may need: nothing is held then.
        """
        needs: list[int] = []
        for minute, most, full in self._ones:  # as of `Minute`, without a call for each
            empty = most * now_us
            if minute.most != most:
                minute.level(most, now_us)
            mark = minute.mark
            mark = (mark if mark > empty else empty) + MINUTE_US
            if mark - empty > full:
                self._give_back(minute, needs)
                return None
            minute.mark = mark
        for budget, most, _ in self._counted:
            if budget.used + budget.held >= most:
                self._give_back(budget, needs)
                return None
            budget.held += 1
        size = asked.size
        # what most requests need of each limit of tokens
        whole = None if size is None or size.limit is None else size.tokens(asked.allowed)
        for minute, most, full, limit, _ in self._minutes:
            need = asked.needs(limit) if whole is None else whole
            empty = most * now_us
            if minute.most != most:
                minute.level(most, now_us)
            mark = minute.mark
            mark = (mark if mark > empty else empty) + need * MINUTE_US
            if mark - empty > full:
                self._give_back(minute, needs)
                return None
            minute.mark = mark
            needs.append(need)
        loose = asked.loose
        for budget, most, limit in self._budgets:
            need = whole if whole is not None and limit.unit == "tokens" else asked.needs(limit)
            held = budget.held
            if budget.used + held + (need * LOOSE if loose else need) > most:
                self._give_back(budget, needs)
                return None
            budget.held = held + need
            needs.append(need)
        return needs

    def _give_back(self, full: Minute | Budget, needs: list[int]) -> None:
        """Hold nothing of what was held just now, in the order in which it was: `full` has no room."""
        for minute, *_ in self._ones:
            if minute is full:
                return
            minute.mark -= MINUTE_US
        for budget, *_ in self._counted:
            if budget is full:
                return
            budget.held -= 1
        held = iter(needs)
        for (minute, *_), need in zip(self._minutes, held, strict=False):
            minute.mark -= need * MINUTE_US
        for (budget, *_), need in zip(self._budgets, held, strict=False):
            budget.held -= need

    def headers(self, dialect: str, now: float, now_us: int) -> dict[str, str]:
        """What clients are told; as `_ratelimit.headers`."""
        told: dict[str, str] = {}
        for of, places in self._told:
            if len(places) == 1:
                ((counter, most, ends_at), text) = places[0]
            else:
                ((counter, most, ends_at), text) = min(
                    places, key=lambda one: _left(one[0], now_us)
                )
            if isinstance(counter, Minute):
                used = -((most * now_us - counter.mark) // MINUTE_US)
                resets_s = used * 60.0 / most
            else:
                used = counter.used + counter.held
                resets_s = 0.0 if ends_at is None or ends_at <= now else ends_at - now
            tell(told, of, dialect, text, most - used, resets_s, now)
        return told

    def settle(self, needs: list[int], usage: Usage, price: Rates | None) -> None:
        """Count what a request has used, and hold nothing for it any more."""
        for budget, _, each in self._counted:
            budget.held -= 1
            budget.used += each
        tokens = usage.prompt_tokens + usage.completion_tokens
        at = 0
        for minute, most, _, _, name in self._minutes:
            need = needs[at]
            counters = self._counters
            if tokens > need or self._generation != counters.generation:
                counters.kept(name, minute).settle(most, need, tokens, counters.now_us())
            else:
                minute.mark -= (need - tokens) * MINUTE_US
            at += 1
        for budget, _, limit in self._budgets:
            budget.held -= needs[at]
            budget.used += tokens if limit.unit == "tokens" else cost(price, usage)
            at += 1


def _left(counted: _Counter, now_us: int) -> int:
    """What is left of a limit, never below 0."""
    counter, most, _ = counted
    if isinstance(counter, Minute):
        return max(0, most + -counter.level(most, now_us) // MINUTE_US)
    return max(0, most - counter.used - counter.held)
