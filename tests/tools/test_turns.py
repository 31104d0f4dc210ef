"""Tests of unilect.tools.turns: what templates take, and conversations as they take them."""

from functools import partial
from typing import Any

import pytest

from strict_templates import MISTRAL, STYLES, TALK, missing
from unilect.templates import ChatTemplate, named, names
from unilect.tools.turns import ALL, LEAST, LITTLE, Takes, placed, stands_out, takes

CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}


def said(role: str, content: Any = "", **more: Any) -> dict[str, Any]:
    """A turn."""
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize("style", STYLES)
def test_what_templates_take(style: str) -> None:
    """What a template takes is found out, and a conversation of all that agents send then has each of its words in the prompt once."""
    text, expected = STYLES[style]
    template = ChatTemplate(text)
    found = takes(template.render_turns, {})

    assert expected == found
    assert [] == missing(template.render_turns(placed(TALK, found)))


@pytest.mark.parametrize("name", names())
def test_named_formats(name: str) -> None:
    """Every named format then has each of the words once, too."""
    template = named(name)
    assert template is not None
    render = partial(template.render_turns, bos_token="", eos_token="")

    assert [] == missing(render(placed(TALK, takes(render, {}))))


def test_system_messages_before_and_behind_an_answer() -> None:
    """Those before the first answer are one, at the beginning; a later one is the user's, and the beginning stays the same."""
    before = placed(TALK[:6], Takes("first"))
    after = placed(TALK, Takes("first"))

    assert [("system", "s1\n\ns2\n\ns3"), ("user", "u1"), ("user", "u2"), ("assistant", "a1")] == [
        (turn["role"], turn["content"]) for turn in before
    ]
    assert before == after[:4]
    assert [said("user", "s4"), said("user", "u3")] == after[4:]


def test_a_template_without_a_system() -> None:
    """The system's text stands before what the user says first, whatever parts that has."""
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    turns = [said("system", "s1"), said("user", [image]), said("system", "s2")]

    [turn] = placed(turns, LEAST)
    assert [*({"type": "text", "text": text} for text in ("s1", "s2")), image] == turn["content"]
    assert [said("user", "s1")] == placed([said("system", "s1")], LEAST)


def test_nothing_stands_between_a_call_and_its_result() -> None:
    """A system message there is told behind the results; a template that wants no user there has it within the result."""
    called = [said("user", "u1"), said("assistant", tool_calls=[CALL])]
    result = said("tool", "t1", tool_call_id="abcdefghi")
    turns = [*called, said("system", "s1"), result]

    assert [*called, result, said("user", "s1")] == placed(turns, Takes("first"))
    strict = placed([*turns, said("user", "u2"), said("assistant", "a1")], LITTLE)
    assert [*called, {**result, "content": "t1\n\ns1\n\nu2"}, said("assistant", "a1")] == strict
    template = ChatTemplate(MISTRAL)
    assert [] == missing(template.render_turns(strict), ["t1", "s1", "u2", "a1"])


def test_turns_in_a_row() -> None:
    """Turns of one role become one, with the thoughts of all and the calls of the last."""
    turns = [
        said("user", "u1"),
        said("user", ""),
        said("assistant", "a1", reasoning_content="r1"),
        said("assistant", "", reasoning_content="r2", tool_calls=[CALL]),
        said("tool", "t1", tool_call_id="abcdefghi"),
    ]
    assert [
        said("user", "u1"),
        said("assistant", "a1", reasoning_content="r1\nr2", tool_calls=[CALL]),
        turns[-1],
    ] == placed(turns, LITTLE)


def test_what_every_template_takes() -> None:
    """A plain conversation is not looked at, and one that a template takes is as it was."""
    assert not stands_out(["user", "assistant", "user", "assistant", "tool", "assistant", "user"])
    assert all(map(stands_out, (["system"], ["user", "user"], ["tool", "user"], ["developer"])))
    assert TALK == placed(TALK, ALL)


def test_a_template_that_shows_nothing() -> None:
    """Of a template that does not show what is said, nothing is assumed."""
    assert ALL == takes(lambda turns: "nothing", {})
