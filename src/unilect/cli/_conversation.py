"""
A conversation and the settings that its answers are asked for with.

It knows no terminal and no network. What `saved` gives is the body of a chat request, so that a saved conversation can be sent
by any client.
"""

from difflib import get_close_matches
from typing import Any

import msgspec

from unilect.errors import InvalidRequest
from unilect.events import Choice
from unilect.requests import RAW_FIELDS, ChatRequest, FunctionCall, Message, MessageToolCall
from unilect.web.decode import BodyDecoder

_decoder = BodyDecoder(ChatRequest)
#: Fields of a request that have a command of their own, or that a chat of one answer at a time has no use for.
_NOT_SETTINGS = ("model", "messages", "stream", "stream_options", "n", RAW_FIELDS)
#: What can be set, by name.
SETTINGS = tuple(
    sorted(
        field.encode_name
        for field in msgspec.structs.fields(ChatRequest)
        if field.encode_name not in _NOT_SETTINGS
    )
)


class Conversation:
    """
    What was said so far.

    Attributes:
        model: The model that answers.
        system: The system prompt, or None.
        settings: Parameters of every request, by name.
        messages: The turns, without the system prompt. A question without an answer is the last of them: the next one takes
            its place.
    """

    def __init__(self, model: str, system: str | None = None) -> None:
        self.model = model
        self.system = system
        self.settings: dict[str, Any] = {}
        self.messages: list[Message] = []

    @property
    def open_call(self) -> MessageToolCall | None:
        """The first tool call of the last answer that has no result yet."""
        for results, message in enumerate(reversed(self.messages)):
            if message.role != "tool":
                return next(iter((message.tool_calls or [])[results:]), None)
        return None

    def say(self, text: str) -> None:
        """Add a question, or the result of the open tool call."""
        call = self.open_call
        if call is not None:
            self.messages.append(Message("tool", text, tool_call_id=call.id))
            return
        if self.messages and self.messages[-1].role == "user":
            self.messages.pop()
        self.messages.append(Message("user", text))

    def take(self, answer: Choice) -> None:
        """Add an answer, or what there is of it; nothing where it says nothing."""
        calls = [
            MessageToolCall(call.id, FunctionCall(call.name, call.arguments))
            for call in answer.tool_calls
            if answer.finish_reason is not None  # a call that was cut is none
        ]
        text = answer.text or answer.refusal
        if text or calls:
            self.messages.append(Message("assistant", text or None, tool_calls=calls or None))

    def take_back(self) -> bool:
        """Take the last answer back; false where there is no question to ask again."""
        while self.messages and self.messages[-1].role == "assistant":
            self.messages.pop()
        return bool(self.messages)

    def set(self, name: str, value: Any) -> None:
        """
        Set a parameter; None takes it away.

        Raises:
            InvalidRequest: There is no such parameter, or it has no such value.
        """
        if name in _NOT_SETTINGS:
            raise InvalidRequest(f"`{name}` cannot be set in a chat.", param=name)
        if name not in SETTINGS:
            near = get_close_matches(name, SETTINGS, 1)
            meant = f" Is `{near[0]}` meant?" if near else ""
            raise InvalidRequest(
                f"Unknown parameter `{name[:50]}`.{meant} Known: {', '.join(SETTINGS)}.",
                param=name,
            )
        settings = {key: old for key, old in self.settings.items() if key != name}
        if value is not None:
            settings[name] = value
        _request({"messages": [Message("user", "")]} | settings)
        self.settings = settings

    def request(self) -> ChatRequest:
        """
        The request for the next answer.

        Raises:
            InvalidRequest: It can never work, such as with too many messages.
        """
        return _request(self._body())

    def saved(self) -> bytes:
        """The conversation as a file."""
        return msgspec.json.format(msgspec.json.encode(self._body()), indent=2) + b"\n"

    def load(self, saved: bytes) -> None:
        """
        Go on with a saved conversation and its settings; the model stays.

        Raises:
            InvalidRequest: It is none; the message names the field.
        """
        request = _decoder.decode(saved)
        messages, system = list(request.messages), None
        if messages[0].role in ("system", "developer") and isinstance(messages[0].content, str):
            system = messages.pop(0).content
        self.system, self.messages = system if isinstance(system, str) else None, messages
        self.settings = {
            name: msgspec.json.decode(raw)
            for name, raw in request.raw_fields.items()
            if name not in _NOT_SETTINGS
        }

    def _body(self) -> dict[str, Any]:
        system = [Message("system", self.system)] if self.system else []
        return {"model": self.model, "messages": system + self.messages} | self.settings


def _request(body: dict[str, Any]) -> ChatRequest:
    return _decoder.decode(msgspec.json.encode(body))
