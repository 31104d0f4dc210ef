"""
The log line of each request, and what it tells beside the guard's own facts: model, backend, tokens, time to the first token.

Those are known further down, so the guard opens an `Entry` for each request and finds it filled in at the end. The entry travels
in a context variable: every request runs in a task of its own.
"""

import logging
from contextvars import ContextVar
from functools import lru_cache
from urllib.parse import urlsplit

from unilect.gateway.metrics import Meter
from unilect.logs import sink_of

access = logging.getLogger("unilect.access")
_entry: ContextVar["Entry | None"] = ContextVar("entry", default=None)


class Entry:
    """
    What is known of one request.

    Attributes:
        model: The model that was asked for.
        answering: The model that answered: its fallback, where that is another one.
        source: Where the answering backend comes from.
        meter: What measures the request.
    """

    __slots__ = ("answering", "meter", "model", "source")

    def __init__(self) -> None:
        self.model = self.answering = self.source = ""
        self.meter: Meter | None = None

    def asked(self, model: str, meter: Meter) -> None:
        """A request for a model begins."""
        self.model = self.answering = model
        self.meter = meter

    def leased(self, model: str, source: str) -> None:
        """A backend is about to answer."""
        self.answering = model
        self.source = source

    def text(self) -> str:
        """The end of the log line; empty where no model was asked."""
        meter = self.meter
        if meter is None:
            return ""
        text = f" model={_printable(self.model)}"
        if self.source:
            text += f" backend={_without_secrets(self.source)}"
        usage = meter.usage
        if usage.prompt_tokens or usage.completion_tokens:
            text += f" prompt={usage.prompt_tokens} completion={usage.completion_tokens}"
        if meter.first_token_s is not None:
            text += f" first={meter.first_token_s * 1000:.1f} ms"
        if self.answering != self.model:
            text += f" fallback={_printable(self.answering)}"
        return text


def open_entry() -> Entry:
    """A new entry for the request that this task answers."""
    entry = Entry()
    _entry.set(entry)
    return entry


def current_entry() -> Entry:
    """The entry of the request that this task answers; one that nobody reads outside of a request."""
    return _entry.get() or Entry()


class AccessLog:
    """
    Logs requests.

    Attributes:
        on: True when requests are logged at all (level *info*).
    """

    def __init__(self) -> None:
        self.on = access.isEnabledFor(logging.INFO)
        self._sink = sink_of(access)

    def add(self, line: str) -> None:
        """Log a line: straight into the sink, since a log record costs ten times as much; as a record where there is no sink."""
        if self._sink is not None:
            self._sink.add(line)
        else:
            access.info("%s", line)


@lru_cache(256)
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
