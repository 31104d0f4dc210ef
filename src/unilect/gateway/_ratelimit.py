"""
The headers that tell a client its limits: as OpenAI sends them, and as Anthropic does for its own API.

Sources: https://platform.openai.com/docs/guides/rate-limits and https://platform.claude.com/docs/en/api/rate-limits
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from unilect.gateway._counters import MINUTE_US, Claim, State
from unilect.gateway.claims import Limit


def headers(
    dialect: str,
    limits: Sequence[Limit],
    claims: Sequence[Claim],
    states: Sequence[State],
    now: float,
) -> dict[str, str]:
    """
    What is told of limits: of requests and of tokens the one of which the least is left, of a minute's before a day's.

    Args:
        dialect: The API that was called; that of Anthropic has names of its own.
        now: Seconds since 1970.
    """
    told: dict[str, str] = {}
    for kind in ("requests", "tokens"):
        found = [
            (not limit.leaks, max(0, limit.most - state.used - state.held), limit, claim, state)
            for limit, claim, state in zip(limits, claims, states, strict=True)
            if limit.unit == kind
        ]
        if not found:
            continue
        _, left, limit, claim, state = min(found, key=lambda one: one[:2])
        resets_s = _full_again_s(claim, state, now)
        if dialect == "messages":
            prefix = f"anthropic-ratelimit-{kind}"
            at = datetime.fromtimestamp(math.ceil(now + resets_s), UTC)
            values = (str(limit.most), str(left), f"{at:%Y-%m-%dT%H:%M:%SZ}")
            names = [f"{prefix}-{what}" for what in ("limit", "remaining", "reset")]
        else:
            values = (str(limit.most), str(left), duration(resets_s))
            names = [f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset")]
        told.update(zip(names, values, strict=True))
    return told


def duration(seconds: float) -> str:
    """A length of time as OpenAI writes it: `0s`, `120ms`, `1s`, `6m0s`, `23h59m59s`; rounded up."""
    if 0 < seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _full_again_s(claim: Claim, state: State, now: float) -> float:
    """Seconds until nothing of a limit is used, if nothing more is."""
    if claim.leaks:
        return state.used * MINUTE_US / claim.most / 1e6
    return 0.0 if claim.ends_at is None else max(0.0, claim.ends_at - now)
