"""
The answer of a response: events in, numbered server-sent events and the response object out.

1. Items follow one another: one is closed before the next is opened, whatever order a model's server writes in. What comes between the
   pieces of a tool call waits until the call is whole.
2. Ids are made once: an item has the same one when it is opened, when it is closed, and in the response at the end.
3. The last event is `response.completed` or `response.incomplete`; of a broken answer it is `response.failed`. It is made by `end` and `error`,
   so that an answer can be stored before its end is sent.
4. What a local model thinks is its own text: it is sent as `reasoning_text`, and as one summary, too, where one was asked for, since some
   clients show nothing else.

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

import time
from typing import Any, TypeAlias

from msgspec import Struct

from unilect.core.errors import ContextLengthExceeded, InvalidRequest, RateLimited, UnilectError
from unilect.core.events import (
    Answer,
    Event,
    Finish,
    Opaque,
    Progress,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from unilect.dialects.openai.chunks import chat_logprobs, encode_json, encode_lines
from unilect.dialects.responses._output_items import (
    CallItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    event_of,
    fields_of,
)
from unilect.dialects.responses._tools import CalledAs
from unilect.store.records import Item
from unilect.web.param_locations import AS_SENT, ParamLocations

_END = b"}\n\n"
_NUMBERS = [b'%d,"delta":' % number for number in range(4096)]
_WHOLE = b'event: %b\ndata: {"type":"%b","sequence_number":%d,"response":'
_BODY = (
    b'{"id":%b,"object":"response","created_at":%d,"completed_at":%b,"status":"%b","error":%b,'
    b'"incomplete_details":%b,'
)
_Piece: TypeAlias = TextDelta | ReasoningDelta | RefusalDelta | ToolCallDelta
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseOptions(Struct, frozen=True):
    """
    The form of an answer.

    Attributes:
        fields: The fields of the request that the response object repeats.
        names: The client's names of functions, by ours.
        summary: Thoughts are sent as a summary, too.
        encrypted: Reasoning items carry their text for clients that keep nothing else.
        logprobs: Log probabilities are sent.
        places: Where the parts of the request stand in the client's body, for errors.
    """

    fields: dict[str, Any]
    names: dict[str, CalledAs]
    summary: bool = False
    encrypted: bool = False
    logprobs: bool = False
    places: ParamLocations = AS_SENT


class ResponseEncoder:
    """
    The words of one response.

    Args:
        id: The response's id.
        options: Its form.
        status: `queued` for one that waits for its model.

    Attributes:
        id: As given.
        status: `queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.
        items: The items that are closed, as they are sent and stored; in the end all.
        usage: What was used, once it is known.
    """

    def __init__(self, id: str, options: ResponseOptions, status: str = "in_progress") -> None:
        self.id = id
        self.status = status
        self.items: list[Item] = []
        self.usage: Usage | None = None
        self._options = options
        self._number = 0
        self._created = time.time()
        self._ended: float | None = None
        self._reason: str | None = None
        self._error: dict[str, Any] | None = None
        self._repeated: bytes | None = None
        self._body: bytes | None = None
        self._begun = False
        self._streams = True  # else nothing is sent before the end
        self._frames: list[bytes] = []  # what was emitted, and not yet taken
        self._item: OutputItem | None = None
        self._waiting: list[_Piece] = []  # what comes between the pieces of a call

    def encode(self, batch: list[Event]) -> bytes:
        """Return the events for a batch."""
        if not self._begun:
            self._begin()
        texts: list[str] = []
        message = self._current_message()
        for event in batch:
            if type(event) is TextDelta and message is not None and event.logprobs is None:
                texts.append(event.text)
                continue
            if message is not None and texts:
                self._emit_texts(message, texts)
                texts = []
            self._take(event)
            message = self._current_message()
        if message is not None and texts:
            self._emit_texts(message, texts)
        return self._take_frames()

    def _current_message(self) -> MessageItem | None:
        """Return the message whose text is being sent, if it is one."""
        item = self._item
        return item if isinstance(item, MessageItem) and item.is_text else None

    def _emit_texts(self, item: MessageItem, texts: list[str]) -> None:
        """Emit pieces of a text, which are encoded in one call; no JSON text has a line end in it."""
        item.texts += texts
        [head], lines = item.heads, encode_lines(texts).splitlines()
        count = len(texts)
        pieces = [_END + head, b"", b""] * count
        pieces[0] = head
        pieces[1::3] = _numbers(self._number, count)
        pieces[2::3] = lines
        self._number += count
        self._frames += pieces
        self._frames.append(_END)

    def take_in(self, batch: list[Event]) -> None:
        """Take a batch of an answer of which nothing is sent before its end."""
        self._begun, self._streams = True, False
        for event in batch:
            self._take(event)

    def keep_alive(self) -> bytes:
        """Return an event of the API, with its number: a comment does not reset the timers of its clients."""
        if self.usage is not None:  # its end is encoded, and may wait for the store
            return b""
        if self.status != "queued":
            self._begin()
        self._emit([event_of("keepalive", self._number)])
        return self._take_frames()

    def end(self) -> bytes:
        """Return the last event."""
        self._begin()
        self.close()
        # the API has no event for a cancelled response, and one that breaks off early is what it is
        self._emit_response(
            "incomplete" if self.status == "cancelled" else self.status, [self.body()]
        )
        return self._take_frames()

    def whole(self, answer: Answer, ignored: tuple[str, ...]) -> bytes:
        """Return the response object, once all batches have been taken in."""
        return self.body()

    def close(self) -> None:
        """End an answer that is whole."""
        if self.status in ("in_progress", "queued"):
            self._end("completed" if self._reason is None else "incomplete")

    def error(self, error: UnilectError) -> bytes:
        """Return the event that ends a broken answer."""
        self._begin()
        self.fail(error)
        self._emit_response("failed", [self.body()])
        return self._take_frames()

    def fail(self, error: UnilectError) -> None:
        """End an answer that has broken off."""
        self._error = {"code": _code(error), "message": self._options.places.rename(error).message}
        self._end("failed")

    def replace_end(self, error: UnilectError) -> bytes:
        """Encode another last event: the one before could not be stored, and was sent to nobody."""
        self._number -= 1
        self.fail(error)
        return self.end()

    def cancel(self) -> None:
        """End an answer that is not wanted any more."""
        self._end("cancelled")

    def _end(self, status: str) -> None:
        """End the answer: what is open stays as it is."""
        self.status, self._ended, self._body = status, time.time(), None
        if self._item is not None:
            self.items.append(Item(self._item.id, self._item.encode("incomplete")))
            self._item = None

    def body(self) -> bytes:
        """Return the response object as it is now."""
        if self._body is not None:
            return self._body
        body = b"".join(self._pieces())
        if self._ended is not None:  # it is stored, and sent once more
            self._body = body
        return body

    def _pieces(self) -> list[bytes]:
        """Return the response object in pieces, of which what the request said may have megabytes."""
        is_complete, is_cut = self.status == "completed", self.status == "incomplete"
        first = _BODY % (
            encode_json(self.id),
            self._created,
            b"%d" % self._ended if self._ended and is_complete else b"null",
            self.status.encode(),
            b"null" if self._error is None else encode_json(self._error),
            encode_json({"reason": self._reason}) if is_cut else b"null",
        )
        usage = b"null" if self.usage is None else encode_json(usage_object(self.usage))
        items = b",".join([item.body for item in self.items])
        return [first, self.encode_request_fields(), b'"output":[%b],"usage":%b}' % (items, usage)]

    def encode_request_fields(self) -> bytes:
        """Encode the fields of the request that every event with the response repeats; done once."""
        if self._repeated is None:
            repeated = encode_json(self._options.fields)[1:-1]
            self._repeated = repeated + b"," if repeated else b""
        return self._repeated

    def wait(self) -> bytes:
        """Encode the first events of a response that waits for its model."""
        pieces = self._pieces()
        for kind in ("created", "queued"):
            self._emit_response(kind, pieces)
        return self._take_frames()

    def _begin(self) -> None:
        """Emit the first events, once."""
        if self._begun:
            return
        self._begun = True
        if self.status == "queued":
            self.status = "in_progress"
        pieces = self._pieces()
        if not self._number:
            self._emit_response("created", pieces)
        if self._error is None and self.status != "cancelled":  # else it was never made
            self._emit_response("in_progress", pieces)

    def _take(self, event: Event) -> None:
        """Add an event to its item, or keep it while a call is open that has to be whole first."""
        if isinstance(event, Usage):
            self.usage = event
        elif isinstance(event, Finish):
            self._finish(event)
        elif isinstance(event, Progress | Opaque) or event.index != 0:
            return
        elif isinstance(self._item, CallItem) and not self._item.goes_on(event):
            self._waiting.append(event)
        else:
            self._add(event)

    def _finish(self, event: Finish) -> None:
        self._reason = _INCOMPLETE.get(event.reason)
        if self._item is None and not self.items:  # clients look into the last item for the text
            self._open(MessageItem(self.id, 0, is_text=True))
        self._close_item()
        waiting, self._waiting = _call_by_call(self._waiting), []
        for pieces in waiting:
            for piece in pieces:
                self._add(piece)
            if isinstance(pieces[0], ToolCallDelta):
                self._close_item()
        self._close_item()

    def _add(self, event: _Piece) -> None:
        """Add a piece to its item, which is opened with its first."""
        text = event.arguments if isinstance(event, ToolCallDelta) else event.text
        logprobs = event.logprobs if isinstance(event, TextDelta) else None
        if not text and not logprobs and isinstance(event, TextDelta | ReasoningDelta):
            return
        item = self._item
        if item is None or not item.goes_on(event):
            self._close_item()
            item = self._open(self._item_of(event))
        if isinstance(item, MessageItem) and logprobs and self._options.logprobs:
            item.texts.append(text)
            entries = chat_logprobs(logprobs)["content"]
            item.logprobs += entries
            if self._streams:
                fields = item.place + fields_of(delta=text, logprobs=entries)
                self._emit([event_of("response.output_text.delta", self._number, fields)])
        elif text or isinstance(item, MessageItem):
            item.texts.append(text)
            for head in item.heads if self._streams else ():
                self._emit_delta(head, encode_json(text))

    def _item_of(self, event: _Piece) -> OutputItem:
        """Return a new item, which begins with a piece."""
        options, index = self._options, len(self.items)
        if isinstance(event, ReasoningDelta):
            return ReasoningItem(self.id, index, options.summary, options.encrypted)
        if isinstance(event, ToolCallDelta):
            name = event.name or ""
            called = options.names.get(name) or CalledAs("function", name)
            return CallItem(self.id, index, event.call, event.id, called)
        return MessageItem(self.id, index, isinstance(event, TextDelta))

    def _open(self, item: OutputItem) -> OutputItem:
        self._item = item
        if self._streams:
            self._emit(item.encode_start(self._number))
        return item

    def _close_item(self) -> None:
        item, self._item = self._item, None
        if item is None:
            return
        status = "completed" if self._reason is None else "incomplete"
        if self._streams:
            encoded, events = item.encode_end(self._number, status)
            self._emit(events)
        else:
            encoded = item.encode(status)
        self.items.append(Item(item.id, encoded))

    def _emit_response(self, kind: str, pieces: list[bytes]) -> None:
        """Emit an event with the response, which is copied once."""
        name = b"response." + kind.encode()
        self._emit([b"".join([_WHOLE % (name, name, self._number), *pieces, _END])])

    def _emit_delta(self, head: bytes, text: bytes) -> None:
        """Emit an event whose fields but its number and its text are encoded already."""
        self._emit([b'%b%d,"delta":%b}\n\n' % (head, self._number, text)])

    def _emit(self, events: list[bytes]) -> None:
        """Emit events, which are numbered."""
        self._number += len(events)
        self._frames += events

    def _take_frames(self) -> bytes:
        """Return all that was emitted since."""
        data = b"".join(self._frames)
        self._frames.clear()
        return data


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the `usage` of a response; agents decide by it when to shorten their history."""
    thought = usage.reasoning_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens or 0,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": None if thought is None else {"reasoning_tokens": thought},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _numbers(first: int, count: int) -> list[bytes]:
    """Return numbers that follow one another, as they stand before a text; those of most answers are at hand."""
    if first + count <= len(_NUMBERS):
        return _NUMBERS[first : first + count]
    return [b'%d,"delta":' % number for number in range(first, first + count)]


def _code(error: UnilectError) -> str:
    """Return the code of a failed response; only some are known to its clients."""
    if isinstance(error, ContextLengthExceeded):
        return "context_length_exceeded"
    if isinstance(error, RateLimited):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidRequest) else "server_error"


def _call_by_call(events: list[_Piece]) -> list[list[_Piece]]:
    """Return events one by one in their order, but for the pieces of a call, which stand together where its first one does."""
    found: list[list[_Piece]] = []
    calls: dict[int, list[_Piece]] = {}
    for event in events:
        if isinstance(event, ToolCallDelta) and event.call in calls:
            calls[event.call].append(event)
            continue
        found.append([event])
        if isinstance(event, ToolCallDelta):
            calls[event.call] = found[-1]
    return found
