"""
The access log: one line per request, with model, backend, tokens and time to first token.

Those are known further down, where they are put into the request's context.
"""

import logging
import time
from functools import lru_cache
from typing import Any

from unilect.context import Context
from unilect.logs import sink_of
from unilect.redact import shortened

access = logging.getLogger("unilect.access")


#: `%` takes a third of the time of an f-string with as many numbers in it, and one of it less than two.
_LINE = "%s %s %r %d %.1f ms %s"
_ASKED = f"{_LINE} model=%s%s"
_ANSWERED = f"{_ASKED} prompt=%d completion=%d first=%.1f ms"


def told(context: Context, method: str, path: str, status: int) -> str:
    """A request's line: what was asked, its status, its time, its caller, and what is known of its answer where a model was asked."""
    took_ms = (time.perf_counter() - context.started) * 1000
    caller, meter = context.caller or "-", context.meter
    if meter is None:
        return _LINE % (context.request_id, method, path, status, took_ms, caller)
    model, backend = _printable(context.model), _backend(context.source)
    known = (context.request_id, method, path, status, took_ms, caller, model, backend)
    usage, first_s = meter.usage, meter.first_token_s
    tokens = (usage.prompt_tokens, usage.completion_tokens)
    if first_s is not None and tokens != (0, 0) and context.answering == context.model:
        return _ANSWERED % (known + tokens + (first_s * 1000,))
    rest = f" prompt={tokens[0]} completion={tokens[1]}" if tokens != (0, 0) else ""
    if first_s is not None:
        rest += f" first={first_s * 1000:.1f} ms"
    if context.answering != context.model:
        rest += f" fallback={_printable(context.answering)}"
    return _ASKED % known + rest


def fields(context: Context, method: str, path: str, status: int) -> dict[str, Any]:
    """What a request's line tells, for the JSON format; what is not known of it is left out."""
    known: dict[str, Any] = {
        "request_id": context.request_id,
        "method": method,
        "path": path,
        "status": status,
        "duration_ms": round((time.perf_counter() - context.started) * 1000, 1),
        "caller": context.caller or None,
    }
    if (meter := context.meter) is not None:
        usage, first_s = meter.usage, meter.first_token_s
        known |= {
            "model": context.model,
            "backend": shortened(context.source) or None,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "time_to_first_token_ms": None if first_s is None else round(first_s * 1000, 1),
            "fallback": context.answering if context.answering != context.model else None,
        }
    return {name: value for name, value in known.items() if value is not None}


class AccessLog:
    """
    Logs requests.

    Attributes:
        on: True when requests are logged at all (level *info*).
    """

    def __init__(self) -> None:
        self.on = access.isEnabledFor(logging.INFO)
        self._sink = sink_of(access)
        self._is_json = self._sink is not None and self._sink.form == "json"

    def add(self, context: Context, method: str, path: str, status: int) -> None:
        """Log a request: straight into the sink, since a log record costs ten times as much; as a record where there is no sink."""
        path = path[:200]
        if self._is_json and self._sink is not None:
            of_line = fields(context, method, path, status)
            self._sink.add(f"{method} {path} {status}", fields=of_line)
            return
        line = told(context, method, path, status)
        if self._sink is not None:
            self._sink.add(line)
        else:
            access.info("%s", line)


@lru_cache(256)
def _backend(source: str) -> str:
    """The source of an answer; nothing where none was asked."""
    return f" backend={_printable(shortened(source))}" if source else ""


@lru_cache(256)
def _printable(name: str) -> str:
    """A name without control characters; those of discovered models are others' choice."""
    return repr(name[:200])[1:-1]
