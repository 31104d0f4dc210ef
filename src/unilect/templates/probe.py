"""Finds out if a chat template tells a model of its tools: a tool is put into a conversation, and looked for in the prompt."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from unilect.core.errors import InvalidRequest

_NAME = "qztoolq"  # a word that no template has
#: The tool of a probe.
PROBE_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "Looks a word up.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string", "description": "A word."}},
                "required": ["word"],
            },
        },
    }
]
_USER = {"role": "user", "content": "Hello."}
#: Conversations to render with `PROBE_TOOLS`; some templates tell of tools in the system's turn only.
PROBES: list[list[dict[str, Any]]] = [
    [_USER],
    [{"role": "system", "content": "Be brief."}, _USER],
]


def shows_tool(prompt: str) -> bool:
    """Return True if the tool of a probe stands in a prompt."""
    return _NAME in prompt


def takes_tools(render: Callable[[list[dict[str, Any]], list[dict[str, Any]]], str]) -> bool:
    """
    Return True if a template writes the tools of a request into the prompt.

    Args:
        render: Renders a conversation with tools; raises InvalidRequest where the template refuses it.
    """
    for turns in PROBES:
        with suppress(InvalidRequest):
            if shows_tool(render(turns, PROBE_TOOLS)):
                return True
    return False
