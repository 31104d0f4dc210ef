"""Usage reports, for `unilect usage` and `GET /v1/usage`."""

from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec import Struct

from unilect.config.durations import since
from unilect.core.errors import ConfigError
from unilect.store.records import PARTS, UsageSum

DEFAULT_BY = ",".join(PARTS)
DEFAULT_SINCE = "30d"
_DAY_S = 86_400


class Line(Struct, frozen=True):
    """
    One line of what was used.

    Attributes:
        key: The key's name, or its id where the store does not have it; None where the line is about all of them.
        model: The model that was asked for; None as for `key`.
        day: Such as `2026-11-23`, UTC; None as for `key`.
        requests: How many.
        prompt_tokens, completion_tokens, total_tokens: Tokens.
        cost: In the currency of the prices, to six decimals.
    """

    key: str | None
    model: str | None
    day: str | None
    requests: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cost: float


class UsageQuery(Struct, frozen=True):
    """A query for usage: sums for each value of `by`, since a time in seconds since 1970."""

    by: tuple[str, ...]
    since: float


def parse_query(
    by: str, back: str, now: float, where: tuple[str, str] = ("by", "since")
) -> UsageQuery:
    """
    Read what is asked for.

    Args:
        by: Some of `key`, `model` and `day`, with commas between them.
        back: Since when, see `config.durations.since`.
        now: Seconds since 1970.
        where: What the two are called.

    Raises:
        ConfigError: It is no such text; the message begins with what it is called.
    """
    parts = tuple(dict.fromkeys(part.strip() for part in by.split(",")))
    if not set(parts) <= set(PARTS):
        raise ConfigError(
            f"{where[0]}: {by[:50]!r} is not known; expected some of {', '.join(PARTS)}, with commas between them."
        )
    return UsageQuery(parts, since(back, where[1], now))


def lines(sums: Sequence[UsageSum]) -> list[Line]:
    """Make the lines of some sums."""
    return [
        Line(
            key=one.name,
            model=one.model,
            day=None if one.day is None else _day(one.day),
            requests=one.requests,
            prompt_tokens=one.prompt,
            completion_tokens=one.completion,
            total_tokens=one.prompt + one.completion,
            cost=one.cost / 1_000_000,
        )
        for one in sums
    ]


def _day(number: int) -> str:
    return f"{datetime.fromtimestamp(number * _DAY_S, UTC):%Y-%m-%d}"
