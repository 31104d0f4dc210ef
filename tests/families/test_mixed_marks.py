"""Texts made of the marks of all families, in any order and cut anywhere: a text that explains formats, or a caller's text that a model repeats."""

import itertools
from typing import Any

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from support.common.effort import effort_s
from support.common.properties import given
from unilect.core.events import Event, fold
from unilect.families import FAMILIES as ALL
from unilect.families import PLAIN, Reading
from unilect.families.chatglm import IN_TURNS

TOOLS: dict[str, Any] = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}}
FAMILIES = {one.name: one for one in (*ALL, replace(IN_TURNS, name="turns"))}
MARKS = sorted({mark for one in FAMILIES.values() for mark in one.tokens})
BODIES = ["x", " ", "\n", "[]", "{}", '{"name": "f", "arguments": {"a": "', '"}}', "f", "f(a='1')", "<function=f>", "functions.f:0", "```json\n"]  # fmt: skip
ENDED = sorted({f"{one.begin}x{one.end}" for family in ALL for one in family.calls if one.end})
PIECES = st.lists(st.sampled_from(ENDED + MARKS + BODIES), max_size=12)
MOST_S = 0.1


def read(name: str, pieces: list[str]) -> list[list[Event]]:
    """The events of an output that comes in pieces."""
    ids = itertools.count()
    reading = Reading(
        family=FAMILIES[name], tools=TOOLS, thinking=name != "glm", bare=name == "phi"
    )
    scanner = reading.scanner(lambda: f"call_{next(ids)}")
    return [*(scanner.add(piece) for piece in pieces), scanner.end()]


def answer(batches: list[list[Event]]) -> list[Any]:
    """What an output comes to."""
    return [
        (one.text or "", one.reasoning or "", [(call.name, call.arguments) for call in one.tool_calls])
        for one in fold(batches).choices
    ]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
@given(pieces=PIECES, size=st.integers(1, 9), examples=40)
def test_any_marks_in_any_order(name: str, pieces: list[str], size: int) -> None:
    """Whatever marks an output has, it is read without an error, and comes to the same in one piece and in many."""
    text = "".join(pieces)
    whole = answer(read(name, [text]))
    cut = [text[at : at + size] for at in range(0, len(text), size)]

    assert whole == answer(read(name, cut))
    assert whole == answer(read(name, pieces))


@given(pieces=PIECES, examples=400)
def test_an_unknown_family(pieces: list[str]) -> None:
    """An output of a family that is not known is read with the marks of all, whichever came first."""
    read("plain", pieces)


def test_two_families_marks() -> None:
    """A call behind what looks like another family's is found, and what is no call stays text."""
    call = '<tool_call>{"name": "f", "arguments": {"a": "1"}}</tool_call>'
    for head in ("<|tool_call|>x<|/tool_call|>", "<tool_call>x</tool_call>", "<｜tool▁calls▁begin｜>x<｜tool▁calls▁end｜>"):  # fmt: skip
        ((text, _, calls),) = answer(read("plain", [f"see {head} and {call}"]))
        assert (f"see {head} and ", [("f", '{"a": "1"}')]) == (text, calls)
    ((text, _, calls),) = answer(read("plain", ["<tool_call>x</tool_call>[TOOL_CALLS][]"]))
    assert ("<tool_call>x</tool_call>[TOOL_CALLS][]", []) == (text, calls)


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize(("size", "each"), [(100_000, 1), (16, 3)])
def test_mixed_marks_are_read_in_linear_time(size: int, each: int) -> None:
    """Sixty thousand characters of two families' marks in turns are read in a tenth of a second of the processor; token by token, which takes long, a third of all pairs."""
    for (at, one), (turn, other) in itertools.product(enumerate(PLAIN.calls), repeat=2):
        if (at + turn) % each:
            continue
        unit = f"{one.begin}x{one.end}{other.begin}x"
        text = unit * (60_000 // len(unit))
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert effort_s(lambda pieces=pieces: read("plain", pieces), MOST_S) < MOST_S, unit
