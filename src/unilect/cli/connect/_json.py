"""JSON files of clients, with comments and trailing commas as editors have them: all that is not changed stays as it is."""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from unilect.cli.connect._settings import Setting, Step, key_of, nest

_BLANK = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*+", re.DOTALL)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SCALAR = re.compile(r'"(?:[^"\\\n]|\\.)*+"|[^\s,:\]}/"{\[]+')
MAX_DEPTH = 100


class _Node(NamedTuple):
    """
    A value and where it stands in the text.

    Attributes:
        value: The value.
        start, end: Its first character, and the one after its last.
        inside: The nodes of its members by key or index.
    """

    value: Any
    start: int
    end: int
    inside: dict[Any, "_Node"]


def parse(text: str) -> Any:
    """
    The data of a file; None for an empty one.

    Raises:
        ValueError: It is no JSON.
    """
    return None if _BLANK.fullmatch(text) else _root(text).value


def dump(data: Any) -> str:
    """Data as a file."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def edit(text: str, setting: Setting) -> str:
    """The text of a file with one value changed or added."""
    if _BLANK.fullmatch(text):  # nothing but comments
        return text.rstrip() + "\n" + dump(nest(setting.path, setting.value))
    node = _root(text)
    unit = _unit(text, node)
    for depth, step in enumerate(setting.path):
        index = key_of(node.value, step)
        if index is None:
            return _insert(text, node, setting.path[depth:], setting.value, unit)
        node = node.inside[index]
    new = _indent_lines(setting.value, _indent(text, node.start), unit)
    return text[: node.start] + new + text[node.end :]


def _insert(text: str, node: _Node, path: Sequence[Step], value: Any, unit: str) -> str:
    """The text with a new member at the end of an object or a list, behind the comments there."""
    close = node.end - 1
    last = max((member.end for member in node.inside.values()), default=node.start + 1)
    comma = "," if node.inside and "," not in _COMMENT.sub("", text[last:close]) else ""
    rest = text[last:close].rstrip()
    indent = _indent(text, node.start)
    members = list(node.inside.values())
    inner = _indent(text, members[0].start) if members else indent
    if inner == indent:
        inner += unit
    step = path[0]
    new = _indent_lines(nest(path[1:], value), inner, unit)
    if isinstance(step, str):
        new = f"{json.dumps(step, ensure_ascii=False)}: {new}"
    return f"{text[:last]}{comma}{rest}\n{inner}{new}\n{indent}{text[close:]}"


def _unit(text: str, root: _Node) -> str:
    """Return the indentation of the members of the file's root."""
    first = min((member.start for member in root.inside.values()), default=None)
    return (_indent(text, first) if first is not None else "") or "  "


def _indent(text: str, at: int) -> str:
    """The blanks at the beginning of a place's line."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _indent_lines(value: Any, indent: str, unit: str) -> str:
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return f"\n{indent}".join(lines)


def _root(text: str) -> _Node:
    at = _skip(text, 1 if text.startswith("\ufeff") else 0)
    node = _node(text, at, 0)
    if _skip(text, node.end) != len(text):
        raise _wrong(text, node.end, "the end")
    return node


def _node(text: str, at: int, depth: int) -> _Node:
    if depth > MAX_DEPTH:
        raise _wrong(text, at, f"at most {MAX_DEPTH} levels")
    if text[at : at + 1] == "{":
        return _members(text, at, depth)
    if text[at : at + 1] == "[":
        return _entries(text, at, depth)
    return _scalar(text, at)


def _scalar(text: str, at: int) -> _Node:
    found = _SCALAR.match(text, at)
    try:
        return _Node(json.loads(found.group() if found else ""), at, found.end() if found else at, {})  # fmt: skip
    except ValueError:
        raise _wrong(text, at, "a value") from None


def _members(text: str, start: int, depth: int) -> _Node:
    inside: dict[Any, _Node] = {}
    at = _skip(text, start + 1)
    while text[at : at + 1] != "}":
        key = _scalar(text, at)
        colon = _skip(text, key.end)
        if not isinstance(key.value, str) or key.value in inside or text[colon : colon + 1] != ":":
            raise _wrong(text, at, "a name that is new, and a colon")
        inside[key.value] = _node(text, _skip(text, colon + 1), depth + 1)
        at = _behind(text, inside[key.value].end, "}")
    return _Node({name: one.value for name, one in inside.items()}, start, at + 1, inside)


def _entries(text: str, start: int, depth: int) -> _Node:
    inside: dict[Any, _Node] = {}
    at = _skip(text, start + 1)
    while text[at : at + 1] != "]":
        inside[len(inside)] = _node(text, at, depth + 1)
        at = _behind(text, inside[len(inside) - 1].end, "]")
    return _Node([one.value for one in inside.values()], start, at + 1, inside)


def _behind(text: str, end: int, close: str) -> int:
    """Return the place where the next member begins, or the closing bracket is."""
    at = _skip(text, end)
    if text[at : at + 1] == ",":
        return _skip(text, at + 1)
    if text[at : at + 1] != close:
        raise _wrong(text, at, f"`,` or `{close}`")
    return at


def _skip(text: str, at: int) -> int:
    """The next place that is neither blank nor in a comment."""
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _wrong(text: str, at: int, expected: str) -> ValueError:
    return ValueError(f"expected {expected} in line {text.count(chr(10), 0, at) + 1}")
