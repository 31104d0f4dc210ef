"""
Ollama's conversations in OpenAI's words: contents, images, thoughts, and calls with their results.

Calls may lack ids, and results may lack ids and names, since Ollama's clients need none: results are tied to calls in order.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

import sys
from array import array
from base64 import b64decode
from collections import deque
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from unilect.core.errors import InvalidRequest
from unilect.core.image_kinds import image_kind
from unilect.core.requests import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, Text

_ROLES = ("system", "user", "assistant", "tool")
_HEAD = 24  # characters of base64, which show the kind
Images = Annotated[list[Text], Meta(max_length=MAX_PARTS)]
MAX_CONTEXT = 500_000  # numbers of a context
_MARK = 0x696E75  # what the contexts of this server begin with


class CalledFunction(Struct, frozen=True):
    """The function of an earlier call; `arguments` is an object, or its JSON text."""

    name: str
    arguments: dict[str, Any] | Text | None = None


class EarlierCall(Struct, frozen=True):
    """A call that the assistant made."""

    function: CalledFunction
    id: str | None = None


class Turn(Struct, frozen=True):
    """One message."""

    role: str
    content: Text | None = None
    thinking: Text | None = None
    images: Images | None = None
    tool_calls: Annotated[list[EarlierCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


def openai_messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """
    Return a conversation in OpenAI's words.

    Raises:
        InvalidRequest: A role or an image is none, or there are too many images.
    """
    images = sum(len(turn.images or ()) for turn in turns)
    if images > MAX_PARTS:
        raise InvalidRequest.at("messages", f"has {images} images; the maximum is {MAX_PARTS}.")
    pending, messages = _Pending(), []
    for number, turn in enumerate(turns):
        role = turn.role.lower()  # as Ollama does
        if role not in _ROLES:
            raise InvalidRequest.at(
                f"messages[{number}].role",
                f": expected one of {', '.join(_ROLES)}; it is {turn.role[:50]!r}.",
            )
        message: dict[str, Any] = {"role": role, "content": turn.content or ""}
        if turn.images:
            message["content"] = with_images(
                turn.content, turn.images, f"messages[{number}].images"
            )
        if turn.thinking:
            message["reasoning_content"] = turn.thinking
        if turn.tool_calls:
            message["tool_calls"] = pending.add_calls(number, turn.tool_calls)
        if role == "tool":
            message |= pending.match_result(number, turn)
        messages.append(message)
    return messages


class _Pending:
    """The calls that have no result yet."""

    def __init__(self) -> None:
        self._calls: deque[tuple[str, str]] = deque()
        self._by_name: dict[str, deque[str]] = {}
        self._names: dict[str, str] = {}  # of all that have no result, by id

    def add_calls(self, number: int, calls: Sequence[EarlierCall]) -> list[dict[str, Any]]:
        """Return the calls of a message, each with an id."""
        found = []
        for place, call in enumerate(calls):
            id, name = call.id or f"call_{number}_{place}", call.function.name
            self._calls.append((id, name))
            self._by_name.setdefault(name, deque()).append(id)
            self._names[id] = name
            given = call.function.arguments
            written = given if isinstance(given, str) else msgspec.json.encode(given or {}).decode()
            function = {"name": name, "arguments": written or "{}"}
            found.append({"id": id, "type": "function", "function": function})
        return found

    def match_result(self, number: int, turn: Turn) -> dict[str, str]:
        """Return the id and the name for a result: of the call that it names, else of the first that has none."""
        id, name = turn.tool_call_id, turn.tool_name or turn.name
        if not id and name:
            id = self._next(self._by_name.get(name, deque()))
        if not id:
            waiting = self._calls
            while waiting and waiting[0][0] not in self._names:
                waiting.popleft()
            id = waiting[0][0] if waiting else f"call_{number}"
        name = name or self._names.get(id)
        self._names.pop(id, None)
        return {"tool_call_id": id} | ({"name": name} if name else {})

    def _next(self, ids: deque[str]) -> str | None:
        while ids:
            if (id := ids.popleft()) in self._names:
                return id
        return None


def with_images(text: str | None, images: Sequence[str], where: str) -> list[dict[str, Any]]:
    """
    Return a content with images, which are base64, with or without `data:` before them.

    Raises:
        InvalidRequest: One of them is no image.
    """
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for number, image in enumerate(images):
        url = image if image.startswith("data:image/") else _data_url(image, f"{where}[{number}]")
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


def _data_url(image: str, where: str) -> str:
    try:
        head = b64decode(image[:_HEAD], validate=True)
    except ValueError:
        head = b""
    kind = image_kind(head)
    if not kind:
        raise InvalidRequest.at(
            where,
            "is no image: expected the base64 of a PNG, JPEG, GIF, WebP or BMP file, without `data:` before it.",
        )
    return f"data:image/{kind};base64,{image}"


#: A message of a context: role and text.
Said = tuple[Literal["system", "user", "assistant"], Text]
_said = msgspec.json.Decoder(Annotated[list[Said], Meta(max_length=MAX_MESSAGES)])


def context_of(said: Sequence[Said]) -> list[int] | None:
    """
    Return a conversation as the `context` that a client gives back: its JSON, four bytes a number, after a mark and its length. None of one that
    is too long to be given back.

    Token ids would belong to one model's template; clients only keep the numbers.
    """
    if sum(len(text) for _, text in said) > 4 * MAX_CONTEXT:
        return None
    data = msgspec.json.encode(said)
    if len(data) > 4 * (MAX_CONTEXT - 2):
        return None
    words = array("I", data + bytes(-len(data) % 4))
    if sys.byteorder == "big":
        words.byteswap()
    return [_MARK, len(data), *words]


def read_context(context: Sequence[int]) -> list[Said]:
    """
    Return the conversation of a `context`.

    Raises:
        InvalidRequest: It is none that this server has given.
    """
    if not context:
        return []
    try:
        mark, length, *rest = context
        words = array("I", rest)
        if sys.byteorder == "big":
            words.byteswap()
        if mark == _MARK and 0 <= length <= 4 * len(rest):
            said: list[Said] = _said.decode(words.tobytes()[:length])
            return said
    except (ValueError, OverflowError, RecursionError, msgspec.DecodeError):
        pass
    raise InvalidRequest.at(
        "context",
        "is none that this server has given: token ids belong to one model of one server. Leave it out, or send the "
        "`context` of an earlier answer from here.",
    )
