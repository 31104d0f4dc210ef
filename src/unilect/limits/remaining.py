"""The rest of each limit, as the admin API shows it."""

from datetime import UTC, datetime

from msgspec import Struct

from unilect.limits.claims import MILLION, Limit, full_again_s
from unilect.limits.counters import Claim, State
from unilect.limits.limiter import Limiter
from unilect.runtime.context import Context


class Remaining(Struct, frozen=True):
    """
    The rest of one limit.

    Attributes:
        of: `key`, `owner` or `model`.
        name: The id of the key, or the name of the owner or the model.
        limit: Its name, such as `tokens_per_day`.
        most: The limit; money in the currency of the prices.
        used: The used amount; of a minute what has not come back yet.
        reserved: The amount that is reserved for running requests; of `parallel` the number of running requests.
        left: The amount that a request may still use; never below 0.
        resets_at: When all of it is free again if nothing more is used (ISO 8601, UTC); null for `parallel`.
    """

    of: str
    name: str
    limit: str
    most: float
    used: float
    reserved: float
    left: float
    resets_at: str | None


async def remaining(limits: Limiter, context: Context) -> list[Remaining]:
    """
    Return the rest of each limit of a key, an owner or a model, of which the context has one.

    Raises:
        LimitsUnavailable: It cannot be read now.
    """
    now = limits.clock()
    of = "key" if context.caller else "owner" if context.owner else "model"
    found = await limits.look(context)
    return [_describe(*one, now) for one in found if one[0].subject.startswith(f"{of}:")]


def _describe(limit: Limit, claim: Claim, state: State, now: float) -> Remaining:
    of, _, name = limit.subject.partition(":")
    scale = MILLION if limit.unit == "money" else 1
    resets_at = None
    if limit.unit != "parallel":
        at = datetime.fromtimestamp(now + full_again_s(claim, state, now), UTC)
        resets_at = at.isoformat(timespec="seconds")
    left = max(0, limit.most - state.used - state.held)
    most, used, held, free = (n / scale for n in (limit.most, state.used, state.held, left))
    return Remaining(of, name, limit.name, most, used, held, free, resets_at)
