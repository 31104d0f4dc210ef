"""
The access log: one line per request, with model, backend, tokens and time to first token.

Those are known further down, where they are put into the request's record.
"""

import logging
from functools import lru_cache
from urllib.parse import urlsplit

from unilect.context import Record
from unilect.logs import sink_of

access = logging.getLogger("unilect.access")


def answered(record: Record) -> str:
    """The end of a request's line: what is known of its answer; empty where no model was asked."""
    meter = record.meter
    if meter is None:
        return ""
    text = f" model={_printable(record.model)}"
    if record.source:
        text += f" backend={_without_secrets(record.source)}"
    usage, first_s = meter.usage, meter.first_token_s
    if usage.prompt_tokens or usage.completion_tokens:
        text += f" prompt={usage.prompt_tokens} completion={usage.completion_tokens}"
    if first_s is not None:
        text += f" first={first_s * 1000:.1f} ms"
    if record.answering != record.model:
        text += f" fallback={_printable(record.answering)}"
    return text


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
