"""
Constraints of a request as llama.cpp's grammars, checked before the engine gets them.

llama.cpp goes on *without* a grammar where llguidance gives up midway, and its token table for llguidance lacks the blanks of
SentencePiece vocabularies; neither can be seen from outside. So everything is GBNF here, which its own matcher follows to the end
or breaks the answer off, and a `%llguidance` grammar is refused.

Source: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

from collections.abc import Mapping
from typing import Any

from unilect.constraints.checker import Checker
from unilect.parameters.rules import refusal
from unilect.requests import ChatRequest, CompletionRequest
from unilect.tools.grammar import tool_grammar

_LLGUIDANCE = "%llguidance"
#: What a template shows whose models think, or mark their answer, before they answer; a grammar must not forbid that.
_FIRST_MARKS = (
    "</think>",
    "<|channel|>",
    "[THINK]",
    "<|END_THINKING|>",
    "</seed:think>",
    "<|content|>",
    ">>>all",
)


async def constrained(
    request: ChatRequest | CompletionRequest, body: dict[str, Any], checker: Checker, template: str
) -> dict[str, Any]:
    """
    A body whose constraints llama.cpp follows.

    Args:
        template: The chat template.

    Raises:
        InvalidRequest: A constraint cannot be compiled; the message names its parameter.
    """
    if request.grammar:
        if request.grammar.lstrip().startswith(_LLGUIDANCE):
            raise refusal(
                "grammar", "llama.cpp does not report when such a grammar fails; use GBNF"
            )
        await checker.gbnf(request.grammar, "grammar")
    tools = isinstance(request, ChatRequest) and "tools" in body
    if isinstance(request, ChatRequest) and tools:
        await _check_tools(request, checker)
    schema = request.answer_schema
    if schema is None:
        return body
    grammar = await checker.schema_to_gbnf(schema, "response_format")
    if tools or (isinstance(request, ChatRequest) and any(m in template for m in _FIRST_MARKS)):
        return body  # llama.cpp binds what comes behind the thoughts, or beside the calls
    bound = {field: value for field, value in body.items() if field != "response_format"}
    return bound | {"grammar": grammar}


async def _check_tools(request: ChatRequest, checker: Checker) -> None:
    """llama.cpp makes a grammar of every tool's schema, also where none must be called."""
    for tool in request.tools or ():
        parameters: Mapping[str, Any] = tool.function.parameters or {"type": "object"}
        await tool_grammar(request, tool.function.name, parameters, checker)
