"""
The error formats of upstreams, translated to unilect's errors.

An error about the *request* has the upstream's text, cleaned, because the client can fix it. An error of the
*upstream* has a general text. The log gets neither: a server may repeat the request in any form (cut, escaped, as token ids), so that
nothing that is taken out of its text would leave a safe rest. The log says which of a few known faults the text names.

Source: https://platform.openai.com/docs/guides/error-codes
"""

import re
from typing import Any, TypeVar

import msgspec

from unilect.core.errors import (
    BackendError,
    BackendUnavailable,
    ContextLengthExceeded,
    EngineOverloaded,
    InvalidRequest,
    RateLimited,
    UnilectError,
)

_T = TypeVar("_T")
#: Statuses that say that the request is at fault.
REFUSED = frozenset({400, 404, 409, 413, 422})
#: URLs of an API, which a remedy names: no file of a server is found with them.
_API = (
    r"/(?:(?:api/)?v[12]/(?:audio|chat|completions|conversations|embeddings|engines|files|health|images|messages|models"
    r"|moderations|rerank|reranking|responses|token_check|usage)\b|chat/completions\b|messages/count_tokens\b"
    r"|page/(?:settings|clients)\b|responses/(?:compact|input_tokens)\b|api/[a-z]+(?![\w@+-]|\.\w|/\w))"
)
_PATH = re.compile(rf"(?<![\w:/.#}}])(?!{_API})(?:/[\w.@+-]+){{2,}}|[A-Za-z]:\\\S+")
#: What an error begins with that a server reports as its own.
REPORTED = "The model's server reported an error"
#: How servers say that they have no such URL, and how that they have no such model.
_NO_PATH = re.compile(
    r"^\s*(404[: ]*)?(page |file |resource |the requested url .*)?not found\W*$|invalid url|unknown_url|cannot (post|get) "
    r"|no static resource|no handler found|there is no (post|get) ",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"\b(model|deployment)\b", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class NoSuchPath(BackendError):
    """The server does not know the URL: the base URL is wrong, or the server lacks this endpoint."""

    def __init__(self) -> None:
        super().__init__(
            "The model's server does not know the requested URL; the operator must check the base URL of `source`."
        )


class NoSuchModel(BackendError):
    """The server does not have the requested model."""

    def __init__(self) -> None:
        super().__init__(
            "The model's server does not have the requested model; the operator must check `model`."
        )


def missing(body: bytes) -> UnilectError:
    """
    Return the error for an answer of status 404. The URL and the model are the operator's configuration, so these are no errors of the client;
    anything else that is not found may be.
    """
    error = _error_object(plain(body))
    told = "" if error is None else f"{error['message'] or ''} {error['code'] or ''}"[:500]
    if error is None or _NO_PATH.search(clean(error["message"])) or "unknown_url" in told:
        return NoSuchPath()
    if _NO_MODEL.search(told.replace("_", " ")):
        return NoSuchModel()
    return parse_refusal(body)


def parse_refusal(body: bytes) -> UnilectError:
    """Return the error for a request that the upstream refuses, from the body of the answer."""
    error = _error_object(plain(body))
    if error is None:
        return InvalidRequest(
            "The model's server refused the request without a reason. Send fewer parameters, or ask its operator."
        )
    return _classify(error, refused=True)


def parse_error(raw: Any) -> UnilectError | None:
    """
    Return the error in a body or a frame, as plain values; None if there is none.

    Servers send `{"error": {...}}`, `{"error": "text"}`, a flat `{"message": ...}` or `{"detail": ...}`, FastChat also
    `{"text": ..., "error_code": ...}`; OpenRouter puts `error` beside choices.
    """
    if isinstance(raw, dict) and "choices" in raw and not raw.get("error"):
        return None
    error = _error_object(raw)
    return None if error is None else _classify(error, refused=False)


def too_many(body: bytes, retry_after_s: float | None) -> RateLimited:
    """Return the error for an answer of status 429."""
    error = _too_many((_error_object(plain(body)) or {}).get("code"))
    error.retry_after_s = retry_after_s
    return error


def error_text(body: bytes) -> str:
    """Return the error text in the body of an error answer, cleaned."""
    return clean((_error_object(plain(body)) or {}).get("message"))


def error_message(body: bytes) -> str:
    """Return the error text in the body of an error answer, as it is; empty where there is none."""
    message = (_error_object(plain(body)) or {}).get("message")
    return message if isinstance(message, str) else ""


def no_stream(kind: str, body: bytes) -> UnilectError:
    """Return the error for an answer of status 200 that is not an event stream: the error in its body, or its content type."""
    told = "The backend answered a request for a stream with something else"
    return parse_error(plain(body)) or BackendError(
        f"{told} ({clean(kind.partition(';')[0] or 'no content type')}).", logged=f"{told}."
    )


#: What servers say of their own faults, in lower case and with spaces for underscores.
_FAULTS = (
    "api key", "billing", "connection", "cublas", "cuda error", "deadline", "disk", "driver", "forbidden", "hip error", "internal server error",
    "kv cache", "license", "maintenance", "metal error", "no space left", "not enough memory", "not found", "not implemented", "out of memory",
    "overloaded", "permission", "quota", "rate limit", "time out", "timed out", "timeout", "unauthorized", "unavailable", "unsupported",
)  # fmt: skip


def for_log(text: str) -> str:
    """
    Summarize a server's text of any length for the log: the faults that it names, without its own words.

    >>> for_log("CUDA error: my secret prompt")
    ' (it names: cuda error; its words may repeat the request, and are left out)'
    """
    if not text.strip():
        return ""
    words = text[:2000].lower().replace("_", " ")
    named = [fault for fault in _FAULTS if fault in words]
    told = f"it names: {', '.join(named)}; " if named else ""
    return f" ({told}its words may repeat the request, and are left out)"


def server_fault(text: Any) -> BackendError:
    """Return the error for a fault of its own that a server tells in its answer."""
    words = clean(text)
    return BackendError(f"{REPORTED}: {words}", logged=f"{REPORTED}{for_log(words)}.")


def plain(body: bytes) -> Any:
    """Return a body as plain values; None if it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decode_body(body: bytes, kind: type[_T], otherwise: str) -> _T:
    """
    Return a body of a known type.

    Args:
        otherwise: The message if it is of another type.

    Raises:
        BackendError: The body is of another type.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BackendError(otherwise) from error


_MAX_DEPTH = 20  # of the place that pydantic names
_MAX_PARAM = 200
_TEXTS = ("message", "detail", "msg", "error_message", "error_msg", "errors")


def _error_object(raw: Any) -> dict[str, Any] | None:
    """Return the fields of an error: its text as `message`, its number or name as `code`."""
    if not isinstance(raw, dict):
        return None
    error: Any = raw.get("error")
    if error in (None, False, "", []):
        if not any(raw.get(name) for name in (*_TEXTS, "error_code")):
            return None
        error = raw
    if isinstance(error, list):
        error = error[0]
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if not isinstance(error, dict):
        error = {"message": error}
    told = next((error[name] for name in (*_TEXTS, "text") if error.get(name)), None)
    if isinstance(told, list) and isinstance(told[0], dict):  # pydantic's
        loc = told[0].get("loc")
        parts = loc if isinstance(loc, list) else [loc] if isinstance(loc, str) else []
        where = ".".join(str(part) for part in parts[:_MAX_DEPTH] if part != "body")
        told = f"{where}: {told[0].get('msg')}" if where else told[0].get("msg")
    code = next((error[name] for name in ("code", "error_code", "status") if error.get(name)), None)
    return {**error, "message": told, "code": code}


#: What servers say of a prompt that does not fit.
_TOO_LONG = ("maximum context length", "available context size", "context length exceeded")
_CONTEXT = re.compile(r"context length (?:is|of) (?:only )?(\d{1,12})\b")
#: The prompt's tokens, as vLLM (three generations), SGLang, OpenAI and unilect tell them.
_PROMPT = re.compile(
    r"\b(\d{1,12}) (?:in the messages|in the prompt|input tokens|tokens from the input|in your prompt)"
    r"|\b(?:messages resulted in|prompt contains(?: at least)?|the prompt has) (\d{1,12})\b"
)
_OVERLOADED = frozenset({"overloaded_error", "service_unavailable_error", "server_overloaded"})
# FastChat's codes have five digits, and mean more than its status, which is always 400
_LEAST_FASTCHAT = 10_000


def _classify(error: dict[str, Any], refused: bool) -> UnilectError:
    """
    Return the unilect error for an upstream's, from its type, code and text.

    Args:
        refused: Its status is that of an error about the request.
    """
    code, kind, message = error["code"], error.get("type"), clean(error["message"])
    kind = kind if isinstance(kind, str) else ""
    number = _number(code)
    if kind == "exceed_context_size_error":
        return too_long(error.get("n_prompt_tokens"), error.get("n_ctx"))
    if (
        code in ("context_length_exceeded", 40303)
        or "context_length" in kind
        or any(words in message.lower() for words in _TOO_LONG)
    ):
        told = f"The model's server refused the request: its prompt is too long{for_log(message)}."
        return _with_counts(ContextLengthExceeded(message, logged=told), error["message"])
    if number == 429 or number // 100 == 429 or kind == "rate_limit_error":
        return _too_many(code)
    if number == 503 or kind in _OVERLOADED:
        return BackendUnavailable(
            "The model's server is busy or not ready. Try again.", retry_after_s=1
        )
    if number >= _LEAST_FASTCHAT:
        refused = number // 100 in (400, 403)
    elif number in REFUSED or kind == "invalid_request_error":
        refused = True
    if not refused:
        return server_fault(error["message"])
    param = error.get("param")
    return InvalidRequest(
        f"The model's server refused the request: {message}",
        logged=f"The model's server refused the request{for_log(message)}.",
        param=clean(param)[:_MAX_PARAM] if isinstance(param, str) else None,
    )


def _too_many(code: Any) -> RateLimited:
    """Return the error for an engine that has too much to do, or for a client that asks too much."""
    if code == EngineOverloaded.code:
        return EngineOverloaded("The model's server is overloaded. Try again later.")
    return RateLimited("The model's server is at its rate limit. Try again later.")


def _number(code: Any) -> int:
    """Return a status or a code that is a number, also as a string; 0 for any other."""
    if isinstance(code, str) and code.isascii() and code.isdecimal() and len(code) < 10:
        return int(code)
    return code if isinstance(code, int) else 0


def too_long(prompt_tokens: Any, context: Any) -> ContextLengthExceeded:
    """Return the error for a prompt that is too long, with both numbers, in the wording that clients match (LangChain: `prompt is too long`)."""
    return ContextLengthExceeded(
        f"This model's maximum context length is {context} tokens, and the prompt has {prompt_tokens}: the prompt is too long. "
        "Shorten the prompt, or serve the model with a larger context."
    ).with_counts(prompt_tokens, context)


def _with_counts(error: ContextLengthExceeded, message: Any) -> ContextLengthExceeded:
    """Return an error with the numbers that a server's message has; servers of several kinds write them in words only."""
    if not isinstance(message, str):
        return error
    context, prompt = _CONTEXT.search(message[:2000]), _PROMPT.search(message[:2000])
    if context is None or prompt is None:
        return error
    return error.with_counts(int(prompt[1] or prompt[2]), int(context[1]))


def unknown_token(param: str) -> InvalidRequest:
    """Return the error for a token id that is not in the vocabulary."""
    return InvalidRequest(
        f"`{param}` has a token id outside the model's vocabulary. Send ids of this model's tokenizer.",
        param=param,
    )


def clean(text: Any) -> str:
    """Return an upstream's text, cleaned: one line, at most 500 characters, without file paths."""
    if not isinstance(text, str):
        return "no reason given"
    return _PATH.sub("[path]", _CONTROL.sub(" ", text[:2000]))[:500].strip()
