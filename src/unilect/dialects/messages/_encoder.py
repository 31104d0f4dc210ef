"""
Answers of the Messages API: a message, or its stream of blocks.

Rules that the official clients need (measured): an `event:` line and a `type` in the data of every event, blocks one after the other
with numbers from 0 without a gap, no empty block, `usage` in the first and the last event, and a `message_stop` only where nothing is
missing.

Source: https://platform.claude.com/docs/en/build-with-claude/streaming
"""

import random
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from unilect.core.errors import BackendError, UnilectError
from unilect.core.events import (
    ENDED,
    Answer,
    Event,
    Finish,
    Progress,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from unilect.dialects.calls import parse_calls
from unilect.dialects.messages._conversation import sign_thought
from unilect.dialects.messages._errors import envelope
from unilect.dialects.openai.chunks import encode_json, encode_lines, unilect_field
from unilect.web.param_locations import AS_SENT, ParamLocations

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_random = random.Random()  # seeded by the system; ids must be unique, and guard nothing
_TEXT, _THOUGHT, _NO_BLOCK = -1, -2, -3  # keys of blocks; that of a call is its number
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_TAIL = b"}}\n\n"
_SIGNATURE = "unilect"  # clients require one; it says nothing
_REASONS = {"length": "max_tokens", "content_filter": "refusal"}
_Piece: TypeAlias = TextDelta | RefusalDelta | ReasoningDelta | ToolCallDelta


class MessageEncoder:
    """
    The words of one message.

    Args:
        model: The model's name, as the answer gives it.
        stop_words: The client's own.
        limit: The most tokens that it asked for; None for as many as fit.
        omits_thoughts: The text of thoughts goes into their signature.
        places: Where the parts of the request stand in the client's body, for errors.
    """

    def __init__(
        self,
        model: str,
        stop_words: Sequence[str] = (),
        limit: int | None = None,
        omits_thoughts: bool = False,
        places: ParamLocations = AS_SENT,
    ) -> None:
        self._id = f"msg_{_random.getrandbits(96):024x}"
        self._model = model
        self._stop_words = frozenset(stop_words)
        self._limit = limit
        self._omits = omits_thoughts
        self._places = places
        self._usage = Usage(0, 0)
        self._finish: Finish | None = None
        self._begun = False
        self._number = -1  # of the last block
        self._key = _NO_BLOCK  # of the open block
        self._head = b""  # of a delta of the open block
        self._thoughts: list[str] = []
        self._arguments: list[str] = []
        self._size = 0  # characters of the open call's arguments
        self._tried = 0  # the same when they were last seen to be incomplete
        self._held: dict[int, list[_Piece]] = {}
        self._calls: set[int] = set()
        self._is_cut = False  # a call that was told, or would be, has no end

    def encode(self, batch: list[Event]) -> bytes:
        """Return the events for a batch."""
        frames: list[bytes] = []
        texts: list[str] = []
        for event in batch:
            if type(event) is TextDelta and self._key == _TEXT:
                if event.text:
                    texts.append(event.text)
                continue
            if texts:
                frames.append(self._text_frames(texts))
                texts.clear()
            self._encode_other(event, frames)
        if texts:
            frames.append(self._text_frames(texts))
        return b"".join(frames)

    def _text_frames(self, texts: list[str]) -> bytes:
        """Return the events of texts of the open block, encoded in one call; no JSON text has a line end in it."""
        head = self._head
        return head + encode_lines(texts)[:-1].replace(b"\n", _TAIL + head) + _TAIL

    def keep_alive(self) -> bytes:
        """Return a ping, which may come before the message's start."""
        return _PING

    def end(self) -> bytes:
        """Return the end of the message, with its usage."""
        frames: list[bytes] = []
        self._finish_blocks(frames)
        finish = self._finish or Finish("stop")
        reason, word = self._stop(finish.reason, finish.stop, bool(self._calls))
        delta = {"stop_reason": reason, "stop_sequence": word}
        usage = _usage(self._usage)
        frames += (_event("message_delta", {"delta": delta, "usage": usage}), _STOP)
        return b"".join(frames)

    def error(self, error: UnilectError) -> bytes:
        """Return the event that ends a broken message."""
        return b"event: error\ndata: " + encode_json(envelope(self._places.rename(error))) + b"\n\n"

    def whole(self, answer: Answer, ignored: tuple[str, ...]) -> bytes:
        """Return the body of a whole message."""
        choice = answer.choices[0]
        content: list[dict[str, Any]] = []
        if choice.reasoning:
            content.append(self._thinking_block(choice.reasoning))
        if text := (choice.text or "") + (choice.refusal or ""):
            content.append({"type": "text", "text": text})
        calls = parse_calls(choice, self._stop_words)
        self._is_cut = len(calls) < len(
            choice.tool_calls
        )  # the stop reason says that something is missing
        content += [_tool_use(call.id, call.name, arguments) for call, arguments in calls]
        self._usage = answer.usage
        reason, word = self._stop(
            choice.finish_reason or "stop", choice.stop, bool(choice.tool_calls)
        )
        body = self._message(content) | {"stop_reason": reason, "stop_sequence": word}
        return encode_json(body | unilect_field(ignored))

    def _encode_other(self, event: Event, frames: list[bytes]) -> None:
        match event:
            case Progress(_, total, cached):
                self._usage = Usage(total, 0, cached)
            case Usage():
                self._usage = event
            case Finish(_, 0):
                self._finish = event
                self._finish_blocks(frames)
            case TextDelta(text, 0) | RefusalDelta(text, 0) if text:
                self._take(_TEXT, event, frames)
            case ReasoningDelta(text, 0) if text:
                self._take(_THOUGHT, event, frames)
            case ToolCallDelta(call, index=0):
                self._take(call, event, frames)

    def _take(self, key: int, piece: _Piece, frames: list[bytes]) -> None:
        """
        Send a piece of a block. While a call is not complete, pieces of other blocks are held back: blocks must not interleave.

        Raises:
            BackendError: It continues a call that was complete.
        """
        self._begin(frames)
        while key != self._key:
            if isinstance(piece, ToolCallDelta) and key in self._calls:
                if piece.arguments.strip():
                    raise BackendError("The model's server continued a tool call after its end.")
                return
            if self._key >= 0 and not self._is_complete():
                self._held.setdefault(key, []).append(piece)
                return
            self._close(frames)
            if self._held:
                self._open_held(frames)
            else:
                self._open(key, piece, frames)
        self._delta(piece, frames)

    def _finish_blocks(self, frames: list[bytes]) -> None:
        """Send all that was held back, and end the last block."""
        self._begin(frames)
        self._close(frames)
        while self._held:
            self._open_held(frames)
            self._close(frames)

    def _begin(self, frames: list[bytes]) -> None:
        if not self._begun:
            self._begun = True
            frames.append(_event("message_start", {"message": self._message([])}))

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._usage),
        }

    def _open_held(self, frames: list[bytes]) -> None:
        """Begin the block that was held back first, with all of it that has come."""
        key = next(iter(self._held))
        pieces = self._held.pop(key)
        self._open(key, pieces[0], frames)
        for piece in pieces:
            self._delta(piece, frames)

    def _open(self, key: int, piece: _Piece, frames: list[bytes]) -> None:
        """Begin a block."""
        self._key = key
        self._number += 1
        if isinstance(piece, ToolCallDelta):
            self._calls.add(key)
            self._arguments.clear()
            self._size = self._tried = 0
            block, kind = _tool_use(piece.id, piece.name, {}), b'input_json_delta","partial_json":'
        elif key == _TEXT:
            block, kind = {"type": "text", "text": ""}, b'text_delta","text":'
        else:
            self._thoughts.clear()
            block = {"type": "thinking", "thinking": "", "signature": ""}
            kind = b'thinking_delta","thinking":'
        number = {"index": self._number, "content_block": block}
        frames.append(_event("content_block_start", number))
        self._head = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"'
            % self._number
        ) + kind

    def _delta(self, piece: _Piece, frames: list[bytes]) -> None:
        """Send a piece of the open block."""
        text = piece.arguments if isinstance(piece, ToolCallDelta) else piece.text
        if isinstance(piece, ToolCallDelta):
            self._arguments.append(text)
            self._size += len(text)
        elif self._key == _THOUGHT and self._omits:
            self._thoughts.append(text)
            return
        if text:
            frames += (self._head, encode_json(text), _TAIL)

    def _close(self, frames: list[bytes]) -> None:
        """End the open block, if there is one."""
        if self._key == _NO_BLOCK:
            return
        if self._key == _THOUGHT:
            signature = self._thinking_block("".join(self._thoughts))["signature"]
            delta = {"type": "signature_delta", "signature": signature}
            frames.append(_event("content_block_delta", {"index": self._number, "delta": delta}))
        elif self._key >= 0 and self._size:
            self._tried = 0
            self._is_cut |= not self._is_complete()
        self._key = _NO_BLOCK
        frames.append(_event("content_block_stop", {"index": self._number}))

    def _is_complete(self) -> bool:
        """
        Return True if the open call's arguments are an object. They are parsed again only at twice their length, so that all attempts
        together are linear.
        """
        if self._size < 2 * self._tried:
            return False
        try:
            _decode_object("".join(self._arguments))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self._tried = self._size
            return False
        return True

    def _thinking_block(self, text: str) -> dict[str, Any]:
        if self._omits:
            return {"type": "thinking", "thinking": "", "signature": sign_thought(text)}
        return {"type": "thinking", "thinking": text, "signature": _SIGNATURE}

    def _stop(self, reason: str, word: str | None, has_calls: bool) -> tuple[str, str | None]:
        """Return the reason for which a message ended, and the client's stop word where it was one."""
        is_word = reason in ENDED and word in self._stop_words
        if has_calls and reason in ENDED and not (is_word and self._is_cut):
            return "tool_use", None
        if is_word:
            return "stop_sequence", word
        used = self._usage.completion_tokens
        if reason == "length" and used and (self._limit is None or used < self._limit):
            return "model_context_window_exceeded", None
        return _REASONS.get(reason, "end_turn"), None


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode_json({"type": name} | fields))


def _usage(usage: Usage) -> dict[str, Any]:
    """Return Anthropic's `usage`, whose `input_tokens` are those that were not in the cache; details where the model has thought."""
    cached = min(usage.cached_tokens or 0, usage.prompt_tokens)
    thought = usage.reasoning_tokens
    details = {"output_tokens_details": {"thinking_tokens": thought}} if thought else {}
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
        **details,
    }


def _tool_use(id: str | None, name: str | None, input: dict[str, Any]) -> dict[str, Any]:
    id = id or f"toolu_{_random.getrandbits(96):024x}"
    return {"type": "tool_use", "id": id, "name": name or "", "input": input}
