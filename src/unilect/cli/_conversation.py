"""
A conversation and the settings that its answers are asked for with.

It knows no terminal and no network. What `dump` gives is the body of a chat request, so that a saved conversation can be sent
by any client.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

import msgspec

from unilect.config.values import in_words, nearest, with_article
from unilect.core.errors import InvalidRequest
from unilect.core.events import Choice
from unilect.core.requests import (
    RAW_FIELDS,
    SYSTEM_ROLES,
    ChatRequest,
    FunctionCall,
    ImagePart,
    ImageUrl,
    Message,
    MessageToolCall,
    TextPart,
)
from unilect.web.decode import BodyDecoder

_decoder = BodyDecoder(ChatRequest)
#: Fields of a request that have a command of their own, or that a chat of one answer at a time has no use for.
_NOT_SETTINGS = ("model", "messages", "stream", "stream_options", "n", RAW_FIELDS)
_GROUPS = {
    "sampling": "temperature top_p top_k min_p typical_p seed top_n_sigma xtc_probability xtc_threshold dynatemp_range "
    "dynatemp_exponent mirostat mirostat_tau mirostat_eta adaptive_target adaptive_decay samplers min_keep",
    "repetition": "frequency_penalty presence_penalty repeat_penalty repeat_last_n logit_bias dry_multiplier dry_base "
    "dry_allowed_length dry_penalty_last_n dry_sequence_breakers",
    "length": "max_tokens stop ignore_eos t_max_predict_ms n_keep",
    "thinking": "enable_thinking reasoning_effort reasoning_format thinking_budget_tokens verbosity chat_template_kwargs",
    "form": "response_format grammar logprobs top_logprobs tools tool_choice parallel_tool_calls",
}
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
    The messages so far.

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

    def say(self, text: str, images: Sequence[str] = ()) -> None:
        """Add a question with images, as URLs, or the result of the open tool call."""
        call = self.open_call
        if call is not None:
            self.messages.append(Message("tool", text, tool_call_id=call.id))
            return
        if self.messages and self.messages[-1].role == "user":
            self.messages.pop()
        parts = [TextPart(text)] if text else []
        shown = [ImagePart(ImageUrl(url, "auto")) for url in images]
        self.messages.append(Message("user", [*parts, *shown] if shown else text))

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
            near = nearest(name, SETTINGS)
            meant = f" Is `{near}` meant?" if near else ""
            raise InvalidRequest(
                f"Unknown parameter `{name[:50]}`.{meant} /set lists those that can be set.",
                param=name,
            )
        settings = {key: old for key, old in self.settings.items() if key != name}
        if value is not None:
            settings[name] = value
        try:
            _request({"messages": [Message("user", "")]} | settings)
        except InvalidRequest as error:
            if error.param != name:
                raise
            raise InvalidRequest(f"{name}: expected {_describe_type(name)}.", param=name) from error
        self.settings = settings

    def request(self) -> ChatRequest:
        """
        Make the request for the next answer.

        Raises:
            InvalidRequest: It can never work, such as with too many messages.
        """
        return _request(self._body())

    def dump(self) -> bytes:
        """Return the conversation as a file."""
        return msgspec.json.format(msgspec.json.encode(self._body()), indent=2) + b"\n"

    def load(self, saved: bytes) -> None:
        """
        Go on with a saved conversation and its settings; the model stays.

        Raises:
            InvalidRequest: It is none; the message names the field.
        """
        request = _decoder.decode(saved)
        messages, system = list(request.messages), None
        if messages[0].role in SYSTEM_ROLES and isinstance(messages[0].content, str):
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


def groups_of_settings(parameters: Mapping[str, str]) -> dict[str, list[str]]:
    """
    List the names that can be set by group, the usual ones first.

    Args:
        parameters: How a model honours each, where that is known; one that it refuses is left out.
    """
    names = [name for name in SETTINGS if parameters.get(name) != "refused"]
    groups = {
        group: [name for name in usual.split() if name in names] for group, usual in _GROUPS.items()
    }
    grouped = {name for group in groups.values() for name in group}
    groups["other"] = [name for name in names if name not in grouped]
    return {group: names for group, names in groups.items() if names}


def words_of(message: Message) -> str:
    """Describe a message in words."""
    if not isinstance(message.content, list):
        return message.content or "(tool call)"
    words = [part.text if isinstance(part, TextPart) else "(image)" for part in message.content]
    return " ".join(words)


def _describe_type(name: str) -> str:
    """Describe a parameter's type and range in words."""
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(ChatRequest)}
    kind = get_type_hints(ChatRequest, include_extras=True)[fields[name]]
    return with_article(in_words(msgspec.inspect.type_info(kind))).replace("table", "JSON object")


def _request(body: dict[str, Any]) -> ChatRequest:
    return _decoder.decode(msgspec.json.encode(body))
