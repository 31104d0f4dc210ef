"""
Records of failed requests: the error, and all that is known of the request but its text.

Sentences of errors quote the request: a role that does not exist, a stop word that is too long. What the request has as a value is taken
out of them here, so that neither the log nor the admin API has a prompt's text, whoever writes the sentence. Names of fields stay.
"""

import json
import re
import time
from collections.abc import Collection
from typing import Any

import msgspec
from aiohttp import web

from unilect.accounting.account import CLIENT_LEFT
from unilect.accounting.failures import MOST_ATTEMPTS, MOST_CHARACTERS, AttemptFailure, Failure
from unilect.core.bounds import LARGE_BYTES
from unilect.core.errors import RequestCancelled, UnilectError
from unilect.runtime.context import Context
from unilect.runtime.logs import escape
from unilect.runtime.redact import shorten
from unilect.web.aiohttp_internals import body_of
from unilect.web.streaming import SHORTENED

LEFT_OUT = "…"
_MOST_NAME = 100
#: Between any two of these a sentence may quote something; an escape is another spelling of what the request has.
_MARKS = re.compile(r"[`'\"]| \.\.\. |\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)", re.DOTALL)
_SHORTEST = 3  # characters of a quotation that could tell anything
#: Words for types, which a schema in a request has as values too.
_TYPES = frozenset(
    {
        *("null", "bool", "boolean", "int", "integer", "float", "number"),
        *("str", "string", "text", "array", "list", "object", "table"),
    }
)


class _Named(msgspec.Struct):
    """A body of which only the model's name is read."""

    model: Any = None


def describe_failure(context: Context, request: web.Request, status: int) -> Failure:
    """Describe a request that failed; it is called once it has ended."""
    error, body = context.failure, _body_of(request)
    attempts = context.attempts[-MOST_ATTEMPTS:]
    model = context.model or _model_of(body or b"")
    # where the log has other words than the client, a backend has named the parameter, and may have repeated the request in its name
    param = error.param if error is not None and error.logged is None and error.param else ""
    kept = {model, param}
    return Failure(
        request_id=context.request_id,
        method=request.method[:20],
        path=_name(request.path[:200]),
        time=time.time(),
        status=status,
        duration_ms=round((time.perf_counter() - context.started) * 1000, 1),
        caller=context.caller[:_MOST_NAME],
        address=context.address,
        model=_name(model),
        answering=_name(context.answering),
        backend=_name(shorten(context.source or (attempts[-1].source if attempts else ""))),
        code="" if error is None else error.code or type(error).__name__,
        param=_name(param),
        reason="" if error is None else sentence(error.for_log, body, kept),
        ended=_how(error, status),
        attempts=tuple(
            AttemptFailure(
                _name(one.model), _name(shorten(one.source)), sentence(one.reason, body, kept)
            )
            for one in attempts
        ),
    )


def sentence(text: str, body: bytes | None, kept: Collection[str]) -> str:
    """
    Return a sentence about a request as the log tells it: bounded, in one line, without values of the request but those that are `kept`.

    Args:
        body: The request's; None for one too large to look into, of which whatever is quoted could be.
    """
    text = text[: 2 * MOST_CHARACTERS]
    parts, at = list[str](), 0
    for mark in (*_MARKS.finditer(text), None):
        if body is None and parts:
            parts.append(LEFT_OUT)
            break
        end = len(text) if mark is None else mark.start()
        part = text[at:end]
        parts.append(LEFT_OUT if body and _is_value(part, body, kept) else part)
        if mark is not None:
            parts.append(mark.group())
            at = mark.end()
    found = escape("".join(parts))
    return found if len(found) <= MOST_CHARACTERS else f"{found[: MOST_CHARACTERS - 3]}..."


def _is_value(part: str, body: bytes, kept: Collection[str]) -> bool:
    """Return True if a part of a sentence is text that the request has as a value."""
    part = part.strip(" .,;:…")
    if len(part) < _SHORTEST or part in kept or part in _TYPES:
        return False
    spellings = {json.dumps(part, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
    needles = [spelling.encode("utf-8", "surrogatepass") for spelling in spellings]
    return any(one in body and not _is_key(one, body) for one in needles)


def _is_key(needle: bytes, body: bytes) -> bool:
    """Return True if a text is a name of a field in a JSON body."""
    return b'"%b":' % needle in body or b'"%b" :' % needle in body


def _body_of(request: web.Request) -> bytes | None:
    """Return the body as far as it was read, a large one with its long texts shortened; None where it is too large all the same."""
    body = request.get(SHORTENED) or body_of(request)
    return body if len(body) <= LARGE_BYTES else None


def _model_of(body: bytes) -> str:
    """Return the model that a body names; empty where it is no JSON."""
    try:
        model = msgspec.json.decode(body, type=_Named).model
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ""
    return model if isinstance(model, str) else ""


def _how(error: UnilectError | None, status: int) -> str:
    """Name the end of an answer that had begun, or of a request that was not answered; empty where the error is its answer."""
    if isinstance(error, RequestCancelled):
        return "operator"
    if status == CLIENT_LEFT:
        return "client"
    return f"error {error.code}" if error is not None and status < 400 else ""


def _name(text: str) -> str:
    """Return a name in one line, bounded."""
    if len(text) > _MOST_NAME:
        return f"{escape(text[: _MOST_NAME - 3])}..."
    return escape(text)
