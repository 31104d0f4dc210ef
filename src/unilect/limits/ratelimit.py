"""
The headers that tell a client its limits: as OpenAI sends them, and as Anthropic does for its own API.

Sources: https://platform.openai.com/docs/guides/rate-limits and https://platform.claude.com/docs/en/api/rate-limits
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from unilect.limits.claims import Limit
from unilect.limits.counters import Claim, State

_MINUTE_S = 60
_WHAT = ("limit", "remaining", "reset")
#: Of each kind the headers' names as OpenAI has them, and as Anthropic has them.
_HEADERS = {
    kind: ([f"x-ratelimit-{what}-{kind}" for what in _WHAT], [f"anthropic-ratelimit-{kind}-{what}" for what in _WHAT])
    for kind in ("requests", "tokens")
}  # fmt: skip


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
