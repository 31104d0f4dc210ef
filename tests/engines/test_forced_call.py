"""Tests of unilect.engines._forced_call; the engine answers in test_emulation.py, a scripted server here."""

from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from scripted import DONE, USAGE, Exchange, frames, scripted, stream_of
from unilect.engines._forced_call import (
    HERMES,
    LLAMA3,
    MISTRAL,
    CallStyle,
    call_style,
    forced_call,
    must_call,
)
from unilect.errors import BackendError
from unilect.events import Event, Finish, ToolCallDelta, Usage
from unilect.requests import ChatRequest
from unilect.upstreams._http import HttpServer

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def request(choice: Any = "required", *names: str) -> ChatRequest:
    """A request with tools of these names, which must or may be called."""
    function = [{"name": name, "parameters": SCHEMA} for name in names or ("f",)]
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": item} for item in function],
        "tool_choice": choice,
    }
    return msgspec.convert(body, ChatRequest)


def named(name: str) -> dict[str, Any]:
    """The choice of a tool by its name."""
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '<tool_call>' }}", HERMES),
        ("[TOOL_CALLS]", MISTRAL),
        ("<|python_tag|>", LLAMA3),
        ("Environment: ipython", LLAMA3),
        ("", HERMES),
        ("<tool_call> [TOOL_CALLS]", HERMES),
    ],
)
def test_call_style(template: str, expected: CallStyle) -> None:
    """A template shows how its models write a call."""
    assert expected == call_style(template)


@pytest.mark.parametrize(
    ("choice", "expected"), [("required", True), (named("f"), True), ("auto", False), ("none", False)]
)  # fmt: skip
def test_must_call(choice: Any, expected: bool) -> None:
    """A call must come when one is required, or named."""
    assert expected is must_call(request(choice))
    assert must_call(msgspec.structs.replace(request(choice), tools=None)) is False


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    """A chunk of a plain completion."""
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


async def call(
    asked: ChatRequest, *answers: bytes, style: CallStyle = HERMES
) -> tuple[list[Event], list[Any]]:
    """The events of a forced call on an engine that gives these answers, and what the engine was asked."""
    waiting = list(answers)

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(waiting.pop(0)))
        exchange.close()

    async with scripted(script) as server:
        engine = HttpServer(server.url.removesuffix("/v1"))
        batches = forced_call(engine, asked, "PROMPT", {"temperature": 0, "stop": ["x"]}, style)
        async with aclosing(batches):
            events = [event async for batch in batches for event in batch]
    return events, [exchange.json() for exchange in server.requests]


ARGUMENTS = frames(piece('{"city":'), piece('"Paris"}', "stop"), USAGE, DONE)


@pytest.mark.parametrize("choice", ["required", named("f")])
async def test_the_only_tool(choice: Any) -> None:
    """Where there is one tool, its call is begun for the model, which gives the arguments."""
    events, asked = await call(request(choice), ARGUMENTS)

    first = events[0]
    assert isinstance(first, ToolCallDelta)
    assert ("f", True) == (first.name, (first.id or "").startswith("call_"))
    assert events[1:] == [
        ToolCallDelta(0, '{"city":'),
        ToolCallDelta(0, '"Paris"}'),
        Finish("tool_calls"),
        Usage(3, 2),
    ]
    assert [("PROMPT" + HERMES.before + "f" + HERMES.between, 0)] == [
        (body["prompt"], body["temperature"]) for body in asked
    ]
    assert asked[0]["json_schema"] == SCHEMA | {"additionalProperties": False}


@pytest.mark.parametrize("style", [HERMES, MISTRAL, LLAMA3])
async def test_one_of_several_tools(style: CallStyle) -> None:
    """Among several tools the model chooses a name by a grammar, and then gives the arguments."""
    chosen = frames(piece("g"), piece('"', "stop"), USAGE, DONE)
    events, asked = await call(request("required", "f", "g"), chosen, ARGUMENTS, style=style)

    assert isinstance(events[0], ToolCallDelta)
    assert events[0].name == "g"
    assert asked[0]["grammar"] == 'root ::= "f\\"" | "g\\""'
    assert ("PROMPT" + style.before, []) == (asked[0]["prompt"], asked[0]["stop"])
    assert asked[1]["prompt"] == "PROMPT" + style.before + "g" + style.between
    assert Usage(3, 4) == events[-1]


async def test_a_named_one_of_several() -> None:
    """A tool that is named is not chosen by the model."""
    events, asked = await call(request(named("g"), "f", "g"), ARGUMENTS)

    assert isinstance(events[0], ToolCallDelta)
    assert ("g", 1) == (events[0].name, len(asked))


async def test_arguments_that_are_cut() -> None:
    """Arguments that `max_tokens` cuts finish as such, and not as a call."""
    events, _ = await call(request(), frames(piece('{"city"', "length"), USAGE, DONE))

    assert Finish("length") in events


async def test_a_name_that_is_none() -> None:
    """An engine that does not keep to the grammar is a backend's error."""
    with pytest.raises(BackendError):
        await call(request("required", "f", "g"), frames(piece("hello", "length"), USAGE, DONE))


async def test_an_engine_that_breaks_off() -> None:
    """A call whose arguments break off is an error, and never finished."""
    with pytest.raises(BackendError):
        await call(request(), frames(piece('{"city"')))
