"""Tests of unilect.constraints.schema."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilect.constraints import ConstraintError
from unilect.constraints.keywords import can_be_validated, in_words
from unilect.constraints.schema import ASSERTIONS, Use, analyse, find_unenforced, target


def nested(keyword: str, levels: int) -> dict[str, Any]:
    """A schema inside schemas."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {keyword: [schema, {"type": "integer"}]}
    return schema


def chain(length: int, **around: Any) -> dict[str, Any]:
    """A schema whose definitions lead one to the next."""
    definitions: dict[str, Any] = {
        f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(length)
    }
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{length}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (chain(1100), "more than 128 `$ref` are chained"),
        ({"$ref": "#"}, "`$ref` is circular"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "is circular"),
        ({"$ref": "#/nowhere"}, "at $: `$ref` refers to '#/nowhere'"),
        ({"items": {"$ref": "http://127.0.0.1/x"}}, "at $.items: `$ref` is 'http://127.0.0.1/x'"),
        ({"$ref": 3}, "`$ref` is '3'"),
        (nested("anyOf", 40), "more than 16 `anyOf` or `oneOf` are nested"),
        (nested("oneOf", 40), "more than 16 `anyOf` or `oneOf` are nested"),
        (nested("allOf", 80), "nested more than 64 levels deep"),
        ({"enum": list(range(20_000))}, "more than 10000 values in `enum`"),
        ({"const": [[1] * 200] * 200}, "more than 10000 values in `enum`"),
        ({"properties": {f"a{i}": {} for i in range(20_000)}}, "more than 10000 parts"),
        ({"pattern": "a" * 3000}, "a pattern has 3000 characters"),
        ({"properties": {f"a{i}": {"pattern": "a" * 1500} for i in range(20)}}, "20000 characters of patterns"),
        ({"pattern": "^(a?){5000}$"}, "a pattern repeats more than 2000 times"),
        ({"patternProperties": {"a{1,99999999999}": {}}}, "a pattern repeats more than 2000 times"),
        ({"pattern": 3}, "`pattern` is not a string"),
        ({"properties": {"a": 3}}, "at $.properties.a: expected an object"),
        ({"minimum": 5, "maximum": 3}, "at $: `minimum` (5) is above `maximum` (3)"),
        ({"items": {"minLength": 5, "maxLength": 3}}, "at $.items: `minLength` (5) is above `maxLength` (3)"),
        ({"properties": []}, "at $.properties: expected an object"),
        ({"anyOf": {}}, "at $.anyOf: expected an object"),
        ([], "at $: expected an object"),
    ],
    ids=lambda one: str(one)[:30],
)  # fmt: skip
def test_what_is_refused(schema: Any, told: str) -> None:
    """What is too large or too deep, or refers to what is not there, is refused with its path."""
    with pytest.raises(ConstraintError) as caught:
        analyse(schema)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 400


def test_uses() -> None:
    """Each keyword that asks for something is told with its path; what only remarks, or asks for nothing, is not."""
    schema = {
        "title": "t",
        "type": ["object", "null"],
        "properties": {
            "pattern": {"type": ["integer", "null"], "minimum": 3, "default": {"not": 1}},
            "b": {"pattern": "^a$", "format": "date", "then": {"type": "null"}},
            "c": {"type": "array", "uniqueItems": False, "items": {"maximum": 2.5, "pattern": "a"}},
            "d": {"$ref": "#/$defs/d", "maxLength": 3, "description": "x"},
        },
        "required": [],
        "$defs": {"d": {"enum": [{"not": 2}]}},
    }

    assert {
        Use("type", "$"),
        Use("properties", "$"),
        Use("type", "$.properties.pattern"),
        Use("minimum:integer", "$.properties.pattern"),
        Use("pattern", "$.properties.b"),
        Use("format:date:pattern", "$.properties.b"),
        Use("type", "$.properties.b.then"),
        Use("type", "$.properties.c"),
        Use("items", "$.properties.c"),
        Use("maximum", "$.properties.c.items"),
        Use("pattern", "$.properties.c.items"),
        Use("$ref", "$.properties.d"),
        Use("maxLength:beside", "$.properties.d"),
        Use("enum", "$.$defs.d"),
    } == set(analyse(schema))
    assert [] == find_unenforced(analyse({"type": "null"}), {"type"})


def test_a_schema_that_contains_itself() -> None:
    """A tree, whose schema refers to itself behind a property, passes."""
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}

    assert analyse(tree)
    assert analyse(chain(100))
    assert analyse(nested("anyOf", 16))


def test_kinds_of_patterns() -> None:
    """A pattern that no automaton follows is told from one that has no grammar of ours, and from all others."""
    kinds = {"^a$": "", "a|b": "", "^.+?$": "", r"^\p{L}$": ":foreign", r"a\b": ":irregular", "(?=a)": ":irregular"}  # fmt: skip
    for pattern, kind in kinds.items():
        assert [Use(f"pattern{kind}", "$")] == analyse({"pattern": pattern})


def test_references() -> None:
    """A reference is a fragment: percent-encoded, with `~0` and `~1` for what a pointer cannot hold."""
    schema = {"$defs": {"a/b~c": 1, "P<F>": 2, "l": [3]}}

    assert schema == target(schema, "#", "$") == target(schema, "#/", "$")
    for ref, found in (("#/$defs/a~1b~0c", 1), ("#/$defs/P%3CF%3E", 2), ("#/$defs/l/0", 3)):
        assert found == target(schema, ref, "$")


def test_words() -> None:
    """Errors name a keyword as the client wrote it; a format that nobody knows cannot be validated."""
    assert "`format: ipv9` (at $.a)" == in_words(Use("format:ipv9", "$.a"))
    assert "`pattern` (at $)" == in_words(Use("pattern:irregular", "$"))
    assert not can_be_validated(Use("format:ipv9:beside", "$"))
    assert can_be_validated(Use("format:ipv6", "$"))
    assert can_be_validated(Use("not", "$"))


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.sampled_from(["#", "#/$defs/a", "#/a/0", "^a{2,3}$"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from([*sorted(ASSERTIONS), "$defs", "a", "b"]), inner, max_size=5),
    max_leaves=40,
)  # fmt: skip


@given(VALUES)
def test_any_value(value: Any) -> None:
    """Whatever the value is, it is read or refused."""
    try:
        uses = analyse(value)
    except ConstraintError:
        return
    assert isinstance(value, Mapping | bool)
    assert all(use.path.startswith("$") for use in uses)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a" + "/a" * 30_000},
        {"properties": {"a" * 60_000: {"pattern": "{" * 1500}}},
        {"enum": ["a" * 60_000]},
        {"anyOf": [{"$ref": "#/$defs/a"}] * 3000, "$defs": {"a": {"type": "null"}}},
        {"$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(2000)}},
        {"type": ["string"] * 10_000},
        {"required": ["a"] * 10_000},
    ],
    ids=lambda one: str(one)[:20],
)
def test_the_longest_schemas(schema: Any) -> None:
    """The largest schema of any kind is read or refused."""
    try:
        analyse(schema)
    except ConstraintError as error:
        assert len(str(error)) < 400
