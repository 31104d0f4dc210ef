"""Tests of the headers of unilect.limits.claims: which limit they tell of, and how they write times."""

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.limits.claims import Limit, duration, headers, select_limits
from unilect.limits.counters import Claim, State

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (1, "1s"),
        (1.2, "2s"),
        (59.9, "1m0s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
        (86_399, "23h59m59s"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    """A length of time is written as OpenAI writes it, and rounded up."""
    assert text == duration(seconds)


@given(st.floats(0, 1e7))
def test_never_too_short(seconds: float) -> None:
    """A length of time is never told shorter than it is."""
    text = duration(seconds)
    if text.endswith("ms"):
        told = int(text[:-2]) / 1000
    else:
        parts = [int(part) for part in text.replace("h", " ").replace("m", " ").replace("s", " ").split()]  # fmt: skip
        told = sum(part * 60**at for at, part in enumerate(reversed(parts)))
    assert seconds <= told <= seconds + 1


def told(dialect: str, *rows: tuple[str, int, State]) -> dict[str, str]:
    """The headers of some limits of a key: their names, how much they are, and how they are."""
    limits = [Limit(name, "API key", "key:a", most) for name, most, _ in rows]
    claims = [
        Claim(
            name="c",
            leaks=limit.leaks,
            most=limit.most,
            need=1,
            room=1,
            ends_at=None if limit.leaks else NOW + 90,
        )
        for limit in limits
    ]
    return headers(dialect, select_limits(limits), claims, [state for _, _, state in rows], NOW)


def test_the_tightest() -> None:
    """Of several limits of a kind that of which the least is left is told, of a minute before that of a day."""
    rows = [
        ("tokens_per_day", 1000, State(990, 5)),
        ("tokens_per_minute", 600, State(60)),
        ("tokens_per_minute", 500, State(50)),
        ("money_per_day", 9, State(1)),
        ("parallel", 2, State(0, 1)),
    ]
    assert {
        "x-ratelimit-limit-tokens": "500",
        "x-ratelimit-remaining-tokens": "450",
        "x-ratelimit-reset-tokens": "6s",
    } == told("openai", *rows)
    assert ("1000", "5", "1m30s") == tuple(told("openai", rows[0]).values())
    assert {} == told("openai", *rows[3:])


def test_more_than_all() -> None:
    """What was used beyond a limit is told as nothing left."""
    assert "0" == told("responses", ("tokens_per_day", 10, State(12)))["x-ratelimit-remaining-tokens"]  # fmt: skip


def test_of_anthropic() -> None:
    """The Messages API has Anthropic's names, and times as dates."""
    assert {
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "58",
        "anthropic-ratelimit-requests-reset": "2027-01-15T08:00:02Z",
    } == told("messages", ("requests_per_minute", 60, State(2)))
