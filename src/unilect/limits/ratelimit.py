"""
The headers that tell a client its limits: as OpenAI sends them, and as Anthropic does for its own API.

Sources: https://platform.openai.com/docs/guides/rate-limits and https://platform.claude.com/docs/en/api/rate-limits
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from unilect.limits.claims import Limit
from unilect.limits.counters import MINUTE_US, Claim, State

_WHAT = ("limit", "remaining", "reset")
#: Of each kind the headers' names as OpenAI has them, and as Anthropic has them.
_HEADERS = {
    kind: ([f"x-ratelimit-{what}-{kind}" for what in _WHAT], [f"anthropic-ratelimit-{kind}-{what}" for what in _WHAT])
    for kind in ("requests", "tokens")
}  # fmt: skip


class Shown(NamedTuple):
    """
    The limits of one kind of which one is told.

    Attributes:
        names: The headers' names as OpenAI has them: of the limit, of what is left, and of when it is whole again.
        anthropic_names: As Anthropic has them.
        places: Of each its place among all limits, and how much it is.
    """

    names: list[str]
    anthropic_names: list[str]
    places: list[tuple[int, str]]


def select_limits(limits: Sequence[Limit]) -> list[Shown]:
    """Select the limits for `headers`: of requests and of tokens those of a minute, or where there are none those of a day."""
    found: list[Shown] = []
    for kind, names in _HEADERS.items():
        of_kind = [(at, limit) for at, limit in enumerate(limits) if limit.unit == kind]
        leaks = any(limit.leaks for _, limit in of_kind)
        places = [(at, str(limit.most)) for at, limit in of_kind if limit.leaks == leaks]
        if places:
            found.append(Shown(*names, places))
    return found


def headers(
    dialect: str,
    told_of: Sequence[Shown],
    claims: Sequence[Claim],
    states: Sequence[State],
    now: float,
) -> dict[str, str]:
    """
    Make the headers that tell a client its limits: of requests and of tokens, the limit of which the least is left, of a minute's before a day's.

    Args:
        dialect: The API that was called; that of Anthropic has names of its own.
        told_of: The limits, from `select_limits`.
        now: Seconds since 1970.
    """
    told: dict[str, str] = {}
    for one in told_of:
        places = one.places
        at, most = places[0] if len(places) == 1 else _tightest(places, claims, states)
        claim, state = claims[at], states[at]
        left = claim.most - state.used - state.held
        tell(told, one, dialect, most, left, full_again_s(claim, state, now), now)
    return told


def tell(
    told: dict[str, str], of: Shown, dialect: str, most: str, left: int, resets_s: float, now: float
) -> None:
    """Tell of one kind of limits: how much it is, what is left of it, and in how many seconds nothing of it is used."""
    if dialect == "messages":
        limit, remaining, reset = of.anthropic_names
        at_end = datetime.fromtimestamp(math.ceil(now + resets_s), UTC)
        when = f"{at_end:%Y-%m-%dT%H:%M:%SZ}"
    else:
        limit, remaining, reset = of.names
        when = duration(resets_s)
    told[limit] = most
    told[remaining] = str(left) if left > 0 else "0"
    told[reset] = when


def duration(seconds: float) -> str:
    """A length of time as OpenAI writes it: `0s`, `120ms`, `1s`, `6m0s`, `23h59m59s`; rounded up."""
    if 0 < seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    return _in_seconds(math.ceil(seconds))


@lru_cache(1024)
def _in_seconds(seconds: int) -> str:
    """A length of time in whole seconds; many requests of a second are told the same."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _tightest(
    places: list[tuple[int, str]],
    claims: Sequence[Claim],
    states: Sequence[State],
) -> tuple[int, str]:
    """The place of which the least is left; the first of those of which nothing is."""
    return min(places, key=lambda one: max(0, claims[one[0]].most - states[one[0]].used - states[one[0]].held))  # fmt: skip


def full_again_s(claim: Claim, state: State, now: float) -> float:
    """Seconds until nothing of a limit is used, if nothing more is."""
    if claim.leaks:
        return state.used * MINUTE_US / claim.most / 1e6
    return 0.0 if claim.ends_at is None else max(0.0, claim.ends_at - now)
