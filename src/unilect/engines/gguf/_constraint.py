"""
Constraints of a request as llama.cpp's grammars, checked before the engine gets them.

llama.cpp goes on *without* a grammar where llguidance gives up midway, and its token table for llguidance lacks the blanks of
SentencePiece vocabularies; neither can be seen from outside. So everything is GBNF here, which its own matcher follows to the end
or breaks the answer off, and a `%llguidance` grammar is refused.

Source: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

from typing import Any

from unilect.api.parameters.rules import refusal
from unilect.constraints.checker import Checker
from unilect.core.requests import CompletionRequest, TextRequest
from unilect.engines.gguf._hints import plain, simplify_tool
from unilect.engines.gguf._thoughts import FRAMED

_LLGUIDANCE = "%llguidance"


async def add_constraints(
    request: TextRequest, body: dict[str, Any], checker: Checker
) -> dict[str, Any]:
    """
    A body whose constraints llama.cpp follows: its grammar is of the answer alone, whatever a chat's model thinks before.

    Raises:
        InvalidRequest: A constraint cannot be compiled; the message names its parameter.
    """
    if request.grammar:
        if request.grammar.lstrip().startswith(_LLGUIDANCE):
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
