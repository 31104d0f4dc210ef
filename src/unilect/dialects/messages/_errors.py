"""
Errors in Anthropic's form: `{"type": "error", "error": {"type", "message"}, "request_id"}`.

Beside these the inner object has our `param` and `code`, which Anthropic's clients pass on.

Source: https://platform.claude.com/docs/en/api/errors
"""

from typing import Any

import msgspec
from aiohttp import web

from unilect.core.errors import (
    ContextLengthExceeded,
    EngineOverloaded,
    InvalidRequest,
    UnilectError,
)
from unilect.runtime.context import current_request
from unilect.web.streaming import JSON

_OVERLOADED = 529
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    _OVERLOADED: "overloaded_error",
}


class ThreadNotFound(InvalidRequest):
    """The conversation is not held here; the official clients then send it as a whole."""

    status = 404
    code = "thread_not_found"


def answer(error: UnilectError, status: int) -> web.Response:
    """Return an error as a response."""
    if isinstance(error, EngineOverloaded):
        status = _OVERLOADED
    headers = {"request-id": current_request().request_id}
    body = msgspec.json.encode(envelope(error, status))
    return web.Response(status=status, body=body, content_type=JSON, headers=headers)


def envelope(error: UnilectError, status: int | None = None) -> dict[str, Any]:
    """Return the body of an error, also of one in a stream; its type goes by the status, which is the error's own unless it is given."""
    if status is None:
        status = _OVERLOADED if isinstance(error, EngineOverloaded) else error.status
    kind = "api_error" if status >= 500 else "invalid_request_error"
    inner: dict[str, Any] = {
        "type": _TYPES.get(status, kind),
        "message": _message(error),
        "param": error.param,
        "code": error.code,
    }
    if isinstance(error, ThreadNotFound):
        inner["details"] = {"error_code": error.code}
    return {"type": "error", "error": inner, "request_id": current_request().request_id}


def _message(error: UnilectError) -> str:
    """Return an error's message; of a prompt that is too long it begins with the words at which Claude Code shortens the conversation."""
    if not isinstance(error, ContextLengthExceeded):
        return error.message
    if error.prompt_tokens is None or error.context is None:
        return f"prompt is too long: {error.message}"
    return f"prompt is too long: {error.prompt_tokens} tokens > {error.context} maximum"
