"""
What an upstream tells of its errors, in the many forms that servers have for it, as our errors.

What is wrong with the *request* is told in the upstream's words, cleaned: the client can mend it. What is wrong with the
*upstream* is told in ours.

Source: https://platform.openai.com/docs/guides/error-codes
"""

import re
from typing import Any

import msgspec

from unilect.errors import (
    BackendError,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
    RateLimited,
    UnilectError,
)

#: Statuses that say that the request is at fault.
REFUSED = frozenset({400, 404, 409, 413, 422})
_PATH = re.compile(r"(?<![\w:/.#])(?:/[\w.@+-]+){2,}|[A-Za-z]:\\\S+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def refused_request(body: bytes) -> UnilectError:
    """The error for a request that the upstream refuses, from the body of its answer."""
    error = _error_object(plain(body))
    if error is None:
        return InvalidRequest("The model's server refused the request without a reason.")
    return _judged(error, refused=True)


def told_error(raw: Any) -> UnilectError | None:
    """
    The error that a body or a frame tells, as plain values; None where it tells none.

    Servers say `{"error": {...}}`, `{"error": "text"}`, a flat `{"message": ...}` or `{"detail": ...}`, FastChat also
    `{"text": ..., "error_code": ...}`; OpenRouter puts `error` beside choices.
    """
    if isinstance(raw, dict) and "choices" in raw and not raw.get("error"):
        return None
    error = _error_object(raw)
    return None if error is None else _judged(error, refused=False)


def told_text(body: bytes) -> str:
    """What the body of an error answer says, made fit to be shown."""
    return clean((_error_object(plain(body)) or {}).get("message"))


def no_stream(kind: str, body: bytes) -> UnilectError:
    """The error for an answer of status 200 that should have been an event stream: what it tells, or that it is none."""
    return told_error(plain(body)) or BackendError(
        "The backend answered a request for a stream with something else "
        f"({clean(kind.partition(';')[0] or 'no content type')})."
    )


def plain(body: bytes) -> Any:
    """A body as plain values; None where it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_TEXTS = ("message", "detail", "msg", "error_message", "error_msg", "errors")


def _error_object(raw: Any) -> dict[str, Any] | None:
    """An error's fields, its text under `message`, its number or word under `code`."""
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
        where = ".".join(str(part) for part in told[0].get("loc") or () if part != "body")
        told = f"{where}: {told[0].get('msg')}"
    code = next((error[name] for name in ("code", "error_code", "status") if error.get(name)), None)
    return {**error, "message": told, "code": code}


#: What servers say of a prompt that does not fit.
_TOO_LONG = ("maximum context length", "available context size", "context length exceeded")
_OVERLOADED = frozenset({"overloaded_error", "service_unavailable_error", "server_overloaded"})
_LEAST_FASTCHAT = (
    10_000  # FastChat's codes have five digits, and mean more than its status, which is always 400
)


def _judged(error: dict[str, Any], refused: bool) -> UnilectError:
    """
    What an error means, by its type, its code and its words.

    Args:
        refused: Its status already said that the request is at fault.
    """
    code, kind, message = error["code"], error.get("type"), clean(error["message"])
    number = int(code) if isinstance(code, int) or str(code).isdecimal() else 0
    if kind == "exceed_context_size_error":
        return too_long(error.get("n_prompt_tokens"), error.get("n_ctx"))
    if (
        code in ("context_length_exceeded", 40303)
        or "context_length" in str(kind)
        or any(words in message.lower() for words in _TOO_LONG)
    ):
        return ContextLengthExceeded(message)
    if number == 429 or number // 100 == 429 or kind == "rate_limit_error":
        return RateLimited("The model's server is over its limit. Try again later.")
    if number == 503 or kind in _OVERLOADED:
        return BackendUnavailable(
            "The model's server is busy or not ready. Try again.", retry_after_s=1
        )
    if number >= _LEAST_FASTCHAT:
        refused = number // 100 in (400, 403)
    elif number in REFUSED or kind == "invalid_request_error":
        refused = True
    if not refused:
        return BackendError(f"The model's server reported an error: {message}")
    param = error.get("param")
    return InvalidRequest(
        f"The model's server refused the request: {message}",
        param=param if isinstance(param, str) else None,
    )


def too_long(prompt_tokens: Any, context: Any) -> ContextLengthExceeded:
    """The error for a prompt that does not fit, with both numbers, in the words that clients look for."""
    return ContextLengthExceeded(
        f"This model's maximum context length is {context} tokens, and the prompt has {prompt_tokens}. "
        "Shorten the prompt, or serve the model with a larger context."
    )


def clean(text: Any) -> str:
    """A foreign text made fit to be shown: one line, at most 500 characters, without file paths."""
    if not isinstance(text, str):
        return "no reason given"
    return _PATH.sub("[path]", _CONTROL.sub(" ", text[:2000]))[:500].strip()
