"""
llama.cpp's native stream and errors: the data of one frame in, events out. The only decoder of this format.

Two generations are distinguished per frame, by their fields: that of 2023 (`slot_id`, `stopped_eos`, errors as plain text,
PowerInfer's too) and that of 2025 (`id_slot`, `stop_type`, errors as objects). Versions in between mix both.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
        https://github.com/SJTU-IPADS/PowerInfer/blob/main/examples/server/server.cpp
"""

import math
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from unilect.api.backend import Batches, NativeFacts
from unilect.api.parameters.support import names
from unilect.core.errors import (
    BackendUnavailable,
    InvalidRequest,
    RouteNotFound,
    UnsupportedOperation,
)
from unilect.core.events import (
    Count,
    Event,
    Extra,
    Finish,
    FinishReason,
    Opaque,
    Progress,
    TextDelta,
    TokenLogprob,
    Usage,
)
from unilect.http.client import HttpServer, raise_for_answer
from unilect.http.error_bodies import clean, decode_body, parse_refusal, server_fault, too_long
from unilect.wire.errors import cut, invalid
from unilect.wire.words import ProgressField

_T = TypeVar("_T")
_BUSY_RETRY_S = 1.0
NO_PROBABILITY = -9999.0  # OpenAI's figure for a token that is not among the likeliest
_FINISHES: dict[str, FinishReason] = {"eos": "stop", "word": "stop", "limit": "length"}
#: The fields of a last frame that become events, or is no client's business.
_TOLD = frozenset({"content", "completion_probabilities", "tokens", "model"})


#: Of /props, what is about the model.
_FACTS = names(
    "default_generation_settings chat_template chat_template_caps modalities bos_token eos_token model_ftype"
)


class Busy(BackendUnavailable):
    """The server has no free slot; it is still the same server."""

    def __init__(self) -> None:
        super().__init__(
            "The model's server is busy: it has no free slot. Try again.",
            retry_after_s=_BUSY_RETRY_S,
        )


class _Tokens(Struct):
    """The answer of /tokenize."""

    tokens: list[int]


class _Content(Struct):
    """The answer of /detokenize."""

    content: str


class Settings(Struct, frozen=True):
    """The settings of a request that says nothing; a server of 2023 has them at a path of their own."""

    n_ctx: int | None = None


class Props(Struct):
    """The fields of /props that are used; a server of 2023 has none of them."""

    default_generation_settings: Settings = Settings()
    chat_template: str = ""
    model_ftype: str | None = None
    bos_token: str = ""
    eos_token: str = ""
    modalities: dict[str, bool] = {}
    total_slots: int | None = None
    media_marker: str = "<__media__>"


class _Rendered(Struct):
    prompt: str


class _Piece(Struct):
    id: int
    piece: str | list[int]


class _Pieces(Struct):
    tokens: list[_Piece]


async def post(server: HttpServer, path: str, fields: Mapping[str, Any], kind: type[_T]) -> _T:
    """
    Post fields to a path of llama.cpp's; return its answer.

    Raises:
        UnilectError: As the server says.
        BackendError: The answer is of another type.
    """
    return decode_answer(await server.post(path, msgspec.json.encode(fields)), kind)


def decode_answer(body: bytes, kind: type[_T]) -> _T:
    """
    Decode a whole answer.

    Raises:
        BackendError: It is of another type.
    """
    return decode_body(
        body, kind, "The model's server sent an answer that is not in llama.cpp's format."
    )


async def tokenize(
    server: HttpServer, text: str, special: bool = False, plain: bool = False
) -> list[int]:
    """
    Return the token ids of a text.

    Args:
        special: With those that the model reads before a prompt.
        plain: The names of special tokens are text like any other.
    """
    fields: dict[str, Any] = {"content": text}
    fields |= {"add_special": True} if special else {}
    fields |= {"parse_special": False} if plain else {}
    return (await post(server, "/tokenize", fields, _Tokens)).tokens


async def detokenize(server: HttpServer, tokens: list[int]) -> str:
    """Return the text of token ids, special ones too."""
    return (await post(server, "/detokenize", {"tokens": tokens}, _Content)).content


async def pieces_of(server: HttpServer, tokens: list[int]) -> list[bytes]:
    """Return the bytes of each token id; llama.cpp tells those of a part of a character as numbers."""
    fields = {"content": tokens, "with_pieces": True}
    found = (one.piece for one in (await post(server, "/tokenize", fields, _Pieces)).tokens)
    return [one.encode() if isinstance(one, str) else bytes(one) for one in found]


async def apply_template(server: HttpServer, fields: Mapping[str, Any]) -> str:
    """Return the prompt that the server's chat template makes of a chat's fields."""
    return (await post(server, "/apply-template", fields, _Rendered)).prompt


class _Alternative(Struct, gc=False, omit_defaults=True):
    """A likely token: `tok_str` and `prob` in 2023, `token` and one of the others in 2025."""

    id: int | None = None
    tok_str: str = ""
    token: str = ""
    prob: float | None = None
    logprob: float | None = None
    bytes: list[int] | None = None


class _Probability(Struct, gc=False, omit_defaults=True):
    """A token of the answer: `content` and `probs` in 2023, the others in 2025."""

    id: int | None = None
    content: str | None = None
    probs: list[_Alternative] = []
    token: str = ""
    prob: float | None = None
    logprob: float | None = None
    bytes: list[int] | None = None
    top_logprobs: list[_Alternative] = []
    top_probs: list[_Alternative] = []


class _Timings(Struct, gc=False):
    cache_n: int | None = None
    prompt_n: int | None = None


class _Frame(Struct, gc=False):
    content: str = ""
    stop: bool = False
    tokens: list[int] | None = None
    completion_probabilities: list[_Probability] | None = None
    prompt_progress: ProgressField | None = None
    error: Any = None
    multimodal: bool | None = None
    # of the last frame
    stop_type: str | None = None
    stopped_eos: bool = False
    stopped_word: bool = False
    stopped_limit: bool = False
    stopping_word: str = ""
    truncated: bool = False
    tokens_predicted: Count = 0
    tokens_evaluated: Count = 0
    timings: _Timings | None = None


_frames = msgspec.json.Decoder(list[_Frame | None]).decode
_one_frame = msgspec.json.Decoder(_Frame | None).decode


class FrameDecoder:
    """
    Decodes the frames of one stream, which is one choice.

    Args:
        joined: Join the texts of one read: for a non-streaming answer.
        top_logprobs: The number of top log probabilities; None for no log probabilities.
        tokens: The ids of the tokens are requested.

    Attributes:
        joined: As given.
        done, finished: The last frame has arrived.
        begun: A frame has arrived.
        multimodal: Whether the server supports images, if it reports that.
    """

    def __init__(
        self, joined: bool = False, top_logprobs: int | None = None, tokens: bool = False
    ) -> None:
        self.joined = joined
        self.done = self.finished = False  # only the last frame ends an answer
        self.multimodal: bool | None = None
        self.begun = False
        self._top_logprobs = top_logprobs
        self._tokens = tokens
        self._made = self._told = 0  # tokens of the answer

    def decode(self, frames: list[bytes], into: list[Event]) -> None:
        """
        Append the events of frames, all decoded in one call.

        Raises:
            UnilectError: A frame is an error, or invalid. The events before it have been appended.
        """
        if not frames:
            return
        try:
            decoded = _frames(b"[" + b",".join(frames) + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            decoded = []
        if len(decoded) != len(frames):  # one is broken, holds several, or a part of one
            decoded = []
            for number, frame in enumerate(frames):
                try:
                    decoded.append(_one_frame(frame) if frame.strip() else None)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    self._take(decoded, frames[:number], into)
                    raise invalid("a frame that is not part of an answer") from error
        self._take(decoded, frames, into)

    def end(self) -> list[Event]:
        """
        Check that the answer was complete when its bytes ended; its last events are those of its last frame.

        Raises:
            Busy: There was no frame: a server of 2023 is busy.
            BackendError: The answer was cut.
        """
        if not self.begun:
            raise Busy
        if not self.done:
            raise cut()
        return []

    def _take(self, decoded: list[_Frame | None], frames: list[bytes], into: list[Event]) -> None:
        texts: list[str] = []
        for number, frame in enumerate(decoded):
            if frame is None or self.done:
                continue  # llama.cpp sends a `null` between the answers of several prompts
            plain = (
                not frame.stop
                and frame.completion_probabilities is None
                and frame.prompt_progress is None
                and frame.error is None
                and frame.timings is None
                and not self._tokens
            )
            if frame.prompt_progress is None:  # only 2025 counts
                self._made = frame.tokens_predicted or self._made + 1
            if plain and self.joined:
                texts.append(frame.content)
            elif plain:
                self._text(frame.content, into)
            else:
                self._text("".join(texts), into)
                texts.clear()
                self._other(frame, frames[number], into)
            self.begun = True
            self.multimodal = frame.multimodal if self.multimodal is None else self.multimodal
        self._text("".join(texts), into)

    def _text(
        self,
        text: str,
        into: list[Event],
        logprobs: list[TokenLogprob] | None = None,
        extra: Extra | None = None,
    ) -> None:
        """Append a piece of text, if it says anything, with the tokens since the last."""
        if text or logprobs or extra is not None:
            into.append(TextDelta(text, 0, logprobs, extra, self._made - self._told))
            self._told = self._made

    def _other(self, frame: _Frame, data: bytes, into: list[Event]) -> None:
        if frame.error is not None:
            raise_frame_error(frame.error)
        if frame.prompt_progress is not None:
            into.append(frame.prompt_progress.event)
            return
        logprobs = None
        # what streams has told its tokens already: 2023 repeats all of them in the last frame
        if self._top_logprobs is not None and not (frame.stop and not frame.content):
            told, top = frame.completion_probabilities or (), self._top_logprobs
            logprobs = [_logprob(token, top) for token in told]
        extra = self._piece_extra(frame, data) if not frame.stop else None
        self._text(frame.content, into, logprobs or None, extra)
        if frame.stop:
            self.done = self.finished = True
            extra, word = _last_extra(frame, data), frame.stopping_word or None
            into.append(Finish(_reason(frame), 0, extra, word))
            into.append(Usage(frame.tokens_evaluated, frame.tokens_predicted, _count_cached(frame)))

    def _piece_extra(self, frame: _Frame, data: bytes) -> Extra | None:
        """Return the extra fields of a piece: the requested ids, native probabilities and timings."""
        native: dict[str, Any] = {}
        choice: dict[str, Any] = {}
        if self._tokens and frame.tokens:
            native["tokens"] = choice["tokens"] = frame.tokens
        probabilities = frame.completion_probabilities
        if self._top_logprobs is not None and probabilities and probabilities[0].content is None:
            native["completion_probabilities"] = msgspec.to_builtins(probabilities)
        if frame.timings is not None:
            native["timings"] = msgspec.json.decode(data, type=dict[str, Raw])["timings"]
        chunk = {"timings": native["timings"]} if "timings" in native else {}
        return Extra(chunk, choice, native=native) if native else None


def _reason(frame: _Frame) -> FinishReason:
    """Return the finish reason; the answer to an empty prompt is empty and has no reason."""
    if frame.stop_type is not None:
        return _FINISHES.get(frame.stop_type, "stop")
    return "stop" if frame.stopped_eos or frame.stopped_word else "length"


def _last_extra(frame: _Frame, data: bytes) -> Extra:
    """Return the extra fields of a last frame: counters and settings, for clients of this protocol only."""
    fields = msgspec.json.decode(data, type=dict[str, Raw])
    native = {name: raw for name, raw in fields.items() if name not in _TOLD}
    chunk: dict[str, Any] = {"truncated": True} if frame.truncated else {}
    if "timings" in native:
        chunk["timings"] = native["timings"]
    return Extra(chunk, native=native)


def _count_cached(frame: _Frame) -> int | None:
    told = frame.timings or _Timings()
    if told.cache_n is not None or told.prompt_n is None:
        return told.cache_n
    return max(0, frame.tokens_evaluated - told.prompt_n)


def _logprob(told: _Probability, top: int) -> TokenLogprob:
    """Return a token with its log probability, in either format; a server of 2023 sends only those of the likeliest tokens."""
    if told.content is None:
        likeliest = [_token(one) for one in told.top_logprobs or told.top_probs]
        return TokenLogprob(told.token, _log(told), told.bytes, likeliest[:top])
    likeliest = [_token(one) for one in told.probs]
    own = next((one.logprob for one in likeliest if one.token == told.content), NO_PROBABILITY)
    return TokenLogprob(told.content, own, list(told.content.encode()), likeliest[:top])


def _token(told: _Alternative) -> TokenLogprob:
    token = told.token or told.tok_str
    return TokenLogprob(token, _log(told), told.bytes or list(token.encode()))


def _log(told: _Probability | _Alternative) -> float:
    if told.logprob is not None:
        return told.logprob
    return math.log(told.prob) if told.prob else NO_PROBABILITY


def facts_of(props: bytes, meta: Mapping[str, Any]) -> NativeFacts:
    """Return the facts that a client may know of a server's answer to /props, without paths, and those of its list of models."""
    told = msgspec.json.decode(props, type=dict[str, Any])
    return NativeFacts({name: told[name] for name in _FACTS if name in told}, meta)


async def with_prompt_tokens(batches: Batches, ids: list[int]) -> Batches:
    """Yield an answer with the token ids of its prompt as `promptToken`, in the first event."""
    told: list[Event] = [Opaque(Extra({"promptToken": ids}), 0)]
    async with aclosing(batches):
        async for batch in batches:
            if told and not isinstance(batch[-1], Progress):
                batch = told + [event for event in batch if not isinstance(event, Progress)]
                told = []
            yield batch


def raise_frame_error(error: Any) -> None:
    """
    Raise the error in a frame, as `error: {...}` or as data.

    Raises:
        UnilectError: In any case.
    """
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict):
        error = {}
    code = error.get("code")
    if error.get("type") == "exceed_context_size_error":
        raise too_long(error.get("n_prompt_tokens"), error.get("n_ctx"))
    if code in (400, "400") or error.get("type") == "invalid_request_error":
        raise parse_refusal(msgspec.json.encode(error))
    if code in (503, "503") or error.get("type") == "unavailable_error":
        raise Busy
    raise server_fault(error.get("message"))


def raise_for(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """
    Raise the error for llama.cpp's error answer; return for a success.

    Raises:
        Busy: There is no free slot; a server of 2023 sends status 404.
        RouteNotFound: The server does not know the URL; the caller interprets that.
        UnsupportedOperation: The server was not started for this, or its model does not support it.
        InvalidRequest: The request is invalid; a server of 2023 sends status 500 with its parser's error.
        UnilectError: As `raise_for_answer` otherwise.
    """
    text = body[:200].decode(errors="replace").strip()
    if status == 404 and text in ("slot unavailable", "internal_error"):
        raise Busy
    if status == 404 and "File Not Found" in text:
        raise RouteNotFound(
            "The model's server does not know the URL; the operator must check `source`."
        )
    if status == 501:
        raise UnsupportedOperation(parse_refusal(body).message)
    if status == 500 and "json.exception" in text:
        raise InvalidRequest(
            f"The model's server refused the request: {clean(text.partition(chr(10))[2])}",
            logged="The model's server refused the request: it is no JSON that it can read.",
        )
    raise_for_answer(status, headers, body)
