"""
The tools that a model may call, as llama.cpp's converter takes their schemas.

It makes a grammar of each, also where none must be called, and refuses the whole request for one that it does not take. So the grammar is made
of less where that is needed, and the prompt of what the client has sent.

Source: https://github.com/ggml-org/llama.cpp/blob/master/common/json-schema-to-grammar.cpp
"""

import re
from collections.abc import Mapping
from typing import Any

from unilect.constraints.checker import Checker
from unilect.constraints.normal import map_subschemas, normal
from unilect.constraints.schema import children_of

_ANY: dict[str, Any] = {"type": "object"}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MOST = 2**62
#: Patterns whose grammar it writes as JSON has it: no quotes, no backslashes, no points and nothing lazy.
_PLAIN = re.compile(r"\^(?:[\w (){}\[\],|*+-]|(?<![*+?}])\?)*\$", re.ASCII)
_REF = re.compile(r"#/[^%~]+")


async def simplify_tool(tool: dict[str, Any], checker: Checker) -> dict[str, Any]:
    """Return a tool, as templates expect it, with a schema that llama.cpp's converter takes."""
    function = tool["function"]
    return tool | {
        "function": function | {"parameters": await plain(function["parameters"], checker)}
    }


async def plain(schema: Mapping[str, Any], checker: Checker) -> dict[str, Any]:
    """A schema that llama.cpp's converter takes, and that allows no less."""
    for one in (schema, loose(schema)):
        if one == loose(one) and await checker.is_taken(one):
            return dict(one)
    return _ANY


def loose(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without what llama.cpp's converter does not take."""
    made: dict[str, Any] = map_subschemas(normal(schema), _loose)
    return made


def _loose(node: dict[str, Any]) -> dict[str, Any]:
    for name, key, child in list(children_of(node)):
        if isinstance(child, bool) and name not in (
            "additionalProperties",
            "items",
            "additionalItems",
        ):
            if key is None:
                del node[name]
            else:
                node[name] = _with(node[name], key)
    for name in _BOUNDS:
        if name in node and not _is_small(node[name]):
            del node[name]
    if "pattern" in node and not _PLAIN.fullmatch(str(node["pattern"])):
        del node["pattern"]
    if "$ref" in node and not _REF.fullmatch(str(node["$ref"])):
        return {}
    return node


def _with(children: Any, key: Any) -> Any:
    """These children with any value in one place."""
    copy = children.copy()
    copy[key] = {}
    return copy


def _is_small(bound: Any) -> bool:
    return isinstance(bound, int | float) and not isinstance(bound, bool) and abs(bound) < _MOST
