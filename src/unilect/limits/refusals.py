"""Errors of a request that a limit refuses: the message about the limit, and when to retry."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NoReturn

from unilect.core.errors import QuotaExceeded, QuotaReserved, RateLimited, RequestTooLarge
from unilect.limits import claims
from unilect.limits.claims import Demand, Limit
from unilect.limits.counters import Claim, State

_SOON_S = 1.0


def refuse_large(demand: Demand, limits: Sequence[Limit]) -> NoReturn:
    """
    Raises:
        RequestTooLarge: Always.
    """
    limit = next(limit for limit in limits if demand.never_fits(limit))
    raise RequestTooLarge(
        f"{limit.name} of this {limit.of} is {limit.most}, and the request may use {demand.claim(limit).need} tokens. Shorten the prompt, or "
        "lower `max_tokens`."
    )


def refuse(
    demand: Demand, limits: Sequence[Limit], claimed: Sequence[Claim], states: Sequence[State]
) -> NoReturn:
    """
    Tell why a request is not answered now: that a budget is used up before anything that passes by itself. Of a prompt that is not
    counted nobody knows whether the budget has room for it.

    Raises:
        RateLimited: Always.
    """
    wait_s, why = 0.0, ""
    reserved: QuotaReserved | None = None
    for limit, claim, state in zip(limits, claimed, states, strict=True):
        if limit.leaks and state.wait_us > wait_s * 1e6:
            wait_s, why = state.wait_us / 1e6, f"{limit.name} of this {limit.of} is {limit.most}"
        elif limit.unit == "parallel":
            if wait_s < _SOON_S and state.wait_us:
                wait_s, why = _SOON_S, f"{limit.most} requests of this {limit.of} are running, the most that may (`parallel`)"  # fmt: skip
        elif (
            not (limit.leaks or demand.loose) and state.used + state.held + claim.need > limit.most
        ):
            if state.used + demand.least(limit) > limit.most:
                raise QuotaExceeded(_describe_shortage(limit, claim, state))
            reserved = QuotaReserved(_describe_shortage(limit, claim, state), retry_after_s=_SOON_S)
    if reserved is not None and wait_s <= _SOON_S:
        raise reserved
    raise RateLimited(f"{why or 'Too many requests come at once'}. Try again in {max(wait_s, _SOON_S):.3g} s.", retry_after_s=wait_s or _SOON_S)  # fmt: skip


def _describe_shortage(limit: Limit, claim: Claim, state: State) -> str:
    """Make the message about a budget that has no room for a request."""
    scale = claims.MILLION if limit.unit == "money" else 1
    ends = datetime.fromtimestamp(claim.ends_at or 0, UTC)
    held = f", {state.held / scale:.10g} are reserved for running requests" if state.held else ""
    return (
        f"{limit.name} of this {limit.of} is {limit.most / scale:.10g}: {state.used / scale:.10g} are used{held}, and the request may use "
        f"{claim.need / scale:.10g}. It starts again at {ends:%Y-%m-%d %H:%M} UTC."
    )
