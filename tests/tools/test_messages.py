"""Tests of unilect.tools.messages."""

from typing import Any

import msgspec
import pytest

from unilect.errors import InvalidRequest
from unilect.requests import ChatRequest, Message, Tool
from unilect.tools.messages import arguments, template_flags, text, tools

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


@pytest.mark.parametrize(
    ("written", "expected"), [("", {}), ('{"a": [1]}', {"a": [1]}), ("[" * 256 + "]" * 256, None)]
)
def test_arguments(written: str, expected: Any) -> None:
    """Arguments are decoded; none are an empty object, and 256 levels are not too deep."""
    actual = arguments(written, WHERE)

    assert expected is None or expected == actual


@pytest.mark.parametrize(
    "written", ['{"a', "nonsense", "\ud800", "[" * 257 + "]" * 257, "[" * 100_000]
)
def test_arguments_that_are_refused(written: str) -> None:
    """Arguments that are no JSON, or nested without end, are refused by name."""
    with pytest.raises(InvalidRequest) as raised:
        arguments(written, WHERE)

    assert raised.value.param == WHERE


@pytest.mark.parametrize("written", ['{"x": [%s]}', '{"x": {"y": -%s}}'])
def test_numbers_that_no_engine_reads(written: str) -> None:
    """An integer that is no finite floating point number is refused, however deep it stands; the largest that is one is not."""
    with pytest.raises(InvalidRequest, match=r"beyond 1\.8e308"):
        arguments(written % ("9" * 400), "messages[0]")

    assert arguments(written % ("9" * 300), "messages[0]")


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
