"""Tests of unilect.core.durations."""

import pytest

from unilect.core.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("5m", 300), ("1h30m", 5400), ("1.5h", 5400), ("250ms", 0.25), ("-1", -1), ("-1m", -60), ("+2s", 2)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    """A duration is a number of seconds, or numbers with units, with a sign before all of it."""
    assert seconds == pytest.approx(parse_duration(text))


@pytest.mark.parametrize("text", ["", "m", "5 m", "5x", "--5m", "1h-30m", "1e3s", "5m" * 40])
def test_what_is_none(text: str) -> None:
    """Another text is no duration."""
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)
