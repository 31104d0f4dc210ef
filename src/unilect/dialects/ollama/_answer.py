"""
Answers in Ollama's form: rows of JSON, one a line, or one object; the last one says what was used and how long it took.

No row is empty, since ollama-python reads each line as JSON: in a silence a whole row without text goes out. A call is told whole, with
its arguments as an object.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from unilect.answers.service import Run
from unilect.api.parameters.rules import refusal
from unilect.core.errors import UnilectError
from unilect.core.events import (
    Answer,
    Choice,
    Event,
    Finish,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
    fold,
)
from unilect.dialects.calls import parse_calls
from unilect.dialects.ollama._errors import error_body
from unilect.dialects.ollama._messages import Said, context_of
from unilect.dialects.openai.chunks import encode_json
from unilect.runtime.context import current_request

ROWS = "application/x-ndjson"
#: What a row holds of an answer: text, thoughts and calls, in the form of its endpoint.
Shape = Callable[..., dict[str, Any]]


def chat_shape(text: str = "", thinking: str = "", calls: Any = None) -> dict[str, Any]:
    """Make the fields that only a row of a chat has."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = calls
    return {"message": message}


def generate_shape(text: str = "", thinking: str = "", calls: Any = None) -> dict[str, Any]:
    """Make the fields that only a row of a completion has."""
    body: dict[str, Any] = {"response": text}
    if thinking:
        body["thinking"] = thinking
    if calls:
        body["tool_calls"] = calls
    return body


def now() -> str:
    """Return the time as rows have it."""
    seconds, rest = divmod(time.time_ns() // 1000, 1_000_000)
    return f"{format_second(seconds)}.{rest:06d}Z"


@lru_cache(2)
def format_second(unix: int) -> str:
    """Return a second, of which there are many rows, without its time zone, which is UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix))


def nanoseconds(seconds: float) -> int:
    """Return seconds as rows have them."""
    return max(0, round(seconds * 1e9))


def durations(began: float) -> dict[str, int]:
    """
    Return the time of the request in hand so far, and its wait for the model, in nanoseconds.

    Args:
        began: The start of the call of the model, by `time.perf_counter`.
    """
    context = current_request()
    ready = context.leased_at or began
    return {
        "total_duration": nanoseconds(time.perf_counter() - context.started),
        "load_duration": nanoseconds(ready - began),
    }


class RowEncoder:
    """
    The words of one answer.

    Args:
        model: The model, as the client has called it.
        run: The request on its way; it was taken in just now.
        shape: What a row holds.
        said: The conversation so far, where the last row gives a `context`; None where it does not.
        stop_words: The client's own.
    """

    def __init__(
        self,
        model: str,
        run: Run,
        shape: Shape,
        said: Sequence[Said] | None = None,
        stop_words: Sequence[str] = (),
    ) -> None:
        self._model = model
        self._run = run
        self._shape = shape
        self._said = said
        self._stop_words = frozenset(stop_words)
        self._began = time.perf_counter()
        self._usage = Usage(0, 0)
        self._reason: str | None = None
        self._texts: list[str] = []
        self._calls: list[ToolCallDelta] = []
        # the parts of a row of text that are the same all through an answer
        before, after = encode_json(shape())[1:-1].split(b'""')
        self._head = encode_json({"model": model})[:-1] + b',"created_at":"'
        self._middle, self._tail = b'",' + before, after + b',"done":false}\n'

    def encode(self, batch: list[Event]) -> bytes:
        """Return the rows for a batch of events; those of other choices than the first are nobody's."""
        self._check_ignored()
        rows: list[bytes] = []
        head = self._head + now().encode() + self._middle
        for event in batch:
            if type(event) is TextDelta and event.index == 0 and event.logprobs is None:
                if event.text:
                    rows += (head, encode_json(event.text), self._tail)
                    if self._said is not None:
                        self._texts.append(event.text)
            elif type(event) is Usage:
                self._usage = event
            elif not getattr(event, "index", 0):
                rows.append(self._other(event))
        return b"".join(rows)

    def _other(self, event: Event) -> bytes:
        """Return the row for an event that is no plain text; empty where it has nothing to say."""
        match event:
            case TextDelta(text, _, logprobs):
                self._texts.append(text)
                return self._row(self._shape(text), logprobs)
            case ReasoningDelta(text):
                return self._row(self._shape(thinking=text))
            case RefusalDelta(text):
                return self._row(self._shape(text))
            case ToolCallDelta():
                self._calls.append(event)
            case Finish(reason):
                self._reason = reason
                if self._calls:
                    [choice] = fold([[*self._calls, event]]).choices
                    if calls := self._encode_calls(choice):
                        return self._row(self._shape(calls=calls))
        return b""

    def keep_alive(self) -> bytes:
        """Return a row without text."""
        return self._row(self._shape())

    def end(self) -> bytes:
        """Return the last row."""
        return self._row(self._shape() | self._last("".join(self._texts)))

    def error(self, error: UnilectError) -> bytes:
        """Return the row that ends a broken answer."""
        return error_body(error) + b"\n"

    def whole(self, answer: Answer, ignored: tuple[str, ...]) -> bytes:
        """Return the body of a whole answer."""
        self._check_ignored()
        [choice] = answer.choices[:1]
        self._usage, self._reason = answer.usage, choice.finish_reason
        text = (choice.text or "") + (choice.refusal or "")
        fields = self._shape(text, choice.reasoning or "", self._encode_calls(choice))
        return self._row(fields | self._last(choice.text or ""), choice.logprobs)

    def _encode_calls(self, choice: Choice) -> list[dict[str, Any]]:
        """Return the calls of an answer; errors as of `parse_calls`."""
        return [
            {"id": call.id, "function": {"index": index, "name": call.name, "arguments": arguments}}
            for index, (call, arguments) in enumerate(parse_calls(choice, self._stop_words))
        ]

    def _check_ignored(self) -> None:
        """
        Refuse tools that the model cannot be given, where the configuration has them ignored: a client that gets text instead of a call
        believes that there was nothing to call.
        """
        if "tools" in self._run.ignored:
            raise refusal("tools")

    def _row(self, fields: dict[str, Any], logprobs: list[TokenLogprob] | None = None) -> bytes:
        row = {"model": self._model, "created_at": now(), **fields}
        row.setdefault("done", False)
        if logprobs is not None:
            row["logprobs"] = [_token(token) for token in logprobs]
        return encode_json(row) + b"\n"

    def _last(self, text: str) -> dict[str, Any]:
        """Make the fields that only the last row has: the reason, times in nanoseconds, counts of tokens, and `context`."""
        usage, context = self._usage, current_request()
        end, ready = time.perf_counter(), context.leased_at or self._began
        first_s = context.meter.first_token_s if context.meter is not None else None
        first = end if first_s is None else max(ready, self._began + first_s)
        last: dict[str, Any] = {
            "done": True,
            "done_reason": "length" if self._reason == "length" else "stop",
            **durations(self._began),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(first - ready),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(end - first),
        }
        if self._said is not None:
            numbers = context_of([*self._said, ("assistant", text)])
            last |= {} if numbers is None else {"context": numbers}
        return last


def _token(token: TokenLogprob, alternatives: bool = True) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "token": token.token,
        "logprob": token.logprob,
        "bytes": token.bytes if token.bytes is not None else list(token.token.encode()),
    }
    if alternatives and token.top_logprobs:
        fields["top_logprobs"] = [_token(one, alternatives=False) for one in token.top_logprobs]
    return fields
