"""Tests of unilect.families._calls: what models of today write as calls, and what only looks like one."""

import json
from typing import Any

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.families._calls import calls_of

TEXT, NULL = {"type": "string"}, {"type": "null"}
TOOLS: dict[str, Any] = {
    "get_weather": {"type": "object", "properties": {"city": TEXT, "zip": TEXT}},
    "add": {"properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    "now": None,
    "find": {"properties": {"word": {"anyOf": [TEXT, NULL]}, "zip": {"type": ["null", "string"]}}},
}
PARIS = '{"city": "Paris"}'
CALL = f'{{"name": "get_weather", "arguments": {PARIS}}}'
ADD = '{"name": "add", "parameters": {"a": 1, "b": 2}}'
SEP, CALL_END = "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
BEGIN = "<｜tool▁call▁begin｜>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALL, [("get_weather", {"city": "Paris"})]),
        (f"[{CALL}, {ADD}]", [("get_weather", {"city": "Paris"}), ("add", {"a": 1, "b": 2})]),
        (f"{CALL}; {ADD}", [("get_weather", {"city": "Paris"}), ("add", {"a": 1, "b": 2})]),
        (f"{CALL}}}", [("get_weather", {"city": "Paris"})]),
        (f'{{"type": "function", "function": {CALL}}}', [("get_weather", {"city": "Paris"})]),
        ('{"name": "get_weather", "arguments": "{}"}', [("get_weather", {})]),
        (
            """{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}""",
            [("get_weather", {"city": "Paris"})],
        ),
        ('{"name": "now"}', [("now", {})]),
        ('{"name": "now", "arguments": null}', [("now", {})]),
        (f"get_weather[ARGS]{PARIS}", [("get_weather", {"city": "Paris"})]),
        (f"get_weather[CALL_ID]a1B2c3D4e[ARGS]{PARIS}", [("get_weather", {"city": "Paris"})]),
        (f"get_weather{PARIS}", [("get_weather", {"city": "Paris"})]),
        (f"get_weather\n{PARIS}", [("get_weather", {"city": "Paris"})]),
        (
            "get_weather\n```python\ntool_call(city='St. John\\'s, NL', zip=None)\n```",
            [("get_weather", {"city": "St. John's, NL", "zip": None})],
        ),
        (
            "add\n```python\ntool_call(a=[1, (2)], b={'c': true})\n```",
            [("add", {"a": [1, 2], "b": {"c": True}})],
        ),
        (
            "<function=get_weather>\n<parameter=city>\nNew\nYork\n</parameter>\n"
            "<parameter=zip>\n01234\n</parameter>\n</function>",
            [("get_weather", {"city": "New\nYork", "zip": "01234"})],
        ),
        (
            "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2.5\n</parameter>\n</function>",
            [("add", {"a": 1, "b": 2.5})],
        ),
        (
            "<function=find>\n<parameter=word>\n12\n</parameter>\n<parameter=zip>\n01234\n</parameter>\n</function>",
            [("find", {"word": "12", "zip": "01234"})],
        ),
        (
            "find\n<arg_key>word</arg_key>\n<arg_value>null</arg_value>\n<arg_key>zip</arg_key>\n<arg_value>7</arg_value>",
            [("find", {"word": None, "zip": "7"})],
        ),
        ("<function=now>\n</function>", [("now", {})]),
        (f"<function=get_weather>{PARIS}</function>", [("get_weather", {"city": "Paris"})]),
        (
            "get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
            "<arg_key>zip</arg_key>\n<arg_value>75000</arg_value>\n",
            [("get_weather", {"city": "Paris", "zip": "75000"})],
        ),
        ("add\n<arg_key>a</arg_key>\n<arg_value>[1]</arg_value>", [("add", {"a": [1]})]),
        ("now\n", [("now", {})]),
        ("[get_weather(city='Paris'), now()]", [("get_weather", {"city": "Paris"}), ("now", {})]),
        (
            f"{BEGIN}function{SEP}get_weather\n```json\n{PARIS}\n```{CALL_END}\n"
            f"{BEGIN}function{SEP}now\n```json\n{{}}\n```{CALL_END}",
            [("get_weather", {"city": "Paris"}), ("now", {})],
        ),
        (f"{BEGIN}get_weather{SEP}{PARIS}{CALL_END}", [("get_weather", {"city": "Paris"})]),
        (
            f"{CALL}\n<tool_call>\n{ADD}",
            [("get_weather", {"city": "Paris"}), ("add", {"a": 1, "b": 2})],
        ),
    ],
)
def test_calls(text: str, expected: list[tuple[str, dict[str, Any]]]) -> None:
    """Each form is read, with nothing left over."""
    calls, rest = calls_of(text, TOOLS, "<tool_call>")

    assert (expected, "") == ([(name, json.loads(given)) for name, given in calls], rest)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "no name", "arguments": {}}',
        '{"name": "add", "arguments": {"a": NaN}}',
        '{"name": "add", "arguments": {"a": 1e999}}',
        '{"name": "add", "arguments": [1]}',
        '{"name": "add", "arguments": "plain words"}',
        '{"name": "add", "arguments": "{} and more"}',
        r'{"name": "add", "arguments": "\ud83d"}',
        f"[{CALL}, 1]",
        "[" * 100_000,
        '{"a":' * 100_000,
        "add\n```python\ntool_call(a=__import__('os').getpid())\n```",
        "add\n```python\ntool_call(1)\n```",
        "[add(a=" + "(" * 1000 + "]",
        "[add(a=" + "-" * 10_000 + "1)]",
        "[1, 2]",
        "<function=no name></function>",
        "<function=add>plain words</function>",
        "now and then",
        f"{BEGIN}no name{SEP}{{}}{CALL_END}",
        "<function=now>"
        + "<parameter=" * 100_000,  # minutes where each is looked through to the end
        "now" + "<arg_key></arg_key><arg_value>" * 100_000,
        '<|open|>call tool="no name"<|sep|><|close|>call<|sep|>',
        '<|open|>call tool="now"<|sep|>' + '<|open|>argument key="' * 50_000,
        '<|open|>call tool="now"<|sep|>' + "<|open|>json<|sep|>" * 50_000,
        '<|open|>call tool="now"<|sep|><|open|>json type="object"<|sep|>[1]<|close|>json<|sep|>',
        "<|open|>call" + ' a="b"' * 50_000,
    ],
    ids=lambda text: text[:30],
)
def test_what_is_no_call(text: str) -> None:
    """What cannot be read is no call, is not run, and is left as it is."""
    assert ([], text) == calls_of(text, TOOLS, "<tool_call>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<function=add>\n<parameter=a>\n87\n</parameter>\n</parameter>\n</function>", {"a": 87}),
        ("add\n<arg_key>a</arg_key>\n<arg_value>87</arg_value></arg_value>\n", {"a": 87}),
        ("<function=add>\n<parameter=a>\n87\n<parameter=b>\n1\n</parameter>\n</function>", {"a": 87, "b": 1}),
        ("<function=get_weather>\n<parameter=city>\nwrite <parameter=word> there\n</parameter>\n</function>", {"city": "write <parameter=word> there"}),
        ("<function=add>\n<parameter=c>\n87\n</parameter>\n<parameter=d>\n1\n</function>", {"c": 87, "d": 1}),
        ('call:get_weather{"city": "puts(\\"{\\");", zip: "}"}', {"city": 'puts("{");', "zip": "}"}),
    ],
)  # fmt: skip
def test_marks_too_many_and_too_few(text: str, expected: dict[str, Any]) -> None:
    """A mark that is there twice, or that a value only tells of, is told from one that ends it, as far as the tool's schema says so."""
    [(_, given)], _ = calls_of(text, TOOLS, "<tool_call>")

    assert expected == json.loads(given)


def test_text_behind_a_call_is_left() -> None:
    """What follows calls is not lost."""
    assert "That is all." == calls_of(f"{CALL}\nThat is all.", TOOLS)[1]


@pytest.mark.parametrize("schema", [{"type": [{}]}, {"type": {}}, {"anyOf": [[]]}, {"anyOf": {}}])
def test_a_schema_that_is_none(schema: dict[str, Any]) -> None:
    """What a client writes for a schema does not disturb the reading."""
    tools = {"f": {"properties": {"a": schema}}}

    assert ([("f", '{"a": 1}')], "") == calls_of("<function=f><parameter=a>1</parameter>", tools)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"city": "\\ud83d"}',
        r'"{\"city\": \"\\ud83d\"}"',
        '{"\\udc00": 1}',
        '{"city": "\\ud83d\\ude42"}',
    ],
)
def test_half_a_surrogate_pair(arguments: str) -> None:
    """JSON may hold what no UTF-8 can; the arguments can be sent all the same."""
    calls, _ = calls_of(f'{{"name": "add", "arguments": {arguments}}}', TOOLS)

    assert ["add"] == [name for name, given in calls if given.encode()]


def test_any_depth() -> None:
    """Arguments as deep as can just be read, or not any more, raise nothing."""
    for depth in range(800, 1000):
        deep = '{"a":' * depth + "1" + "}" * depth
        text = f'{{"name": "add", "arguments": {deep}}}'
        calls, rest = calls_of(text, TOOLS)
        assert calls or rest == text


@given(st.text(st.sampled_from('{}[]()<>"=,: \nan1'), max_size=40))
def test_any_text_can_be_read(text: str) -> None:
    """Nothing that a model writes raises, and what is no call stays whole."""
    calls, rest = calls_of(text, TOOLS, "<tool_call>")

    assert calls or rest == text
