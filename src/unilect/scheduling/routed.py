"""A request as its backends were asked it, with a digest that tells it from others."""

import hashlib
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Struct

from unilect.core.requests import Request


class RoutedRequest(Struct, gc=False):
    """
    A request as the backends of a model were asked it.

    Attributes:
        request: The request; None for a call about the model, such as to count tokens.
        tried: The backends that the request was sent to, this one too.
        begun: The client has seen a part of the answer, so that it will not be sent to another one.
        falls_back: Another model answers the request if none of this one's backends does.
        known: What tells the request from others, once that was asked for; it costs a pass over the request.
    """

    request: Request | None = None
    tried: Collection[Any] = ()
    begun: bool = False
    falls_back: bool = False
    known: bytes = b""

    @property
    def digest(self) -> bytes:
        """The digest of the request; empty for a call about the model."""
        if not self.known and self.request is not None:
            self.known = _digest(self.request)
        return self.known


def _digest(request: Request) -> bytes:
    """A request, told apart from others; what stands in its fields is not read again as the client wrote it."""
    known, fields = msgspec.structs.replace(request, raw_fields={}), request.__struct_fields__
    more = {name: raw for name, raw in request.raw_fields.items() if name not in fields}
    try:
        data = msgspec.msgpack.encode((type(request).__name__, known, more))  # JSON takes longer
    except (TypeError, ValueError, OverflowError):
        data = repr((known, more)).encode("utf-8", "backslashreplace")
    return hashlib.sha256(data).digest()
