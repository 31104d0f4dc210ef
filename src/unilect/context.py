"""
The request in hand, for what lies too deep to be told of it: whose failure it is, which request a line of the log is about, and
what the request's own line tells in the end.

The guard opens a record for each request; whatever runs for that request, in its task or in one that it has started, finds it.
Work that belongs to nobody's request is started with `tasks.apart`.
"""

from contextvars import ContextVar
from typing import Protocol

from unilect.events import Usage


class Measured(Protocol):
    """What measures a request."""

    @property
    def usage(self) -> Usage:
        """What the answer has used so far."""

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the request to its first token; None before that."""


class Record:
    """
    What is known of one request.

    Attributes:
        request_id: The request's id, as the client and the access log have it.
        caller: The name of the caller's key; empty where nobody needs one.
        model: The model that was asked for.
        answering: The model that answered: its fallback, where that is another one.
        source: Where the answering backend comes from.
        meter: What measures the request.
    """

    __slots__ = ("answering", "caller", "meter", "model", "request_id", "source")

    def __init__(self, request_id: str = "", caller: str = "") -> None:
        self.request_id = request_id
        self.caller = caller
        self.model = self.answering = self.source = ""
        self.meter: Measured | None = None

    def asked(self, model: str, meter: Measured) -> None:
        """A request for a model begins."""
        self.model = self.answering = model
        self.meter = meter

    def leased(self, model: str, source: str) -> None:
        """A backend is about to answer."""
        self.answering = model
        self.source = source


IN_HAND: ContextVar[Record | None] = ContextVar("in_hand", default=None)


def in_hand() -> Record:
    """The record of the request that this task answers; one that nobody reads outside of a request."""
    return IN_HAND.get() or Record()
