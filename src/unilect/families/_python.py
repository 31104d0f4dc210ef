"""
Calls as Python writes them: `name(city='Paris')`, one, several in a list, or one a line.

The arguments are read from the syntax tree, of which only keywords and literal values are known; nothing is ever evaluated.
"""

import ast
import json
import keyword
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

MAX_CALL_CHARACTERS = 64 * 1024
NONE = object()
#: A text up to the quote that something follows which can stand behind a value.
_QUOTED = re.compile(r"""(["'])((?:\\.|(?!\1\s*+(?:[,)\]}:]|\Z))[^\\])*+)(?:\1|\\?\Z)""", re.S)
#: Between two calls that stand in a line each.
_NEXT = re.compile(r"\)[^\S\n]*+\n\s*+(?=[A-Za-z_]\w*(?:\.call)?\()")
_UNESCAPED = re.compile(r"""\\.|["']""", re.S)
_CONSTANTS = {"true": True, "false": False, "null": None}  # models mix up their languages


def python_text(name: str, arguments: Mapping[str, Any]) -> str | None:
    """Write a call as Python writes it; None where an argument's name is none that Python can write."""
    if not all(one.isidentifier() and not keyword.iskeyword(one) for one in arguments):
        return None
    inside = ", ".join(f"{one}={value!r}" for one, value in arguments.items())
    return f"{name}({inside})"


def python_calls(code: str) -> list[tuple[str, str]] | None:
    """Return the name and the arguments, as JSON text, of each call; None where the code is anything else."""
    if len(code) > MAX_CALL_CHARACTERS:
        return None
    calls = _calls(code)
    return calls if calls is not None else _calls(_QUOTED.sub(_escape, code))


def python_value(text: str) -> Any:
    """Return the value of a literal; `NONE` where the text is none, or one that JSON cannot write."""
    if len(text) > MAX_CALL_CHARACTERS:
        return NONE
    try:
        value = _value(_literal(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return NONE
    return NONE if json_text(value) is None else value


def _literal(code: str) -> ast.expr:
    """Return the syntax tree of one value; Python opens no file for an error in it, as it would for a program's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an unknown escape in a text
        return ast.parse(code.strip(), mode="eval").body


def _escape(found: re.Match[str]) -> str:
    """Return a text whose quotes and line breaks within are escaped: templates write them as they are, and so do models."""
    inside = _UNESCAPED.sub(lambda one: one[0] if one[0][0] == "\\" else f"\\{one[0]}", found[2])
    return found[1] + inside.replace("\n", "\\n") + found[1]


def _calls(code: str) -> list[tuple[str, str]] | None:
    calls: list[tuple[str, str]] = []
    try:
        for node in _nodes(_literal(f"[{_NEXT.sub('),', code)}\n]")):
            if not isinstance(node, ast.Call) or node.args:
                return None
            arguments = json_text({_keyword(item): _value(item.value) for item in node.keywords})
            if arguments is None:
                return None
            calls.append((_name(node.func), arguments))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return calls


def _nodes(tree: ast.expr) -> Iterator[ast.expr]:
    """Yield the values of a list, and of the lists in it."""
    for one in tree.elts if isinstance(tree, ast.List) else [tree]:
        yield from one.elts if isinstance(one, ast.List) else [one]


def _name(function: ast.expr) -> str:
    """
    Return the name of what is called; Llama 3 calls `name.call(...)`.

    Raises:
        ValueError: It has none.
    """
    match function:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name), attr="call"):
            return name
    raise ValueError("no name")


def _keyword(item: ast.keyword) -> str:
    if item.arg is None:
        raise ValueError("arguments from a mapping")
    return item.arg


def _value(node: ast.expr) -> Any:
    """
    Return the value of a literal.

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


def json_text(value: Any) -> str | None:
    """Return JSON text; None for numbers that JSON does not have."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return text.encode(errors="replace").decode()
