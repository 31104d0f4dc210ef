"""
Constraints of a request as llama.cpp's grammars, checked before the engine gets them.

llama.cpp goes on *without* a grammar where llguidance gives up midway, and its token table for llguidance lacks the blanks of
SentencePiece vocabularies; neither can be seen from outside. So everything is GBNF here, which its own matcher follows to the end
or breaks the answer off, and a `%llguidance` grammar is refused.

It makes a grammar of each tool, too, also where none must be called, and refuses the whole request for a schema that it does not take. So the
grammar is made of less where that is needed, and the prompt of what the client has sent.

Source: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md,
https://github.com/ggml-org/llama.cpp/blob/master/common/json-schema-to-grammar.cpp
"""

import re
from collections.abc import Mapping
from typing import Any

from unilect.api.parameters.rules import refusal
from unilect.constraints import is_llguidance
from unilect.constraints.checker import Checker
from unilect.constraints.normal import map_subschemas, normal
from unilect.constraints.schema import children_of
from unilect.core.requests import CompletionRequest, TextRequest
from unilect.engines.gguf._turns import FRAMED

_ANY: dict[str, Any] = {"type": "object"}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MOST = 2**62
#: Patterns whose grammar it writes as JSON has it: no quotes, no backslashes, no points and nothing lazy.
_PLAIN = re.compile(r"\^(?:[\w (){}\[\],|*+-]|(?<![*+?}])\?)*\$", re.ASCII)
_REF = re.compile(r"#/[^%~]+")


async def add_constraints(
    request: TextRequest, body: dict[str, Any], checker: Checker
) -> dict[str, Any]:
    """
    Return a body whose constraints llama.cpp follows: its grammar is of the answer alone, whatever a chat's model thinks before.

    Raises:
        InvalidRequest: A constraint cannot be compiled; the message names its parameter.
    """
    if request.grammar:
        if is_llguidance(request.grammar):
            raise refusal(
                "grammar", "llama.cpp does not report when such a grammar fails; use GBNF"
            )
        await checker.gbnf(request.grammar, "grammar")
    if "tools" in body:
        shown = body["tools"]
        body = body | {"tools": [await simplify_tool(tool, checker) for tool in shown]}
        if body["tools"] != shown:
            body["chat_template_kwargs"] = body.get("chat_template_kwargs", {}) | {"tools": shown}
    schema = request.answer_schema
    if schema is None:
        return body
    grammar = await checker.schema_to_gbnf(schema, "response_format")
    if isinstance(request, CompletionRequest):
        return {name: value for name, value in body.items() if name != FRAMED} | {
            "grammar": grammar
        }
    form = body[FRAMED]["json_schema"] | {"schema": await plain(schema, checker)}
    body = body | {FRAMED: {"type": "json_schema", "json_schema": form}}
    return body if "tools" in body else body | {"grammar": grammar}


async def simplify_tool(tool: dict[str, Any], checker: Checker) -> dict[str, Any]:
    """Return a tool, as templates expect it, with a schema that llama.cpp's converter takes."""
    function = tool["function"]
    return tool | {
        "function": function | {"parameters": await plain(function["parameters"], checker)}
    }


async def plain(schema: Mapping[str, Any], checker: Checker) -> dict[str, Any]:
    """Return a schema that llama.cpp's converter takes, and that allows no less."""
    for one in (schema, loose(schema)):
        if one == loose(one) and await checker.is_taken(one):
            return dict(one)
    return _ANY


def loose(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without what llama.cpp's converter does not take."""
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
