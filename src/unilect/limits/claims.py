"""
The limits that hold for a request, its claims on each (requests, tokens, money), and what its client is told of them.

Clients are told as OpenAI does it, and by Anthropic's API as Anthropic does. Money is counted in millionths of the currency, as integers, like in the ledger: both sum up the same.

Sources: https://platform.openai.com/docs/guides/rate-limits and https://platform.claude.com/docs/en/api/rate-limits
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, Protocol

from msgspec import Struct, structs

from unilect.config.limits import Limits
from unilect.config.model import Price
from unilect.core.events import Tally, Usage
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
_MINUTE_S = 60
_WHAT = ("limit", "remaining", "reset")
#: Of each kind the headers' names as OpenAI has them, and as Anthropic has them.
_HEADERS = {
    kind: ([f"x-ratelimit-{what}-{kind}" for what in _WHAT], [f"anthropic-ratelimit-{kind}-{what}" for what in _WHAT])
    for kind in ("requests", "tokens")
}  # fmt: skip


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

    def most(self, allowed: int | None) -> tuple[int, int]:
        """Return the most tokens of prompts and answers, and of the answers alone, where each has at most `allowed`, or what the request says."""
        limit = self.limit if allowed is None else allowed
        answers = self.choices * (self.room if limit is None else limit)
        whole = self.prompt + answers
        if not self.knows_room:
            return whole, answers
        return min(whole, max(self.prompt, self.choices * self.room)), answers


class TokenEstimator(Protocol):
    """Access to the models, for the sizes of requests."""

    def size(self, model: str, request: Request) -> TokenEstimate:
        """Estimate a bound, from the length of its texts."""

    async def count(self, model: str, request: Request, size: TokenEstimate) -> TokenEstimate:
        """Return the estimate with its prompt counted by the model; as given where that cannot be counted."""

    def limits(self, model: str) -> Limits | None:
        """Return the limits of all requests to a model together."""


def cost(price: Rates, usage: Tally | Usage) -> int:
    """Compute the cost of an answer in millionths of the currency, rounded up."""
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

    def claim(self, limit: Limit) -> Claim:
        """
        Make its claim on a limit: what is held of it are requests, tokens, or millionths of the currency; of a minute's tokens less than it may use,
        where it does not say how many.
        """
        size, need = self.size, 1
        if size is not None and not limit.counts_requests:
            need, answers = size.most(self.allowed)
            if limit.unit == "money":
                price = self.price or Price()
                prompt = size.prompt * max(price.prompt, price.cached)
                need = math.ceil(prompt + answers * price.completion)
            elif limit.leaks and size.limit is None and size.choices:
                usual = size.prompt + min(_USUAL_TOKENS, limit.most // 10) * size.choices
                need = min(need, max(size.prompt, min(usual, limit.most)))
        name, ends_at = counter(limit, int(self.now // _DAY_S))
        room = need * LOOSE if self.loose and limit.is_budget else need
        return Claim(name=name, leaks=limit.leaks, most=limit.most, need=need, room=room, ends_at=ends_at)  # fmt: skip

    def least(self, limit: Limit) -> int:
        """Return the amount that must be left of a limit for the shortest answer that the request may get."""
        size = self.size
        shortest = size is not None and size.limit is None and bool(size.choices)
        return (
            (structs.replace(self, allowed=_LEAST_TOKENS) if shortest else self).claim(limit).need
        )

    def never_fits(self, limit: Limit) -> bool:
        """Return True if the request may use more in a minute than the limit has."""
        return limit.leaks and self.claim(limit).need > limit.most


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


def count_used(limits: Sequence[Limit], usage: Tally | Usage, price: Rates | None) -> list[int]:
    """Return the amount that a request has used of each limit."""
    found: list[int] = []
    for limit in limits:
        if limit.counts_requests:
            found.append(int(limit.unit == "requests"))
        elif limit.unit == "tokens":
            found.append(usage.prompt_tokens + usage.completion_tokens)
        else:
            found.append(0 if price is None else cost(price, usage))
    return found


class HeaderLimits(NamedTuple):
    """
    The limits of one kind of which headers tell one.

    Attributes:
        names: The headers' names as OpenAI has them: of the limit, of what is left, and of when it is whole again.
        anthropic_names: As Anthropic has them.
        places: The places of these limits among all.
    """

    names: list[str]
    anthropic_names: list[str]
    places: list[int]


def select_limits(limits: Sequence[Limit]) -> list[HeaderLimits]:
    """Select the limits for `headers`: of requests and of tokens those of a minute, or where there are none those of a day."""
    found: list[HeaderLimits] = []
    for kind, names in _HEADERS.items():
        of_kind = [(at, limit) for at, limit in enumerate(limits) if limit.unit == kind]
        leaks = any(limit.leaks for _, limit in of_kind)
        places = [at for at, limit in of_kind if limit.leaks == leaks]
        if places:
            found.append(HeaderLimits(*names, places))
    return found


def headers(
    dialect: str,
    shown: Sequence[HeaderLimits],
    claims: Sequence[Claim],
    states: Sequence[State],
    now: float,
) -> dict[str, str]:
    """
    Make the headers that tell a client its limits: of requests and of tokens, the limit of which the least is left, of a minute's before a day's.

    Args:
        dialect: The API that was called; that of Anthropic has names of its own.
        shown: The limits, from `select_limits`.
        now: Seconds since 1970.
    """
    made: dict[str, str] = {}
    for one in shown:
        at, left = -1, 0
        for place in one.places:
            claim, state = claims[place], states[place]
            free = claim.most - state.used - state.held
            if at < 0 or free < left:
                at, left = place, free
        claim = claims[at]
        resets_s = full_again_s(claim, states[at], now)
        if dialect == "messages":
            names = one.anthropic_names
            when = f"{datetime.fromtimestamp(math.ceil(now + resets_s), UTC):%Y-%m-%dT%H:%M:%SZ}"
        else:
            names, when = one.names, duration(resets_s)
        made |= zip(names, (str(claim.most), str(max(0, left)), when), strict=True)
    return made


def duration(seconds: float) -> str:
    """Write a length of time as OpenAI does: `0s`, `120ms`, `1s`, `6m0s`, `23h59m59s`; rounded up."""
    if 0 < seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def full_again_s(claim: Claim, state: State, now: float) -> float:
    """Compute the seconds until nothing of a limit is used, if nothing more is."""
    if claim.leaks:
        return state.used * _MINUTE_S / claim.most
    return 0.0 if claim.ends_at is None else max(0.0, claim.ends_at - now)
