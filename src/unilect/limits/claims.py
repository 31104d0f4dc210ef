"""
The limits that hold for a request, and its claims on each: requests, tokens, money.

Money is counted in millionths of the currency, as integers, like in the ledger: both sum up the same.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol

from msgspec import Struct, structs

from unilect.config.limits import Limits
from unilect.config.model import Price
from unilect.core.events import Usage
from unilect.core.requests import Request
from unilect.limits.counters import Claim, State
from unilect.runtime.context import Rates

#: Also the tokens that a price is for, so that a token costs its price in millionths.
MILLION = 10**6
#: Without a limit of tokens in a request a minute is claimed a tenth of, at most so many tokens; what the answer has is counted in the end.
_USUAL_TOKENS = 512
#: An answer that has to be shorter, as little is left, has so many tokens at least: where more may become free, and where not.
_WORTH_TOKENS, _LEAST_TOKENS = 256, 16
#: Of a request, as the ledger has it; some thousands of them fit into 64 bits, as Redis counts.
_MOST_COST = 10**15
#: A prompt of which only a bound is known is counted exactly where a budget has less than so many times what the request may use.
LOOSE = 32
_DAY_S = 86_400.0


class Limit:
    """
    A limit that holds for a request; it is made once for many.

    Attributes:
        name: Its name, such as `tokens_per_day`.
        of: Whose it is, in words: the API key, the owner, the model.
        subject: Whose it is, as its counter has it.
        most: The limit; of money in millionths.
        unit: `requests`, `tokens`, `money` or `parallel`.
        leaks: It is a rate.
        counts_requests: It is of requests, whatever they use.
        is_budget: It is of tokens or money, of a day or a month.
    """

    __slots__ = ("counts_requests", "is_budget", "leaks", "most", "name", "of", "subject", "unit")

    def __init__(self, name: str, of: str, subject: str, most: int) -> None:
        self.name, self.of, self.subject, self.most = name, of, subject, most
        self.unit = name.partition("_")[0]
        self.leaks = name.endswith("_minute")
        self.counts_requests = self.unit in ("requests", "parallel")
        self.is_budget = self.unit in ("tokens", "money") and not self.leaks


class TokenEstimate(Struct, frozen=True, kw_only=True, gc=False):
    """
    The number of tokens that a request may use.

    Attributes:
        prompt: Those of its prompts, at most, as often as they are read and counted.
        choices: The number of generated answers, at most; 0 where there is none.
        limit: The most tokens of each answer that the request asks for; None for as many as fit.
        room: The most tokens of a prompt and its answer together.
        knows_room: `room` comes from the model; else it is a guess, and answers must be kept to it.
        is_counted: `prompt` was counted.
    """

    prompt: int
    choices: int
    limit: int | None
    room: int
    knows_room: bool
    is_counted: bool = False

    def tokens(self, allowed: int | None) -> int:
        """Return the most tokens of prompts and answers, where each answer has at most `allowed`, or what the request says."""
        limit = self.limit if allowed is None else allowed
        if limit is None:
            whole = self.choices * self.room
            return max(self.prompt, whole) if self.knows_room else self.prompt + whole
        most = self.prompt + self.choices * limit
        if not (self.knows_room and self.choices):
            return most
        return min(most, max(self.prompt, self.choices * self.room))

    def answer(self, allowed: int | None) -> int:
        """Return the most tokens of the answers alone."""
        limit = self.limit if allowed is None else allowed
        return self.choices * (self.room if limit is None else limit)


class TokenEstimator(Protocol):
    """Access to the models, for the sizes of requests."""

    def size(self, model: str, request: Request) -> TokenEstimate:
        """Estimate a bound, from the length of its texts."""

    async def count(self, model: str, request: Request, size: TokenEstimate) -> TokenEstimate:
        """Return the estimate with its prompt counted by the model; as given where that cannot be counted."""

    def limits(self, model: str) -> Limits | None:
        """Return the limits of all requests to a model together."""


def cost(price: Rates | None, usage: Usage) -> int:
    """Compute the cost of an answer in millionths of the currency, rounded up."""
    if price is None:
        return 0
    cached = usage.cached_tokens or 0
    fresh = max(usage.prompt_tokens - cached, 0) * price.prompt
    whole = fresh + cached * price.cached + usage.completion_tokens * price.completion
    # up, so that no budget is passed by what is too little to be counted; but not for what a float is above a whole number
    return min(math.ceil(round(whole, 6)), _MOST_COST)


def limits_of(given: Mapping[str, float | None], of: str, subject: str) -> list[Limit]:
    """Make the limits of one key, owner or model."""
    return [
        Limit(name, of, subject, int(most * MILLION) if name.startswith("money") else int(most))
        for name, most in given.items()
        if most is not None
    ]


def day_of(now: float) -> int:
    """Return the day (since 1970, UTC) of a time."""
    return int(now // _DAY_S)


def period(unit: str, day: int) -> tuple[str, float, float]:
    """Return the `day` or `month` (UTC) of a day since 1970, as text, its end and its begin in seconds since 1970."""
    begin = datetime.fromtimestamp(day * _DAY_S, UTC)
    if unit == "day":
        return f"{begin:%Y-%m-%d}", (day + 1) * _DAY_S, day * _DAY_S
    begin = begin.replace(day=1)
    end = (begin + timedelta(days=32)).replace(day=1)
    return f"{begin:%Y-%m}", end.timestamp(), begin.timestamp()


@lru_cache(4096)
def counter(limit: Limit, day: int) -> tuple[str, float | None]:
    """Name the counter of a limit on a day since 1970, and tell when it ends; None for never."""
    name, unit = f"{limit.subject}/{limit.name}", limit.name.rpartition("_")[2]
    if unit not in ("day", "month"):
        return name, None
    text, ends_at, _ = period(unit, day)
    return f"{name}/{text}", ends_at


class Demand(Struct, frozen=True, kw_only=True):
    """
    A request as its limits see it.

    Attributes:
        size: None where no limit is of tokens or money.
        price: Of the model.
        allowed: The most tokens of each answer that its limits leave; None where they leave what it asks for.
        loose: Its prompt may be counted exactly yet.
    """

    now: float
    size: TokenEstimate | None = None
    price: Rates | None = None
    allowed: int | None = None
    loose: bool = False

    def needs(self, limit: Limit) -> int:
        """Return the amount that is held of a limit for the request: requests, tokens, or millionths of the currency."""
        size = self.size
        if limit.counts_requests or size is None:
            return 1
        if limit.unit == "money":
            price = self.price or Price()
            prompt = size.prompt * max(price.prompt, price.cached)
            return math.ceil(prompt + size.answer(self.allowed) * price.completion)
        whole = size.tokens(self.allowed)
        if limit.leaks and size.limit is None and size.choices:
            usual = size.prompt + min(_USUAL_TOKENS, limit.most // 10) * size.choices
            return min(whole, max(size.prompt, min(usual, limit.most)))
        return whole

    def least(self, limit: Limit) -> int:
        """Return the amount that must be left of a limit for the shortest answer that the request may get."""
        size = self.size
        if size is None or size.limit is not None or not size.choices:
            return self.needs(limit)
        return structs.replace(self, allowed=_LEAST_TOKENS).needs(limit)

    def claims(self, limits: Sequence[Limit]) -> list[Claim]:
        """Make its claim on each limit."""
        found: list[Claim] = []
        day = int(self.now // _DAY_S)
        for limit in limits:
            need = 1 if limit.counts_requests else self.needs(limit)
            name, ends_at = counter(limit, day)
            room = need * LOOSE if self.loose and limit.is_budget else need
            claim = Claim(name=name, leaks=limit.leaks, most=limit.most, need=need, room=room, ends_at=ends_at)  # fmt: skip
            found.append(claim)
        return found

    def never_fits(self, limit: Limit) -> bool:
        """Return True if the request may use more in a minute than the limit has."""
        return limit.leaks and self.needs(limit) > limit.most


def allowance(demand: Demand, limits: Sequence[Limit], states: Sequence[State]) -> int | None:
    """
    Return the most tokens of each answer that the limits leave now, to a request that does not say how many it wants.

    Returns:
        None where it is not worth an answer, or nothing has to be changed.
    """
    size = demand.size
    if size is None or size.limit is not None or not size.choices:
        return None
    now = least = size.room if demand.allowed is None else demand.allowed
    worth = _LEAST_TOKENS
    for limit, state in zip(limits, states, strict=True):
        left = limit.most - state.used - state.held
        if limit.unit == "tokens":
            tokens = (limit.most if limit.leaks else left) - size.prompt
        elif limit.unit == "money" and demand.price is not None and demand.price.completion > 0:
            prompt = math.ceil(size.prompt * max(demand.price.prompt, demand.price.cached))  # fmt: skip
            tokens = int((left - prompt) / (demand.price.completion))
        else:
            continue
        if tokens // size.choices < least:
            least = tokens // size.choices
            worth = _WORTH_TOKENS if state.held and not limit.leaks else _LEAST_TOKENS
    return least if worth <= least < now else None


def hopeless(demand: Demand, limit: Limit, state: State) -> bool:
    """Return True if so much of a budget is used that it has no room for such a request, however few tokens its prompt has."""
    size = demand.size
    if size is None or not limit.is_budget:
        return False
    answer = size.choices * (_LEAST_TOKENS if size.limit is None else size.limit)
    if limit.unit == "tokens":
        return state.used + 1 + answer > limit.most
    return demand.price is not None and state.used + answer * demand.price.completion > limit.most


def count_used(limits: Sequence[Limit], usage: Usage, price: Rates | None) -> list[int]:
    """Return the amount that a request has used of each limit."""
    found: list[int] = []
    for limit in limits:
        if limit.counts_requests:
            found.append(int(limit.unit == "requests"))
        elif limit.unit == "tokens":
            found.append(usage.prompt_tokens + usage.completion_tokens)
        else:
            found.append(cost(price, usage))
    return found
