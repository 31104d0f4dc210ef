"""
The items of a response's input as the messages of a chat.

1. What the assistant said, thought and called one after the other is one message, as it was when the model wrote it.
2. Instructions, and system texts before the first turn, are one message of role system at the start. A later one is told as a turn of
   the user: many templates take no other, and one that is moved to the start would change the prompt that a cache knows.
3. Every call has one output, and every output a call.

Source: https://platform.openai.com/docs/api-reference/responses/create (`input`)
"""

import base64
import binascii
import os
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from unilect.api.parameters.rules import refusal
from unilect.core.errors import InvalidRequest
from unilect.core.requests import (
    MAX_MESSAGES,
    MAX_PARTS,
    SYSTEM_ROLES,
    FunctionCall,
    ImagePart,
    ImageUrl,
    Message,
    MessageToolCall,
    Part,
    TextPart,
)
from unilect.dialects.conversation import AssistantTurn, ChatBuilder
from unilect.dialects.responses._tools import INPUT, Tools, qualify_name, wrong
from unilect.web.param_locations import MessageLocation

#: What stands before a text of ours in `encrypted_content`; anyone else's is not read.
_OURS = "unilect:"
_PACKED = base64.b64encode(_OURS[:6].encode()).decode()  # as all of ours begin
_CALLS = frozenset({"function_call", "custom_tool_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
#: Calls of hosted tools, whose outputs stand in themselves: a history that began elsewhere has them.
_LEFT_OUT = (
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call", "mcp_list_tools", "tool_search",
    "program", "configuration_update",
)  # fmt: skip
_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_PLACES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco", "custom_tool_call": "ctc", "custom_tool_call_output": "ctco"}  # fmt: skip

MAX_ID = 256
_DETAILS = (None, "auto", "low", "high", "original")
_WITH_STATUS = frozenset({"message", *_CALLS, *_OUTPUTS})


def kind_of(item: Any, place: str) -> str:
    """
    Return the type of an item, which a message and a reference may leave out.

    Raises:
        InvalidRequest: It is no item.
    """
    if not isinstance(item, dict):
        wrong(place, "an object")
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference" if "id" in item else None
    if not isinstance(kind, str):
        wrong(f"{place}.type", "the type of an item, such as `message`")
    return kind


def check_readable(items: Iterable[Any], named: str) -> None:
    """
    Raises:
        InvalidRequest: No response could be made with one of the items. Whether an output's call is there shows with the items before it.
    """
    reader = Conversation(None, Tools())
    for number, item in enumerate(items):
        place = f"{named}[{number}]"
        if kind_of(item, place) not in _OUTPUTS:
            reader.add(item, place)


def prefix_of(kind: str) -> str:
    """Return the prefix of the ids of a kind of items."""
    return _PLACES.get(kind, "item")


def new_id(prefix: str) -> str:
    """Return a random id that nobody can guess."""
    return f"{prefix}_{os.urandom(16).hex()}"


def own_id(item: dict[str, Any], taken: Collection[str] = ()) -> str:
    """Return the id that a client gives an item; empty where it has none that can be its own, in every database."""
    id = item.get("id")
    if not isinstance(id, str) or not 0 < len(id) <= MAX_ID or "\0" in id or id in taken:
        return ""
    return id


def list_form(item: dict[str, Any]) -> dict[str, Any]:
    """
    Return an item as lists of items tell it: the content of a message is parts, and what was said, called and put out has a status.

    Args:
        item: With its type.
    """
    if item["type"] not in _WITH_STATUS:
        return item
    more: dict[str, Any] = {} if item.get("status") else {"status": "completed"}
    content = item.get("content")
    if item["type"] == "message" and isinstance(content, str):
        said: dict[str, Any] = {"type": "input_text", "text": content}
        if item.get("role") == "assistant":
            said = {"type": "output_text", "text": content, "annotations": [], "logprobs": []}
        more["content"] = [said]
    return item | more if more else item


def pack(text: str) -> str:
    """Return a text as `encrypted_content`, for clients that bring back nothing else."""
    return base64.b64encode((_OURS + text).encode()).decode()


def unpack(content: Any) -> str | None:
    """Return the text of an `encrypted_content` of ours; None of any other."""
    if not isinstance(content, str) or not content.startswith(_PACKED):
        return None
    try:
        text = binascii.a2b_base64(content, strict_mode=True).decode()
    except ValueError:
        return None
    return text.removeprefix(_OURS) if text.startswith(_OURS) else None


class Conversation(ChatBuilder):
    """
    Builds the messages of a chat from items; all are there once `finish` was called.

    Args:
        instructions: The text that stands before all items.
        tools: The tools of the request; items may bring more.
    """

    def __init__(self, instructions: str | None, tools: Tools) -> None:
        super().__init__()
        self._tools = tools
        self._system = {"instructions": instructions} if instructions else {}  # by their places
        self._turn = AssistantTurn("")
        self._images: dict[str, Part] = {}  # of outputs, which have no place for them
        self._called: dict[str, None] = {}  # the ids of the calls, in order
        self._answered: set[str] = set()

    def add(self, item: Any, place: str) -> None:
        """
        Add an item.

        Raises:
            InvalidRequest: It is none, or none that can be read here.
        """
        kind = kind_of(item, place)
        if kind == "message":
            self._message(item, place)
        elif kind == "reasoning":
            self._add_thought(item, place)
        elif kind in _CALLS:
            self._call(item, kind, place)
        elif kind in _OUTPUTS:
            self._output(item, place)
        elif kind == "additional_tools":
            self._tools.add(item.get("tools"), f"{place}.tools")
        elif kind == "compaction":
            self._add_compaction(item, place)
        elif kind.startswith(_LEFT_OUT):
            self.left_out.append(f"{place}:{kind[:50]}")
        else:
            raise refusal(place, f"items of the type `{kind[:50]}` cannot be read here")

    def finish(self) -> None:
        """
        Add what is open, and the system's message.

        Raises:
            InvalidRequest: A call has no output, or there are too many messages, or none.
        """
        self._end_turn()
        self._end_outputs()
        if len(self._answered) < len(self._called):
            call = next(call for call in self._called if call not in self._answered)
            raise InvalidRequest(
                f"No tool output found for function call {call[:100]}.",
                param="input",
                logged="No tool output found for a function call.",
            )
        if not self.messages:
            raise InvalidRequest.at(
                "input",
                "holds no message: expected a text, or a list with at least one item that says something.",
            )
        if len(self.messages) >= MAX_MESSAGES:
            raise InvalidRequest.at(
                "input",
                f"makes more than {MAX_MESSAGES - 1} messages; that is the maximum. Send fewer items.",
            )
        if self._system:
            place = next(iter(self._system))
            self.places.insert(0, MessageLocation(place, place))
            self.messages.insert(0, Message("system", "\n\n".join(self._system.values())))

    def _message(self, item: dict[str, Any], place: str) -> None:
        role = item.get("role")
        if role in SYSTEM_ROLES:
            self._end_outputs()
            text = _join_text(item.get("content"), f"{place}.content")
            if self.messages or self._turn.place:
                self._end_turn()
                self.add_message(Message("user", text), MessageLocation(place, f"{place}.content"))
            else:
                self._system[place] = text
        elif role == "user":
            self._end_turn()
            self._end_outputs()
            content, where = item.get("content"), f"{place}.content"
            parts = _content(content, where)
            self.add_message(
                Message("user", parts), MessageLocation(place, where, _part_places(parts, where))
            )
        elif role == "assistant":
            self._end_outputs()
            if self._turn.calls:
                self._end_turn()
            self._open_turn(place).texts.append(_join_text(item.get("content"), f"{place}.content"))
        else:
            wrong(f"{place}.role", "`user`, `assistant`, `system` or `developer`")

    def _add_thought(self, item: dict[str, Any], place: str) -> None:
        """Take what the assistant thought; an item without a text is what stateless clients send back of one."""
        text = _join_text(item.get("content") or [], f"{place}.content")
        text = text or unpack(item.get("encrypted_content")) or ""
        text = text or _join_text(item.get("summary") or [], f"{place}.summary")
        if not text:
            return
        self._end_outputs()
        if self._turn.texts or self._turn.calls:
            self._end_turn()
        self._open_turn(place).thoughts.append(text)

    def _call(self, item: dict[str, Any], kind: str, place: str) -> None:
        call = _text(item, "call_id", place)
        name, namespace = _text(item, "name", place), item.get("namespace")
        if not isinstance(namespace, str | None):
            wrong(f"{place}.namespace", "a text")
        known = qualify_name(namespace, name)
        if kind == "custom_tool_call":  # one value, whatever its text looks like
            arguments = msgspec.json.encode({INPUT: _text(item, "input", place)}).decode()
            made = MessageToolCall(call, FunctionCall(known, arguments))
        else:
            arguments = _text(item, "arguments", place) or "{}"
            made = self.read_call(call, known, arguments, place, "arguments")
        if call in self._called:
            raise InvalidRequest.at(
                f"{place}.call_id", f": there are two calls of the id {call[:100]!r}."
            )
        self._end_outputs()
        self._called[call] = None
        self._open_turn(place).calls[place] = made

    def _output(self, item: dict[str, Any], place: str) -> None:
        call = _text(item, "call_id", place)
        if call not in self._called:
            raise InvalidRequest(
                f"No tool call found for function call output with call_id {call[:100]}.",
                param=f"{place}.call_id",
                logged="No tool call found for a function call output.",
            )
        if call in self._answered:
            raise InvalidRequest.at(
                f"{place}.call_id", f": the call {call[:100]!r} has two outputs."
            )
        self._end_turn()
        self._answered.add(call)
        where = f"{place}.output"
        content = _content(item.get("output"), where)
        if isinstance(content, list):
            parts = dict(zip(_part_places(content, where), content, strict=True))
            self._images |= {at: p for at, p in parts.items() if not isinstance(p, TextPart)}
            content = "\n".join(part.text for part in content if isinstance(part, TextPart))
        self.add_message(Message("tool", content, tool_call_id=call), MessageLocation(place, where))

    def _add_compaction(self, item: dict[str, Any], place: str) -> None:
        text = unpack(item.get("encrypted_content"))
        if text is None:
            raise refusal(
                f"{place}.encrypted_content",
                "it was made by another server, which alone can read it",
            )
        self._end_turn()
        self._end_outputs()
        self.add_message(Message("user", text), MessageLocation(place, place))

    def _open_turn(self, place: str) -> AssistantTurn:
        """Return the assistant's turn, which begins here if none is open."""
        self._turn.place = self._turn.place or place
        return self._turn

    def _end_turn(self) -> None:
        """End the assistant's turn."""
        turn, self._turn = self._turn, AssistantTurn("")
        if turn.place:
            text = "\n".join(turn.texts) if turn.texts or not turn.calls else None
            self.add_assistant(turn, text, "\n".join(turn.thoughts), turn.place)

    def _end_outputs(self) -> None:
        """End a run of outputs: their images are told in a turn of the user."""
        if self._images:
            places = list(self._images)
            place = MessageLocation(places[0], places[0], places)
            self.add_message(Message("user", list(self._images.values())), place)
            self._images = {}


def _content(value: Any, place: str) -> str | list[Part]:
    """Return the content of a message: one text, or parts where there is more than text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        wrong(place, "a text or a list of parts")
    if len(value) > MAX_PARTS:
        wrong(place, f"at most {MAX_PARTS} parts; found {len(value)}")
    parts = [_part(part, f"{place}[{number}]") for number, part in enumerate(value)]
    if all(isinstance(part, TextPart) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, TextPart))
    return parts


def _part_places(content: str | list[Part], place: str) -> list[str]:
    """Return the places of a content's parts, such as `PLACE[0]`; none for a text."""
    return [] if isinstance(content, str) else [f"{place}[{n}]" for n in range(len(content))]


def _join_text(value: Any, place: str) -> str:
    """
    Return the text of a content that may hold texts only.

    Raises:
        InvalidRequest: It holds something else.
    """
    content = _content(value, place)
    if isinstance(content, str):
        return content
    wrong(place, "parts of text only")


def _part(part: Any, place: str) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _TEXTS:
        return TextPart(_text(part, "text", place))
    if kind == "refusal":
        return TextPart(_text(part, "refusal", place))
    if kind == "input_image":
        if not part.get("image_url"):
            raise refusal(f"{place}.file_id", "there are no files here; send `image_url`")
        detail = part.get("detail")
        if detail not in _DETAILS:
            wrong(f"{place}.detail", "`auto`, `low`, `high` or `original`")
        return ImagePart(ImageUrl(_text(part, "image_url", place), detail))
    if kind in ("input_file", "input_audio"):
        raise refusal(place, f"parts of the type `{kind}` cannot be read; send its text")
    wrong(f"{place}.type", "`input_text`, `output_text`, `refusal` or `input_image`")


def _text(fields: dict[str, Any], name: str, place: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        wrong(f"{place}.{name}", "a text")
    return value
