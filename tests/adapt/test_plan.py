"""Tests of unilect.adapt.plan; those of the service and of each backend have the rest."""

from typing import Any

import pytest

from support.clients.bodies import chat, request_of
from unilect.adapt.emulation import several
from unilect.adapt.enforcement import output_constraints
from unilect.adapt.plan import is_plain
from unilect.adapt.tools import plan
from unilect.api.backend import Capabilities
from unilect.core.requests import CompletionRequest

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}


def said(**message: Any) -> list[dict[str, Any]]:
    """A conversation with such a message."""
    return [{"role": "user", "content": "Hi"}, message]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"grammar": '%llguidance {}\nstart: "a"'},
        {"n": 2},
        {"best_of": 2},
        {"max_tokens": 0},
        {"messages": said(role="assistant", tool_calls=[CALL])},
        {"messages": said(role="assistant", function_call={"name": "f", "arguments": "{}"})},
        {"messages": said(role="tool", content="x", tool_call_id="a")},
        {"messages": said(role="user", content=[{"type": "text", "text": "Hi"}])},
    ],
)
def test_not_plain(fields: dict[str, Any]) -> None:
    """A request is not plain with anything that has to be made up for on a backend without it, or that is not told by texts."""
    assert not is_plain(chat(**fields))


def test_plain() -> None:
    """A chat of texts that asks for one text is plain: no stage has anything to do, whatever its backend lacks; a completion may have several prompts."""
    messages = [{"role": role, "content": "a"} for role in ("system", "developer", "user", "assistant")]  # fmt: skip
    nothing = Capabilities(fans_out=True, schema_keywords=frozenset())
    for asked in (chat(), chat(messages=messages, max_tokens=5, stop=["x"], stream=True, tools=[])):
        assert is_plain(asked)
        assert (None, [], False) == (plan(asked, nothing), output_constraints(asked), several(asked))  # fmt: skip
    assert not is_plain(request_of(CompletionRequest, {"prompt": "Hi"}))
