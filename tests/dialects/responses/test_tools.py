"""Tests of unilect.dialects.responses._tools: what a model is told of each kind of tool, and which it may call."""

from typing import Any

import pytest

from support.backends.scripted import HELLO
from support.clients.responses_client import client, says
from unilect.dialects.responses._tools import text_of

F = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
G = F | {"name": "g"}
CUSTOM = {"type": "custom", "name": "c"}
SEARCH = {"type": "web_search"}


async def asked(**fields: Any) -> tuple[int, Any, Any]:
    """The status and the body of an answer, and what the model's server was asked; None where it was not."""
    async with client(says(HELLO)) as one:
        status, _, body = await one.ask("POST", "/responses", {"input": "x"} | fields)
        requests = one.server.requests
        return status, body, requests[-1].json() if requests else None


def names(request: Any) -> list[str]:
    """The names of the tools that a request offers."""
    return [tool["function"]["name"] for tool in request.get("tools", ())]


@pytest.mark.parametrize(
    ("choice", "offered", "told"),
    [
        ("auto", ["f", "g", "c"], "auto"),
        ("none", ["f", "g", "c"], "none"),
        ("required", ["f", "g", "c"], "required"),
        ({"type": "function", "name": "g"}, ["f", "g", "c"], {"type": "function", "function": {"name": "g"}}),
        ({"type": "custom", "name": "c"}, ["f", "g", "c"], {"type": "function", "function": {"name": "c"}}),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}, ["g"], "auto"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "c"}, {"type": "function", "name": "f"}, SEARCH]}, ["f", "c"], "required"),
    ],
)  # fmt: skip
async def test_choices(choice: Any, offered: list[str], told: Any) -> None:
    """Each choice has its word in a chat; tools that are not allowed are not offered; the response repeats what was asked."""
    tools = [F, G, CUSTOM, SEARCH]
    status, body, request = await asked(tools=tools, tool_choice=choice)

    assert (200, offered, told) == (status, names(request), request["tool_choice"])
    assert (tools, choice, True) == (body["tools"], body["tool_choice"], body["parallel_tool_calls"])  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [SEARCH], "tool_choice": SEARCH}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [F], "tool_choice": {"type": "custom", "name": "g"}}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "teapot"}}, "tool_choice.type"),
        ({"tools": [F], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [SEARCH], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [SEARCH]}, "tools[0]"),
        ({"tools": [{"type": "mcp"}, SEARCH], "tool_choice": "auto"}, "tools[0]"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [SEARCH]}]}, "tools[0].tools[0]"),
        ({"tools": [F], "tool_choice": {"type": "allowed_tools", "tools": [SEARCH]}}, "tool_choice.tools"),
        ({"tools": [F], "tool_choice": {"type": "allowed_tools", "mode": "any", "tools": []}}, "tool_choice.mode"),
        ({"tools": [{"type": "custom", "name": "c", "format": {"type": "grammar"}}]}, "tools[0].format"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "x"}]}]}, "tools[0].tools[0].type"),
    ],
)  # fmt: skip
async def test_choices_that_are_none(fields: dict[str, Any], param: str) -> None:
    """A call that only a hosted tool could make, hosted tools alone, and a choice that is none, are refused by name."""
    status, body, request = await asked(**fields)

    assert (400, param, None) == (status, body["error"]["param"], request)


async def test_a_choice_without_tools() -> None:
    """`auto` without tools asks for nothing, as agents do after they have shortened their history; hosted tools may be offered with `none`."""
    for tools, choice in (([], "auto"), ([SEARCH], "none")):
        status, _, request = await asked(tools=tools, tool_choice=choice, parallel_tool_calls=True)
        assert (200, False, False) == (status, "tools" in request, "tool_choice" in request)


async def test_fields_of_functions() -> None:
    """A function may lack its parameters and its strictness, or have them as null, beside what newer clients write."""
    bare = {
        "type": "function",
        "name": "f",
        "parameters": None,
        "strict": None,
        "description": None,
    }
    more = {"defer_loading": True, "async": False, "output_schema": {}, "allowed_callers": ["direct"]}  # fmt: skip
    status, body, request = await asked(tools=[bare, {"type": "function", "name": "g"} | more])

    assert (200, ["f", "g"], bare) == (status, names(request), body["tools"][0])


async def test_what_parallel_calls_become() -> None:
    """One call at a time is asked of the backend, and repeated."""
    status, body, request = await asked(tools=[F], parallel_tool_calls=False)

    assert (200, False, False) == (status, body["parallel_tool_calls"], request["parallel_tool_calls"])  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "ls"}', "ls"),
        ('{"patch": "*** x"}', "*** x"),
        ('"ls"', "ls"),
        ("ls -l", "ls -l"),
        ('{"a": "b", "c": "d"}', '{"a": "b", "c": "d"}'),
        ("[1]", "[1]"),
        ("", ""),
    ],
)
def test_texts_of_custom_tools(arguments: str, text: str) -> None:
    """However a model writes the text of a custom tool, it is the text."""
    assert text == text_of(arguments)
