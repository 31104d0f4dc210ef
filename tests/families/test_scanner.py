"""Tests of unilect.families._scanner: the calls of the common families, thoughts, and what only looks like either."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core.events import Choice, TextDelta, ToolCallDelta, fold
from unilect.families import Family, MarkScanner, Reading, find, has_begun, of_template, thoughts_of

HERMES, MISTRAL, LLAMA3, GLM, PHI, DEEPSEEK = map(
    find, ("hermes", "mistral", "llama3", "glm", "phi", "deepseek")
)

NAMES: dict[str, Any] = {"get_weather": None, "add": None}
PARIS = '{"city": "Paris"}'
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
LLAMA_CALL = CALL.replace("arguments", "parameters")


def parsed(
    style: Family, text: str, size: int = 3, tools: dict[str, Any] | None = NAMES, **how: bool
) -> Choice:
    """What a text says that comes in pieces of this size."""
    ids = itertools.count()
    parser = MarkScanner(Reading(family=style, tools=tools, **how), lambda: f"call_{next(ids)}")
    batches = [parser.add(text[at : at + size]) for at in range(0, len(text), size)]
    choices = fold([*batches, parser.end()]).choices
    return choices[0] if choices else Choice(0)


@pytest.mark.parametrize(("misses", "calls"), [(255, 1), (256, 0)])
def test_what_only_looks_like_calls(misses: int, calls: int) -> None:
    """Behind 256 texts between the marks of calls that are none, no call is looked for any more."""
    choice = parsed(
        HERMES, "<tool_call>no</tool_call>" * misses + f"<tool_call>{CALL}</tool_call>", 100
    )

    assert calls == len(choice.tool_calls)
    assert misses == (choice.text or "").count("<tool_call>no</tool_call>")


@pytest.mark.parametrize(
    ("style", "text"),
    [
        (HERMES, f"<tool_call>\n{CALL}\n</tool_call>"),
        (HERMES, f"<tool_call>{CALL}</tool_call>\n"),
        (HERMES, f"<tool_call>\n{CALL}"),
        (MISTRAL, f"[TOOL_CALLS][{CALL}]"),
        (MISTRAL, f"[TOOL_CALLS] [{CALL}]"),
        (LLAMA3, LLAMA_CALL),
        (LLAMA3, f"<|python_tag|>{LLAMA_CALL}"),
        (GLM, f"get_weather\n{PARIS}"),
        (GLM, "get_weather\n```python\ntool_call(city='Paris')\n```"),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_one_call(style: Family, text: str, size: int) -> None:
    """A call in a family's manner is told as a call, however it is cut into pieces."""
    choice = parsed(style, text, size)

    assert ["get_weather"] == [call.name for call in choice.tool_calls]
    assert {"city": "Paris"} == json.loads(choice.tool_calls[0].arguments)
    assert not choice.text


CORPUS = [
    (HERMES, f"<think>I look.</think>\n\nWell.\n<tool_call>\n{CALL}\n</tool_call>\nDone <b>"),
    (HERMES, f"<tool_call>{CALL}<tool_call>{CALL}</tool_call>"),
    (
        HERMES,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        HERMES,
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
    ),
    (MISTRAL, f"I look.[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]add[ARGS]{PARIS}"),
    (MISTRAL, f"[TOOL_CALLS][{CALL}] and so on"),
    (LLAMA3, f"{LLAMA_CALL} as you see"),
    (LLAMA3, "[get_weather(city='Paris')]"),
    (LLAMA3, f"<function=get_weather>{PARIS}</function>"),
    (LLAMA3, "get the umbrella"),
    (GLM, f"\nget_weather\n{PARIS}"),
    (PHI, f"<|tool_call|>[{CALL}]<|/tool_call|>"),
    (
        DEEPSEEK,
        "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        f"{PARIS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
]


@pytest.mark.parametrize(("style", "text"), CORPUS)
def test_pieces_tell_what_the_whole_tells(style: Family, text: str) -> None:
    """Wherever an answer is cut, its pieces say the same; only an answer without a call has all its text."""
    whole = parsed(style, text, len(text), thinking=True)

    for size in range(1, len(text)):
        assert whole == parsed(style, text, size, thinking=True)
    assert whole.tool_calls or text == whole.text


def test_words_like_a_tools_name_are_told_as_they_come() -> None:
    """An answer that begins like a tool's name is held back for as long as it may be one."""
    parser = MarkScanner(Reading(family=LLAMA3, tools=NAMES), str)

    assert [[], [TextDelta("add two")]] == [parser.add("add"), parser.add(" two")]


def test_no_more_calls_than_may_be() -> None:
    """Where one call may be made, one is told of a list, and nothing behind it."""
    parser = MarkScanner(Reading(family=MISTRAL, tools=NAMES, most=1), str)
    events = [*parser.add(f"[TOOL_CALLS][{CALL}, {CALL}] and on"), *parser.end()]

    assert [0] == [event.call for event in events if isinstance(event, ToolCallDelta)]
    assert (1, True) == (len(events), parser.full)


def test_line_breaks_without_end() -> None:
    """A model that writes nothing but line breaks is told as it goes, and nothing of it is lost."""
    parser = MarkScanner(Reading(family=HERMES, tools=NAMES), lambda: "call")
    events = []
    for _ in range(100):
        events += parser.add("\n\n")
        assert 16 >= len(parser.held)
    events += [*parser.add("a"), *parser.end()]

    assert "\n" * 200 + "a" == "".join(
        event.text for event in events if isinstance(event, TextDelta)
    )


def test_text_and_several_calls() -> None:
    """Text before calls is text, and each call has its number."""
    second = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
    text = f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{second}\n</tool_call>"

    choice = parsed(HERMES, text)

    assert ["get_weather", "add"] == [call.name for call in choice.tool_calls]
    assert ["call_0", "call_1"] == [call.id for call in choice.tool_calls]
    assert choice.text == "Let me see."


@pytest.mark.parametrize("size", [1, 1000])
def test_line_breaks_in_arguments(size: int) -> None:
    """Small models write line breaks and tabs raw in a text; the call has them as JSON does."""
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "one\ntwo\t"}}</tool_call>'

    [call] = parsed(HERMES, text, size).tool_calls
    assert {"city": "one\ntwo\t"} == json.loads(call.arguments)


@pytest.mark.parametrize(
    ("style", "text"),
    [
        (HERMES, '{"name": "unknown", "arguments": {}}'),
        (HERMES, '<tool_call>{"name": "no name", "arguments": {}}</tool_call>'),
        (HERMES, "<tool_call>unknown</tool_call>"),
        (LLAMA3, '{"name": "unknown", "parameters": {}}'),
        (HERMES, "<tool_call>no JSON</tool_call> and on"),
        (HERMES, "Write:\n\n<tool_call>nothing</tool_call>\n\nand <tool_call>the end"),
        (HERMES, "a < b and <tool is no call"),
        (LLAMA3, '{"answer": 42}'),
        (LLAMA3, "Paris is a city."),
        (LLAMA3, "get_weather is a function."),
        (GLM, "get"),
        (MISTRAL, "[TOOL_CALLS]nonsense"),
    ],
)
def test_what_is_no_call_is_text(style: Family, text: str) -> None:
    """Nothing that the model wrote is lost where it only looks like a call."""
    for size in (1, 5, 1000):
        choice = parsed(style, text, size)
        assert (text, []) == (choice.text, choice.tool_calls)


@given(st.text(st.sampled_from("<>/tool_cal think{}[]\"'ab\n"), max_size=40), st.integers(1, 5))
def test_text_without_tools_is_told_as_it_is(text: str, size: int) -> None:
    """Without tools and thoughts, an answer is the text that the model wrote."""
    assert text == (parsed(HERMES, text, size, tools=None).text or "")


@pytest.mark.parametrize(
    ("text", "begun", "expected"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", False, ("\nHm.\n", "Yes.")),
        ("Hm.\n</think>\n\nYes.", True, ("Hm.\n", "Yes.")),
        ("Hm.", True, ("Hm.", None)),
        ("Yes, <think> is a mark.", False, (None, "Yes, <think> is a mark.")),
        ("<thi", False, (None, "<thi")),
    ],
)
def test_thoughts(text: str, begun: bool, expected: tuple[str | None, str | None]) -> None:
    """Thoughts at the beginning of an answer are told apart from it."""
    for size in (1, 4, 1000):
        choice = parsed(HERMES, text, size, thinking=True, begun=begun)
        assert expected == (choice.reasoning, choice.text)


def test_a_call_after_thoughts() -> None:
    """A model may think before it calls."""
    choice = parsed(HERMES, f"<think>Hm.</think>\n<tool_call>{CALL}</tool_call>", thinking=True)

    assert ("Hm.", ["get_weather"]) == (choice.reasoning, [c.name for c in choice.tool_calls])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("...<tool_call>...", HERMES),
        ("...[TOOL_CALLS]...", MISTRAL),
        ("...<|python_tag|>...", LLAMA3),
        ("...<|observation|>...", GLM),
        ("...<tool_call>...<|observation|>...", HERMES),
        ("...<|tool_call|>...", PHI),
        ("...<｜tool▁calls▁begin｜>...<tool_call>...", DEEPSEEK),
        ("", None),
    ],
)
def test_the_family_of_a_template(template: str, expected: Family | None) -> None:
    """A chat template shows which family its model is of."""
    assert expected is of_template(template)


def test_where_thoughts_begin() -> None:
    """A template that ends the prompt with the mark has begun the thoughts."""
    marks = thoughts_of("...</think>...")

    assert (("<think>", "</think>"), None) == (marks, thoughts_of(""))
    assert [True, False, False] == [
        has_begun("assistant\n<think>\n", marks),
        has_begun("assistant\n", marks),
        has_begun("<think>", None),
    ]


BROKEN = '<tool_call>{"name": "add, "arguments": {}}</tool_call>'
FORGOTTEN = "<tool_call><function=add>\n<parameter=a>\n1\n</tool_call>"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_text_in_a_call_that_does_not_end(size: int) -> None:
    """A call whose quotes do not close is text up to its mark, and the calls and the text behind it are told; once in an answer such are waited for."""
    good = f"<tool_call>{CALL}</tool_call>"
    choice = parsed(HERMES, f"{BROKEN} Or:{good} So.{BROKEN}", size)

    assert ["get_weather"] == [call.name for call in choice.tool_calls]
    assert choice.text == f"{BROKEN} Or: So.{BROKEN}"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_ends_that_are_forgotten(size: int) -> None:
    """A call of which only the last mark is there is one, and so is the next."""
    choice = parsed(HERMES, f"{FORGOTTEN}\n{FORGOTTEN} So.", size)

    assert ["add", "add"] == [call.name for call in choice.tool_calls]
    assert [{"a": 1}, {"a": 1}] == [json.loads(call.arguments) for call in choice.tool_calls]
    assert " So." == choice.text


INNER = "<tool_call>\n<function=other>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
WRITE = "<tool_call>\n<function=add>\n<parameter=a>\n"


@pytest.mark.parametrize(
    "text",
    [
        f"{WRITE}print('</tool_call>')\nprint(",
        f"{WRITE}print('</function></tool_call>')\nprint(",
        f"{WRITE}print('</parameter></tool_call>')\nprint(",
        f"{WRITE}Write:\n{INNER}",
        f"{WRITE}Write:\n{INNER}\nor:\n{INNER}\n",
        f"{WRITE}Write:\n{INNER.removesuffix('</tool_call>')}",
        '<tool_call>{"name": "add", "arguments": {"a": "</tool_call> and',
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value></tool_call> and",
    ],
)
def test_a_call_that_is_cut(text: str) -> None:
    """A call that is cut behind a mark in one of its arguments is none by a stop word, one by a limit, and never one that the argument tells of."""
    for tools in (NAMES, {"add": {"properties": {"a": {"type": "string"}}}}):
        for size in (1, 5, 1000):
            parser = MarkScanner(Reading(family=HERMES, tools=tools), lambda: "call")
            pieces = [parser.add(text[at : at + size]) for at in range(0, len(text), size)]
            words = [*pieces, parser.end(is_cut=True, by_word=True)]
            assert (text, []) == ((told := fold(words).choices[0]).text, told.tool_calls)
            parser = MarkScanner(Reading(family=HERMES, tools=tools), lambda: "call")
            pieces = [parser.add(text[at : at + size]) for at in range(0, len(text), size)]
            told = fold([*pieces, parser.end(is_cut=True)]).choices[0]
            assert (["add"], None) == ([call.name for call in told.tool_calls], told.text)
            assert told.tool_calls[0].parse_arguments() is None


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        (f'<tool_call>{CALL}"</tool_call>', ["get_weather"]),
        (f"<tool_call>{CALL}</tool_call>", ["get_weather"]),
        ("<tool_call><function=add>\n<parameter=a>\n1\n</parameter>\n</tool_call>", ["add"]),
        ("<tool_call><function=add>\n<parameter=a>\n1\n</function>\n</tool_call>", ["add"]),
        ("<tool_call><function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</function>\n</tool_call>", ["add"]),
        ("<tool_call><function=add></tool_call>", ["add"]),
        ("<tool_call><function=add><parameter=a>1</parameter></function>,\n</tool_call>", ["add"]),
        ("<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value> so\n</tool_call>", ["add"]),
        ("<tool_call><function=add><parameter=a>1</parameter></function>,\n<function=get_weather><parameter=city>Paris</parameter></function></tool_call>", ["add", "get_weather"]),
    ],
)  # fmt: skip
def test_slips_end_where_they_did(text: str, ends: list[str]) -> None:
    """A call with a small mistake is told at its mark, and not at the end of the answer; the text behind it and the next call are told as well."""
    parser = MarkScanner(Reading(family=HERMES, tools=NAMES), lambda: "call")
    events = parser.add(f'{text} It is 5" long.')
    names = [event.name for event in events if isinstance(event, ToolCallDelta)]
    assert ends == names
    assert "long." in "".join(event.text for event in events if isinstance(event, TextDelta))
    again = parsed(HERMES, f'{text} 5" {text}')
    assert 2 * ends == [call.name for call in again.tool_calls]
    assert ("1" in text) == ('{"a": 1}' in [call.arguments for call in again.tool_calls])
