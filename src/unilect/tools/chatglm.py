"""
ChatGLM3's tools: a system prompt that lists them, and calls written as Python.

A turn of the model begins with a line that is empty for a text, and holds a tool's name for a call; what follows a name is a
block of code, `tool_call(city='北京')`, or a program for the tool `interpreter`. The arguments are read from the syntax tree of
that one call, of which only keywords and literal values are known; nothing is ever evaluated. What cannot be read is handed on as
it was written: a call's arguments are a text that the client has to check in any case.

Source: https://github.com/THUDM/ChatGLM3/tree/main/tools_using_demo
"""

import ast
import json
import keyword
import re
import secrets
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from unilect.events import Event, Finish, TextDelta, ToolCallDelta
from unilect.requests import FunctionCall, Tool

HEADER = (
    "Answer the following questions as best as you can. You have access to the following tools:\n"
)
INTERPRETER = "interpreter"
MAX_CALL_CHARACTERS = 64 * 1024
_FENCE = re.compile(r"```[^\n]*\n(.*?)(?:\n?```|\Z)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_CONSTANTS = {"true": True, "false": False, "null": None}  # models mix up their languages


def new_call_id() -> str:
    """An id for a call, as OpenAI's look."""
    return f"call_{secrets.token_hex(12)}"


def system_text(tools: Sequence[Tool]) -> str:
    """The system message that names the tools: their keys in the order that the model was trained with, Chinese as Chinese."""
    listed = [
        {
            "type": "function",
            "function": {
                "description": tool.function.description,
                "name": tool.function.name,
                "parameters": tool.function.parameters or {},
            },
        }
        for tool in tools
    ]
    return HEADER + json.dumps(listed, indent=4, ensure_ascii=False)


def written_call(call: FunctionCall) -> str:
    """A call of the conversation's history as the model would have written it, without the line with its name."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    code = call.arguments
    if isinstance(arguments, dict):
        if call.name == INTERPRETER and isinstance(arguments.get("code"), str):
            code = arguments["code"]
        else:
            code = python_text("tool_call", arguments) or code
    return f"```python\n{code}\n```"


def python_text(name: str, arguments: Mapping[str, Any]) -> str | None:
    """A call as Python writes it; None where an argument's name is none that Python can write."""
    if not all(one.isidentifier() and not keyword.iskeyword(one) for one in arguments):
        return None
    inside = ", ".join(f"{one}={value!r}" for one, value in arguments.items())
    return f"{name}({inside})"


def read_arguments(name: str, block: str) -> str:
    """
    The arguments of a call as JSON text; the block as it is where it holds no call that can be read.

    >>> read_arguments("f", "```python\\ntool_call(city='Paris', days=[1, -2])\\n```")
    '{"city": "Paris", "days": [1, -2]}'
    """
    fenced = _FENCE.search(block)
    code = (fenced.group(1) if fenced else block).strip()
    if name == INTERPRETER:
        return _json({"code": code}) or code
    return (_from_json(code) or _from_call(code) or code).encode(errors="replace").decode()


def _from_json(code: str) -> str | None:
    """The code, where it is a JSON object already."""
    if not code.startswith("{"):
        return None
    try:
        return _json(json.loads(code))
    except (ValueError, RecursionError):
        return None


def _from_call(code: str) -> str | None:
    calls = python_calls(code)
    return calls[0][1] if calls and len(calls) == 1 else None


def python_calls(code: str) -> list[tuple[str, str]] | None:
    """The name and the arguments, as JSON text, of one call or of each in a list; None where the code is anything else."""
    if len(code) > MAX_CALL_CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an unknown escape in a text
            tree = ast.parse(code, mode="eval").body
        calls: list[tuple[str, str]] = []
        for node in tree.elts if isinstance(tree, ast.List) else [tree]:
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
                return None
            arguments = _json({_keyword(item): _value(item.value) for item in node.keywords})
            if arguments is None:
                return None
            calls.append((node.func.id, arguments))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return calls


def _keyword(item: ast.keyword) -> str:
    if item.arg is None:
        raise ValueError("arguments from a mapping")
    return item.arg


def _value(node: ast.expr) -> Any:
    """
    The value of a literal.

    Raises:
        ValueError: It is none.
    """
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("no literal")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("a key that is no text")


def _json(value: Any) -> str | None:
    """JSON text; None for numbers that JSON does not have."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return text.encode(errors="replace").decode()


class AnswerReader:
    """
    Makes events of an answer from events of its text: blanks around it are dropped, and calls are told as calls.

    Args:
        tools: The names of the tools; without any, everything is text.
    """

    def __init__(self, tools: Sequence[str] = ()) -> None:
        self._names = {*tools, INTERPRETER} if tools else set()
        self._begun = False  # a text was told, so that blanks within it count
        self._blanks = ""
        self._turn = ""  # what a turn has said so far, while it may be a call
        self._maybe_call = bool(tools)
        self._calls = self._tokens = 0

    def read(self, batch: Sequence[Event]) -> list[Event]:
        """The events for a batch."""
        events: list[Event] = []
        for event in batch:
            match event:
                case TextDelta(extra=extra) if extra is not None and "turn" in extra.delta:
                    events += self._end_turn()
                    self._maybe_call = bool(self._names)
                case TextDelta(text):
                    self._tokens += event.tokens
                    events += self._text(text)
                case Finish(reason, stop=stop):
                    called = reason == "tool_calls" and bool(self._names)
                    events += self._call() if called else self._end_turn()
                    if reason == "tool_calls" and not self._calls:
                        reason = "stop"
                    events.append(Finish(reason, stop=stop))
                case _:
                    events.append(event)
        return events

    def _text(self, text: str) -> list[Event]:
        if not self._maybe_call:
            return self._tell(text)
        self._turn += text
        if self._may_be_call():
            return []
        return self._end_turn()

    def _may_be_call(self) -> bool:
        """True as long as the turn looks like a call: a name alone on the first line, and a block of code behind it."""
        line, ended, rest = self._turn.partition("\n")
        name = line.strip()
        if not ended:
            return len(name) <= 64 and (not name or _NAME.fullmatch(name) is not None)
        if not _NAME.fullmatch(name):
            return False
        rest = rest.lstrip()
        return name in self._names or rest.startswith("```"[: len(rest)])

    def _end_turn(self) -> list[Event]:
        """What was held back is text."""
        turn, self._turn, self._maybe_call = self._turn, "", False
        return self._tell(turn)

    def _call(self) -> list[Event]:
        """What was held back is a call, where it has a name."""
        line, ended, rest = self._turn.partition("\n")
        name = line.strip()
        if not ended or not _NAME.fullmatch(name):
            return self._end_turn()
        self._turn = ""
        arguments = read_arguments(name, rest)
        call = ToolCallDelta(self._calls, arguments, new_call_id(), name)
        self._calls += 1
        return [call]

    def _tell(self, text: str) -> list[Event]:
        """A piece of text; blanks wait for what follows them, so that none are told at either end."""
        text = self._blanks + text
        if not self._begun:
            text = text.lstrip()
        told = text.rstrip()
        self._blanks = text[len(told) :]
        if not told:
            return []
        tokens, self._tokens, self._begun = self._tokens, 0, True
        return [TextDelta(told, tokens=tokens)]
