"""Tests of unilect.tools.forced; the engine answers in test_emulation.py, a scripted server here."""

from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from support.backends.scripted import Exchange, frames, scripted, stream_of
from unilect.core.errors import BackendError, InvalidRequest
from unilect.core.events import Event, Finish, ToolCallDelta, Usage
from unilect.core.requests import ChatRequest
from unilect.engines.gguf._answers import stream_forced_call
from unilect.families import CallStyle, find
from unilect.http.client import HttpServer
from unilect.tools.forced import call_grammar, call_style, must_call

HERMES, MISTRAL, LLAMA3 = (find(name).force for name in ("hermes", "mistral", "llama3"))

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
        ("", CallStyle()),
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


def piece(text: str) -> dict[str, Any]:
    """A frame of a native answer."""
    return {"content": text, "stop": False}


def last(kind: str = "eos") -> dict[str, Any]:
    """The last frame of a native answer."""
    counts = {"tokens_predicted": 2, "tokens_evaluated": 3}
    return {"content": "", "stop": True, "stop_type": kind} | counts


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
        batches = stream_forced_call(
            engine, asked, "PROMPT", {"temperature": 0, "stop": ["x"]}, style
        )
        async with aclosing(batches):
            events = [event async for batch in batches for event in batch]
    return events, [exchange.json() for exchange in server.requests]


def answer(name: str, style: CallStyle = HERMES) -> bytes:
    """The stream of a call, as a grammar makes the engine write it."""
    head = f'{{"name": "{name}", "{style.arguments}": '
    return frames(piece(head[:9]), piece(head[9:] + '{"city": '), piece('"Paris"}}'), last())


@pytest.mark.parametrize("style", [HERMES, MISTRAL, LLAMA3])
@pytest.mark.parametrize("name", ["f", "g"])
async def test_one_of_several_tools(style: CallStyle, name: str) -> None:
    """The call's JSON tells the tool, and the text of its arguments comes as the model writes it."""
    events, asked = await call(request("required", "f", "g"), answer(name, style), style=style)

    first = events[0]
    assert isinstance(first, ToolCallDelta)
    assert (name, True) == (first.name, (first.id or "").startswith("call_"))
    arguments = "".join(event.arguments for event in events if isinstance(event, ToolCallDelta))
    assert '{"city": "Paris"}' == arguments
    assert isinstance(events[-2], Finish)
    assert ("tool_calls", Usage(3, 2)) == (events[-2].reason, events[-1])
    assert [("PROMPT" + style.before, 0)] == [(b["prompt"], b["temperature"]) for b in asked]


@pytest.mark.parametrize("choice", ["required", named("f")])
def test_the_grammar(choice: Any) -> None:
    """The grammar of llguidance has a rule for each tool that may be called, bound by its schema."""
    names = ("f", "g")
    grammar = call_grammar(request(choice, *names), HERMES)

    allowed = names if choice == "required" else ("f",)
    assert [name in allowed for name in names] == [f'\\"{name}\\"' in grammar for name in names]
    assert len(allowed) == grammar.count("%json")
    assert '"additionalProperties": false' in grammar


async def test_arguments_that_are_cut() -> None:
    """Arguments that `max_tokens` cuts finish as such, and not as a call."""
    events, _ = await call(
        request(), frames(piece('{"name": "f", "arguments": {"ci'), last("limit"))
    )

    assert ["length"] == [event.reason for event in events if isinstance(event, Finish)]
    assert '{"ci' == "".join(e.arguments for e in events if isinstance(e, ToolCallDelta))


async def test_a_name_that_is_none() -> None:
    """An engine that does not keep to the grammar is a backend's error, at its first word."""
    for text in ("hello", '{"name": "f", "arguments": {} and more'):
        with pytest.raises(BackendError, match="did not call the required tool"):
            await call(request("required", "f", "g"), frames(piece(text), last()))
    with pytest.raises(BackendError, match="did not call the required tool"):
        await call(request(), frames(*[piece("x")] * 3))


@pytest.mark.parametrize("text", ["", '{"na'])
async def test_a_call_that_has_no_room(text: str) -> None:
    """An answer that `max_tokens` ends before a call has begun is refused by that name, and never an empty one."""
    with pytest.raises(InvalidRequest, match="tool call began") as raised:
        await call(request(), frames(piece(text), last("limit")))

    assert "max_tokens" == raised.value.param


async def test_a_schema_that_cannot_be_followed() -> None:
    """An engine that ends without a word could not read the grammar: the tools' schemas are wrong."""
    with pytest.raises(InvalidRequest, match="JSON Schema"):
        await call(request(), frames(last()))


async def test_an_engine_that_breaks_off() -> None:
    """A call whose arguments break off is an error, and never finished."""
    with pytest.raises(BackendError):
        await call(request(), frames(piece('{"city"')))


@pytest.mark.parametrize("style", [HERMES, LLAMA3])
async def test_every_cut(style: CallStyle) -> None:
    """However the call's text is cut into pieces, its arguments are the same; a line break of the prompt may stand before it."""
    text = f'\n{{"name": "g", "{style.arguments}": {{"city": "Paris"}}}}'
    for cut in range(len(text)):
        body = frames(piece(text[:cut]), piece(text[cut:]), last())
        events, _ = await call(request("required", "f", "g"), body, style=style)
        calls = [event for event in events if isinstance(event, ToolCallDelta)]
        assert ["g"] == [event.name for event in calls if event.name is not None]
        assert '{"city": "Paris"}' == "".join(event.arguments for event in calls)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/city", "$defs": {"city": SCHEMA | {"required": ["city"]}}},
        {"anyOf": [SCHEMA | {"required": ["city"]}]},
        SCHEMA,
    ],
    ids=lambda schema: next(iter(schema)),
)
def test_arguments_that_are_named_elsewhere(schema: dict[str, Any]) -> None:
    """A schema whose properties stand behind a reference or an alternative is followed, not refused as one that allows nothing."""
    llguidance = pytest.importorskip("llguidance")
    function = {"name": "f", "parameters": schema}
    tools = {"tools": [{"type": "function", "function": function}]}
    messages = [{"role": "user", "content": "Hi"}]
    asked = msgspec.convert({"messages": messages} | tools, ChatRequest)

    grammar = call_grammar(asked, HERMES)

    tokenizer = llguidance.LLTokenizer("byte")
    tokens = tokenizer.tokenize_str('{"name": "f", "arguments": {"city": "x"}}')
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    assert len(tokens) == matcher.try_consume_tokens(tokens)
