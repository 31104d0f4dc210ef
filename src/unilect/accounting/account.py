"""
The account of one request: what is decided before it is answered, and what is kept of it afterwards.

A server without limits and without a ledger measures its requests only, and an account is a `Meter`. With them, an account holds what
stands for the request in each: it is opened before a backend is leased, sees every batch, and is closed before the last
frame is sent, so that a client that has a whole answer finds it in the ledger.
"""

import asyncio
from types import TracebackType
from typing import Protocol, Self

from msgspec import Struct

from unilect.accounting.metrics import Meter, Metrics
from unilect.core.errors import InternalError, UnilectError
from unilect.core.events import Event, Usage
from unilect.core.requests import Request
from unilect.runtime.context import Context


class RequestRecord(Protocol):
    """The record of one request in one book, such as its row of the ledger, or what is reserved of its key's budget."""

    def note_usage(self, usage: Usage) -> None:
        """
        Take note of what the answer has used so far. It is called for each batch, and must cost next to nothing.

        Raises:
            UnilectError: It must end here.
        """

    async def close(self, usage: Usage, status: int) -> None:
        """
        End the record of a request, with its HTTP status (499: its client has left). It is called once, before the last frame is sent.

        Raises:
            UnilectError: What has to be kept cannot be, and the answer must not be called whole.
        """


class RequestRecorder(Protocol):
    """A recorder of requests that may also refuse them: the limits, the ledger."""

    def applies(self, context: Context) -> bool:
        """Return True if the book may keep something of a request. It must cost next to nothing."""

    async def open(self, context: Context, request: Request) -> RequestRecord | None:
        """
        Begin the record of a request; `context` tells of whom it is, and for which model.

        Returns:
            None where nothing is kept of it.

        Raises:
            UnilectError: It must not be answered.
        """


class RequestAccounting(Struct, eq=False):
    """
    A meter, and the entries of a request in each book; these are asked in their order, and closed in the opposite one.
    """

    _meter: Meter
    _books: tuple[RequestRecorder, ...]
    _context: Context
    _request: Request
    _entries: list[RequestRecord] = []

    @property
    def usage(self) -> Usage:
        """As `Meter.usage`."""
        return self._meter.usage

    def see(self, batch: list[Event]) -> None:
        """
        Take note of a batch.

        Raises:
            UnilectError: The answer must end here.
        """
        self._meter.see(batch)
        usage = self._meter.usage
        for entry in self._entries:
            entry.note_usage(usage)

    async def __aenter__(self) -> Self:
        """
        Raises:
            UnilectError: A book does not let the request through.
        """
        try:
            for book in self._books:
                entry = await book.open(self._context, self._request)
                if entry is not None:
                    self._entries.append(entry)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """
        Raises:
            UnilectError: What must be kept cannot be; only where the answer was whole.
        """
        meter, status = self._meter, InternalError.status  # of a flaw of ours
        try:
            await self._close(error)
            status = meter.status(error)
        except (UnilectError, asyncio.CancelledError) as failure:
            status = meter.status(error or failure)
            if error is None or isinstance(failure, asyncio.CancelledError):
                raise
        finally:
            meter.finish(status)

    async def _close(self, error: BaseException | None) -> None:
        """Close all entries, also those after one that fails."""
        entries, usage, status = self._entries, self._meter.usage, self._meter.status(error)
        try:
            while entries:
                await entries.pop().close(usage, status)
        except BaseException as failure:
            await self._close(error or failure)
            raise


class Accounts:
    """
    Opens the accounts of a server.

    Attributes:
        metrics: Where everything is counted.
        books: What keeps something of each request.
    """

    def __init__(self, metrics: Metrics, books: tuple[RequestRecorder, ...] = ()) -> None:
        self.metrics = metrics
        self.books: tuple[RequestRecorder, ...] = books
        if metrics.keys is not None:
            self.books = (metrics.keys, *books)

    def open(self, context: Context, model: str, request: Request) -> Meter | RequestAccounting:
        """Open the accounting of a request for a model, to be entered."""
        meter = self.metrics.start(model, context.endpoint)
        context.set_model(model, meter)
        for book in self.books:
            if book.applies(context):
                return RequestAccounting(meter, self.books, context, request)
        return meter
