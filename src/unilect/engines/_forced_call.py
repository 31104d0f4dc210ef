"""
A tool call that must come: `tool_choice` required or named.

llama.cpp forbids only that the answer ends without a call, so a model may talk until its last token first. Here the call's
beginning is written into the prompt, a grammar chooses the name where there are several tools, and a schema binds the arguments:
whatever the model is, the answer is one call, and its arguments satisfy the tool's schema unless `max_tokens` cuts them.
"""

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct

from unilect.backend import Batches
from unilect.errors import BackendError
from unilect.events import Event, Finish, TextDelta, ToolCallDelta, Usage
from unilect.requests import ChatRequest, ToolChoice
from unilect.upstreams._http import HttpServer
from unilect.upstreams._openai_wire import ChunkDecoder
from unilect.upstreams.openai import stream

_NAME_TOKENS = 64


class CallStyle(Struct, frozen=True):
    """How a family of models writes a call: before the name, between the name and the arguments."""

    before: str
    between: str


HERMES = CallStyle('<tool_call>\n{"name": "', '", "arguments": ')
MISTRAL = CallStyle('[TOOL_CALLS][{"name": "', '", "arguments": ')
LLAMA3 = CallStyle('{"name": "', '", "parameters": ')


def call_style(template: str) -> CallStyle:
    """The style that a chat template shows; Hermes', which most models have seen, where it shows none."""
    if "<tool_call>" in template:
        return HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<|python_tag|>" in template or "Environment: ipython" in template:
        return LLAMA3
    return HERMES


def must_call(request: ChatRequest) -> bool:
    """True when the answer has to be a tool call."""
    choice = request.tool_choice
    return bool(request.tools) and (choice == "required" or isinstance(choice, ToolChoice))


async def forced_call(
    server: HttpServer, request: ChatRequest, prompt: str, body: dict[str, Any], style: CallStyle
) -> Batches:
    """
    The events of one forced call.

    Args:
        prompt: The rendered conversation.
        body: Sampling and the like for llama.cpp; prompt and grammar are added.
    """
    prompt += style.before
    extra_tokens = 0
    name = _only_name(request)
    if name is None:
        name, extra_tokens = await _choose(server, request, prompt, body)
    schema = next(t.function.parameters for t in request.tools or () if t.function.name == name)
    call = ToolCallDelta(0, "", f"call_{secrets.token_hex(12)}", name)
    yield [call]
    arguments = body | {
        "prompt": prompt + name + style.between,
        "json_schema": _closed(schema),
    }
    async for batch in _stream(server, arguments):
        yield [_as_call(event, extra_tokens) for event in batch]


def _closed(schema: dict[str, Any] | None) -> dict[str, Any]:
    """A tool's schema; where it does not say, it takes no other arguments than it names."""
    return {"type": "object", "properties": {}, "additionalProperties": False} | (schema or {})


def _as_call(event: Event, extra_tokens: int) -> Event:
    match event:
        case TextDelta(text):
            return ToolCallDelta(0, text)
        case Finish("stop"):
            return Finish("tool_calls")
        case Usage():
            tokens = event.completion_tokens + extra_tokens
            return msgspec.structs.replace(event, completion_tokens=tokens)
    return event


async def _choose(
    server: HttpServer, request: ChatRequest, prompt: str, body: dict[str, Any]
) -> tuple[str, int]:
    """Let the model choose among the tools: a grammar of their names, each closed by the quote after it."""
    names = [tool.function.name for tool in request.tools or ()]
    grammar = "root ::= " + " | ".join(json.dumps(f'{name}"') for name in names)
    text, tokens = "", 0
    choice = body | {"prompt": prompt, "grammar": grammar, "max_tokens": _NAME_TOKENS, "stop": []}
    async for batch in _stream(server, choice):
        for event in batch:
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, Usage):
                tokens = event.completion_tokens
    name = text.rstrip('"')
    if name not in names:
        raise BackendError("The engine chose no tool, though one was required.")
    return name, tokens


async def _stream(server: HttpServer, body: dict[str, Any]) -> AsyncIterator[list[Event]]:
    batches = stream(server, "/v1/completions", msgspec.json.encode(body), ChunkDecoder())
    async with aclosing(batches):
        async for batch in batches:
            yield batch


def _only_name(request: ChatRequest) -> str | None:
    if isinstance(request.tool_choice, ToolChoice):
        return request.tool_choice.function.name
    tools = request.tools or ()
    return tools[0].function.name if len(tools) == 1 else None
