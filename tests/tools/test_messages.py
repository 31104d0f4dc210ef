"""Tests of unilect.tools.messages."""

from typing import Any

import msgspec
import pytest

from unilect.core.errors import InvalidRequest
from unilect.core.requests import ChatRequest, Message, Tool
from unilect.tools.messages import arguments, arguments_text, template_flags, text, tools

WHERE = "messages[3].content"
A = {"type": "text", "text": "a"}
REFUSAL = {"type": "refusal", "refusal": "no"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def message(content: Any) -> Message:
    """A message as a body gives it."""
    return msgspec.convert({"role": "assistant", "content": content}, Message)


@pytest.mark.parametrize(
    ("content", "expected"), [(None, ""), ("Hi", "Hi"), ([A], "a"), ([A, REFUSAL, A], "a\nno\na")]
)
def test_text(content: Any, expected: str) -> None:
    """A content is a text, its parts in lines of their own."""
    assert expected == text(message(content), WHERE)


def test_what_is_no_text() -> None:
    """A part that is no text is refused, by the name of its content."""
    with pytest.raises(InvalidRequest, match="content other than text") as raised:
        text(message([A, IMAGE]), WHERE)

    assert raised.value.param == WHERE


DEEP = '{"a": ' + "[" * 257 + "]" * 257 + "}"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", {}),
        (" ", {}),
        ("null", {}),
        ('{"a": [1]}', {"a": [1]}),
        ('{"a": "one\ntwo\t"}', {"a": "one\ntwo\t"}),
        ('{"a', {"value": '{"a'}),
        ("[1]", {"value": "[1]"}),
        ("nonsense", {"value": "nonsense"}),
        ("\ud800", {"value": "?"}),
        ('{"a": "\\ud800"}', {"value": '{"a": "\\ud800"}'}),
        ('{"a": NaN}', {"value": '{"a": NaN}'}),
        ('{"a": 1e999}', {"value": '{"a": 1e999}'}),
        (DEEP, {"value": DEEP}),
        ("[" * 100_000, {"value": "[" * 100_000}),
        ('{"a": %s}' % ("9" * 400), {"value": '{"a": %s}' % ("9" * 400)}),
        ('{"a": {"b": -%s}}' % ("9" * 400), {"value": '{"a": {"b": -%s}}' % ("9" * 400)}),
    ],
)  # fmt: skip
def test_arguments(written: str, expected: Any) -> None:
    """Arguments are an object, with line breaks in it as models write them; what cannot be one is its only argument, as the text that it is."""
    assert expected == arguments(written)
    assert expected == arguments(arguments_text(written))


@pytest.mark.parametrize(
    "written", ['{ "a": 1 }', '{"a": %s}' % ("9" * 300), '{"a": ' + "[" * 254 + "]" * 254 + "}"]
)
def test_arguments_that_stay(written: str) -> None:
    """Arguments that engines read stay as they were written, also large numbers and deep lists."""
    assert written == arguments_text(written)


def test_tools() -> None:
    """Every tool has a description and parameters, since templates ask for them."""
    given = msgspec.convert([{"type": "function", "function": {"name": "f"}}], list[Tool])
    function = {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}

    assert [{"type": "function", "function": function}] == tools(given)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"chat_template_kwargs": {"thinking": False}}, {"thinking": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            {"reasoning_effort": "none", "enable_thinking": True},
        ),
    ],
)
def test_template_flags(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """An effort switches thinking, unless the switch is given too; without any of them nothing is told."""
    body = {"messages": [{"role": "user", "content": "Hi"}]} | fields
    flags = template_flags(msgspec.convert(body, ChatRequest))

    assert ({"chat_template_kwargs": expected} if expected else {}) == flags
