"""
The frames of a FastChat worker's stream: JSON, each terminated by a NUL, with the whole text so far in every frame.

1. A read may end anywhere in a frame, and may contain several.
2. The text does not only grow: a worker removes spaces before punctuation when it knows what follows, and repeats its last
   text. Text that was sent cannot be withdrawn, so differences in whitespace are ignored.
3. An incomplete character is U+FFFD at the end, and is held back.
4. An answer is complete after a finish reason, or, if the worker never sends one (SGLang's), when its stream ended in
   order. `abort` is not a finish.

Source: https://github.com/lm-sys/FastChat (fastchat/serve/model_worker.py, vllm_worker.py, sglang_worker.py)
"""

import math

from msgspec import UNSET, Struct, UnsetType

from unilect.api.parameters.rules import refusal
from unilect.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    EngineOverloaded,
    InvalidRequest,
    ModelNotFound,
    OutOfMemory,
    PermissionDenied,
    QuotaExceeded,
    RateLimited,
    UnilectError,
)
from unilect.core.events import (
    Count,
    Event,
    Finish,
    FinishReason,
    Progress,
    TextDelta,
    TokenLogprob,
    Usage,
)
from unilect.http.error_bodies import clean, decode_body, for_log
from unilect.wire.embeddings import vector

MAX_FRAME_BYTES = 16 * 1024 * 1024
_HALF = "\ufffd"

#: FastChat's numbers -> the error that each becomes here: ours have the same ones. All others, such as of the key that we sent, are
#: the worker's own. Whose text a client may see, is told in the worker's words.
ERRORS: dict[int, type[UnilectError]] = {
    40001: InvalidRequest,  # validation
    **{
        kind.number: kind
        for kind in (
            PermissionDenied, ModelNotFound, InvalidRequest, ContextLengthExceeded, RateLimited, QuotaExceeded, EngineOverloaded,
            OutOfMemory, BackendUnavailable, BackendTimeout,
        )
    },
}  # fmt: skip


def error(number: int, text: str) -> UnilectError:
    """Make the error for a worker's or controller's `error_code`."""
    kind = ERRORS.get(number, BackendError)
    if kind.status < 500:
        told = "The model's worker refused the request"
        return kind(f"{told}: {clean(text)}", logged=f"{told}{for_log(text)}.")
    return kind(f"The model's worker failed (error {number}). Try again, or ask its operator.")


class _Usage(Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count | None = None


class _Logprobs(Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []


class Frame(Struct):
    """One frame. A missing `finish_reason` is distinguished from null."""

    text: str = ""
    error_code: int = 0
    usage: _Usage | None = None
    finish_reason: str | list[str | None] | UnsetType | None = UNSET
    logprobs: _Logprobs | None = None


class FrameReader:
    """Splits bytes into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """
        Return the frames that these bytes complete.

        Raises:
            BackendError: A frame is invalid, or too long.
        """
        first, *more = data.split(b"\0")  # only what has come is looked at
        self._rest += first
        whole = [bytes(self._rest), *more[:-1]] if more else []
        if more:
            self._rest = bytearray(more[-1])
        if len(self._rest) > MAX_FRAME_BYTES:
            raise BackendError(
                f"The worker sent a frame of more than {MAX_FRAME_BYTES} bytes. Try again, or ask its operator."
            )
        return [decode(frame) for frame in whole if frame]

    def end(self) -> None:
        """
        Check the end of the stream.

        Raises:
            BackendError: It ended within a frame.
        """
        if self._rest.strip():
            raise BackendError(
                "The worker broke off in the middle of its answer. Send the request again."
            )


def decode(data: bytes) -> Frame:
    """
    One frame, or the whole answer of /worker_generate, which is the last one.

    Raises:
        BackendError: The bytes are neither.
    """
    return decode_body(data, Frame, "The worker sent an invalid frame.")


class AnswerDecoder:
    """
    The events of one answer.

    Args:
        limit: `max_new_tokens`, as it was sent.
        whole: The answer is non-streaming, so only its last text is sent.
        logprobs: Log probabilities were requested.

    Attributes:
        text: The worker's whole text so far.
        usage: The worker's usage; None if it sends none.
    """

    def __init__(self, limit: int, whole: bool = False, logprobs: bool = False) -> None:
        self.text = ""
        self.usage: Usage | None = None
        self._limit = limit
        self._whole = whole
        self._wants_logprobs = logprobs
        self._sent = ""
        self._tokens_sent = self._prompt = self._made = 0
        self._logprobs: _Logprobs | None = None
        self._reason: str | None = None
        self._speaks_of_finish = False
        self._begun = False

    def add(self, frames: list[Frame]) -> list[Event]:
        """
        Return the events of these frames: at most one piece of text, however many there are.

        Raises:
            UnilectError: The worker sent an error, or aborted the answer.
        """
        for frame in frames:
            if frame.error_code:
                raise error(frame.error_code, frame.text)
            self._take(frame)
        events: list[Event] = []
        if self.usage is not None and not self._prompt:
            self._prompt = self.usage.prompt_tokens
            events.append(Progress(self._prompt, self._prompt))
        return events if self._whole or not frames else events + self._delta(final=False)

    def end(self) -> list[Event]:
        """
        Return the rest of the text and the finish; the usage is `usage`.

        Raises:
            BackendError: The answer is incomplete.
        """
        if not self._begun or (self._speaks_of_finish and self._reason is None):
            raise BackendError(
                "The worker broke off in the middle of its answer. Send the request again."
            )
        return [*self._delta(final=True), Finish(self._finish_reason())]

    def _take(self, frame: Frame) -> None:
        self._begun = True
        self.text = frame.text
        if frame.usage is not None:
            self.usage = Usage(frame.usage.prompt_tokens, frame.usage.completion_tokens or 0)
        self._logprobs = frame.logprobs or self._logprobs
        if self._wants_logprobs and frame.text and self._logprobs is None:
            raise refusal("logprobs", "the worker gives none")
        if frame.finish_reason is UNSET:
            return
        self._speaks_of_finish = True
        reason = frame.finish_reason
        reason = reason[0] if isinstance(reason, list) and reason else reason
        if reason == "abort":
            raise BackendError("The worker aborted the answer. Send the request again.")
        self._reason = reason if isinstance(reason, str) else self._reason

    def _delta(self, final: bool) -> list[Event]:
        text = self.text.rstrip(_HALF)
        if not final:
            text = text.rstrip()
        new = _extension(self._sent, text)
        if new is None and final:
            raise BackendError(
                "The worker changed a part of its answer that was already sent. Send the request again."
            )
        tokens = self._new_tokens()
        if not new and not (final and tokens):
            return []
        if new:  # the client has this text but for its blanks, and the next one begins with it
            self._sent = text
        self._tokens_sent += len(tokens or ())
        made = (self.usage.completion_tokens if self.usage else 0) or self._made + 1
        count, self._made = made - self._made, made
        logprobs = tokens if self._wants_logprobs else None
        return [TextDelta(new or "", logprobs=logprobs, tokens=count)]

    def _new_tokens(self) -> list[TokenLogprob] | None:
        """Return the tokens since the last piece. The prompt's first token has no probability, null in JSON."""
        told = self._logprobs
        if told is None or not self._wants_logprobs:
            return None
        tokens = []
        for number in range(self._tokens_sent, min(len(told.tokens), len(told.token_logprobs))):
            value = told.token_logprobs[number]
            top = told.top_logprobs[number] if number < len(told.top_logprobs) else None
            tokens.append(
                TokenLogprob(
                    told.tokens[number],
                    math.nan if value is None else value,
                    top_logprobs=[TokenLogprob(token, p) for token, p in (top or {}).items()],
                )
            )
        return tokens

    def _finish_reason(self) -> FinishReason:
        """SGLang's worker tells none: an answer as long as it could be has met its end there. And the last token of an
        answer that met its end is not counted by the transformers' worker."""
        used = self.usage.completion_tokens if self.usage is not None else 0
        if self._reason == "length" or (self._reason is None and used >= self._limit):
            if self.usage is not None and used == self._limit - 1:
                self.usage = Usage(self.usage.prompt_tokens, self._limit)
            return "length"
        return "stop"


def _extension(sent: str, text: str) -> str | None:
    """Return the new part of a text, ignoring changed whitespace. None if it is another text; "" if it only got shorter."""
    if text.startswith(sent):
        return text[len(sent) :]
    place = 0
    for character in sent:
        if character.isspace():
            continue
        while place < len(text) and text[place].isspace():
            place += 1
        if place == len(text):
            return ""
        if text[place] != character:
            return None
        place += 1
    return text[place:]


def embeddings(body: bytes) -> tuple[list[list[float]], int]:
    """
    Return the vectors of /worker_get_embeddings, and the tokens of the inputs.

    Raises:
        UnilectError: The answer is an error, or has no embeddings.
    """
    otherwise = "The worker sent an answer without embeddings. Try again, or ask its operator."
    answer = decode_body(body, _Embeddings, otherwise)
    if answer.error_code:
        raise error(answer.error_code, answer.text)
    try:
        return [*map(vector, answer.embedding)], answer.token_num
    except ValueError as failed:
        raise BackendError(otherwise) from failed


class _Embeddings(Struct):
    embedding: list[list[float] | str] = []
    token_num: int = 0
    text: str = ""
    error_code: int = 0
