"""Tests of unilect.families.chatglm."""

import json
import random
from typing import Any

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core.events import Event, Extra, Finish, TextDelta, ToolCallDelta, fold
from unilect.core.requests import FunctionCall, FunctionDefinition, Tool
from unilect.families import Reading
from unilect.families.chatglm import IN_TURNS, read_arguments, system_text, write_call
from unilect.tools.reader import Reader

literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def block(code: str) -> str:
    """A block of code as the model writes it."""
    return f"```python\n{code}\n```"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("tool_call(a=1, b='x')", {"a": 1, "b": "x"}),
        ("tool_call()", {}),
        ("tool_call(city='北京', days=[1, -2.5], deep={'a': (True, None)})", {"city": "北京", "days": [1, -2.5], "deep": {"a": [True, None]}}),
        ("tool_call(on=true, off=false, no=null)", {"on": True, "off": False, "no": None}),
        ("tool_call(\n  a='two\\nlines',\n  b=2,\n)", {"a": "two\nlines", "b": 2}),
        ("tool_call(path='C:\\d')", {"path": "C:\\d"}),
        ('{"a": 1}', {"a": 1}),
    ],
)  # fmt: skip
def test_arguments_are_read(code: str, expected: dict[str, Any]) -> None:
    """A call's keywords become JSON, also over several lines and in JSON's own words."""
    assert expected == json.loads(read_arguments("f", block(code)))


@pytest.mark.parametrize(
    "code",
    [
        "tool_call(a=__import__('os').system('touch pwned'))",
        "__import__('os').system('touch pwned')",
        "tool_call(1)",
        "tool_call(*[1])",
        "tool_call(**{'a': 1})",
        "tool_call(a=b)",
        "tool_call(a=f'{1+1}')",
        "tool_call(a=1+1)",
        "tool_call(a=[x for x in 'ab'])",
        "tool_call(a={1, 2})",
        "tool_call(a={1: 2})",
        "tool_call(a=b'x')",
        "tool_call(a=1j)",
        "tool_call(a=1e999)",
        "tool_call(a=...)",
        "tool_call(a=lambda: 1)",
        "tool_call(a=1",
        "a = 1",
        "tool_call(a=" + "[" * 5000 + "]" * 5000 + ")",
        "tool_call(a=" + "-" * 20000 + "1)",
        "tool_call(a=" + "9" * 5000 + ")",
        "tool_call(a='" + "x" * 70_000 + "')",
        "{" * 3000,
        "\0",
        "",
    ],
)
def test_what_is_no_call_is_handed_on_as_it_is(code: str) -> None:
    """Code, mappings, bytes, endless numbers and deep nests are never evaluated, and stay the text that they are."""
    assert code.strip() == read_arguments("f", block(code))


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}_", fullmatch=True), literals, max_size=4))
def test_calls_of_the_history_are_read_back(arguments: dict[str, Any]) -> None:
    """What is written for the model as a call is read as the same call."""
    call = FunctionCall("f", json.dumps(arguments))

    assert arguments == json.loads(read_arguments("f", write_call(call)))


@given(st.text())
def test_any_text_gives_arguments(text: str) -> None:
    """No text of a model breaks the reader, and what comes of it can be sent."""
    for name in ("f", "interpreter"):
        for code in (text, block(text), block(f"tool_call({text})"), block(f"tool_call(a={text})")):
            read_arguments(name, code).encode()


def test_random_syntax_gives_arguments() -> None:
    """No mixture of pieces of Python breaks the reader or runs anything."""
    dice = random.Random(1)
    pieces = [
        "tool_call",
        "(",
        ")",
        "a",
        "=",
        "1",
        "'x'",
        "[",
        "]",
        "{",
        "}",
        ":",
        ",",
        ".",
        "-1",
        "None",
        "**",
        "*",
        "lambda",
        "\\",
        "\n",
        '"',
        "```",
        "�",
        "'\\ud800'",
        "print",
    ]
    for _ in range(3000):
        text = "".join(dice.choices(pieces, k=dice.randrange(1, 14)))
        read_arguments("f", block("tool_call(" + text)).encode()


def test_written_calls() -> None:
    """A call of the history is written in Python where it can be, as it is where not, and a program as a program."""
    calls = [
        FunctionCall("f", '{"a": "中", "b": [true, null]}'),
        FunctionCall("f", '{"not a name": 1}'),
        FunctionCall("f", "no JSON"),
        FunctionCall("interpreter", '{"code": "print(1)\\nprint(2)"}'),
    ]

    assert [
        "```python\ntool_call(a='中', b=[True, None])\n```",
        '```python\n{"not a name": 1}\n```',
        "```python\nno JSON\n```",
        "```python\nprint(1)\nprint(2)\n```",
    ] == [write_call(call) for call in calls]


def test_system_text_keeps_chinese() -> None:
    """A tool's Chinese stands in the prompt as Chinese, not as escapes that the model was not trained with."""
    tool = Tool(FunctionDefinition("f", description="获取天气"))

    assert '"description": "获取天气",\n            "name": "f",' in system_text([tool])


NEW_TURN = TextDelta("", extra=Extra(delta={"turn": "assistant"}))


def read(pieces: list[Event], tools: tuple[str, ...] = ("get_weather",)) -> list[Event]:
    """The events that a reader makes, one batch for each piece."""
    reader = Reader(Reading(family=IN_TURNS, tools=dict.fromkeys(tools)))
    return [event for piece in pieces for event in reader.read([piece])]


def texts(*pieces: str) -> list[Event]:
    """Pieces of text."""
    return [TextDelta(piece) for piece in pieces]


CALL = "get_weather\n ```python\ntool_call(city='北京')\n```"


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_call_is_told_as_a_call(size: int) -> None:
    """A turn that begins with a tool's name and ends where an observation is expected is a call, however it is cut."""
    pieces = texts(*(CALL[i : i + size] for i in range(0, len(CALL), size)))
    events = read([*pieces, Finish("tool_calls")])

    call = events[0]
    assert isinstance(call, ToolCallDelta)
    assert ("get_weather", '{"city": "北京"}', 0) == (call.name, call.arguments, call.call)
    assert call.id is not None
    assert call.id.startswith("call_")
    assert [Finish("tool_calls")] == events[1:]


def test_text_before_a_call() -> None:
    """A thought, and in the next turn a call, are told as text and call."""
    answer = fold([read([*texts("\n I look.\n"), NEW_TURN, *texts(CALL), Finish("tool_calls")])])

    assert "I look." == answer.choices[0].text
    assert ["get_weather"] == [call.name for call in answer.choices[0].tool_calls]


def test_an_unknown_tool_with_a_block_is_a_call() -> None:
    """A tool that the model made up is told as it is: the client must look at the name anyway."""
    events = read([*texts("find\n```python\nx\n```"), Finish("tool_calls")])

    assert isinstance(events[0], ToolCallDelta)
    assert ("find", "x") == (events[0].name, events[0].arguments)


def test_a_program_is_a_call_of_the_interpreter() -> None:
    """What the model writes for its code interpreter is a call with the program as its argument."""
    events = read([*texts("interpreter\n ```python\nprint(1)\nprint(2)\n```"), Finish("tool_calls")])  # fmt: skip

    assert isinstance(events[0], ToolCallDelta)
    assert "interpreter" == events[0].name
    assert {"code": "print(1)\nprint(2)"} == json.loads(events[0].arguments)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["\n", " Hello", " world"], ["Hello", " world"]),
        (["Hello", " world"], ["Hello world"]),
        (["Hello", "\nworld"], ["Hello\nworld"]),
        (["get", " up"], ["get up"]),
        (["get_weather", "\nis a tool"], ["get_weather\nis a tool"]),
        (["北京", "很好"], ["北京", "很好"]),
    ],
)
def test_text_is_told_as_soon_as_it_is_no_call(pieces: list[str], expected: list[str]) -> None:
    """A text is held back only as long as it may be a call, and is told whole at the end, with the count of its tokens."""
    events = read([*texts(*pieces), Finish("stop")])

    told = [event.text for event in events if isinstance(event, TextDelta)]
    assert (expected, Finish("stop")) == (told, events[-1])
    assert len(pieces) == sum(event.tokens for event in events)


def test_without_tools_everything_is_text() -> None:
    """A client that sent no tools gets none called."""
    events = read([*texts(CALL), Finish("tool_calls")], tools=())

    assert [TextDelta(CALL), Finish("stop")] == events


def test_a_cut_call_is_text() -> None:
    """A call that `max_tokens` cut is told as the text that it is."""
    assert [TextDelta("get_weather\n ```py"), Finish("length")] == read(
        [*texts("get_weather\n ```py"), Finish("length")]
    )


def test_blanks_at_both_ends_are_dropped() -> None:
    """The blanks that the model puts around its answer are not told, those within are, in stream and whole alike."""
    events = read([*texts("\n", " a ", "\n\n", "b", " ", "\n"), Finish("stop")], tools=())

    assert [TextDelta("a", tokens=2), TextDelta(" \n\nb", tokens=2), Finish("stop")] == events
