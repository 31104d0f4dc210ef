"""templates.py: named formats, Jinja and files; the sandbox."""

from pathlib import Path

import pytest

from unilect import templates
from unilect.errors import ConfigError, InvalidRequest
from unilect.requests import Message, TextPart

TALK = [
    Message("system", "S."),
    Message("user", "U1"),
    Message("assistant", "A1"),
    Message("user", [TextPart("U2"), TextPart("U3")]),
]


def test_a_named_format_renders_the_conversation() -> None:
    """ChatML by its name gives the turns between its markers, and opens the answer."""
    expected = (
        "<|im_start|>system\nS.<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n"
        "<|im_start|>assistant\nA1<|im_end|>\n<|im_start|>user\nU2\nU3<|im_end|>\n<|im_start|>assistant\n"
    )
    assert expected == templates.find("chatml").render(TALK)


def test_every_named_format_renders() -> None:
    """Each format is Jinja that takes a plain conversation, and holds what the user said last."""
    for name in templates.names():
        assert "U2" in templates.find(name).render(TALK), name


def test_jinja_and_a_file_of_it_are_templates(tmp_path: Path) -> None:
    """A text with braces is taken as Jinja, anything else as the path of a file."""
    text = "{% for m in messages %}{{ m.content }};{% endfor %}"
    (tmp_path / "t.jinja").write_text(text)
    for given in (text, str(tmp_path / "t.jinja")):
        assert "S.;U1;A1;U2\nU3;" == templates.find(given).render(TALK)


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    """A misspelt name gets the nearest one in the error."""
    with pytest.raises(ConfigError, match="chatml"):
        templates.find("chattml")


def test_a_template_reaches_nothing_outside() -> None:
    """A template that looks for Python's internals is refused as the request's fault, and runs nothing."""
    evil = templates.find("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InvalidRequest, match="template"):
        evil.render(TALK)


def test_a_template_may_refuse() -> None:
    """`raise_exception` in a template is a 400 with its words."""
    with pytest.raises(InvalidRequest, match="only users"):
        templates.find("{{ raise_exception('only users') }}").render(TALK)
