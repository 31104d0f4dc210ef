"""Tests of unilect.templates.thoughts."""

import random
from typing import Any

import pytest

from support.models import thinking_templates as templates
from support.models.written import Writer
from unilect.constraints import gbnf
from unilect.templates.chat import ChatTemplate
from unilect.templates.thoughts import (
    Ending,
    Thoughts,
    behind,
    find_open_ending,
    learn_marks,
    probes,
)

THINK = Ending("</think>", "\n\n")
FINAL = Ending("[BEGIN FINAL RESPONSE]", "\n")
ASKED: Any = [{"role": "user", "content": "hi"}]


def shown(template: str) -> Thoughts:
    """What a template shows."""
    chat = ChatTemplate(template)
    made = [chat.render_turns(turns, add_generation_prompt=on) for turns, on in probes()]
    return learn_marks(made, template)


@pytest.mark.parametrize(
    ("template", "expected", "flags", "ending"),
    [
        (templates.BEGUN, Thoughts("", "<think>", THINK), {}, THINK),
        (templates.BEGUN, Thoughts("", "<think>", THINK), {"enable_thinking": False}, None),
        (templates.WORDS, Thoughts("Here are my reasoning steps:", "", FINAL), {}, FINAL),
        (templates.OWN, Thoughts("<think>", "<think>", THINK), {}, None),
        (templates.FRAMED, Thoughts(is_framed=True), {}, None),
        (templates.PLAIN, Thoughts(), {}, None),
    ],
)
def test_templates(
    template: str, expected: Thoughts, flags: dict[str, Any], ending: Ending | None
) -> None:
    """A template shows where thoughts stand, and a prompt whether it has begun them."""
    found = shown(template)

    assert expected == found
    assert ending == find_open_ending(ChatTemplate(template).render_turns(ASKED, **flags), found)


@pytest.mark.parametrize(
    ("prompt", "mark"),
    [
        ("a <think>\n", "</think>"),
        ("a<seed:think>", "</seed:think>"),
        ("a[THINK]", "[/THINK]"),
        ("a<|START_THINKING|>", "<|END_THINKING|>"),
        ("a<|begin_of_thought|>\n\n", "<|end_of_thought|>"),
        ("a<|START_THINKING|><|END_THINKING|>", None),
        ("a<think>\n\n</think>\n\n", None),
        ("a[/INST]", None),
        ("a<|im_start|>assistant\n", None),
        ("a<|start_header_id|>assistant<|end_header_id|>\n\n", None),
        ("<think> b", None),
        ("<" * 10_000, None),
        ("", None),
    ],
)
def test_tags(prompt: str, mark: str | None) -> None:
    """A tag at a prompt's end that is named after thinking has begun thoughts, whoever's it is."""
    found = find_open_ending(prompt, Thoughts())

    assert mark == (found.mark if found else None)


def test_a_template_that_refuses() -> None:
    """A template that refuses to be looked at shows nothing but its text."""
    assert Thoughts() == learn_marks([None, None, None], "")
    assert Thoughts("", "[THINK]", Ending("[/THINK]", "\n\n")) == learn_marks([None] * 3, "[THINK]x[/THINK]")  # fmt: skip


def test_a_grammar_without_thoughts() -> None:
    """Where there may be no thoughts, what ends those that the prompt has begun comes first."""
    grammar = behind('root ::= "yes"', Ending("</think>", "\n"), thinks=False)
    gbnf.analyse(grammar)

    assert "</think>\nyes" == Writer(grammar, random.Random(1)).text()


@pytest.mark.parametrize("mark", ["</think>", "<|END|>", "aab", "aa", "]", "é-^"])
@pytest.mark.parametrize("opening", ["", "<think>"])
def test_a_grammar_behind_thoughts(mark: str, opening: str) -> None:
    """Any text up to the first mark may come, then what follows the mark, then the answer; a rule keeps what its names mean."""
    answer = 'root ::= other "root" [root] # root\nother ::= "1"{2} | other-2\nother-2 ::= "3"\n'
    grammar = behind(answer, Ending(mark, "\n"), opening)
    gbnf.analyse(grammar)
    writer = Writer(grammar.replace(" # root", ""), random.Random(4))
    ends = [f"{begin}root{sign}" for begin in ("11", "3") for sign in "rot"]
    unthought = 0

    for _ in range(60):
        text = writer.text()
        thoughts, found, rest = text.partition(mark)
        if not found:
            assert opening != ""
            assert text in ends
            unthought += 1
            continue
        assert thoughts.lstrip(" \n").startswith(opening)
        assert rest.removeprefix("\n") in ends
        assert rest.startswith("\n")
    assert (unthought > 0) == bool(opening)
