"""Tests of unilect.dialects.ollama._messages and of _truncate: results tied to calls, and which turns go together."""

from typing import Any

import msgspec
import pytest

from unilect.core.requests import Message
from unilect.dialects.ollama._messages import Turn, openai_messages
from unilect.dialects.ollama._truncate import _steps


def turns(*fields: dict[str, Any]) -> list[Turn]:
    """Messages as a body gives them."""
    return msgspec.convert(list(fields), list[Turn])


def called(*names: str, ids: bool = False) -> dict[str, Any]:
    """A message that calls functions."""
    calls: list[dict[str, Any]] = [{"function": {"name": name}} for name in names]
    for number, call in enumerate(calls if ids else ()):
        call["id"] = f"own{number}"
    return {"role": "assistant", "tool_calls": calls}


@pytest.mark.parametrize(
    ("results", "answered"),
    [
        ([{}, {}, {}], ["call_0_0", "call_0_1", "call_0_2"]),
        ([{"tool_name": "g"}, {}, {}], ["call_0_1", "call_0_0", "call_0_2"]),
        ([{"tool_name": "f"}, {"tool_name": "f"}, {}], ["call_0_0", "call_0_2", "call_0_1"]),
        ([{"name": "g"}, {"tool_name": "g"}], ["call_0_1", "call_0_0"]),
        ([{"tool_call_id": "call_0_2"}, {}, {}], ["call_0_2", "call_0_0", "call_0_1"]),
        ([{"tool_call_id": "other"}, {}], ["other", "call_0_0"]),
        ([{}, {}, {}, {}], ["call_0_0", "call_0_1", "call_0_2", "call_4"]),
    ],
)
def test_results(results: list[dict[str, Any]], answered: list[str]) -> None:
    """A result belongs to the call of its id, else to the first of its name that has none, else to the first that has none."""
    given = turns(
        called("f", "g", "f"), *({"role": "tool", "content": "r"} | one for one in results)
    )
    messages = openai_messages(given)

    assert answered == [message["tool_call_id"] for message in messages[1:]]


def test_ids_of_clients() -> None:
    """Ids that a client gives are kept, and results of several messages are tied to the calls of theirs."""
    result = {"role": "tool", "content": "r"}
    messages = openai_messages(turns(called("f", ids=True), result, called("g"), result))

    assert ["own0", "call_2_0"] == [messages[number]["tool_call_id"] for number in (1, 3)]
    assert ["f", "g"] == [messages[number]["name"] for number in (1, 3)]


def test_roles() -> None:
    """Roles may be written in capitals."""
    [first, second] = openai_messages(turns({"role": "User"}, {"role": "ASSISTANT"}))

    assert ("user", "assistant") == (first["role"], second["role"])


def test_arguments() -> None:
    """Arguments may be an object, its JSON text, or missing."""
    functions = [{"name": "f", "arguments": given} for given in ({"x": "é"}, '{"x": 1}', "", None)]
    calls = [{"function": function} for function in functions]
    [message] = openai_messages(turns({"role": "assistant", "tool_calls": calls}))

    assert ['{"x":"é"}', '{"x": 1}', "{}", "{}"] == [
        call["function"]["arguments"] for call in message["tool_calls"]
    ]


def test_many_calls_and_results() -> None:
    """Thousands of calls are tied to thousands of results, each once."""
    calls = [called(*(f"f{number % 7}" for number in range(128))) for _ in range(16)]
    named = [{"role": "tool", "content": "r", "tool_name": f"f{n % 7}"} for n in range(1000)]
    messages = openai_messages(turns(*calls, *named, *({"role": "tool", "content": "r"},) * 1048))
    ids = [message["tool_call_id"] for message in messages[16:]]

    assert 2048 == len(ids) == len(set(ids))
    assert set(ids) == {call["id"] for message in messages[:16] for call in message["tool_calls"]}


@pytest.mark.parametrize(
    ("roles", "steps"),
    [
        ("", []),
        ("s", []),
        ("u", []),
        ("su", []),
        ("uau", [[0, 1]]),
        ("suasuau", [[1, 2], [4, 5]]),
        ("uatatau", [[0, 1, 2, 3, 4, 5]]),
        ("uauatatta", [[0, 1], [3, 4], [5, 6, 7]]),
        ("au", [[0]]),
    ],
)
def test_turns_go_whole(roles: str, steps: list[list[int]]) -> None:
    """A turn goes with all that answers it, a call with its results; the system's texts and the last message never go."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    messages = msgspec.convert(
        [{"role": names[one], "content": "x"} for one in roles], list[Message]
    )

    assert steps == _steps(messages)
