"""
Calls as Python writes them: `name(city='Paris')`, one, several in a list, or one a line.

The arguments are read from the syntax tree, of which only keywords and literal values are known; nothing is ever evaluated.
"""

import ast
import json
import keyword
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

MAX_CALL_CHARACTERS = 64 * 1024
_CONSTANTS = {"true": True, "false": False, "null": None}  # models mix up their languages


def python_text(name: str, arguments: Mapping[str, Any]) -> str | None:
    """A call as Python writes it; None where an argument's name is none that Python can write."""
    if not all(one.isidentifier() and not keyword.iskeyword(one) for one in arguments):
        return None
    inside = ", ".join(f"{one}={value!r}" for one, value in arguments.items())
    return f"{name}({inside})"


def python_calls(code: str) -> list[tuple[str, str]] | None:
    """The name and the arguments, as JSON text, of each call; None where the code is anything else."""
    if len(code) > MAX_CALL_CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an unknown escape in a text
            tree = ast.parse(code.strip())
        calls: list[tuple[str, str]] = []
        for node in _nodes(tree):
            if not isinstance(node, ast.Call) or node.args:
                return None
            arguments = json_text({_keyword(item): _value(item.value) for item in node.keywords})
            if arguments is None:
                return None
            calls.append((_name(node.func), arguments))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return calls


def _nodes(tree: ast.Module) -> Iterator[ast.expr]:
    """
    The expressions of a list, or of each line.

    Raises:
        ValueError: A line is none.
    """
    for line in tree.body:
        if not isinstance(line, ast.Expr):
            raise ValueError("no expression")
        yield from line.value.elts if isinstance(line.value, ast.List) else [line.value]


def _name(function: ast.expr) -> str:
    """
    The name of what is called; Llama 3 calls `name.call(...)`.

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


def json_text(value: Any) -> str | None:
    """JSON text; None for numbers that JSON does not have."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return text.encode(errors="replace").decode()
