"""Tests of unilect.templates.takes: the conversations that templates take."""

from typing import Any

import pytest

from support.models.strict_templates import STYLES
from unilect.templates.chat import ChatTemplate
from unilect.templates.takes import ALL, Takes, stands_out, takes


@pytest.mark.parametrize("style", STYLES)
def test_published_templates(style: str) -> None:
    """What a template refuses or leaves out is found out."""
    template, expected = STYLES[style]

    assert expected == takes(ChatTemplate(template).render_turns)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("nothing", ALL),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", Takes(calls=False)),
        ("{% for m in messages if m.role != 'tool' %}{{ m.content }}{% endfor %}", Takes(calls=False)),
        ("{% for m in messages %}{{ m.reasoning_content or m.content }}{% endfor %}", Takes(thoughts=False, calls=False)),
    ],
)  # fmt: skip
def test_what_a_template_does_not_show(template: str, expected: Takes) -> None:
    """Calls are text where it shows none, thoughts go where it shows them in the place of a text, and of one that shows nothing nothing is assumed."""
    assert expected == takes(ChatTemplate(template).render_turns)


def said(role: str, content: str = "x", **more: Any) -> dict[str, Any]:
    """A turn."""
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([said("user")], False),
        ([said("user"), said("assistant"), said("user")], False),
        ([said("system"), said("user")], True),
        ([said("developer")], True),
        ([said("user"), said("user")], True),
        ([said("user"), said("assistant"), said("assistant")], True),
        ([said("assistant"), said("user")], True),
        ([said("user"), said("assistant", "")], True),
        ([said("user"), said("assistant", reasoning_content="x"), said("user")], True),
        ([said("user"), said("assistant", tool_calls=[{}])], True),
        ([said("user"), said("tool")], True),
    ],
)
def test_stands_out(turns: list[dict[str, Any]], expected: bool) -> None:
    """A plain conversation is one that every template takes."""
    assert expected == stands_out(turns)
