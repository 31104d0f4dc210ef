"""Tests of unilect.constraints.digits."""

import re

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.constraints.digits import integers

BOUND = st.none() | st.integers(-1200, 1200) | st.integers(-(2**70), 2**70)


def allows(rule: str, number: int | str) -> bool:
    """True where a rule of literals, classes and repetitions allows a text."""
    plain = re.sub(r'"([^"]*)"', r"\1", rule).replace(" ", "")
    return re.fullmatch(f"(?:{plain})", str(number)) is not None


@given(BOUND, BOUND, st.integers(-3000, 3000), st.integers(-(10**16) + 1, 10**16 - 1))
def test_integers(one: int | None, other: int | None, small: int, large: int) -> None:
    """Integers between two bounds are allowed, and no others; without a bound there are sixteen digits."""
    least, most = one, other
    if least is not None and most is not None and least > most:
        least, most = most, least
    rule = integers(least, most)

    near = [bound + step for bound in (least, most) if bound is not None for step in (-1, 0, 1)]
    for number in [*near, small, large, 0, -1]:
        inside = (least is None or least <= number) and (most is None or number <= most)
        assert inside == allows(rule, number), (number, rule)
    assert not any(allows(rule, text) for text in ("", "00", "-0", "01", "-"))


def test_far_bounds() -> None:
    """A bound of more digits than anybody counts to is left out; two that exclude each other have no rule."""
    assert allows(integers(None, 10**300), 5)
    assert allows(integers(-(10**300), 2), -(10**15))
    with pytest.raises(ValueError, match="no integer"):
        integers(3, 2)
