"""What a model writes is data: hostile outputs run nothing, open nothing and are read in linear time, by the parser of every family."""

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from support.common.effort import effort_s
from unilect.core.events import Event, fold
from unilect.families import FAMILIES as ALL
from unilect.families import Family, Reading
from unilect.families.chatglm import IN_TURNS

TOOLS: dict[str, Any] = {"tool_call": None, "get_weather": {"type": "object", "properties": {"city": {"type": "string"}}}}  # fmt: skip
FAMILIES = {one.name: one for one in (*ALL, replace(IN_TURNS, name="turns"))}
MARKS = sorted({mark for one in FAMILIES.values() for mark in one.tokens})
PAIRS = sorted({one.begin + one.end for family in ALL for one in family.calls} | {"".join(family.thoughts) for family in ALL})  # fmt: skip
CODE = [
    "__import__('os').system('id > /tmp/pwned')",
    "__import__('os').popen('id -un').read()",
    "eval(\"open('/etc/passwd').read()\")",
    "exec('import socket')",
    "open('/etc/passwd').read()",
    "(lambda: __import__('subprocess').run('id'))()",
    "[c for c in ().__class__.__base__.__subclasses__()]",
    "globals()['__builtins__']",
    "{'a': __import__('os')}",
    "f'{__import__(\"os\").getcwd()}'",
    "9**9**9**9",
    "'a'*10**12",
    "not_a_name",
    "1e999",
    "b'\\x00'",
    "{1: {2: {3: set()}}}",
]
FRAMES = [
    "tool_call(x={})",
    "get_weather\n```python\ntool_call(city={})\n```",
    "<tool_call>{}</tool_call>",
    '<tool_call>{{"name": "get_weather", "arguments": {}}}</tool_call>',
    "<tool_call>\n<function=get_weather>\n<parameter=city>\n{}\n</parameter>\n</function>\n</tool_call>",
    "[TOOL_CALLS]get_weather[ARGS]{}",
    "[TOOL_CALLS][{}]",
    "<|python_tag|>{}",
    "[get_weather(city={})]",
    "<|channel|>commentary to=functions.get_weather<|message|>{}<|call|>",
    "<|start|>assistant<|channel|>{}<|message|>",
    "<function_calls><invoke name=\"get_weather\"><parameter name=\"city\">{}</parameter></invoke></function_calls>",
    "functools[{}]",
    "<start_function_call>call:get_weather{{city:{}}}<end_function_call>",
    "<arg_key>{}</arg_key>",
    "<think>{}",
    "```json\n{}\n```",
    "{}",
]  # fmt: skip
SIZE = 520_000
#: Pieces that have made a parser go back over all that it has read.
PLAIN = ["[", "{", '{"a":', "(", "<", "</", "\n", " ", "```", "```python\n", '"', "\\", "'", "a(", "a=", ",", "<think>", "</think>", "<|channel|>", "tool_call("]  # fmt: skip
UNITS = [*dict.fromkeys([*PLAIN, *MARKS, *PAIRS])]
#: Token by token, which takes as long as all else, a family reads its own marks, and of the others' every fourth; each of these is read by many.
EACH = 4
#: What calls of each form begin with, of which the rest may be anything.
BEGINS = ["f", "f\n```python\ntool_call(", "[f(", '{"name":', "<function=f>", "<function=f><parameter=a>", "f<arg_key>a</arg_key>", "functions.f:0", "<｜tool▁call▁begin｜>f", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>```json", "call:f{", '<｜DSML｜invoke name="f">', '<|open|>call tool="f"<|sep|>']  # fmt: skip
#: The processor's time for an output; a server that reads it as it comes spends that over thousands of tokens.
MOST_S = 0.1


def readers() -> Iterator[tuple[str, Callable[[str, int], list[list[Event]]]]]:
    """What reads an output that comes in pieces of a size, by name."""

    def of_family(family: Family) -> Callable[[str, int], list[list[Event]]]:
        def read(text: str, size: int) -> list[list[Event]]:
            ids = itertools.count()
            scanner = Reading(family=family, tools=TOOLS).scanner(lambda: f"call_{next(ids)}")
            return [*(scanner.add(piece) for piece in cut(text, size)), scanner.end()]

        return read

    yield from ((name, of_family(family)) for name, family in FAMILIES.items())


def cut(text: str, size: int) -> Iterator[str]:
    """A text in pieces."""
    return (text[at : at + size] for at in range(0, len(text), size))


READERS = dict(readers())
#: The others run with the heavy tests.
QUICK = {"hermes", "glm", "qwen-coder"}
SOME_READERS = [one if one in QUICK else pytest.param(one, marks=pytest.mark.heavy) for one in READERS]  # fmt: skip


class Effects:
    """What this process does beside computing, while it is watched; a hook of Python's audit events cannot be taken off again."""

    def __init__(self) -> None:
        self.watched = False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[object, ...]) -> None:
        if self.watched and event.split(".")[0] in ("open", "os", "subprocess", "socket", "import", "exec", "ctypes", "shutil", "pickle", "marshal"):  # fmt: skip
            self.seen.append(f"{event} {args!r:.100}")


@pytest.fixture(scope="module")
def effects() -> Effects:
    """The hook, one for this module."""
    return Effects()


@pytest.mark.parametrize("name", READERS)
def test_no_output_is_run(name: str, effects: Effects) -> None:
    """Of 288 outputs that hold code in the forms of tool calls none has an effect: each is text, or a call whose arguments are text."""
    read = READERS[name]
    read("tool_call(x=1)", 5)  # what is imported when it is first needed
    texts = [frame.format(code) for frame in FRAMES for code in CODE]
    found = []
    effects.watched = True
    try:
        for text in texts:
            found.append(read(text, 7))
    finally:
        effects.watched = False

    assert [] == effects.seen
    assert 288 == len(found)
    for batches in found:
        for choice in fold(batches).choices:
            assert all(isinstance(call.arguments, str) for call in choice.tool_calls)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("characters", "piece"),
    [
        pytest.param(SIZE, 4096, marks=pytest.mark.heavy),
        pytest.param(SIZE, SIZE, id="whole"),
        pytest.param(SIZE // 8, 16, id="token by token", marks=pytest.mark.heavy),
    ],
)
@pytest.mark.parametrize("name", SOME_READERS)
def test_outputs_are_read_in_linear_time(name: str, characters: int, piece: int) -> None:
    """Half a megabyte of what parsers stumble over, calls that never end included, takes each parser a tenth of a second; less of it, token by token, too."""
    worst = (0.0, "")
    for unit in UNITS if piece > 16 else units_token_by_token(name):
        text = (unit * (characters // len(unit) + 1))[:characters]
        for head in ("", "<tool_call>"):
            worst = max(worst, (reading_s(name, head + text, piece), f"{head}{unit!r}"))
    print(f"{name}: {worst[0] * 1000:.0f} ms for {worst[1]}")
    assert worst[0] < MOST_S, worst


def units_token_by_token(name: str) -> list[str]:
    """The pieces that a family reads token by token."""
    family, turn = FAMILIES[name], list(FAMILIES).index(name)
    own = {*PLAIN, *family.tokens, *(one.begin + one.end for one in family.calls), "".join(family.thoughts)}  # fmt: skip
    return [one for at, one in enumerate(UNITS) if one in own or (at + turn) % EACH == 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_blanks_within_a_call_are_read_in_linear_time(family: str) -> None:
    """A model that writes blanks in the middle of a call, in any form behind any mark, is read in a tenth of a second."""
    for begin in {"", *(one.begin for one in FAMILIES[family].calls)}:
        for head in BEGINS:
            text = begin + head + " " * (SIZE // 32) + "x"
            assert reading_s(family, text, SIZE) < MOST_S, (begin, head)


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize("name", SOME_READERS)
def test_many_calls_are_read_in_linear_time(name: str) -> None:
    """Half a megabyte of whole calls, and of calls that hold marks or lack ends, with and without the marks around each, takes half a second."""
    family = FAMILIES[name]
    begin, end = (family.calls[0].begin, family.calls[0].end) if family.calls else ("", "")
    for arguments in ({}, {"city": "</tool_call>"}, {"city": '"'}):
        unit = family.written.calls_text([("get_weather", arguments)])
        bare = unit.removeprefix(begin).removesuffix(end).strip()
        for one in {  # several are the same where a form has no ends
            unit,
            bare,
            unit.removesuffix(end),
            unit.replace("</parameter>", ""),
            f"{bare}<parameter=q>",
        }:
            text = begin + (one * (SIZE // len(one)))
            assert reading_s(name, text, 4096, MOST_S * 5) < MOST_S * 5, one


def reading_s(name: str, text: str, piece: int, most_s: float = MOST_S) -> float:
    """The processor's time for an output."""
    return effort_s(lambda: READERS[name](text, piece), most_s)


@pytest.mark.parametrize("name", sorted(QUICK))
def test_outputs_that_a_limit_cuts_are_read_in_linear_time(name: str) -> None:
    """Blanks of a hundred kilobytes in a call that a limit has cut take a tenth of a second at most."""
    for begin in ("<tool_call>", "<tool_call><function=get_weather>", "get_weather("):

        def read(text: str = begin + " " * 100_000 + "x") -> None:
            reading = Reading(family=FAMILIES[name], tools=TOOLS).scanner(lambda: "call_1")
            reading.add(text)
            reading.end(is_cut=True)

        assert effort_s(read, MOST_S) < MOST_S, begin
