"""Tests of unilect.dialects.ollama._options, and of the texts and numbers that stand for durations and conversations."""

import math
from typing import Any

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.api.backend import Capabilities
from unilect.core.errors import InvalidRequest
from unilect.dialects.ollama._messages import MAX_CONTEXT, context_of, read_context
from unilect.dialects.ollama._options import option_fields, seconds_of, think_fields


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


_values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)  # fmt: skip
_names = st.sampled_from(["seed", "temperature", "stop", "num_ctx", "num_predict", "use_mmap", "numa", "new"])  # fmt: skip


@given(st.dictionaries(_names, _values | st.lists(_values, max_size=3) | st.just({"a": 1})))
def test_any_options(options: dict[str, Any]) -> None:
    """Each option is taken, named, about loading, or refused by its name."""
    try:
        fields, left_out = option_fields(options, 2048)
    except InvalidRequest as error:
        assert (error.param or "").removeprefix("options.") in options
        assert f'option "{(error.param or "").removeprefix("options.")}"' in error.message
        return
    assert {name for name in left_out} <= {f"options.{name}" for name in options}
    assert set(fields) <= {"seed", "temperature", "stop", "max_tokens"}
    assert ("options.new" in left_out) == (options.get("new") is not None)


@pytest.mark.parametrize(
    ("asked", "context", "left_out"),
    [(2048, 2048, ()), (2049, 2048, ("options.num_ctx",)), (5, None, ("options.num_ctx",))],
)
def test_contexts(asked: int, context: int | None, left_out: tuple[str, ...]) -> None:
    """A context up to the model's is taken; one beyond it, or beside one that is not known, is named."""
    assert ({}, left_out) == option_fields({"num_ctx": asked}, context)


@pytest.mark.parametrize(
    ("can", "fields"),
    [
        (Capabilities(), {}),
        (Capabilities(thinking=False, passes_unknown=True), {}),
        (Capabilities(thinking=True), {"chat_template_kwargs": {"enable_thinking": False}}),
        (Capabilities(passes_unknown=True), {"chat_template_kwargs": {"enable_thinking": False}}),
    ],
)
def test_no_thoughts(can: Capabilities, fields: dict[str, Any]) -> None:
    """`think: false` is told to a model that may think, and to no other."""
    assert fields == think_fields(False, can, "m")


_said = st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text(max_size=20)))


@given(_said)
def test_contexts_of_texts(said: list[Any]) -> None:
    """A `context` gives the conversation again that it was made of, in numbers that every client can keep."""
    numbers = context_of(said)

    assert numbers is not None
    assert said == read_context(numbers)
    assert all(0 <= number < 2**32 for number in numbers)


def test_a_context_without_end() -> None:
    """Of a conversation that could not be given back there is no `context`, however its text is written in JSON."""
    fits = context_of([("user", "a" * 4 * (MAX_CONTEXT - 50))])

    assert fits is not None
    assert len(fits) <= MAX_CONTEXT
    assert context_of([("user", "a" * 4 * MAX_CONTEXT)]) is None
    assert context_of([("user", "\n" * 3 * MAX_CONTEXT)]) is None


@given(st.lists(st.integers(), max_size=6) | st.lists(st.integers(0, 2**32), max_size=6).map(lambda more: [0x696E75, *more]))  # fmt: skip
def test_any_context(numbers: list[int]) -> None:
    """Numbers that are no `context` of this server's are refused."""
    if not numbers:
        assert [] == read_context(numbers)
        return
    with pytest.raises(InvalidRequest, match="context"):
        read_context(numbers)
