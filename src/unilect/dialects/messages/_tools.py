"""
The tools of a Messages body as the tools of a chat.

A tool of `defer_loading` is not in the prompt until a `tool_reference` in the conversation names it. Where the client leaves the search
for such tools to a server tool, nobody would ever find them, so they are all in the prompt then.

Source: https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview
"""

from collections.abc import Collection
from typing import Literal, TypeAlias

from unilect.core.bounds import check_free_form
from unilect.core.errors import InvalidRequest, UnsupportedParameter
from unilect.core.requests import MAX_TOOLS, FunctionDefinition, NamedFunction, Tool, ToolChoice
from unilect.dialects.messages._body import GivenChoice, GivenTool, MessagesRequest

#: What Anthropic's servers run themselves.
_HOSTED = ("web_search_", "web_fetch_", "code_execution_", "tool_search_")
_SEARCH = "tool_search_"
Choice: TypeAlias = Literal["none", "auto", "required"] | ToolChoice


class Tools:
    """
    Reads the tools of a body.

    Args:
        body: The request.
        referenced: The names of the tools that the conversation makes available.

    Attributes:
        tools: Those that are in the prompt; None where there are none.
        places: The place of each in the body.
        choice: Which of them is to be called.
        left_out: The tools that were left out, by place and name.

    Raises:
        InvalidRequest: A tool is wrong or cannot be offered; the message names it.
    """

    def __init__(self, body: MessagesRequest, referenced: Collection[str]) -> None:
        self.left_out: list[str] = []
        self.places: list[str] = []
        values = 0
        given, choice = body.tools or [], body.tool_choice
        found: list[Tool] = []
        wanted = {*referenced, choice.name if choice is not None else None}
        defers = not any((tool.type or "").startswith(_SEARCH) for tool in given)
        for number, tool in enumerate(given):
            kind = tool.type or "custom"
            if kind.startswith(_HOSTED):
                self.left_out.append(f"tools[{number}]:{tool.name or kind}")
                continue
            where = f"tools[{number}]"
            function = _function(tool, kind, where)
            values = check_free_form(f"{where}.input_schema", function.parameters, before=values)
            if defers and tool.defer_loading and tool.name not in wanted:
                continue
            found.append(Tool(function))
            self.places.append(f"tools[{number}]")
        if len(found) > MAX_TOOLS:
            raise InvalidRequest.at(
                "tools",
                f"holds {len(found)} tools that are not deferred; the maximum is {MAX_TOOLS}. Remove some, or set "
                "`defer_loading`.",
            )
        if given and len(self.left_out) == len(given) and (choice is None or choice.type != "none"):
            # Claude Code takes the answer for results, whatever it says
            raise UnsupportedParameter.at(
                "tools[0]",
                f"is `{(given[0].name or given[0].type or '')[:50]}`, which Anthropic's servers run, and no other tool is "
                "offered: a model would make its results up. Give the model a tool with `name` and `input_schema` that does it.",
            )
        self.tools = found or None
        self.choice = _choice(choice, found) if choice is not None else None


def _function(tool: GivenTool, kind: str, where: str) -> FunctionDefinition:
    """
    Return a tool of the client.

    Raises:
        InvalidRequest: It has no name or schema.
    """
    if kind != "custom":
        raise UnsupportedParameter(
            f"`{where}.type` is {kind[:50]!r}, a tool that only Anthropic's models know. Remove it, or give it as a tool with "
            "`name` and `input_schema`.",
            param=where,
        )
    for name in ("name", "input_schema"):
        if getattr(tool, name) is None:
            raise InvalidRequest.at(f"{where}.{name}", "is missing; it is required.")
    return FunctionDefinition(tool.name or "", tool.description, tool.input_schema, tool.strict)


def _choice(choice: GivenChoice, tools: list[Tool]) -> Choice:
    """
    Which tool is to be called.

    Raises:
        InvalidRequest: There is no such tool.
    """
    if choice.type in ("none", "auto"):
        return "none" if choice.type == "none" else "auto"
    if not tools:
        raise InvalidRequest.at(
            "tool_choice", "wants a call, and `tools` has no tool that can be called here."
        )
    if choice.type == "any":
        return "required"
    if choice.name is None:
        raise InvalidRequest.at("tool_choice.name", "is missing; the type `tool` requires it.")
    if choice.name not in {tool.function.name for tool in tools}:
        raise InvalidRequest.at(
            "tool_choice.name",
            f"is {choice.name[:100]!r}, which is no tool in `tools` that can be called here.",
        )
    return ToolChoice(NamedFunction(choice.name))
