"""Tests of unilect.constraints.schema_grammar: what a grammar allows satisfies its schema."""

import json
import math
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from support.common.properties import given
from support.models.written import Writer
from unilect.constraints import ConstraintError, gbnf
from unilect.constraints.checker import MODEL
from unilect.constraints.normal import normal
from unilect.constraints.process.jobs import Jobs
from unilect.constraints.regex import string_of
from unilect.constraints.schema_grammar import grammar_of

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
NODE = {"type": "object", "properties": {"name": TEXT, "kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}, "required": ["name"]}  # fmt: skip
SCHEMAS: list[tuple[Any, list[str], list[str]]] = [
    # a schema, texts that its grammar allows, and texts that it does not
    ({"type": "object", "properties": {"value": True}}, ['{"value": [1]}', "{}"], ['{"other": 1}']),
    ({"type": "object", "properties": {"value": False}}, ["{}"], ['{"value": 1}']),
    (NODE, ['{"name": "a", "kids": [{"name": "b"}]}'], ['{"kids": []}', '{"name": "a", "kids": [3]}']),
    ({"properties": {"a": {"$ref": "#/definitions/Partial%3CFoo%3E"}}, "definitions": {"Partial<Foo>": NUMBER}}, ['{"a": 1}'], ['{"a": "x"}']),
    ({"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": NUMBER}}, ["1"], ['"x"']),
    ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, ["0", str(2**64 - 1)], ["-1", str(2**64)]),
    ({"type": "integer", "maximum": 1e30, "minimum": 1.5}, ["2", "999"], ["1"]),
    ({"const": "x\u2028y\u2029z\x85"}, ['"x\u2028y\u2029z\x85"'], ['"x"']),
    ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, ["0.5"], ["-1"]),
    ({"items": {"$ref": "#/$defs/F", "$defs": {"F": NUMBER}}}, ["[1]"], ['["x"]']),
    ({"enum": ["a", 2, None, {"b": [1]}], "type": ["string", "object"]}, ['"a"', '{"b": [1]}'], ["2", "null"]),
    ({"allOf": [{"type": ["number", "null"]}, {"type": "integer", "minimum": 3}], "maximum": 5}, ["3", "5"], ["2", "6", "null"]),
    ({"anyOf": [NUMBER, TEXT], "maxLength": 1, "maximum": 9}, ['"a"', "9"], ['"ab"', "10"]),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": NUMBER, "b": NUMBER}}, ['{"a": 1}', '{"b": 1}'], ["{}", '{"c": 1}']),
    ({"$ref": "#/$defs/x", "required": ["b"], "$defs": {"x": {"properties": {"a": NUMBER, "b": NUMBER}}}}, ['{"a": 1, "b": 2}'], ['{"a": 1}']),
    ({"properties": {"a": NUMBER}, "additionalProperties": TEXT}, ['{"a": 1, "ab": "x", "": "y"}', '{"b": "x"}'], ['{"a": "x"}', '{"b": 1}', '{"\\u0061": "x"}']),
    ({"properties": {"a" * 60: NUMBER}, "additionalProperties": TEXT}, ['{"aa": "x"}'], ['{"' + "a" * 60 + '": "x"}']),
    ({"properties": {'say "hi"': NUMBER}, "required": ['say "hi"', "more"]}, ['{"say \\"hi\\"": 1, "more": null}'], ['{"say \\"hi\\"": 1}']),
    ({"prefixItems": [NUMBER, TEXT], "items": False, "minItems": 1}, ["[1]", '[1, "a"]'], ["[]", '["a"]', '[1, "a", 2]']),
    ({"items": [NUMBER, TEXT], "additionalItems": NUMBER}, ["[]", '[1, "a", 2, 3]'], ['[1, "a", "b"]']),
    ({"items": NUMBER, "minItems": 2, "maxItems": 3}, ["[1, 2]", "[1,2,3]"], ["[1]", "[1, 2, 3, 4]"]),
    ({"maxItems": 0}, ["[]"], ["[1]"]),
    ({"items": NUMBER, "maxItems": 1}, ["[]", "[1]"], ["[1, 2]"]),
    ({"prefixItems": [NUMBER], "maxItems": 1}, ["[]", "[1]"], ["[1, 2]"]),
    ({"maxLength": 0}, ['""'], ['"a"']),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"a\\n"', '"\\u00e9b"'], ['"a"', '"abcd"', '"\\ud800b"', '"a\nb"']),
    ({"type": "string", "minLength": 5000}, ['"' + "a" * 5000 + '"'], ['"a"']),
    ({"format": "date"}, ['"2024-02-28"', '"2024-12-31"'], ['"2023-02-30"', '"2024-04-31"', '"2024-13-01"']),
    ({"format": "date-time"}, ['"2024-01-31T10:20:30Z"', '"2024-01-31T10:20:30.5+02:00"'], ['"2024-01-31"']),
    ({}, ['{"a": [1, "b", null, true, -1.5e3]}', '"x"'], ["", "{", "tru"]),
    (True, ["1"], ["x"]),
    ({"anyOf": [{"enum": ["abc"], "type": "null"}, False, NUMBER]}, ["1"], ["null"]),
    ({"anyOf": [{"properties": {"a": {"$ref": "#"}, "b": False}, "required": ["a", "b"]}, NUMBER]}, ["1"], ["{}"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def jobs() -> Jobs:
    """What the helper process does, in this one."""
    return Jobs(str(MODEL), mute=False)


@pytest.mark.parametrize(
    ("schema", "allowed", "forbidden"), SCHEMAS, ids=[str(one)[:40] for one, _, _ in SCHEMAS]
)
def test_what_is_allowed(jobs: Jobs, schema: Any, allowed: list[str], forbidden: list[str]) -> None:
    """A grammar allows what satisfies a schema, and nothing that does not."""
    text = json.dumps(schema)
    grammar = jobs.schema_to_gbnf(text)

    gbnf.analyse(grammar)
    for one in allowed:
        assert jobs.matches(grammar, one) is None, one
        assert jobs.validate(text, one) is None, one
    for one in forbidden:
        assert jobs.matches(grammar, one) is not None, one


PATTERNS = {
    '^"x"$': [r'"\"x\""'],
    r"^C:\\[a-z]$": [r'"C:\\o"'],
    "^.{8}$": [r'"abcdefgh"', r'"\"\"\\\\\té12"'],
    "^a+?b$": ['"ab"', '"aab"'],
    r"^\d{2}\w\s\/$": ['"12_ /"', r'"12a\t/"'],
    "^a|b$": ['"ab"', '"axx"', '"xxb"'],
    "^(?:red|green)$": ['"red"'],
    "@": ['"a@b"'],
    "^(?<year>[0-9]{4})$": ['"2024"'],
    "": ['"x"', '""'],
    "^$": ['""'],
    "^a{0}c$": ['"c"'],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(jobs: Jobs, pattern: str) -> None:
    """What JSON has to escape is escaped, what is lazy allows what is eager, and what is not anchored may stand anywhere."""
    schema = json.dumps({"type": "string", "pattern": pattern})
    grammar = jobs.schema_to_gbnf(schema)

    for text in PATTERNS[pattern]:
        assert jobs.matches(grammar, text) is None, text
        assert jobs.validate(schema, text) is None, text
    for wrong in ('"b', '""x""', r'"C:\o"', '"\n"'):
        assert jobs.matches(grammar, wrong) is not None


SIGNS = st.sampled_from(["a", "b", "0", "9", "é", '"', r"\\", r"\/", r"\n", ".", " ", "-", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"])  # fmt: skip
CLASSES = st.builds(
    lambda negated, signs: f"[{negated}{''.join(signs)}]",
    st.sampled_from(["", "^"]),
    st.lists(st.sampled_from(["a-f", "0", "é", '"', r"\\", r"\d", r"\s", r"\w", "x"]), min_size=1, max_size=3),
)  # fmt: skip
SIMPLE = st.recursive(
    SIGNS | CLASSES,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.builds("(?:{}|{})".format, inner, inner)
        | st.builds("(?:{}){}".format, inner, st.sampled_from(["*", "+?", "?", "{2}", "{1,3}", "{0,2}?"]))
    ),
    max_leaves=6,
)  # fmt: skip


@given(SIMPLE, st.sampled_from(["^", ""]), st.sampled_from(["$", ""]), st.randoms())
def test_any_simple_pattern(pattern: str, begin: str, end: str, dice: Any) -> None:
    """Whatever a grammar allows for a pattern is JSON, and matches."""
    schema = {"type": "string", "pattern": begin + pattern + end}
    try:
        string_of(schema["pattern"])
        valid = jsonschema_rs.Draft202012Validator(schema)
        grammar = grammar_of(schema)
        gbnf.analyse(grammar)
    except ValueError:
        assume(False)
    writer = Writer(grammar, dice)
    for _ in range(4):
        text = writer.text()
        assert valid.is_valid(json.loads(text)), (text, schema)


PARTS = st.recursive(
    st.sampled_from([TEXT, NUMBER, {"const": 'a"\\'}, {"type": "boolean"}, {"enum": [1, "b"]}, {"type": "integer", "minimum": -3, "maximum": 40}, {"pattern": "^[a-c]{2}$"}, {"type": ["null", "string"], "maxLength": 2}, True, {"format": "date"}, {"type": "number", "minimum": 0}]),
    lambda inner: (
        st.builds(lambda a, n: {"type": "array", "items": a, "minItems": n, "maxItems": n + 1}, inner, st.integers(0, 2))
        | st.builds(lambda a, b, r: {"type": "object", "properties": {"a": a, "b": b}, "required": r, "additionalProperties": False}, inner, inner, st.sampled_from([[], ["a"], ["b"], ["a", "b"]]))
        | st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner)
        | st.builds(lambda a, b: {"prefixItems": [a], "items": b, "maxItems": 3}, inner, inner)
        | st.builds(lambda a: {"properties": {"a": NUMBER}, "additionalProperties": a}, inner)
    ),
    max_leaves=5,
)  # fmt: skip


@given(PARTS, st.randoms())
def test_any_schema(schema: Any, dice: Any) -> None:
    """Whatever a grammar allows for a schema is JSON that satisfies it."""
    grammar = grammar_of(normal(schema))
    gbnf.analyse(grammar)
    writer = Writer(grammar, dice)
    valid = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    for _ in range(4):
        text = writer.text()
        assert valid.is_valid(json.loads(text)), (text, schema)
        assert not re.search(r"  |\n", re.sub(r'"(\\.|[^"\\])*"', '""', text))


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (False, "false allows nothing"),
        ({"type": "integer", "allOf": [{"type": "string"}]}, "no value satisfies it"),
        ({"enum": ["a"], "type": "integer"}, "none of its constants has its type"),
        ({"required": ["a"], "properties": {"a": False}}, "false allows nothing"),
        ({"prefixItems": [{}], "items": False, "minItems": 2}, "more items than it may have"),
        ({"items": {"anyOf": [{"const": n} for n in range(6000)]}}, "more than 4000 rules"),
    ],
)
def test_what_has_no_grammar(schema: Any, told: str) -> None:
    """A schema that nothing satisfies, or that needs too many rules, is refused in words."""
    with pytest.raises(ConstraintError, match=told):
        grammar_of(schema)


@pytest.mark.parametrize("word", ["maxLength", "minItems", "maximum", "exclusiveMinimum"])
@pytest.mark.parametrize("bound", [10**400, -(10**400), math.inf])
def test_bounds_beyond_a_float(word: str, bound: float) -> None:
    """A bound of any size has a grammar, where one of the types can be satisfied; the answer is looked at for the rest."""
    schema = {"type": ["string", "array", "integer"], "items": {}, word: bound}
    assert "root ::=" in grammar_of(schema)
