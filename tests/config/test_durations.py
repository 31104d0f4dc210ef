"""Tests of unilect.config.durations: lengths of time, and times in the past."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilect.config.durations import seconds, since
from unilect.core.errors import ConfigError

NOW = 1_800_000_000.0


def test_since() -> None:
    """A time in the past is a length of time before now, or a day in UTC."""
    assert NOW - 7 * 86_400 == since("7d", "since", NOW)
    assert NOW - 5400 == since(" 1.5H ", "since", NOW)
    assert 1_767_225_600 == since("2026-01-01", "since", NOW)


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "2026-13-01", "2026-1-1", "1e9d", "99999999w", "\u0661d"])  # fmt: skip
def test_none(text: str) -> None:
    """What is none is told with what was expected."""
    with pytest.raises(ConfigError, match=r"since: .* neither a length of time .* nor a day"):
        since(text, "since", NOW)


def test_a_day_to_come() -> None:
    """A day that has not begun is told; the one that has just begun is a time in the past."""
    assert NOW - NOW % 86_400 == since("2027-01-15", "since", NOW)
    with pytest.raises(ConfigError, match="since: 2027-01-16 has not begun yet"):
        since("2027-01-16", "since", NOW)


@given(st.text(max_size=30))
def test_any_text(text: str) -> None:
    """Any text is read, or refused by the name of its option."""
    for read in (lambda: since(text, "--since", NOW), lambda: seconds(text, "--since")):
        try:
            assert isinstance(read(), float)
        except ConfigError as error:
            assert str(error).startswith("--since: ")
