"""Tests of unilect.constraints.normal."""

import re
from typing import Any

import pytest

from unilect.constraints.normal import normal, regular
from unilect.constraints.schema import analyse

F = {"type": "object"}
REF = {"$ref": "#/$defs/F"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"minimum": 0, "exclusiveMinimum": True}, {"exclusiveMinimum": 0}),
        ({"maximum": 3, "exclusiveMaximum": False}, {"maximum": 3}),
        ({"exclusiveMinimum": True}, {}),
        ({"items": REF | {"$defs": {"F": F}}}, {"items": REF | {"$defs": {"F": F}}, "$defs": {"F": F}}),
        ({"items": REF | {"$defs": {"F": {}}}, "$defs": {"F": F}}, {"items": REF | {"$defs": {"F": {}}}, "$defs": {"F": F}}),
        ({"$id": "http://a/b", "items": {"$ref": "http://a/b#/$defs/F"}, "$defs": {"F": F}}, {"$id": "http://a/b", "items": REF, "$defs": {"F": F}}),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "null"}, {"type": "null"}),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, {"$schema": "http://json-schema.org/draft-07/schema#"}),
        ({"properties": {"minimum": {"minimum": 1, "exclusiveMinimum": True}}}, {"properties": {"minimum": {"exclusiveMinimum": 1}}}),
        ({"properties": {"a": True, "b": 3}, "default": {"exclusiveMinimum": True}}, {"properties": {"a": True, "b": 3}, "default": {"exclusiveMinimum": True}}),
        (True, True),
        ([], []),
    ],
    ids=lambda one: str(one)[:30],
)  # fmt: skip
def test_one_form(schema: Any, expected: Any) -> None:
    """What older drafts, OpenAPI and generators write has the form of today, and what a client sent stays as it was."""
    before = repr(schema)

    assert expected == normal(schema)
    assert before == repr(schema)
    assert expected == normal(expected)


def test_definitions_beside_a_reference() -> None:
    """A reference finds the definitions that stand beside it."""
    assert analyse(normal({"items": REF | {"$defs": {"F": F}}}))


def test_what_no_automaton_follows() -> None:
    """A pattern that looks ahead or refers back is left out, others stay."""
    schema = {
        "properties": {
            "a": {"pattern": "^(?=a)a"},
            "b": {"pattern": r"(a)\1"},
            "c": {"pattern": r"a\b"},
            "d": {"pattern": r"^\p{L}$"},
            "e": {"pattern": "^(?<x>a)$"},
        }
    }
    left = regular(schema)["properties"]

    assert [{}, {}, {}] == [left[name] for name in "abc"]
    assert schema["properties"]["d"] == left["d"]
    assert schema["properties"]["e"] == left["e"]


def test_a_schema_without_an_end() -> None:
    """A schema deeper than any may be is left to those who refuse it."""
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}

    assert normal(schema)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("2012-02-29", True),
        ("2000-02-29", True),
        ("2010-02-28", True),
        ("2023-12-31", True),
        ("2010-02-29", False),
        ("1900-02-29", False),
        ("2023-02-30", False),
        ("2023-04-31", False),
        ("2023-13-01", False),
        ("x2023-01-01", False),
    ],
)
def test_dates(text: str, matches: bool) -> None:
    """A format of dates is the pattern of those that there are, and one beside a pattern stays."""
    date, moment = (regular({"format": form}) for form in ("date", "date-time"))
    both = {"format": "date", "pattern": "^2"}

    assert matches == (re.search(date["pattern"], text) is not None)
    assert matches == (re.search(moment["pattern"], f"{text}T10:20:30.5+02:00") is not None)
    assert both == regular(both)
