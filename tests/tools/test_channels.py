"""Tests of unilect.tools.channels."""

from typing import Any

import pytest

from unilect.events import ReasoningDelta, TextDelta, ToolCallDelta
from unilect.tools.channels import events_of

TOOLS: dict[str, Any] = {"f": {"type": "object"}}
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello", [TextDelta("Hello")]),
        ("", []),
        (f"{THOUGHT}<|channel|>final<|message|>Hi!", [ReasoningDelta("Hm."), TextDelta("Hi!")]),
        (f"{THOUGHT}Hi!", [ReasoningDelta("Hm."), TextDelta("Hi!")]),
        (f"{THOUGHT}<|channel|>final <|constrain|>json<|message|>{{}}<|return|>", [ReasoningDelta("Hm."), TextDelta("{}")]),
        ("<|channel|>Hi!", [TextDelta("Hi!")]),
        ("<|channel|>other<|message|>Hi!<|end|>", [TextDelta("Hi!")]),
        ("<|channel|>commentary to=functions.g<|message|>[]<|call|>", [TextDelta("[]")]),
        ("<|channel|>commentary to=functions.f<|message|>{", [TextDelta("{")]),
        ("<|channel|>" * 3, []),
    ],
)  # fmt: skip
def test_channels(text: str, expected: list[Any]) -> None:
    """Thoughts are told as such, and whatever is neither a thought nor a call is text."""
    assert expected == events_of(text, TOOLS)


@pytest.mark.parametrize("head", ["commentary to=functions.f <|constrain|>json", "analysis to=functions.f"])  # fmt: skip
def test_a_call(head: str) -> None:
    """A message to a tool that is known is a call of it, and text where no tools are."""
    text = f'<|channel|>{head}<|message|>{{"a": 1}}<|call|>'
    [call] = events_of(text, TOOLS)

    assert isinstance(call, ToolCallDelta)
    assert ("f", '{"a": 1}') == (call.name, call.arguments)
    assert not any(isinstance(event, ToolCallDelta) for event in events_of(text, None))


def test_a_hostile_answer() -> None:
    """Marks by the ten thousand are read in one pass."""
    for mark in ("<|channel|>", "<|message|>", "<|start|>assistant", "<|end|>", "to=functions."):
        events_of(mark * 10_000, TOOLS)
        events_of("<|channel|>analysis<|message|>" + mark * 10_000, TOOLS)
