"""templates.py: named formats, Jinja and files; the sandbox."""

from pathlib import Path

import pytest

from unilect.core.errors import ConfigError, InvalidRequest
from unilect.core.requests import Message, TextPart
from unilect.templates import chat as templates

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


@pytest.mark.parametrize("name", templates.names())
def test_a_format_loses_no_message(name: str) -> None:
    """Every format holds all that was said, in its order, the system's text and a tool's too."""
    talk = [Message("developer", "D1"), *TALK, Message("tool", "T1")]
    prompt = templates.find(name).render(talk)
    places = [prompt.find(text) for text in ("D1", "S.", "U1", "A1", "U2", "U3", "T1")]

    assert -1 not in places
    assert sorted(places) == places


def test_a_system_alone_is_not_lost() -> None:
    """A format that has no turn for a system gives its text to a user where none speaks."""
    expected = "<bos><start_of_turn>user\nS.\n\n<end_of_turn>\n<start_of_turn>model\n"
    assert expected == templates.find("gemma").render([Message("system", "S.")])


def test_aliases_belong_to_one_format() -> None:
    """No name stands for two formats."""
    names = templates.names() + [a for form in templates.forms().values() for a in form.aliases]

    assert sorted(set(names)) == sorted(names)


def test_a_default_system() -> None:
    """A format's own system text stands where the conversation has none, and only there."""
    found = templates.find("qwen-7b-chat")

    assert found.render([Message("user", "U")]).startswith(
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    )
    assert "helpful" not in found.render(TALK)


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


@pytest.mark.parametrize(
    ("words", "told"), [("only users", "only users."), ("user/assistant/...", "user/assistant/...")]
)
def test_a_template_may_refuse(words: str, told: str) -> None:
    """`raise_exception` in a template is a 400 with its words, as they are."""
    with pytest.raises(InvalidRequest) as refused:
        templates.find(f"{{{{ raise_exception('{words}') }}}}").render(TALK)

    assert (
        f"`messages`: the model's chat template refuses them: {told} Send what it takes: other roles, or another order."
        == refused.value.message
    )


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("{{ tools | tojson(separators=(',', ':')) }}", '[{"b":1,"a":"é<"}]'),
        ("{{ tools | tojson(sort_keys=true) }}", '[{"a": "é<", "b": 1}]'),
        ("{{ tools | tojson(true) }}", '[{"b": 1, "a": "\\u00e9<"}]'),
        ("{{ tools[0] | tojson(indent=1) }}", '{\n "b": 1,\n "a": "é<"\n}'),
        (
            "{% generation %}{{ messages[0].content }}{% set x = 1 %}{% endgeneration %}{{ x }}",
            "S.",
        ),
        ("{{ documents is none }}\n", "True"),
        ("{{ messages[0].thinking }}{{ messages[1].thinking }}", "hm"),
    ],
)
def test_what_transformers_has_beside_jinja(text: str, rendered: str) -> None:
    """The tag `generation`, the arguments of `tojson`, names that are none and thoughts by their other name are as transformers has them."""
    turns = [{"role": "user", "content": "S."}, {"role": "assistant", "reasoning": "hm"}]

    assert rendered == templates.find(text).render_turns(turns, tools=[{"b": 1, "a": "é<"}])


def test_any_name_may_be_given_to_a_template() -> None:
    """What a request gives to a template may have the name of anything."""
    found = templates.find("{{ turns }}{{ self_ }}{{ bos_token }}")

    assert "123" == found.render_turns([], turns=1, self=0, self_=2, bos_token=3)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{% set ns = namespace(a=1) %}{{ raise_exception(strftime_now(x)) }}{{ ns.a }}", {"x"}),
        ("{% generation %}{{ date_string }}{% endgeneration %}", {"date_string"}),
        ("{% other %}{{ date_string }}{% endother %}", {"other", "date_string", "endother"}),
        ("{{ namespace", set()),
        ("no names", set()),
    ],
)  # fmt: skip
def test_names_that_a_template_asks_for(text: str, names: set[str]) -> None:
    """What a template has itself, and what Jinja has, is not asked for; of another Jinja every word may be."""
    assert names == templates.variables(text)
