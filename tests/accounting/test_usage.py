"""Tests of unilect.accounting.usage: what is asked for, and how sums are told."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilect.accounting.usage import Line, lines, parse_query
from unilect.core.errors import ConfigError
from unilect.store.records import PARTS, UsageSum

NOW = 1_800_000_000.0


def test_asked() -> None:
    """Parts are named in any order, once or more; a time is a length of time before now, or a day."""
    for some in permutations(PARTS, 2):
        assert some == parse_query(" , ".join([*some, some[0]]), "7d", NOW).by
    assert parse_query("day", "1h", NOW).since == NOW - 3600
    assert 1_767_225_600 == parse_query("day", "2026-01-01", NOW).since


@pytest.mark.parametrize("by", ["", ",", "owner", "key;model", "key,,model", "KEY"])
def test_no_parts(by: str) -> None:
    """What is no part is refused by the name of the option."""
    with pytest.raises(ConfigError, match=r"^--by: .* expected some of key, model, day"):
        parse_query(by, "7d", NOW, ("--by", "--since"))


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text(by: str, back: str) -> None:
    """Any texts are read, or refused by the name of one of the two."""
    try:
        found = parse_query(by, back, NOW)
    except ConfigError as error:
        assert str(error).startswith(("by: ", "since: "))
    else:
        assert set(found.by) <= set(PARTS)


def test_lines() -> None:
    """A line has the key's name, the day as a date, the sum of its tokens, and the cost in the currency of the prices."""
    whole = UsageSum(key="key_A", name="ann", model="m", day=20_780, requests=2, prompt=3, completion=4, cost=1_500_001)  # fmt: skip
    none = UsageSum(key=None, name=None, model=None, day=None, requests=1, prompt=0, completion=0, cost=0)  # fmt: skip
    assert [
        Line("ann", "m", "2026-11-23", 2, 3, 4, 7, 1.500001),
        Line(None, None, None, 1, 0, 0, 0, 0.0),
    ] == lines([whole, none])
