"""
llama.cpp's native answers: events in, objects with the fields of both generations out.

A client of 2023 finds `slot_id`, `stopped_eos` and `temp` in the same object in which one of 2025 finds `id_slot`, `stop_type` and
`temperature`. What the server behind said in this protocol comes out again; the rest is made up from what is known.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from unilect.core.errors import UnilectError
from unilect.core.events import (
    Answer,
    Choice,
    Event,
    Fold,
    Opaque,
    Progress,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    Usage,
)
from unilect.core.requests import CompletionRequest
from unilect.dialects.openai.chunks import encode_json, progress_object, unilect_field
from unilect.web.streaming import COMMENT

_NO_SLOT = -1
_NOTHING = object()
_PIECE = b'"tokens":[],"stop":false,"id_slot":%d,"slot_id":%d,"multimodal":false}\n\n'
#: The names of a request's settings in the generations of the protocol, where they are not its own.
_SETTINGS = {"max_tokens": "n_predict", "logprobs": "n_probs"}
#: Where the generations have different names for one setting.
_TWINS = (("temp", "temperature"), ("temperature", "temp"))


class NativeEncoder:
    """
    The words of one native answer.

    Args:
        request: What was asked for.
        model: The model's name, as the answer gives it.
        fields: The fields that the client wants of an answer's end, a slash before each level; none for all of them.
        progress: A stream tells how far the prompt has been read.
    """

    def __init__(
        self,
        request: CompletionRequest,
        model: str,
        fields: Sequence[str] = (),
        progress: bool = False,
    ) -> None:
        self._request = request
        self._model = model
        self._fields = fields
        self._progress = progress
        self._fold = Fold()
        self._start_s = time.perf_counter()
        self._first_s: float | None = None
        self._slots: dict[int, int] = {}  # of the choices, as far as the backend says

    def encode(self, batch: list[Event]) -> bytes:
        """Return the frames for a batch of events; the last ones come with the usage, which they tell."""
        self._fold.add(batch)
        frames: list[bytes] = []
        for event in batch:
            if isinstance(event, TextDelta | ReasoningDelta):
                if self._first_s is None:
                    self._first_s = time.perf_counter()
                frames.append(_piece(event, self._slots.get(event.index, _NO_SLOT)))
            elif isinstance(event, Progress):
                frames += [self._progress_frame(event)] if self._progress else []
            elif isinstance(event, Opaque) and "id_slot" in event.extra.native:
                self._slots[event.index or 0] = event.extra.native["id_slot"]
            elif isinstance(event, Usage):
                for last in self._objects(self._fold.answer()):
                    last |= {"content": "", "tokens": []}
                    if "completion_probabilities" in last:  # they came with their pieces
                        last["completion_probabilities"] = []
                    frames.append(_frame(self._select(last)))
        return b"".join(frames)

    def keep_alive(self) -> bytes:
        """Return a comment."""
        return COMMENT

    def end(self) -> bytes:
        """Nothing: this protocol has no `[DONE]`."""
        return b""

    def error(self, error: UnilectError) -> bytes:
        """Return the frame that ends a broken answer."""
        return _frame({"error": error.detail()})

    def whole(self, answer: Answer, ignored: tuple[str, ...]) -> bytes:
        """Return the body of a whole answer: an object, or a list of them for several choices."""
        objects = [self._select(one) | unilect_field(ignored) for one in self._objects(answer)]
        return encode_json(objects[0] if len(objects) == 1 else objects)

    def _objects(self, answer: Answer) -> list[dict[str, Any]]:
        """Return one object for each choice."""
        prompts = self._request.prompts
        each = max(1, len(answer.choices) // len(prompts))
        objects = []
        for choice in answer.choices:
            told = {
                name: msgspec.json.decode(value) if isinstance(value, Raw) else value
                for name, value in choice.native.items()
            }
            content = (choice.reasoning or "") + (choice.text or "")
            usage = answer.usage
            made = {
                "index": choice.index,
                "content": content,
                "tokens": [],
                "stop": True,
                "model": self._model,
                "tokens_predicted": usage.completion_tokens,
                "tokens_evaluated": usage.prompt_tokens,
                "prompt": prompts[min(choice.index // each, len(prompts) - 1)],
                "has_new_line": "\n" in content,
                "truncated": bool(answer.extra.get("truncated")),
                "stopping_word": choice.stop or "",
                "tokens_cached": usage.prompt_tokens + usage.completion_tokens,
                "timings": self._timings(usage),
            }
            slot = told.get("id_slot", told.get("slot_id", _NO_SLOT))
            fixed = {
                "index": choice.index,
                "model": self._model,
                "generation_settings": self._settings(told.get("generation_settings") or {}),
                "id_slot": slot,
                "slot_id": slot,
                **_stop(told, choice),
            }
            if choice.logprobs:
                fixed |= _probabilities(choice.logprobs, told.get("completion_probabilities"))
            objects.append(made | told | fixed)
        return objects

    def _progress_frame(self, event: Progress) -> bytes:
        slot = self._slots.get(0, _NO_SLOT)
        piece = {"index": 0, "content": "", "tokens": [], "stop": False, "id_slot": slot}
        return _frame(piece | progress_object(event))

    def _select(self, told: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of an object that the client asked for, by the paths that it wrote."""
        if not self._fields:
            return told
        found = {path: _at(told, path.split("/")) for path in self._fields}
        return {path: value for path, value in found.items() if value is not _NOTHING}

    def _settings(self, told: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of the answer: those that the server reports, else those of the request."""
        if not told:
            asked = msgspec.structs.asdict(self._request)
            told = {
                _SETTINGS.get(field, field): asked[field]
                for field in self._request.__struct_fields__
                if asked[field] is not None
                and field not in ("raw_fields", "prompt", "model", "user")
            }
        for name, twin in _TWINS:
            if name in told:
                told.setdefault(twin, told[name])
        return told | {"model": self._model, "stream": bool(self._request.stream)}

    def _timings(self, usage: Usage) -> dict[str, Any]:
        """As seen from here; a whole answer is not seen to begin, so all of its time counts for the answer."""
        now_s = time.perf_counter()
        first_s = self._first_s or self._start_s
        cached = usage.cached_tokens or 0
        return {
            "cache_n": cached,
            **_pace("prompt", usage.prompt_tokens - cached, first_s - self._start_s),
            **_pace("predicted", usage.completion_tokens, now_s - first_s),
        }


def _pace(name: str, count: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": count,
        f"{name}_ms": seconds * 1000,
        f"{name}_per_token_ms": seconds * 1000 / count if count else 0.0,
        f"{name}_per_second": count / seconds if seconds else 0.0,
    }


def _frame(fields: dict[str, Any]) -> bytes:
    return b"data: " + encode_json(fields) + b"\n\n"


def _piece(event: TextDelta | ReasoningDelta, slot: int) -> bytes:
    """Return the frame for a piece of text, which was made in a slot."""
    logprobs = event.logprobs if isinstance(event, TextDelta) else None
    native = event.extra.native if event.extra is not None else {}
    if logprobs is None and not native:
        text = encode_json(event.text)
        return b'data: {"index":%d,"content":%s,' % (event.index, text) + _PIECE % (slot, slot)
    fields: dict[str, Any] = {"index": event.index, "content": event.text, "tokens": []}
    fields |= native | {"stop": False, "id_slot": slot, "slot_id": slot}
    if logprobs:
        fields |= _probabilities(logprobs, native.get("completion_probabilities"))
    return _frame(fields | {"multimodal": False})


def _at(value: Any, path: list[str]) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return _NOTHING
        value = value[name]
    return value


def _stop(told: dict[str, Any], choice: Choice) -> dict[str, Any]:
    """Return the reason why the answer ended, as a word and as three flags; an unexplained stop is the end of the text."""
    kind = told.get("stop_type")
    if kind is None:
        kind = "limit" if choice.finish_reason == "length" else "eos"
        if choice.stop is not None or told.get("stopped_word"):
            kind = "word"
    return {
        "stop_type": kind,
        "stopped_eos": kind == "eos",
        "stopped_word": kind == "word",
        "stopped_limit": kind == "limit",
    }


def _probabilities(
    tokens: list[TokenLogprob], told: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Log probabilities, and probabilities, of tokens; ids and what else the engine told of each."""
    if told is None or len(told) != len(tokens):
        told = [{} for _ in tokens]
    return {
        "completion_probabilities": [
            _both(token)
            | {
                "content": token.token,
                "probs": [_both(top) for top in token.top_logprobs],
                "top_logprobs": [_both(top) for top in token.top_logprobs],
            }
            | theirs
            for token, theirs in zip(tokens, told, strict=True)
        ]
    }


def _both(token: TokenLogprob) -> dict[str, Any]:
    return {
        "token": token.token,
        "tok_str": token.token,
        "bytes": token.bytes if token.bytes is not None else list(token.token.encode()),
        "logprob": token.logprob,
        "prob": math.exp(min(0.0, token.logprob)),
    }
