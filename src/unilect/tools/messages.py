"""Messages and tools as chat templates and engines get them; shared by the engines."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from unilect.core.bounds import is_deeper
from unilect.core.errors import InvalidRequest
from unilect.core.requests import ChatRequest, Message, Part, RefusalPart, TextPart, Tool

_MOST_BITS = 1023  # of an integer that is surely a finite double
_MAX_ARGUMENTS_DEPTH = 256  # a model wrote them once, so deeper than a schema may be


def text(message: Message, where: str) -> str:
    """
    Return a message's content, its parts in lines of their own.

    Raises:
        InvalidRequest: It holds something else than text.
    """
    words, other = split_words(message)
    if other:
        raise InvalidRequest(
            f"`{where}` has content other than text, which this model does not support. Send text only.",
            param=where,
        )
    return words


def parts_of(message: Message) -> list[Part]:
    """Return the parts of a message; a text is one."""
    content = message.content
    return list(content) if isinstance(content, list) else [TextPart(content or "")]


def split_words(message: Message) -> tuple[str, list[Part]]:
    """Return the words of a message, its parts in lines of their own, and what else it holds."""
    words, other = list[str](), list[Part]()
    for part in parts_of(message):
        match part:
            case TextPart(text) | RefusalPart(text):
                words.append(text)
            case _:
                other.append(part)
    return "\n".join(words), other


def arguments(written: str) -> dict[str, Any]:
    """
    Decode the arguments of an earlier call, which a model wrote and `max_tokens` may have cut.

    A text that is no JSON object, or none that engines can read, is the only argument, `value`. Some clients keep a call without arguments
    as an empty text, or as null.
    """
    if written.strip() in ("", "null"):
        return {}
    for decode in (msgspec.json.decode, _decode_raw):
        if (value := _object(written, decode)) is not None:
            return value
    return {"value": written.encode(errors="replace").decode()}


def arguments_text(written: str) -> str:
    """Return the JSON text of what `arguments` makes of a text: the text itself where it is one."""
    if _object(written, msgspec.json.decode) is not None:
        return written
    return msgspec.json.encode(arguments(written)).decode()


def _object(written: str, decode: Callable[[str], Any]) -> dict[str, Any] | None:
    """Decode an object that engines can read; None where a text is none."""
    try:
        value = decode(written)
    except (ValueError, RecursionError):
        return None
    if is_deeper(value, _MAX_ARGUMENTS_DEPTH) or _has_huge_number(value):
        return None
    return value if isinstance(value, dict) else None


def _decode_raw(written: str) -> Any:
    """Decode JSON whose texts have line breaks and tabs as they are, as small models write it."""
    value = json.loads(written, strict=False)
    return msgspec.json.decode(json.dumps(value, allow_nan=False))


def _has_huge_number(value: Any) -> bool:
    """Return True where a decoded JSON value holds an integer that is no finite floating point number."""
    level = [value]
    while level:
        if any(type(item) is int and item.bit_length() > _MOST_BITS for item in level):
            return True
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return False


def tools(given: list[Tool]) -> list[dict[str, Any]]:
    """Return tools as templates expect them: every function with a description and parameters."""
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


def takes_effort(template: str) -> bool:
    """Return True if a template asks for an effort, or for what `template_flags` makes of one."""
    return "reasoning_effort" in template or "enable_thinking" in template


def template_flags(request: ChatRequest) -> dict[str, Any]:
    """Return the template's variables beside the messages; names that it does not use are already removed from the request."""
    flags = dict(request.chat_template_kwargs or {})
    if request.enable_thinking is not None:
        flags.setdefault("enable_thinking", request.enable_thinking)
    if request.reasoning_effort is not None:
        flags.setdefault("reasoning_effort", request.reasoning_effort)
        flags.setdefault("enable_thinking", request.reasoning_effort != "none")
    return {"chat_template_kwargs": flags} if flags else {}
