"""
The items of an answer while they are told: messages, what the model thinks, and calls.

The text of an item is encoded once, however often it is told.

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

from abc import ABC, abstractmethod
from functools import cache, cached_property
from typing import Any, TypeAlias

from msgspec import Raw

from unilect.core.events import Event, ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta
from unilect.dialects.openai.chunks import encode_json
from unilect.dialects.responses._items import new_id, pack
from unilect.dialects.responses._tools import CalledAs, text_of
from unilect.store.ids import OUTPUT, item_id

#: Kinds of events, and their fields as `event_of` takes them.
_Events: TypeAlias = list[tuple[str, bytes]]
_NO_TEXT = Raw(b'""')
_OF_PARTS = ("type", "annotations")  # the fields of a part that the event with its whole text lacks


@cache
def _form(kind: str) -> bytes:
    """Return an event as a format: of its number, and of its fields after that."""
    return f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":%d%b}}\n\n'.encode()


def event_of(kind: str, number: int, fields: bytes = b"") -> bytes:
    """
    Return an event.

    Args:
        fields: Those after its number as JSON, each with a comma before it.
    """
    return _form(kind) % (number, fields)


def fields_of(**fields: Any) -> bytes:
    """Return fields as `event_of` takes them."""
    return b"," + encode_json(fields)[1:-1]


class OutputItem(ABC):
    """
    An item that is being told.

    Attributes:
        texts: The pieces of its text.
        place: Its place in the answer, as `event_of` takes it.
        heads: The beginnings of the events that tell a piece, up to their numbers.
    """

    def __init__(self, response: str, prefix: str, index: int) -> None:
        self.id = item_id(response, prefix, OUTPUT + index)
        self.texts: list[str] = []
        self.place = b',"item_id":"%b","output_index":%d' % (self.id.encode(), index)
        self.heads: list[bytes] = []
        self._index = index

    @cached_property
    def text(self) -> Raw:
        """All of its text as JSON; it is whole."""
        return Raw(encode_json("".join(self.texts)))

    def encode_start(self, number: int) -> list[bytes]:
        """Return the events before its first piece, numbered from one on."""
        item = fields_of(output_index=self._index, item=self._opening())
        return _number([("response.output_item.added", item), *self._first_events()], number)

    def encode_end(self, number: int, status: str) -> tuple[bytes, list[bytes]]:
        """Return the item as it is in the end, and the events that tell it."""
        item = self.encode(status)
        done = fields_of(output_index=self._index, item=Raw(item))
        return item, _number([*self._last_events(), ("response.output_item.done", done)], number)

    def encode(self, status: str) -> bytes:
        """Return the item as it is."""
        return encode_json(self._opening() | {"status": status} | self._content())

    @abstractmethod
    def goes_on(self, event: Event) -> bool:
        """Return True if an event is a piece of this item."""

    @abstractmethod
    def _opening(self) -> dict[str, Any]:
        """Return the item before its first piece."""

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """Return the fields of the item that its text changes."""

    def _first_events(self) -> _Events:
        """Return the events after that of the item, before its first piece."""
        return []

    @abstractmethod
    def _last_events(self) -> _Events:
        """Return the events after its last piece, before that of the item."""


class TextItem(OutputItem):
    """
    An item whose text is told as the part of a list, in one form or several.

    Attributes:
        forms: Of each the name of its text in events, the name of its part there, and its place.
    """

    forms: list[tuple[str, str, bytes]]

    @abstractmethod
    def _part(self, kind: str, text: Raw) -> dict[str, Any]:
        """Return the part for a form, with a text."""

    def _first_events(self) -> _Events:
        return [
            (f"response.{part}.added", place + fields_of(part=self._part(kind, _NO_TEXT)))
            for kind, part, place in self.forms
        ]

    def _last_events(self) -> _Events:
        events: _Events = []
        for kind, part, place in self.forms:
            whole = self._part(kind, self.text)
            text = {name: value for name, value in whole.items() if name not in _OF_PARTS}
            events.append((f"response.{kind}.done", place + fields_of(**text)))
            events.append((f"response.{part}.done", place + fields_of(part=whole)))
        return events


class MessageItem(TextItem):
    """
    A message: one part, of text or a refusal.

    Attributes:
        logprobs: Of its tokens.
    """

    def __init__(self, response: str, index: int, is_text: bool) -> None:
        super().__init__(response, "msg", index)
        self.is_text = is_text
        self.logprobs: list[dict[str, Any]] = []
        self.place += b',"content_index":0'
        kind = "output_text" if is_text else "refusal"
        self.forms = [(kind, "content_part", self.place)]
        self.heads = [_head(kind, self.place + b',"logprobs":[]' if is_text else self.place)]

    def goes_on(self, event: Event) -> bool:
        """Return True if an event is a piece of this text, or of this refusal."""
        return isinstance(event, TextDelta if self.is_text else RefusalDelta)

    def _opening(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}  # fmt: skip

    def _content(self) -> dict[str, Any]:
        return {"content": [self._part(kind, self.text) for kind, _, _ in self.forms]}

    def _part(self, kind: str, text: Raw) -> dict[str, Any]:
        if not self.is_text:
            return {"type": kind, "refusal": text}
        return {"type": kind, "text": text, "annotations": [], "logprobs": self.logprobs}


class ReasoningItem(TextItem):
    """The model's thoughts; they are told as a summary, too, where one was asked for."""

    def __init__(self, response: str, index: int, summary: bool, encrypted: bool) -> None:
        super().__init__(response, "rs", index)
        self._encrypted = encrypted
        self.forms = [("reasoning_text", "content_part", self.place + b',"content_index":0')]
        if summary:
            at = self.place + b',"summary_index":0'
            self.forms.append(("reasoning_summary_text", "reasoning_summary_part", at))
        self.heads = [_head(kind, place) for kind, _, place in self.forms]

    def goes_on(self, event: Event) -> bool:
        """Return True if an event is a piece of a thought."""
        return isinstance(event, ReasoningDelta)

    def _opening(self) -> dict[str, Any]:
        return {"id": self.id, "type": "reasoning", "summary": [], "content": [], "status": "in_progress"}  # fmt: skip

    def _content(self) -> dict[str, Any]:
        parts = [[self._part(kind, self.text)] for kind, _, _ in self.forms]
        fields = dict(zip(("content", "summary"), parts, strict=False))
        return fields | {"encrypted_content": pack("".join(self.texts))} if self._encrypted else fields  # fmt: skip

    def _part(self, kind: str, text: Raw) -> dict[str, Any]:
        return {"type": kind.replace("reasoning_summary", "summary"), "text": text}


class CallItem(OutputItem):
    """A call of a function or of a custom tool."""

    def __init__(
        self, response: str, index: int, call: int, call_id: str | None, called: CalledAs
    ) -> None:
        self._custom = called.kind == "custom"
        super().__init__(response, "ctc" if self._custom else "fc", index)
        self._call = call
        self._fields: dict[str, Any] = {"call_id": call_id or new_id("call"), "name": called.name}
        if called.namespace is not None:
            self._fields["namespace"] = called.namespace
        if not self._custom:  # the text of a custom tool is known only when it is whole
            self.heads = [_head("function_call_arguments", self.place)]

    def goes_on(self, event: Event) -> bool:
        """Return True if an event is a piece of this call."""
        return isinstance(event, ToolCallDelta) and event.call == self._call

    def _opening(self) -> dict[str, Any]:
        kind, field = ("custom_tool_call", "input") if self._custom else ("function_call", "arguments")  # fmt: skip
        return {"id": self.id, "type": kind, "status": "in_progress", **self._fields, field: ""}

    def _content(self) -> dict[str, Any]:
        return {"input": text_of("".join(self.texts))} if self._custom else {"arguments": self.text}

    def _last_events(self) -> _Events:
        if not self._custom:
            done = fields_of(name=self._fields["name"], arguments=self.text)
            return [("response.function_call_arguments.done", self.place + done)]
        kind, text = "response.custom_tool_call_input", text_of("".join(self.texts))
        return [
            (f"{kind}.delta", self.place + fields_of(delta=text)),
            (f"{kind}.done", self.place + fields_of(input=text)),
        ]


def _number(events: _Events, first: int) -> list[bytes]:
    """Return events numbered from one on."""
    return [event_of(kind, number, fields) for number, (kind, fields) in enumerate(events, first)]


def _head(kind: str, place: bytes) -> bytes:
    """Return the beginning of an event with a piece, up to its number, which stands behind its place."""
    name = b"response.%b.delta" % kind.encode()
    return b'event: %b\ndata: {"type":"%b"%b,"sequence_number":' % (name, name, place)
