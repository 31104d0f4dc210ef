"""Tests of unilect.limits.claims: what a request claims of its limits, and what it has used of them."""

from datetime import datetime

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.config.model import Price
from unilect.core.events import MOST_TOKENS, Usage
from unilect.limits.claims import (
    Demand,
    Limit,
    TokenEstimate,
    allowance,
    cost,
    count_used,
    counter,
    day_of,
    limits_of,
    period,
)
from unilect.limits.limiter import State

PRICE = Price(prompt=1.5, cached=0.1, completion=6.0)


def limit(name: str, most: int) -> Limit:
    """A limit of a key."""
    return Limit(name, "API key", "key:a", most)


def asked(limit: int | None, prompt: int = 100, choices: int = 1, allowed: int | None = None) -> Demand:  # fmt: skip
    """A request whose prompt was counted, for a model with a context of 4,096."""
    size = TokenEstimate(
        prompt=prompt, choices=choices, limit=limit, room=4096, knows_room=True, is_counted=True
    )
    return Demand(size=size, price=PRICE, allowed=allowed, loose=False, now=0.0)


@pytest.mark.parametrize(
    ("name", "day", "text", "end"),
    [
        ("tokens_per_day", "2026-02-28", "2026-02-28", "2026-03-01"),
        ("tokens_per_month", "2026-12-31", "2026-12", "2027-01-01"),
        ("money_per_month", "2024-02-29", "2024-02", "2024-03-01"),
        ("money_per_day", "2026-12-31", "2026-12-31", "2027-01-01"),
    ],
)
def test_periods(name: str, day: str, text: str, end: str) -> None:
    """A day and a month are UTC's, and end where the next one begins."""
    now = datetime.fromisoformat(f"{day}T23:59:59+00:00").timestamp()
    ends_at = datetime.fromisoformat(f"{end}T00:00:00+00:00").timestamp()
    assert (text, ends_at) == period(name.rpartition("_")[2], day_of(now))[:2]
    assert (f"key:a/{name}/{text}", ends_at) == counter(limit(name, 1), day_of(now))
    assert ("key:a/parallel", None) == counter(limit("parallel", 1), day_of(now))


def test_needs() -> None:
    """A request needs its prompt and its answers; money by the dearest of what its prompt may cost."""
    some = asked(50, choices=3)
    needs = {name: some.claim(limit(name, 10_000)).need for name in ("parallel", "requests_per_minute", "tokens_per_day", "tokens_per_minute", "money_per_day")}  # fmt: skip
    assert [1, 1, 250, 250, 150 + 900] == list(needs.values())
    unsaid = asked(None)
    assert (4096, 100 + 512, 100 + 60) == (
        unsaid.claim(limit("tokens_per_day", 9)).need,
        unsaid.claim(limit("tokens_per_minute", 10_000)).need,
        unsaid.claim(limit("tokens_per_minute", 600)).need,
    )
    assert asked(50).never_fits(limit("tokens_per_minute", 149))
    assert not asked(50).never_fits(limit("tokens_per_minute", 150))
    assert not asked(None).never_fits(limit("tokens_per_minute", 150))
    assert asked(None, 151).never_fits(limit("tokens_per_minute", 150))
    assert not asked(50).never_fits(limit("tokens_per_day", 10))


def test_what_is_left() -> None:
    """Where less is left than an answer may have, each choice gets its part, if that is worth an answer."""
    day, money = limit("tokens_per_day", 1000), limit("money_per_day", 3150)
    two = asked(None, choices=2)
    assert 450 == allowance(two, [day], [State(0)])
    assert 250 == allowance(two, [day, money], [State(0), State(0)])
    assert 18 == allowance(two, [day], [State(863)])
    assert allowance(two, [day], [State(870)]) is None
    assert allowance(two, [day], [State(0, 863)]) is None  # running requests may leave more
    assert 300 == allowance(two, [day], [State(0, 300)])
    assert allowance(asked(50), [day], [State(980)]) is None
    assert allowance(asked(None, allowed=450), [day], [State(0)]) is None


COUNT = st.integers(0, 10**6)


@given(COUNT, COUNT, COUNT, st.integers(1, 4), COUNT)
def test_what_was_used_was_held(prompt: int, cached: int, answer: int, choices: int, most: int) -> None:  # fmt: skip
    """An answer within its bounds never uses more tokens or money than was held for it."""
    size = TokenEstimate(prompt=prompt, choices=choices, limit=most, room=0, knows_room=False)
    held = Demand(size=size, price=PRICE, allowed=None, loose=False, now=0.0)
    usage = Usage(prompt, min(answer, choices * most), min(cached, prompt))
    limits = limits_of({"tokens_per_day": 10, "money_per_day": 0.5, "parallel": 3}, "API key", "k")
    assert 500_000 == limits[1].most
    amounts = count_used(limits, usage, PRICE)
    for one, amount in zip(limits, amounts, strict=True):
        assert amount <= held.claim(one).need
    assert 0 == amounts[2]


def test_cost() -> None:
    """Cost is in millionths of the currency, cached tokens at their own price; without a price it is nothing."""
    assert 60 * 1.5 + 40 * 0.1 + 10 * 6 == cost(PRICE, Usage(100, 10, 40))
    assert [1, 1, 2] == [cost(Price(prompt=0.02), Usage(n, 0)) for n in (1, 50, 51)]
    assert 3 == cost(Price(prompt=0.1), Usage(30, 0))  # as a float 3.0000000000000004


def test_a_cost_beyond_reason() -> None:
    """However many tokens a server says that it has made, budgets count what the ledger says, and no more than fits into their counters."""
    dearest = Price(completion=1_000_000.0)
    assert 10**15 == cost(dearest, Usage(0, MOST_TOKENS))
