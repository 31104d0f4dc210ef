"""Tests of unilect.templates.turns: conversations as templates take them."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from support.models.strict_templates import STYLES, TALK, missing
from unilect.families import find
from unilect.templates.chat import ChatTemplate, find_named, names
from unilect.templates.takes import ALL, LEAST, LITTLE, Takes, takes
from unilect.templates.turns import fit

CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}
TEMPLATES = {style: ChatTemplate(STYLES[style][0], limit_s=60) for style in STYLES}
HERMES = find("hermes").written


def said(role: str, content: Any = "", **more: Any) -> dict[str, Any]:
    """A turn."""
    return {"role": role, "content": content, **more}


def call(id: str, name: str = "f", **arguments: str) -> dict[str, Any]:
    """A call."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


@st.composite
def talks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Conversations in any order, each text and argument another word."""
    turns: list[dict[str, Any]] = []
    ids: list[str] = []
    for number in range(draw(st.integers(1, 9))):
        word = draw(st.sampled_from(["", f"w{number}w"]))
        match draw(st.sampled_from(["system", "user", "assistant", "calls", "tool", "stray"])):
            case "calls":
                made = [f"call_{number}_{n}" for n in range(draw(st.integers(1, 3)))]
                ids += made
                calls = [call(id, f"f{id}f", a=f"v{id}v") for id in made]
                turns.append(said("assistant", "", tool_calls=calls))
            case "tool" if ids:
                turns.append(said("tool", f"w{number}w", tool_call_id=ids.pop(0), name="f"))
            case "tool" | "stray":
                turns.append(said("tool", f"w{number}w"))
            case role:
                turns.append(said(role, word))
    return turns


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=20, deadline=None)
@given(talks())
def test_nothing_is_lost(style: str, talk: list[dict[str, Any]]) -> None:
    """Whatever the order of turns, the prompt has each word, name and argument once; only Mistral's leaves out a text beside a call."""
    made = fit(talk, STYLES[style][1], HERMES)
    note(repr(made))
    prompt = TEMPLATES[style].render_turns(made)

    lost = [turn["content"] for turn in made if style == "mistral" and turn.get("tool_calls")]
    words = [
        turn["content"] for turn in talk if turn["content"] and turn["content"] not in "".join(lost)
    ]
    calls = [one["function"] for turn in talk for one in turn.get("tool_calls", ())]
    words += [one["name"] for one in calls] + [one["arguments"]["a"] for one in calls]
    assert [] == missing(prompt, words)


@pytest.mark.parametrize("style", STYLES)
def test_conversations_of_agents(style: str) -> None:
    """A conversation of all that agents say has each of its words in the prompt once."""
    assert [] == missing(TEMPLATES[style].render_turns(fit(TALK, STYLES[style][1])))


@pytest.mark.parametrize("name", names())
def test_named_formats(name: str) -> None:
    """Every named format then has each of the words once, too."""
    template = find_named(name)
    assert template is not None
    render = partial(template.render_turns, bos_token="", eos_token="")

    assert [] == missing(render(fit(TALK, takes(render))))


def test_system_messages_before_and_behind_an_answer() -> None:
    """Those before the first answer are one, at the beginning; a later one is the user's, and the beginning stays the same."""
    before = fit(TALK[:6], Takes("first"))
    after = fit(TALK, Takes("first"))

    assert [("system", "s1\n\ns2\n\ns3"), ("user", "u1"), ("user", "u2"), ("assistant", "a1")] == [
        (turn["role"], turn["content"]) for turn in before
    ]
    assert before == after[:4]
    assert [said("user", "s4"), said("user", "u3")] == after[4:]


def test_a_template_without_a_system() -> None:
    """The system's text stands before what the user says first, whatever parts that has."""
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    turns = [said("system", "s1"), said("user", [image]), said("system", "s2")]

    [turn] = fit(turns, LEAST)
    assert [{"type": "text", "text": "s1\n\ns2"}, image] == turn["content"]
    assert [said("user", "s1")] == fit([said("system", "s1")], LEAST)


def test_nothing_stands_between_a_call_and_its_result() -> None:
    """A system message there is told behind the results; a template that wants no user there has it within the result."""
    called = [said("user", "u1"), said("assistant", tool_calls=[CALL])]
    result = said("tool", "t1", tool_call_id="abcdefghi")
    turns = [*called, said("system", "s1"), result]

    assert [*called, result, said("user", "s1")] == fit(turns, Takes("first"))
    strict = fit([*turns, said("user", "u2"), said("assistant", "a1")], LITTLE)
    assert [*called, {**result, "content": "t1\n\ns1\n\nu2"}, said("assistant", "a1")] == strict
    prompt = TEMPLATES["mistral"].render_turns(strict)
    assert [] == missing(prompt, ["t1", "s1", "u2", "a1"])


def test_a_template_without_calls() -> None:
    """Calls stand in the text of their turn, and results in one of the user, in the form of the model's family; images stay."""
    image = {"type": "image_url", "image_url": {"url": "data:,", "detail": None}}
    turns = [
        said("user", [image]),
        said("assistant", "a1", reasoning_content="r1", tool_calls=[call("abcdefghi", a="v")]),
        said("tool", "t1", tool_call_id="abcdefghi"),
        said("user", "u2"),
    ]
    told = '<tool_call>\n{"name": "f", "arguments": {"a": "v"}}\n</tool_call>'

    assert [
        turns[0],
        said("assistant", f"a1\n{told}", reasoning_content="r1"),
        said("user", "<tool_response>\nt1\n</tool_response>\nu2"),
    ] == fit(turns, Takes(calls=False), HERMES)


def test_a_template_that_shows_thoughts_in_the_place_of_a_text() -> None:
    """The thoughts are left out of a turn with a text, under each of their names."""
    thoughts = {"reasoning_content": "r1", "reasoning": "r1"}
    turns = [said("assistant", "a1", **thoughts), said("assistant", "", **thoughts)]

    assert [said("assistant", "a1"), turns[1]] == fit(turns, Takes(thoughts=False))


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
    ] == fit(turns, LITTLE)


def test_what_every_template_takes() -> None:
    """A conversation that a template takes is as it was."""
    assert TALK == fit(TALK, ALL)


TWO = [
    said("user", "u1"),
    said("assistant", "a1", reasoning_content="r1", tool_calls=[call("c1", "f"), call("c2", "g")]),
    said("user", "u2"),
    said("tool", "t2", tool_call_id="c2"),
    said("tool", "t1", tool_call_id="c1"),
]


def test_calls_one_by_one() -> None:
    """Each call becomes a turn that its own result follows, the first with what was said and thought; then comes what stood between."""
    assert [
        TWO[0],
        TWO[1] | {"tool_calls": [call("c1", "f")]},
        TWO[4],
        said("assistant", "", tool_calls=[call("c2", "g")]),
        TWO[3],
        TWO[2],
    ] == fit(TWO, Takes(several=False))


def test_results_before_texts() -> None:
    """What stands between calls and their results comes behind them."""
    assert [*TWO[:2], *TWO[3:], TWO[2]] == fit(TWO, Takes(between=False))


def test_texts_beside_calls() -> None:
    """A text beside calls becomes a turn before them; thoughts stay with the calls."""
    bare = {**TWO[1], "content": ""}

    assert [TWO[0], said("assistant", "a1"), bare, *TWO[2:]] == fit(TWO, Takes(texts=False))


def test_calls_and_results_that_lack_the_other() -> None:
    """A call that was left gets an empty result, unless it is the last; a result of no call is the user's."""
    calls = [said("user", "u1"), said("assistant", tool_calls=[call("c1")])]
    empty = said("tool", "", name="f", tool_call_id="c1")

    assert [*calls, empty, said("user", "u2")] == fit([*calls, said("user", "u2")], Takes(unanswered=False))  # fmt: skip
    assert calls == fit(calls, Takes(unanswered=False))
    assert [said("user", "t1")] == fit([said("tool", "t1", tool_call_id="c9")], Takes(strays=False))


@pytest.mark.parametrize(
    ("turns", "taken", "roles"),
    [
        (["assistant", "user"], Takes(opens=False), ["user", "assistant", "user"]),
        (["system", "assistant"], Takes(opens=False), ["system", "user", "assistant"]),
        (["system"], Takes(alone=False), ["system", "user"]),
        (["assistant"], Takes(alone=False), ["user", "assistant"]),
        (["system"], LEAST, ["user"]),
        (["user", "assistant", "user"], Takes(opens=False, alone=False), ["user", "assistant", "user"]),
    ],
)  # fmt: skip
def test_an_empty_turn_of_the_user(turns: list[str], taken: Takes, roles: list[str]) -> None:
    """A template that wants the user first, or at all, gets an empty turn of the user."""
    assert roles == [turn["role"] for turn in fit([said(role, "x") for role in turns], taken)]


def test_empty_turns_of_the_assistant() -> None:
    """They are left out; where there is nothing else, an empty turn of the user stands for them."""
    empty, one = said("assistant"), said("user", "u")

    assert [one, one] == fit([one, empty, one, empty], Takes(empties=False))
    assert [said("user")] == fit([empty], Takes(empties=False))


def test_short_ids() -> None:
    """Ids become nine letters and digits, the same one each time; different ones stay different, and fitting ones as they are."""
    ids = ["call_1", "call_2", "abcdefghi", "call_1", "", "é" * 9]
    turns = [
        turn
        for id in ids
        for turn in (said("assistant", tool_calls=[call(id)]), said("tool", tool_call_id=id))
    ]
    made = fit(turns, Takes(ids=False))
    called = [turn["tool_calls"][0]["id"] for turn in made[::2]]

    assert called == [turn["tool_call_id"] for turn in made[1::2]]
    assert called == [turn["tool_calls"][0]["id"] for turn in fit(turns, Takes(ids=False))[::2]]
    assert called[2] == "abcdefghi"
    assert called[0] == called[3]
    assert len(set(called)) == len(set(ids))
    assert all(len(id) == 9 and id.isascii() and id.isalnum() for id in called)


def test_results_without_ids() -> None:
    """A result without an id has that of the call of its name, else of the next one."""
    calls = said("assistant", tool_calls=[call("c1", "f"), call("c2", "g"), call("c3", "f")])
    results = [said("tool", "x", name="g"), said("tool", "y"), said("function", "z", name="f")]

    assert ["c2", "c1", "c3"] == [turn["tool_call_id"] for turn in fit([calls, *results], ALL)[1:]]


def test_arguments_as_text() -> None:
    """A template that joins texts gets arguments as JSON."""
    [turn] = fit([said("assistant", tool_calls=[call("c1", a="é")])], Takes(objects=False))

    assert '{"a": "é"}' == turn["tool_calls"][0]["function"]["arguments"]
