"""
The GBNF of forced tool calls, for every backend that takes one.

Source: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

import json

from unilect.constraints.checker import Checker
from unilect.constraints.gbnf import WORD
from unilect.core.errors import InvalidRequest
from unilect.core.requests import ChatRequest
from unilect.families import CallStyle
from unilect.tools.forced import call_head, callable_tools


async def calls_grammar(request: ChatRequest, style: CallStyle, checker: Checker) -> str:
    """
    Return the GBNF that allows one call of a tool that may be called, and nothing else.

    Raises:
        InvalidRequest: llama.cpp cannot follow a tool's schema; the message says where it stands.
    """
    calls, rules = [], []
    names = [tool.function.name for tool in request.tools or ()]
    for number, (name, schema) in enumerate(callable_tools(request).items()):
        where = f"tools[{names.index(name)}].function.parameters"
        try:
            grammar = await checker.schema_to_gbnf(schema, where)
        except InvalidRequest as error:  # the message says where, and the parameter is the whole
            error.param = "tools"
            raise
        head = json.dumps(call_head(name, style))
        calls.append(f'{head} tool{number}-root "}}"')
        rules.append(prefix_rules(grammar, f"tool{number}-"))
    return "root ::= " + " | ".join(calls) + "\n" + "\n".join(rules) + "\n"


def prefix_rules(grammar: str, prefix: str) -> str:
    """Return a grammar whose rules have longer names, so that several fit into one grammar."""
    return WORD.sub(lambda found: (prefix if found["name"] else "") + found[0], grammar)
