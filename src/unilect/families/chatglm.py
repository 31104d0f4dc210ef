"""
ChatGLM3's tools: a system prompt that lists them, and calls written as Python.

A turn of the model begins with a line that is empty for a text, and holds a tool's name for a call; what follows a name is a
block of code, `tool_call(city='北京')`, or a program for the tool `interpreter`. The arguments are read from the syntax tree of
that one call, of which only keywords and literal values are known; nothing is ever evaluated. What cannot be read is handed on as
it was written: a call's arguments are a text that the client has to check in any case.

Source: https://github.com/THUDM/ChatGLM3/tree/main/tools_using_demo
"""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from unilect.core.events import Event, TextDelta
from unilect.core.requests import FunctionCall, FunctionDefinition, Tool
from unilect.families._calls import new_call_id
from unilect.families._family import Family, ToolFormat
from unilect.families._python import json_text, python_calls, python_text
from unilect.families._scanner import Reading, Scanner
from unilect.families._writing import dumped

HEADER = (
    "Answer the following questions as best as you can. You have access to the following tools:\n"
)
INTERPRETER = "interpreter"
_FENCE = re.compile(r"```[^\n]*\n(.*?)(?:\n?```|\Z)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def system_text(tools: Sequence[Tool]) -> str:
    """Return the system message that names the tools: their keys in the order that the model was trained with, Chinese as Chinese."""
    return CHATGLM3.written.tools_text(tools)


def write_call(call: FunctionCall) -> str:
    """Write a call of the conversation's history as the model would have written it, without the line with its name."""
    arguments = None
    with suppress(ValueError, RecursionError):
        arguments = json.loads(call.arguments or "{}")
    code = call.arguments
    if isinstance(arguments, dict):
        if call.name == INTERPRETER and isinstance(arguments.get("code"), str):
            code = arguments["code"]
        else:
            code = python_text("tool_call", arguments) or code
    return f"```python\n{code}\n```"


def read_arguments(name: str, block: str) -> str:
    """
    Read the arguments of a call as JSON text; the block as it is where it holds no call that can be read.

    >>> read_arguments("f", "```python\\ntool_call(city='Paris', days=[1, -2])\\n```")
    '{"city": "Paris", "days": [1, -2]}'
    """
    fenced = _FENCE.search(block)
    code = (fenced.group(1) if fenced else block).strip()
    if name == INTERPRETER:
        return json_text({"code": code}) or code
    written = None
    if code.startswith("{"):
        with suppress(ValueError, RecursionError):
            written = json_text(json.loads(code))
    elif (calls := python_calls(code)) and len(calls) == 1:
        written = calls[0][1]
    return (written or code).encode(errors="replace").decode()


class TurnScanner(Scanner):
    """
    Reads an answer in turns, of which the last is a call where a tool's result is expected; see `Scanner`. Blanks around it are dropped.
    """

    def __init__(self, reading: Reading, new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__(reading, new_id)
        self._names = {*self._tools, INTERPRETER} if self._tools else set()
        self._begun = False  # a text was told, so that blanks within it count
        self._blanks = ""
        self._maybe_call = bool(self._names)

    def turn(self) -> list[Event]:
        """See `Scanner`."""
        events = self._tell_held()
        self._maybe_call = bool(self._names)
        return events

    def add(self, text: str) -> list[Event]:
        """See `Scanner`."""
        self.held += text
        return [] if self._maybe_call and self._may_be_call() else self._tell_held()

    def end(self, is_cut: bool = False, by_word: bool = False) -> list[Event]:
        """Return the events of what was held back: a call, where it has a name, and is not cut."""
        line, ended, rest = self.held.partition("\n")
        name = line.strip()
        if is_cut or not ended or not self._names or not _NAME.fullmatch(name):
            return self._tell_held()
        self.held = ""
        return self._make_call(name, read_arguments(name, rest))

    def _may_be_call(self) -> bool:
        """Return True as long as the turn looks like a call: a name alone on the first line, and a block of code behind it."""
        line, ended, rest = self.held.partition("\n")
        name = line.strip()
        if not ended:
            return len(name) <= 128 and (not name or _NAME.fullmatch(name) is not None)
        if not _NAME.fullmatch(name):
            return False
        rest = rest.lstrip()
        return name in self._names or rest.startswith("```"[: len(rest)])

    def _tell_held(self) -> list[Event]:
        """Return what was held back as text; blanks wait for what follows them, so that none are told at either end."""
        text, self.held, self._maybe_call = self._blanks + self.held, "", False
        if not self._begun:
            text = text.lstrip()
        told = text.rstrip()
        self._blanks = text[len(told) :]
        self._begun = self._begun or bool(told)
        return [TextDelta(told)] if told else []


def _tool(function: FunctionDefinition) -> str:
    """Write a function as ChatGLM3 reads it: an entry of a list of JSON over several lines."""
    told = {
        "description": function.description,
        "name": function.name,
        "parameters": function.parameters or {},
    }
    text = msgspec.json.format(dumped([{"type": "function", "function": told}]), indent=4)
    return text[2:-2]  # without the list


CHATGLM3 = Family(
    name="chatglm3",
    called=("chatglm3",),
    is_bare=True,
    turn_ends=("<|user|>", "<|observation|>"),
    written=ToolFormat(
        about=f"{HEADER}[\n",
        tool=_tool,
        between=",\n",
        rules="\n]",
        call=lambda name, given, number: (
            f"{name}\n```python\n{python_text('tool_call', given) or dumped(given)}\n```"
        ),
    ),
)
#: The same where turns are told apart, as chatglm.cpp does.
IN_TURNS = replace(CHATGLM3, scanner=TurnScanner, ended_by=("tool_calls",))
