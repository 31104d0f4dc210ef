"""
The usual way through limits that are counted in memory: each counter has room for all that a request may use.

A key's counters are looked up once for many requests. What is unusual `LimitBook` does, with a claim of each counter: it has a prompt counted,
lowers what a request asks for, or tells why it is refused.
"""

import math
from collections.abc import Sequence

from unilect.context import Rates
from unilect.events import Usage
from unilect.gateway import claims
from unilect.gateway._counters import MINUTE_US, Budget, MemoryCounters, Minute
from unilect.gateway._ratelimit import Shown, tell
from unilect.gateway.claims import LOOSE, Asked, Limit, cost


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
        self._counters, self._told_of = counters, told
        # each with its limit where a request needs of it as much as it is large, else one; a minute of such a kind is of tokens
        # and how much it holds is told as a level, too
        self._minutes: list[tuple[Minute, int, int, Limit | None, str]] = []
        self._budgets: list[tuple[Budget, int, Limit | None, int]] = []
        self._all: list[tuple[Minute | Budget, int, float | None]] = []  # in the order of `limits`
        for limit in limits:
            name, ends_at = claims.counter(limit, now)
            found = counters.found(name, limit.leaks, limit.most, ends_at)
            sized = None if limit.counts_requests else limit
            if isinstance(found, Minute):
                self._minutes.append((found, limit.most, limit.most * MINUTE_US, sized, name))
            else:
                self._budgets.append((found, limit.most, sized, limit.each or 0))
            self._all.append((found, limit.most, ends_at))
        self._generation = counters.generation  # after all were found
        periods = [limit.period for limit in limits if limit.period is not None]
        self._since = max((one.since for one in periods), default=-math.inf)
        self._until = min((one.until for one in periods), default=math.inf)

    def hold_now(self, now: float) -> bool:
        """Whether these are still what counts."""
        return self._since <= now < self._until and self._generation == self._counters.generation

    def hold(self, asked: Asked) -> list[int] | None:
        """
        Hold what a request needs of each.

        Returns:
            How much that is; None where one has not as much room as the request may need: nothing is held then.
        """
        now_us = self._counters.now_us()
        size = asked.size
        # what most requests need of each limit of tokens
        whole = None if size is None or size.limit is None else size.tokens(asked.allowed)
        needs: list[int] = []
        for minute, most, full, sized, _ in self._minutes:
            need = 1 if sized is None else asked.needs(sized) if whole is None else whole
            level = minute.leak(most, now_us) + need * MINUTE_US
            if level > full:
                self._give_back(needs)
                return None
            minute.level = level
            needs.append(need)
        loose = asked.loose
        for budget, most, sized, _ in self._budgets:
            if sized is None:
                need = room = 1
            else:
                need = whole if whole is not None and sized.unit == "tokens" else asked.needs(sized)
                room = need * LOOSE if loose else need
            held = budget.held
            if budget.used + held + room > most:
                self._give_back(needs)
                return None
            budget.held = held + need
            needs.append(need)
        return needs

    def _give_back(self, needs: list[int]) -> None:
        """Hold nothing of what was held just now, in the order in which it was: another one has no room."""
        held = iter(needs)
        for (minute, *_), need in zip(self._minutes, held, strict=False):
            minute.level -= need * MINUTE_US
        for (budget, *_), need in zip(self._budgets, held, strict=False):
            budget.held -= need

    def headers(self, dialect: str, now: float) -> dict[str, str]:
        """What clients are told; as `_ratelimit.headers`."""
        told: dict[str, str] = {}
        for one in self._told_of:
            places = one.places
            at, text = places[0] if len(places) == 1 else min(places, key=self._left)
            counter, most, ends_at = self._all[at]
            if isinstance(counter, Minute):
                used = -(-counter.level // MINUTE_US)
                resets_s = used * 60.0 / most
            else:
                used = counter.used + counter.held
                resets_s = 0.0 if ends_at is None or ends_at <= now else ends_at - now
            tell(told, one, dialect, text, most - used, resets_s, now)
        return told

    def _left(self, place: tuple[int, str]) -> int:
        """What is left of a limit, never below 0."""
        counter, most, _ = self._all[place[0]]
        if isinstance(counter, Minute):
            return max(0, most + -counter.level // MINUTE_US)
        return max(0, most - counter.used - counter.held)

    def settle(self, needs: list[int], usage: Usage, price: Rates | None) -> None:
        """Count what a request has used, and hold nothing for it any more."""
        at = 0
        tokens = usage.prompt_tokens + usage.completion_tokens
        for minute, most, _, sized, name in self._minutes:
            if sized is not None and tokens != needs[at]:
                counters = self._counters
                counters.kept(name, minute).settle(most, needs[at], tokens, counters.now_us())
            at += 1
        for budget, _, sized, each in self._budgets:
            budget.held -= needs[at]
            if sized is None:
                budget.used += each
            else:
                budget.used += tokens if sized.unit == "tokens" else cost(price, usage)
            at += 1
