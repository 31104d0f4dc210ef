"""Tests of unilect.dialects.ollama.durations."""

import math
from typing import Any

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core.errors import InvalidRequest
from unilect.dialects.ollama.durations import seconds_of


@pytest.mark.parametrize(
    ("given_", "seconds"),
    [
        (0, 0),
        (300, 300),
        (0.5, 0.5),
        (-1, math.inf),
        (-0.1, math.inf),
        (1e300, math.inf),
        ("0", 0),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("300s", 300),
        ("250ms", 0.25),
        ("-1m", math.inf),
        ("+2s", 2),
        ("60", 60),
        ("99999999h", math.inf),
    ],
)
def test_durations(given_: Any, seconds: float) -> None:
    """A duration is a number of seconds, or a text of numbers with units; below zero it is for ever."""
    assert seconds == pytest.approx(seconds_of(given_))


@pytest.mark.parametrize(
    "text",
    ["", "m", "5 m", "5x", "--5m", "1h-30m", "5m ", "٥m", "1e3s", "0x5s", "5m" * 40, "9" * 65],
)
def test_durations_that_are_none(text: str) -> None:
    """A text that is no duration is refused by the name of its field."""
    with pytest.raises(InvalidRequest, match="keep_alive") as raised:
        seconds_of(text)

    assert "keep_alive" == raised.value.param


@given(st.text(max_size=80))
def test_any_duration(text: str) -> None:
    """Whatever text is sent for a duration is seconds, or refused."""
    try:
        assert seconds_of(text) >= 0
    except InvalidRequest as error:
        assert "keep_alive" == error.param
