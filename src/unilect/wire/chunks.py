"""
OpenAI's stream format: the data of one frame in, events out. The only decoder of this format.

A chunk is first decoded into Structs that forbid unknown fields, which costs half of decoding a dict. If that fails, the
slow path decodes the known fields, keeps the others as `extra`, and normalizes the deviations of real servers.

Source: https://platform.openai.com/docs/api-reference/chat-streaming
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from unilect.api.parameters.support import names
from unilect.core.errors import BackendError
from unilect.core.events import (
    Event,
    Extra,
    Finish,
    FinishReason,
    Opaque,
    Progress,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from unilect.http.error_bodies import parse_error
from unilect.wire.errors import cut, invalid
from unilect.wire.normalize import NO_REASON, normalize_chunk, plain_json, without_nulls
from unilect.wire.repeated import RepeatedFrames
from unilect.wire.tool_calls import Call, Calls
from unilect.wire.words import (
    BESIDE,
    Choice,
    Chunk,
    Delta,
    FunctionDelta,
    Logprobs,
    ToolDelta,
    UsageField,
    Whole,
)

DONE = b"[DONE]"
_MANY_FRAMES = 8  # of one read; fewer are decoded as quickly one by one
_PATTERN_FRAMES = 3  # the role, an empty text, and then surely one that has some


_KNOWN: dict[type[Struct], frozenset[str]] = {
    level: frozenset(field.encode_name for field in msgspec.structs.fields(level)) - BESIDE
    for level in (Chunk, Choice, Delta)
}
#: Finish reasons that servers say and OpenAI does not know; any other means "stop".
_REASON_WORDS: dict[FinishReason, str] = {
    "length": "length max_tokens model_length max_length",
    "tool_calls": "tool_calls tool_call tool_use function_call",  # `functions` became `tools`; the dialect tells it back
    "content_filter": "content_filter safety sensitive",
}
_REASONS = {word: reason for reason, words in _REASON_WORDS.items() for word in words.split()}
#: Finish reasons of an answer that a server did not finish.
_BROKEN = names(
    "error abort aborted cancelled canceled failed network_error insufficient_system_resource"
)


class ChunkDecoder:
    """
    Decodes the chunks of one stream; its state is the tool calls that have begun and the choices that have finished.

    Args:
        joined: Join the texts of frames that differ only in their text: for a non-streaming answer.
        choices: The number of requested choices.

    Attributes:
        joined: As given.
        done: `[DONE]` has arrived.
        finished: `[DONE]` has arrived, or all requested choices have a finish reason behind their words, and no text came after one.
    """

    def __init__(self, joined: bool = False, choices: int = 1) -> None:
        self.joined = joined
        self.done = self.finished = False
        self._requested = choices
        self._repeated = RepeatedFrames()
        self._begun: set[int] = set()
        self._spoke: set[int] = set()  # choices with words in a chunk before
        # with a finish reason in that of their first words: some servers say one in every chunk
        self._unsure: set[int] = set()
        # kept until `end`: some servers send one with every chunk, or send text after it
        self._finishes: dict[int, Finish] = {}
        self._words: dict[int, str] = {}
        self._usage: Usage | None = None
        self._calls: dict[int, Calls] = {}
        self._has_fingerprint = self._goes_on = self._whole = False

    def decode(self, frames: list[bytes], into: list[Event]) -> None:
        """
        Append the events of frames. All are decoded in one call, and one by one only if that fails.

        Raises:
            UnilectError: A frame is an error, or not a chunk. The events before it have been appended.
        """
        ended, before = list(self._finishes), len(into)
        if len(frames) == 1 and not ended and (text := self._repeated.text(frames[0])):
            into.append(TextDelta(text))
            return
        if len(frames) >= _MANY_FRAMES:
            frames = self._alike_texts(frames, into)
        self._decode(frames, into)
        self._note_end(ended, into, before)

    def plain_text(self, block: bytes) -> str | None:
        """
        Return the text of a block of the stream that differs only in its text from those before; None for any other.

        Such a block changes nothing here, and may be left out of what is decoded.
        """
        if self._finishes or block[:6] != b"data: " or block[-2:] != b"\n\n":
            return None
        return self._repeated.text(block[6:-2]) or None

    def decode_whole(self, body: bytes, into: list[Event]) -> bool:
        """Append the events of a whole answer without anything unusual; false where it is no such answer, and nothing was appended."""
        try:
            chunk = _fast_whole(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        self._chunk(chunk, chunk.extras(), into)
        self.done = self.finished = self._whole = True
        return True

    def _decode(self, frames: list[bytes], into: list[Event]) -> None:
        """Append the events of frames, each by itself."""
        if DONE in frames:  # it may not be the last, or be said twice
            self.done, frames = True, [frame for frame in frames if frame != DONE]
        for frame, chunk in zip(frames, self._fast_chunks(frames, into), strict=False):
            if (text := self._plain_text(chunk)) is None:
                self._chunk(chunk, chunk.extras(), into)
            else:
                into.append(TextDelta(text))
                self._spoke.add(0)
                if self._repeated.serves:
                    self._repeated.learn(frame)

    def _note_end(self, ended: list[int], events: list[Event], at: int) -> None:
        """
        Know whether the answer is whole, and a server whose finish reasons say nothing: it goes on with choices that had `ended`, in the events
        from `at`.
        """
        for event in events[at:] if ended else ():
            if isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta) and event.index in ended:  # fmt: skip
                self._goes_on = True
        all_asked = len(self._finishes) >= self._requested
        self._whole = self.done or (all_asked and self._finishes.keys() >= self._begun)
        self.finished = self.done or (self._whole and not (self._goes_on or self._unsure))

    def _fast_chunks(self, frames: list[bytes], into: list[Event]) -> list[Chunk]:
        """Return the chunks of all frames; none where that fails, after the events of each were appended."""
        try:
            chunks = _fast(b"[" + b",".join(frames) + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            chunks = []
        if len(chunks) == len(frames):  # else one held several, or a part of one
            return chunks
        for frame in frames:
            self._chunk(*self._decode_one(frame), into)
        return []

    def _alike_texts(self, frames: list[bytes], into: list[Event]) -> list[bytes]:
        """Append the texts of frames that differ only in their text; returns the frames after them."""
        texts = self._repeated.texts(frames)
        if not texts:  # the pattern is not known yet, or its time is over
            self._decode(frames[:_PATTERN_FRAMES], into)
            frames = frames[_PATTERN_FRAMES:]
            texts = self._repeated.texts(frames)
        if self.joined and texts:
            into.append(TextDelta("".join(texts), tokens=len(texts)))
        else:
            into.extend(map(TextDelta, filter(None, texts)))
        return frames[len(texts) :]

    def _plain_text(self, chunk: Chunk) -> str | None:
        """Return the text of a chunk that has only text for choice 0, as nearly all have; else None."""
        if len(chunk.choices) != 1 or chunk.usage is not None:
            return None
        if chunk.timings is not None or chunk.verbose is not None:
            return None
        choice = chunk.choices[0]
        delta = choice.delta
        if delta is None or not delta.content or 0 not in self._begun:
            return None
        if chunk.system_fingerprint is not None and not self._has_fingerprint:
            return None
        is_plain = choice == Choice(0, Delta(delta.role, delta.content))
        return delta.content if is_plain else None

    def _chunk(self, chunk: Chunk, extras: Sequence[Extra | None], into: list[Event]) -> None:
        if chunk.prompt_progress is not None:
            into.append(chunk.prompt_progress.event)
            return  # its choices are empty, and nothing has begun
        if chunk.system_fingerprint is not None and not self._has_fingerprint:
            self._has_fingerprint = True
            fields = {"system_fingerprint": chunk.system_fingerprint}
            if chunk.service_tier is not None:
                fields["service_tier"] = chunk.service_tier
            into.append(Opaque(Extra(fields)))
        used, first = chunk.usage, chunk.choices[:1]
        if used is not None and self._usage is None and first and not first[0].finish_reason:
            into.append(Progress(used.prompt_tokens, used.prompt_tokens))
        if not chunk.choices and extras:
            into.append(Opaque(extras[0] or Extra(), None))
        for position, choice in enumerate(chunk.choices):
            self._choice(choice, extras[position] if extras else None, into)
        if used is not None:
            # Some servers send it with the last choice, some as a running count with every chunk: the last one counts.
            self._usage = _usage(used)

    def end(self) -> list[Event]:
        """
        Return the last events of a stream whose bytes have ended.

        An answer without `[DONE]` and without a finish reason for each choice was cut, and is never reported as finished.

        Raises:
            BackendError: The answer was cut.
        """
        if not self._whole:
            raise cut()
        if not self._begun and self._usage is None:
            raise cut("had begun")
        events: list[Event] = []
        for index in sorted(self._begun or {0}):
            calls = self._calls.get(index)
            finish = self._finishes.get(index, Finish("stop", index))
            for call in calls.nameless() if calls else ():
                events.append(_first_piece(call, "".join(call.pieces), index, None))
            for call in calls.empty() if calls and finish.reason != "length" else ():
                events.append(ToolCallDelta(call.number, "{}", index=index))
            if calls and finish.reason == "stop":
                finish = msgspec.structs.replace(finish, reason="tool_calls")
            events.append(finish)
        events.append(self._usage or Usage(0, 0))
        return events

    def _choice(self, choice: Choice, extra: Extra | None, into: list[Event]) -> None:
        index, logprobs = choice.index, _logprobs(choice.logprobs)
        delta = choice.delta
        self._begun.add(index)
        before = len(into)
        if delta is None:
            if choice.text or logprobs:
                into.append(TextDelta(choice.text or "", index, logprobs))
        else:
            if reasoning := (delta.reasoning_content or delta.reasoning):
                into.append(ReasoningDelta(reasoning, index))
            if delta.content or logprobs or (delta.content is not None and extra is not None):
                into.append(TextDelta(delta.content or "", index, logprobs, extra))
                extra = None
            if delta.refusal:
                into.append(RefusalDelta(delta.refusal, index))
            if delta.tool_calls is not None or delta.function_call is not None:
                extra = self._tool_calls(delta, extra, index, into)
        if choice.stop:
            self._words[index] = choice.stop
        if choice.finish_reason:
            extra = self._finish(choice.finish_reason, index, extra)
        if len(into) > before:
            self._spoke.add(index)
        if extra is not None:
            into.append(Opaque(extra, index))

    def _tool_calls(
        self, delta: Delta, extra: Extra | None, index: int, into: list[Event]
    ) -> Extra | None:
        """Return the events of a delta's tool calls, and its remaining unknown fields."""
        calls = self._calls.setdefault(index, Calls())
        entries = delta.tool_calls or []
        if delta.function_call is not None:
            entries = [*entries, ToolDelta(0, function=delta.function_call)]
        apart = False
        for entry in entries:
            function = entry.function or FunctionDelta()
            arguments = function.arguments or ""
            found = calls.assign_delta(
                entry.index, entry.id or "", function.name or "", arguments, apart
            )
            apart = entry.index is None
            own = Extra(call=entry.extra) if entry.extra else None
            if own is not None and extra is not None:
                own, extra = Extra(extra.chunk, extra.choice, extra.delta, entry.extra), None
            if found is None:
                if own is not None:
                    into.append(Opaque(own, index))
            elif found[0].is_sent:
                into.append(ToolCallDelta(found[0].number, found[1], index=index, extra=own))
            else:
                into.append(_first_piece(*found, index, own))
        return extra

    def _finish(self, reason: str, index: int, extra: Extra | None) -> Extra | None:
        """Keep the finish reason of a choice: the first, or one that is more specific than "stop"."""
        reason = reason.lower()
        if reason in NO_REASON:
            return extra
        if index not in self._spoke:
            self._unsure.add(index)
        if reason in _BROKEN:
            raise BackendError(
                f"The model's server aborted its answer ({reason}). Send the request again."
            )
        finish = Finish(_REASONS.get(reason, "stop"), index, extra, self._words.get(index))
        known = self._finishes.get(index)
        if known is None or (known.reason == "stop" and finish.reason != "stop"):
            if known is not None and extra is None:
                finish = msgspec.structs.replace(finish, extra=known.extra)
            self._finishes[index] = finish
            return None
        return extra

    def _decode_one(self, data: bytes) -> tuple[Chunk, Sequence[Extra | None]]:
        """Decode one frame by the slow path."""
        try:
            chunk = _fast_one(data)
            return chunk, chunk.extras()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._slow(data)

    def _slow(self, data: bytes) -> tuple[Chunk, list[Extra | None]]:
        if not data.strip():  # as it may keep a connection open
            return Chunk(), []
        raw = plain_json(data)
        if (error := parse_error(raw)) is not None:
            raise error
        if raw is None:
            return Chunk(), []  # llama-server sends it between the answers to several prompts
        if not isinstance(raw, dict):
            raise invalid("a frame that is not a chunk")
        known, chunk_extra = _split(normalize_chunk(raw), Chunk)
        parts = [_split_choice(choice) for choice in _list(known.get("choices"))]
        extras = [extra for _, extra in parts]
        known["choices"] = [choice for choice, _ in parts]
        try:
            chunk = msgspec.convert(known, Chunk, strict=False)
        except msgspec.ValidationError as error:
            raise invalid("a frame that is not a chunk") from error
        if chunk_extra:
            if not chunk.choices:
                return chunk, [Extra(chunk_extra)]
            old = extras[0] or Extra()
            extras[0] = Extra(chunk_extra, old.choice, old.delta)
        return chunk, extras


def _first_piece(call: Call, arguments: str, index: int, extra: Extra | None) -> ToolCallDelta:
    """Return the first piece of a call that a client gets."""
    call.is_sent = True
    id = call.id or f"call_{call.number}"
    return ToolCallDelta(call.number, arguments, id, call.name, index, extra)


_fast = msgspec.json.Decoder(list[Chunk]).decode
_fast_one = msgspec.json.Decoder(Chunk).decode
_fast_whole = msgspec.json.Decoder(Whole).decode


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | None):
        raise invalid("`choices` that is not a list")
    return value or []


def _split(fields: dict[str, Any], kind: type[Struct]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part the fields that a type has from others, of which those that are null say nothing."""
    known = {name: value for name, value in fields.items() if name in _KNOWN[kind]}
    others = {name: value for name, value in fields.items() if name not in known}
    return known, without_nulls(others)


def _split_choice(choice: Any) -> tuple[dict[str, Any], Extra | None]:
    """Part a choice's known fields from its unknown ones."""
    if not isinstance(choice, dict):
        raise invalid("a choice that is not an object")
    known, choice_extra = _split(choice, Choice)
    delta_extra: dict[str, Any] = {}
    try:
        msgspec.convert(known.get("logprobs"), Logprobs | None, strict=False)
    except msgspec.ValidationError:  # of an unknown format, which is passed on unchanged
        choice_extra["logprobs"] = known.pop("logprobs")
    if isinstance(delta := known.get("delta"), dict):
        known["delta"], delta_extra = _split(delta, Delta)
    if choice_extra or delta_extra:
        return known, Extra({}, choice_extra, delta_extra)
    return known, None


def _usage(usage: UsageField) -> Usage:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        usage.prompt_tokens,
        usage.completion_tokens or max(0, usage.total_tokens - usage.prompt_tokens),
        prompt.cached_tokens if prompt else None,
        (completion.reasoning_tokens if completion else None) or 0,
        counters=usage.extra,
    )


def _logprobs(logprobs: Logprobs | None) -> list[TokenLogprob] | None:
    """Either format as a list of tokens; in completions the first token may have no value."""
    if logprobs is None:
        return None
    if logprobs.content is not None or logprobs.tokens is None:
        return logprobs.content
    values = logprobs.token_logprobs or [None] * len(logprobs.tokens)
    tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    return [
        TokenLogprob(
            token,
            value if value is not None else 0.0,
            list(token.encode()),
            [TokenLogprob(t, v, list(t.encode())) for t, v in (top or {}).items()],
        )
        for token, value, top in zip(logprobs.tokens, values, tops, strict=False)
    ]
