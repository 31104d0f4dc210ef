"""Messages and tools as chat templates and engines get them; shared by the engines."""

from typing import Any

import msgspec

from unilect.bounds import nested
from unilect.errors import InvalidRequest
from unilect.requests import ChatRequest, Message, RefusalPart, TextPart, Tool

_MAX_ARGUMENTS_DEPTH = 256  # a model wrote them once, so deeper than a schema may be
_TEMPLATE_FLAGS = frozenset({"enable_thinking", "thinking", "reasoning_effort", "thinking_budget"})


def text(message: Message, where: str) -> str:
    """
    A message's content, its parts in lines of their own.

    Raises:
        InvalidRequest: It holds something else than text.
    """
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts = []
    for part in message.content:
        match part:
            case TextPart(words) | RefusalPart(words):
                texts.append(words)
            case _:
                raise InvalidRequest(
                    f"`{where}` has content other than text, which this model does not support. Send text only.",
                    param=where,
                )
    return "\n".join(texts)


def arguments(written: str, where: str) -> Any:
    """
    The arguments of an earlier call, decoded; some clients keep a call without arguments as an empty text.

    Raises:
        InvalidRequest: They are no JSON, as when `max_tokens` cut them, or so deep that what reads them overflows its stack.
    """
    try:
        value = msgspec.json.decode(written or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(
            f"`{where}` is not the JSON text of an object ({str(error)[:100]}).", param=where
        ) from error
    if nested(value, _MAX_ARGUMENTS_DEPTH):
        raise InvalidRequest(
            f"`{where}` is nested more than {_MAX_ARGUMENTS_DEPTH} levels deep; flatten it.",
            param=where,
        )
    return value


def tools(given: list[Tool]) -> list[dict[str, Any]]:
    """Tools as templates expect them: every function with a description and parameters."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in given
    ]


def template_flags(request: ChatRequest) -> dict[str, Any]:
    """What a template is told beside the messages; only known switches, since a template is a program."""
    flags = dict(request.chat_template_kwargs or {})
    if unknown := sorted(set(flags) - _TEMPLATE_FLAGS):
        raise InvalidRequest(
            f"`chat_template_kwargs` has {unknown[0][:50]!r}; known are {', '.join(sorted(_TEMPLATE_FLAGS))}.",
            param="chat_template_kwargs",
        )
    if request.enable_thinking is not None:
        flags.setdefault("enable_thinking", request.enable_thinking)
    if request.reasoning_effort is not None:
        flags.setdefault("reasoning_effort", request.reasoning_effort)
        flags.setdefault("enable_thinking", request.reasoning_effort != "none")
    return {"chat_template_kwargs": flags} if flags else {}
