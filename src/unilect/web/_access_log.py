"""
The access log: one line per request, with model, backend, tokens and time to first token.

Those are known further down, where they are put into the request's context.
"""

import logging
import time
from functools import lru_cache
from urllib.parse import urlsplit

from unilect.context import Context
from unilect.logs import sink_of

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


class AccessLog:
    """
    Logs requests.

    Attributes:
        on: True when requests are logged at all (level *info*).
    """

    def __init__(self) -> None:
        self.on = access.isEnabledFor(logging.INFO)
        self._sink = sink_of(access)

    def add(self, context: Context, method: str, path: str, status: int) -> None:
        """Log a request: straight into the sink, since a log record costs ten times as much; as a record where there is no sink."""
        line = told(context, method, path[:200], status)
        if self._sink is not None:
            self._sink.add(line)
        else:
            access.info("%s", line)


@lru_cache(256)
def _backend(source: str) -> str:
    """The source of an answer; nothing where none was asked."""
    return f" backend={_without_secrets(source)}" if source else ""


def _without_secrets(source: str) -> str:
    """A source as a log may show it: of a server scheme, host and port, of a model file its name."""
    parts = urlsplit(source)
    if parts.hostname is None:
        return _printable(source.rpartition("/")[2])
    try:
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        port = ""
    return _printable(f"{parts.scheme}://{parts.hostname}{port}")


@lru_cache(256)
def _printable(name: str) -> str:
    """A name without control characters; those of discovered models are others' choice."""
    return repr(name[:200])[1:-1]
