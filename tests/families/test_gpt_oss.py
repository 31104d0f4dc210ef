"""Tests of unilect.families.gpt_oss."""

from typing import Any

import pytest

from unilect.core.events import Event, ReasoningDelta, TextDelta, ToolCallDelta, fold
from unilect.families import Reading, find

TOOLS: dict[str, Any] = {"f": {"type": "object"}}


def scanner(tools: Any) -> Any:
    """What reads an answer in channels."""
    return Reading(family=find("harmony"), tools=tools).scanner(lambda: "call")


def events_of(text: str, tools: Any) -> list[Event]:
    """What a finished answer says."""
    reader = scanner(tools)
    return [*reader.add(text), *reader.end()]


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


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_quotes_that_do_not_close(size: int) -> None:
    """A call whose text does not end is text up to its mark, and the messages behind it are told as what they are."""
    head = "<|channel|>commentary to=functions.f<|message|>"
    text = f'{head}{{"a": "1}}<|call|><|channel|>analysis<|message|>Hm.<|end|>{head}{{}}<|call|>'
    parser = scanner(TOOLS)
    batches: list[list[Event]] = [parser.add(text[at : at + size]) for at in range(0, len(text), size)]  # fmt: skip
    [choice] = fold([*batches, parser.end()]).choices

    assert ('{"a": "1}', "Hm.") == (choice.text, choice.reasoning)
    assert [("f", "{}")] == [(call.name, call.arguments) for call in choice.tool_calls]


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_blanks(size: int) -> None:
    """Blanks before the text outside of all messages are a part of it, however they come, and those between messages are not."""
    text = " \n<|channel|>analysis<|message|>Hm.<|end|> \n<|start|>assistant<|end|> Hi "
    parser = scanner(TOOLS)
    batches: list[list[Event]] = [parser.add(text[at : at + size]) for at in range(0, len(text), size)]  # fmt: skip
    [choice] = fold([*batches, parser.end()]).choices

    assert ("Hm.", " Hi ") == (choice.reasoning, choice.text)
