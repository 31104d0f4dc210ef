"""
The items of an answer while they are told: messages, what the model thinks, and calls.

Their JSON is made of parts that are the same all through an answer, and of texts that are encoded once, however often they are told.

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

from typing import Any

from unilect.core.events import Event, ToolCallDelta
from unilect.dialects.openai.chunks import encode_json
from unilect.dialects.responses._items import new_id, pack
from unilect.dialects.responses._tools import CalledAs, text_of
from unilect.store.ids import OUTPUT, item_id


def _form(kind: str, fields: str) -> bytes:
    """An event as a format: of its number, and of what its fields after that have."""
    return f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":%d{fields}}}\n\n'.encode()


_ADDED = _form("response.output_item.added", ',"output_index":%d,"item":%b')
_DONE = _form("response.output_item.done", ',"output_index":%d,"item":%b')
_PART_ADDED = _form("response.content_part.added", '%b,"part":%b')
_PART_DONE = _form("response.content_part.done", '%b,"part":%b')
_TEXT_DONE = _form("response.output_text.done", '%b,"text":%b,"logprobs":%b')
_REFUSAL_DONE = _form("response.refusal.done", '%b,"refusal":%b')
_PLACE = b',"item_id":"%b","output_index":%d,"content_index":0'
_MESSAGE = b'{"id":"%b","type":"message","role":"assistant","status":"%b","content":[%b]}'
_OUTPUT_TEXT = b'{"type":"output_text","text":%b,"annotations":[],"logprobs":%b}'
_REFUSAL = b'{"type":"refusal","refusal":%b}'
_HEAD = b'event: %b\ndata: {"type":"%b"%b,"sequence_number":'


def event_of(kind: str, number: int, fields: bytes = b"") -> bytes:
    """
    An event.

    Args:
        fields: Those after its number as JSON, each with a comma before it.
    """
    return _form(kind, "%b") % (number, fields)


def fields_of(fields: dict[str, Any]) -> bytes:
    """Fields as `event_of` takes them."""
    return b"," + encode_json(fields)[1:-1]


class MessageItem:
    """
    A message that is being told: one part, of text or a refusal.

    Attributes:
        texts: The pieces of its text.
        logprobs: Of its tokens.
        place: Where a piece of its text stands, as `event_of` takes it.
        head: The beginning of an event with a piece, up to the event's number.
    """

    def __init__(self, response: str, index: int, kind: str) -> None:
        self.index = index
        self.is_text = kind == "output_text"
        self.id = _id(response, "msg", index)
        self.texts: list[str] = []
        self.logprobs: list[dict[str, Any]] = []
        self._id = self.id.encode()
        self.place = _PLACE % (self._id, index)
        self.head = _head(kind, self.place + b',"logprobs":[]' if self.is_text else self.place)

    def encode_start(self, number: int) -> list[bytes]:
        """The events before its first piece, numbered from one on."""
        item, part = _MESSAGE % (self._id, b"in_progress", b""), self._part(b'""', b"[]")
        return [_ADDED % (number, self.index, item), _PART_ADDED % (number + 1, self.place, part)]

    def encode_end(self, number: int, status: str) -> tuple[bytes, list[bytes]]:
        """The item as it is in the end, and the events that tell it."""
        text, logprobs = self._encode_content()
        part = self._part(text, logprobs)
        item, place = _MESSAGE % (self._id, status.encode(), part), self.place
        if self.is_text:
            whole = _TEXT_DONE % (number, place, text, logprobs)
        else:
            whole = _REFUSAL_DONE % (number, place, text)
        events = [whole, _PART_DONE % (number + 1, place, part), _DONE % (number + 2, self.index, item)]  # fmt: skip
        return item, events

    def encode(self, status: str) -> bytes:
        """The item as it is."""
        return _MESSAGE % (self._id, status.encode(), self._part(*self._encode_content()))

    def _encode_content(self) -> tuple[bytes, bytes]:
        """The text and the log probabilities so far as JSON."""
        logprobs = encode_json(self.logprobs) if self.logprobs else b"[]"
        return encode_json("".join(self.texts)), logprobs

    def _part(self, text: bytes, logprobs: bytes) -> bytes:
        return _OUTPUT_TEXT % (text, logprobs) if self.is_text else _REFUSAL % text


class ReasoningItem:
    """The item of the model's thoughts, while they are streamed; attributes as of a message."""

    def __init__(self, response: str, index: int, summary: bool, encrypted: bool) -> None:
        self.index = index
        self.id = _id(response, "rs", index)
        self.texts: list[str] = []
        self._summary, self._encrypted = summary, encrypted
        place = b',"item_id":"%b","output_index":%d' % (self.id.encode(), index)
        self._content_place = place + b',"content_index":0'
        self._summary_place = place + b',"summary_index":0'
        self.heads = [_head("reasoning_text", self._content_place)]
        if summary:
            self.heads.append(_head("reasoning_summary_text", self._summary_place))

    def encode_start(self, number: int) -> list[bytes]:
        """As of a message."""
        part = fields_of({"part": _reasoning_part("")})
        events = [("response.content_part.added", self._content_place + part)]
        if self._summary:
            part = fields_of({"part": _summary("")})
            events.append(("response.reasoning_summary_part.added", self._summary_place + part))
        return [_ADDED % (number, self.index, encode_json(self._opening())), *_number_events(events, number + 1)]  # fmt: skip

    def encode_end(self, number: int, status: str) -> tuple[bytes, list[bytes]]:
        """As of a message."""
        text, place = "".join(self.texts), self._content_place
        whole, part = fields_of({"text": text}), fields_of({"part": _reasoning_part(text)})
        events = [
            ("response.reasoning_text.done", place + whole),
            ("response.content_part.done", place + part),
        ]
        if self._summary:
            place, part = self._summary_place, fields_of({"part": _summary(text)})
            events += [
                ("response.reasoning_summary_text.done", place + whole),
                ("response.reasoning_summary_part.done", place + part),
            ]
        return _encode_end(self, _number_events(events, number), number, status)

    def encode(self, status: str) -> bytes:
        """The item as it is."""
        text = "".join(self.texts)
        item = self._opening() | {
            "status": status,
            "content": [_reasoning_part(text)],
            "summary": [_summary(text)] if self._summary else [],
        }
        return encode_json(item | {"encrypted_content": pack(text)} if self._encrypted else item)

    def _opening(self) -> dict[str, Any]:
        return {"id": self.id, "type": "reasoning", "summary": [], "content": [], "status": "in_progress"}  # fmt: skip


class CallItem:
    """A call of a function or of a custom tool, while it is told; attributes as of a message."""

    def __init__(
        self, response: str, index: int, call: int, call_id: str | None, called: CalledAs
    ) -> None:
        self.index = index
        self.texts: list[str] = []
        self._call = call
        self._custom = called.kind == "custom"
        self.id = _id(response, "ctc" if self._custom else "fc", index)
        self._fields: dict[str, Any] = {"call_id": call_id or new_id("call"), "name": called.name}
        if called.namespace is not None:
            self._fields["namespace"] = called.namespace
        self._place = b',"item_id":"%b","output_index":%d' % (self.id.encode(), index)
        # the arguments of a custom tool are known only when they are whole
        delta = _head("function_call_arguments", self._place)
        self.head = b"" if self._custom else delta

    def goes_on(self, event: Event) -> bool:
        """Return True if an event is a piece of this call."""
        return isinstance(event, ToolCallDelta) and event.call == self._call

    def encode_start(self, number: int) -> list[bytes]:
        """As of a message."""
        return [_ADDED % (number, self.index, encode_json(self._opening()))]

    def encode_end(self, number: int, status: str) -> tuple[bytes, list[bytes]]:
        """As of a message."""
        kind, arguments = "response.function_call_arguments", "".join(self.texts)
        if self._custom:
            kind, text = "response.custom_tool_call_input", text_of(arguments)
            events = [
                (f"{kind}.delta", self._place + fields_of({"delta": text})),
                (f"{kind}.done", self._place + fields_of({"input": text})),
            ]
        else:
            done = {"name": self._fields["name"], "arguments": arguments}
            events = [(f"{kind}.done", self._place + fields_of(done))]
        return _encode_end(self, _number_events(events, number), number, status)

    def encode(self, status: str) -> bytes:
        """The item as it is."""
        arguments = "".join(self.texts)
        told = {"input": text_of(arguments)} if self._custom else {"arguments": arguments}
        return encode_json(self._opening() | told | {"status": status})

    def _opening(self) -> dict[str, Any]:
        kind, field = ("custom_tool_call", "input") if self._custom else ("function_call", "arguments")  # fmt: skip
        return {"id": self.id, "type": kind, "status": "in_progress", **self._fields, field: ""}


def _id(response: str, prefix: str, index: int) -> str:
    return item_id(response, prefix, OUTPUT + index)


def _encode_end(
    item: ReasoningItem | CallItem, events: list[bytes], number: int, status: str
) -> tuple[bytes, list[bytes]]:
    """An item in the end, with the events that close it, the last of which tells it."""
    told = item.encode(status)
    return told, [*events, _DONE % (number + len(events), item.index, told)]


def _number_events(events: list[tuple[str, bytes]], number: int) -> list[bytes]:
    """Events by their kinds and fields, numbered from one on."""
    return [event_of(kind, at, fields) for at, (kind, fields) in enumerate(events, number)]


def _head(kind: str, place: bytes) -> bytes:
    """The beginning of an event with a piece, up to its number, which stands behind its place."""
    name = b"response.%b.delta" % kind.encode()
    return _HEAD % (name, name, place)


def _reasoning_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def _summary(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}
