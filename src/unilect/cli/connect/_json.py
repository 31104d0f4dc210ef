"""JSON files of clients, with comments and trailing commas as editors have them: all that is not changed stays as it is."""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from unilect.web.connect.formats import dump_json
from unilect.web.connect.settings import Setting, Step, key_of, nest

_BLANK = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*+", re.DOTALL)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SCALAR = re.compile(r'"(?:[^"\\\n]|\\.)*+"|[^\s,:\]}/"{\[]+')
MAX_DEPTH = 100
_CLOSES = {"{": "}", "[": "]"}


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
    Return the data of a file; None for an empty one.

    Raises:
        ValueError: It is no JSON.
    """
    return None if _BLANK.fullmatch(text) else _root(text).value


def edit(text: str, setting: Setting) -> str:
    """Change or add one value of a file."""
    if _BLANK.fullmatch(text):  # nothing but comments
        return text.rstrip() + "\n" + dump_json(nest(setting.path, setting.value))
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
    """Add a member at the end of an object or a list, behind the comments there."""
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
    """Return the blanks at the beginning of a place's line."""
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
    close = _CLOSES.get(text[at : at + 1])
    if close is None:
        return _scalar(text, at)
    start, at, inside = at, _skip(text, at + 1), dict[Any, _Node]()
    while text[at : at + 1] != close:
        step: Any = len(inside)
        if close == "}":
            key = _scalar(text, at)
            colon = _skip(text, key.end)
            if not isinstance(key.value, str) or key.value in inside or text[colon : colon + 1] != ":":  # fmt: skip
                raise _wrong(text, at, "a name that is new, and a colon")
            step, at = key.value, _skip(text, colon + 1)
        inside[step] = _node(text, at, depth + 1)
        at = _skip(text, inside[step].end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != close:
            raise _wrong(text, at, f"`,` or `{close}`")
    values = {step: one.value for step, one in inside.items()}
    return _Node(values if close == "}" else list(values.values()), start, at + 1, inside)


def _scalar(text: str, at: int) -> _Node:
    found = _SCALAR.match(text, at)
    try:
        return _Node(json.loads(found.group() if found else ""), at, found.end() if found else at, {})  # fmt: skip
    except ValueError:
        raise _wrong(text, at, "a value") from None


def _skip(text: str, at: int) -> int:
    """Return the next place that is neither blank nor in a comment."""
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _wrong(text: str, at: int, expected: str) -> ValueError:
    return ValueError(f"expected {expected} in line {text.count(chr(10), 0, at) + 1}")
