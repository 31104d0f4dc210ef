"""
The access log: one line per request, with model, backend, tokens and time to first token.

Those are known further down, where they are put into the request's context.
"""

import logging
import time
from functools import lru_cache
from typing import Any

from msgspec import Struct

from unilect.accounting.failures import Failure
from unilect.runtime.context import Context
from unilect.runtime.logs import sink_of
from unilect.runtime.redact import shorten

access = logging.getLogger("unilect.access")


#: `%` takes a third of the time of an f-string with as many numbers in it, and one of it less than two.
_LINE = "%s %s %r %d %.1f ms %s"
_ASKED = f"{_LINE} model=%s%s"
_ANSWERED = f"{_ASKED} prompt=%d completion=%d first=%.1f ms"


class RequestLine(Struct, frozen=True, gc=False):
    """
    The fields of a request's line in the access log, and the line in both formats.

    The line itself is formatted by the log's thread, many in a row: one by one between requests, each took five times as long.
    """

    request_id: str
    method: str
    path: str
    status: int
    took_ms: float
    caller: str
    model: str | None = None  # None where none was asked for
    answering: str = ""
    source: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_s: float | None = None
    admin: bool = False
    failure: Failure | None = None

    @classmethod
    def of(
        cls,
        context: Context,
        method: str,
        path: str,
        status: int,
        admin: bool = False,
        failure: Failure | None = None,
    ) -> "RequestLine":
        """Make the line of a request that has ended. Texts that others chose are cut, since the line may wait."""
        took_ms = (time.perf_counter() - context.started) * 1000
        path, caller, meter = path[:200], context.caller, context.meter
        known = context.request_id, method, path, status, took_ms, caller
        if meter is None:
            model = failure.model or None if failure is not None else None
            return cls(*known, model, admin=admin, failure=failure)
        usage = meter.usage
        return cls(
            *known,
            context.model[:200],
            context.answering[:200],
            context.source,
            usage.prompt_tokens,
            usage.completion_tokens,
            meter.first_token_s,
            admin,
            failure,
        )

    def text(self) -> str:
        """Return the line: request, status, time and caller, what is known of the answer where a model was asked, and the reason of a failure."""
        known: tuple[object, ...]
        caller = self.caller or "-"
        known = (self.request_id, self.method, self.path, self.status, self.took_ms, caller)
        failed = "" if self.failure is None else _format_failure(self.failure)
        failed += " admin" if self.admin else ""
        if self.model is None:
            return _LINE % known + failed
        source = self.source or ("" if self.failure is None else self.failure.backend)
        known += (_printable(self.model), _backend(source))
        first_s, tokens = self.first_s, (self.prompt_tokens, self.completion_tokens)
        if first_s is not None and tokens != (0, 0) and self.answering == self.model:
            return _ANSWERED % (*known, *tokens, first_s * 1000) + failed
        rest = f" prompt={tokens[0]} completion={tokens[1]}" if tokens != (0, 0) else ""
        if first_s is not None:
            rest += f" first={first_s * 1000:.1f} ms"
        if self.answering not in ("", self.model):
            rest += f" fallback={_printable(self.answering)}"
        return _ASKED % known + rest + failed

    def message(self) -> str:
        """Format the method, the path and the status, beside the fields of the JSON format."""
        return f"{self.method} {self.path} {self.status}"

    def fields(self) -> dict[str, Any]:
        """Collect the fields of the JSON format, without those that are not known of the request."""
        known: dict[str, Any] = {
            "request_id": self.request_id,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "duration_ms": round(self.took_ms, 1),
            "caller": self.caller or None,
            "admin": self.admin or None,
        }
        if self.model is not None:
            known |= {
                "model": self.model,
                "backend": shorten(self.source) or None,
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": self.completion_tokens,
                "time_to_first_token_ms": self.first_s and round(self.first_s * 1000, 1),
                "fallback": self.answering if self.answering not in ("", self.model) else None,
            }
        if (failure := self.failure) is not None:
            known |= {
                "backend": failure.backend or None,
                "address": failure.address or None,
                "ended": failure.ended or None,
                "error": failure.code or None,
                "param": failure.param or None,
                "reason": failure.reason or None,
                "attempts": len(failure.attempts) or None,
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

    def add(self, line: RequestLine) -> None:
        """Log a request: straight into the sink, since a log record costs ten times as much; as a record where there is no sink."""
        if self._sink is not None:
            self._sink.add_later(line)
        else:
            access.info("%s", line.text())


def _format_failure(failure: Failure) -> str:
    """Return the part of a line that is about a failure."""
    told = {
        "from": failure.address,
        "ended": failure.ended,
        "attempts": len(failure.attempts) if len(failure.attempts) > 1 else "",
        "error": failure.code,
        "param": failure.param,
        "reason": f'"{failure.reason}"' if failure.reason else "",
    }
    return "".join(f" {name}={value}" for name, value in told.items() if value)


@lru_cache(256)
def _backend(source: str) -> str:
    """Return the source of an answer; nothing where none was asked."""
    return f" backend={_printable(shorten(source))}" if source else ""


@lru_cache(256)
def _printable(name: str) -> str:
    """Return a name without control characters; those of discovered models are others' choice."""
    return repr(name[:200])[1:-1]
