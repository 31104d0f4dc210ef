"""
The GBNF of forced tool calls, for every backend that takes one.

Source: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from unilect.constraints.checker import Checker
from unilect.core.errors import InvalidRequest
from unilect.core.requests import ChatRequest
from unilect.families import CallStyle
from unilect.tools.forced import call_head, callable_tools

#: Literals, classes, tokens, numbers of repetitions and comments of GBNF, or the name of a rule.
_SYMBOL = re.compile(
    r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|!?<[^>]*>|\{[^}]*\}|#[^\r\n]*|([A-Za-z0-9-]+)',
    re.DOTALL,
)


async def calls_grammar(request: ChatRequest, style: CallStyle, checker: Checker) -> str:
    """
    The GBNF that allows one call of a tool that may be called, and nothing else.

    Raises:
        InvalidRequest: llama.cpp cannot follow a tool's schema.
    """
    calls, rules = [], []
    for number, (name, schema) in enumerate(callable_tools(request).items()):
        grammar = await tool_grammar(request, name, schema, checker)
        head = json.dumps(call_head(name, style))
        calls.append(f'{head} tool{number}-root "}}"')
        rules.append(prefix_rules(grammar, f"tool{number}-"))
    return "root ::= " + " | ".join(calls) + "\n" + "\n".join(rules) + "\n"


def prefix_rules(grammar: str, prefix: str) -> str:
    """A grammar whose rules have longer names, so that several fit into one grammar."""
    return _SYMBOL.sub(lambda found: prefix + found[1] if found[1] else found[0], grammar)


async def tool_grammar(
    request: ChatRequest, name: str, schema: Mapping[str, Any], checker: Checker
) -> str:
    """
    llama.cpp's grammar for the arguments of one tool.

    Raises:
        InvalidRequest: llama.cpp cannot follow the tool's schema; the message says where it stands.
    """
    names = [tool.function.name for tool in request.tools or ()]
    try:
        return await checker.schema_to_gbnf(
            schema, f"tools[{names.index(name)}].function.parameters"
        )
    except InvalidRequest as error:  # the message says where, and the parameter is the whole
        error.param = "tools"
        raise
