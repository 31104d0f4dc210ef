"""
The items of an answer while they are told: messages, what the model thinks, and calls.

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

from typing import Any

from msgspec import Raw

from unilect.dialects.openai.chunks import encode_json
from unilect.dialects.responses._items import new_id, packed
from unilect.dialects.responses._tools import CalledAs, text_of
from unilect.events import Event, ToolCallDelta


def _head(kind: str, fields: dict[str, Any]) -> bytes:
    """The beginning of an event up to its number."""
    body = encode_json({"type": kind, **fields})[:-1]
    return b'event: %b\ndata: %b,"sequence_number":' % (kind.encode(), body)


class MessageItem:
    """A message that is being told: one part, of text or a refusal."""

    def __init__(self, index: int, kind: str) -> None:
        self.index = index
        self.kind = kind
        self.texts: list[str] = []
        self.logprobs: list[dict[str, Any]] = []
        self._text: tuple[int, Raw] | None = None
        self._id = new_id("msg")
        self.place = {"item_id": self._id, "output_index": index, "content_index": 0}
        more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        self.head = _head(f"response.{kind}.delta", self.place | more)

    def opening(self) -> dict[str, Any]:
        """The item before its first piece."""
        return {"id": self._id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}  # fmt: skip

    def first(self) -> list[tuple[str, dict[str, Any]]]:
        """The events that follow its opening."""
        return [("response.content_part.added", self.place | {"part": self._part("", [])})]

    def last(self) -> list[tuple[str, dict[str, Any]]]:
        """The events that close its part."""
        text = self._written()
        field = {"text": text, "logprobs": self.logprobs} if self.kind == "output_text" else {"refusal": text}  # fmt: skip
        return [
            (f"response.{self.kind}.done", self.place | field),
            ("response.content_part.done", self.place | {"part": self._part(text, self.logprobs)}),
        ]

    def told(self, status: str = "incomplete") -> dict[str, Any]:
        """The item as it is."""
        content = [self._part(self._written(), self.logprobs)]
        return self.opening() | {"status": status, "content": content}

    def _written(self) -> Raw:
        """The text so far as JSON, which is encoded once for the four places where the end of an answer has it."""
        if self._text is None or self._text[0] != len(self.texts):
            self._text = len(self.texts), Raw(encode_json("".join(self.texts)))
        return self._text[1]

    def _part(self, text: str | Raw, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        if self.kind == "refusal":
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


class ReasoningItem:
    """What the model thinks, while it is told."""

    def __init__(self, index: int, summary: bool, encrypted: bool) -> None:
        self.index = index
        self.texts: list[str] = []
        self._id = new_id("rs")
        self._summary, self._encrypted = summary, encrypted
        place = {"item_id": self._id, "output_index": index}
        self._content_place = place | {"content_index": 0}
        self._summary_place = place | {"summary_index": 0}
        self.heads = [_head("response.reasoning_text.delta", self._content_place)]
        if summary:
            self.heads.append(_head("response.reasoning_summary_text.delta", self._summary_place))

    def opening(self) -> dict[str, Any]:
        """The item before its first piece."""
        return {"id": self._id, "type": "reasoning", "summary": [], "content": [], "status": "in_progress"}  # fmt: skip

    def first(self) -> list[tuple[str, dict[str, Any]]]:
        """The events that follow its opening."""
        events = [("response.content_part.added", self._content_place | {"part": _thought("")})]
        if self._summary:
            part = {"part": _summary("")}
            events.append(("response.reasoning_summary_part.added", self._summary_place | part))
        return events

    def last(self) -> list[tuple[str, dict[str, Any]]]:
        """The events that close its parts."""
        text = "".join(self.texts)
        events = [
            ("response.reasoning_text.done", self._content_place | {"text": text}),
            ("response.content_part.done", self._content_place | {"part": _thought(text)}),
        ]
        if self._summary:
            place = self._summary_place
            events += [
                ("response.reasoning_summary_text.done", place | {"text": text}),
                ("response.reasoning_summary_part.done", place | {"part": _summary(text)}),
            ]
        return events

    def told(self, status: str = "incomplete") -> dict[str, Any]:
        """The item as it is."""
        text = "".join(self.texts)
        item = self.opening() | {
            "status": status,
            "content": [_thought(text)],
            "summary": [_summary(text)] if self._summary else [],
        }
        return item | {"encrypted_content": packed(text)} if self._encrypted else item


class CallItem:
    """A call of a function or of a custom tool, while it is told."""

    def __init__(self, index: int, call: int, call_id: str | None, called: CalledAs) -> None:
        self.index = index
        self.texts: list[str] = []
        self._call = call
        self._custom = called.kind == "custom"
        self._id = new_id("ctc" if self._custom else "fc")
        self._fields: dict[str, Any] = {"call_id": call_id or new_id("call"), "name": called.name}
        if called.namespace is not None:
            self._fields["namespace"] = called.namespace
        self._place = {"item_id": self._id, "output_index": index}
        # the arguments of a custom tool are known only when they are whole
        delta = _head("response.function_call_arguments.delta", self._place)
        self.head = b"" if self._custom else delta

    def goes_on(self, event: Event) -> bool:
        """Whether an event is a piece of this call."""
        return isinstance(event, ToolCallDelta) and event.call == self._call

    def opening(self) -> dict[str, Any]:
        """The item before its first piece."""
        kind, field = ("custom_tool_call", "input") if self._custom else ("function_call", "arguments")  # fmt: skip
        return {"id": self._id, "type": kind, "status": "in_progress", **self._fields, field: ""}

    def first(self) -> list[tuple[str, dict[str, Any]]]:
        """The events that follow its opening."""
        return []

    def last(self) -> list[tuple[str, dict[str, Any]]]:
        """The events that close it."""
        if not self._custom:
            done = {"name": self._fields["name"], "arguments": "".join(self.texts)}
            return [("response.function_call_arguments.done", self._place | done)]
        text = text_of("".join(self.texts))
        kind = "response.custom_tool_call_input"
        return [
            (f"{kind}.delta", self._place | {"delta": text}),
            (f"{kind}.done", self._place | {"input": text}),
        ]

    def told(self, status: str = "incomplete") -> dict[str, Any]:
        """The item as it is."""
        arguments = "".join(self.texts)
        told = {"input": text_of(arguments)} if self._custom else {"arguments": arguments}
        return self.opening() | told | {"status": status}


def _thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def _summary(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}
