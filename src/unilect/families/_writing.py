"""Forms of tools, calls and results that several families share."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from unilect.core.requests import FunctionDefinition
from unilect.families._python import python_text

Arguments: TypeAlias = Mapping[str, Any]
dumped = json.JSONEncoder(ensure_ascii=False).encode  # `dumps` makes one for each value


def describe(function: FunctionDefinition) -> dict[str, Any]:
    """Write a function without what was not told of it."""
    described: dict[str, Any] = {"name": function.name}
    if function.description:
        described["description"] = function.description
    if function.parameters:
        described["parameters"] = function.parameters
    return described


def json_tool(function: FunctionDefinition) -> str:
    """Write a function as JSON."""
    return dumped(describe(function))


def wrap_tool(function: FunctionDefinition) -> str:
    """Write a function as a request lists it."""
    return dumped({"type": "function", "function": describe(function)})


def indent_tool(function: FunctionDefinition) -> str:
    """Write a function as JSON over several lines."""
    return msgspec.json.format(json_tool(function), indent=4)  # json's own takes ten times as long


def as_json(before: str, key: str, behind: str) -> Callable[[str, Arguments, int], str]:
    """Make a writer of calls as JSON between two texts; `key` is the name of its arguments."""

    def write(name: str, given: Arguments, number: int) -> str:
        return f'{before}{{"name": {dumped(name)}, "{key}": {dumped(given)}}}{behind}'

    return write


def bare(value: Any) -> str:
    """Return a text as it is, and every other value as JSON."""
    return value if isinstance(value, str) else dumped(value)


def python_call(name: str, given: Arguments, number: int) -> str:
    """Write a call as Python writes it; as JSON where Python cannot."""
    return python_text(name, given) or as_json("", "parameters", "")(name, given, number)


def in_elements(before: str, argument: str, behind: str) -> Callable[[str, Arguments, int], str]:
    """
    Make a writer of calls with an element for each argument, texts as they are.

    Args:
        before: What it begins with; `{name}` is the tool's.
        argument: An element, with `{key}`, `{value}`, and `{is_text}` for true or false.
    """

    def write(name: str, given: Arguments, number: int) -> str:
        inside = "".join(
            argument.format(key=key, value=bare(value), is_text=dumped(isinstance(value, str)))
            for key, value in given.items()
        )
        return before.format(name=name) + inside + behind

    return write


def around(before: str, behind: str) -> Callable[[str, int, str], str]:
    """Make a writer of results between two texts."""
    return lambda name, number, text: f"{before}{text}{behind}"


#: The text before the tools where no family has words of its own.
LISTED = "# Tools\n\nYou may call these functions:\n"
PYTHONIC = (
    "\n\nTo call functions, answer with a list of calls as Python writes it and with nothing else: "
    "[name(argument=value), ...]. Do not use variables."
)
IN_TAGS = around("<tool_response>\n", "\n</tool_response>")
