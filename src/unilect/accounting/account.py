"""
The account of one request: what is decided before it is answered, what it uses, and what is kept of it afterwards.

Each book that keeps something of a request has a record of it, which is opened before a backend is leased, notes every batch, and is closed
before the last frame is sent: a client that has a whole answer finds it in the ledger.
"""

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from msgspec.structs import replace

from unilect.accounting.metrics import Metrics, Series
from unilect.core.errors import AnswerTooLong, InternalError, UnilectError
from unilect.core.events import Event, Finish, ReasoningDelta, Tally, Usage, tells
from unilect.core.requests import Request
from unilect.runtime.context import Context

CLIENT_LEFT = 499  # nginx's status for a client that closed its request
_TOLD = 2  # marks and the names of calls are tokens of no piece; a half of all is in some
_LAST = frozenset({Finish, Usage})  # of a batch, where a choice or the answer ends in it


class RequestRecord(Protocol):
    """The record of one request in one book, such as its row of the ledger, or what is reserved of its key's budget."""

    def note_usage(self, usage: Tally) -> None:
        """Take note of what the answer has used so far. It is called for each batch, and must cost next to nothing."""

    async def close(self, usage: Tally | Usage, status: int) -> None:
        """
        End the record of a request, with its HTTP status (499: its client has left). It is called once, before the last frame is sent.

        Raises:
            UnilectError: What has to be kept cannot be, and the answer must not be called whole.
        """


class RequestRecorder(Protocol):
    """
    A recorder of requests that may also refuse them: the limits, the ledger.

    Attributes:
        is_on: It may keep something of any request; else it is asked only about one whose key has limits of its own.
    """

    is_on: bool

    async def open(self, context: Context, request: Request) -> RequestRecord | None:
        """
        Begin the record of a request; `context` tells of whom it is, and for which model.

        Returns:
            None where nothing is kept of it.

        Raises:
            UnilectError: It must not be answered.
        """


class RequestAccounting(Tally):
    """
    The numbers of one request, and its records in the books: an asynchronous context manager, which is shown every batch.

    The books are asked in their order, and their records are closed in the opposite one.

    Attributes:
        first_token_s: Seconds from the request to its first token; None before that.
        finish_reason: Why the last choice that has ended did; empty before that.
        thoughts: The tokens of its thoughts, as far as its pieces tell.
    """

    __slots__ = (
        *(
            "_books",
            "_context",
            "_is_whole",
            "_records",
            "_request",
            "_series",
            "_start",
        ),
        *("finish_reason", "first_token_s", "thoughts"),
    )

    def __init__(
        self,
        series: Series,
        books: Sequence[RequestRecorder],
        context: Context,
        request: Request,
    ) -> None:
        super().__init__()
        self._series, self._books, self._context, self._request = series, books, context, request
        self._records: list[RequestRecord] = []
        self._start = time.perf_counter()
        self._is_whole = False  # the answer came all at once
        self.first_token_s: float | None = None
        self.finish_reason = ""
        self.thoughts = 0
        series.waiting += 1

    def see(self, batch: list[Event]) -> None:
        """
        Take note of a batch.

        Raises:
            UnilectError: The answer must end here.
        """
        if self.first_token_s is None and tells(batch):
            series = self._series
            self.first_token_s = time.perf_counter() - self._start
            self._is_whole = type(batch[-1]) in _LAST
            series.waiting -= 1
            series.running += 1
            series.time_to_first_token.observe(self.first_token_s)
        self.add(batch)
        last = type(batch[-1])
        # many come in one batch: a few steps in Python for each are a tenth of all that a stream costs
        if last is ReasoningDelta or (len(batch) > 1 and ReasoningDelta in map(type, batch)):
            self.thoughts += sum(event.tokens for event in batch if type(event) is ReasoningDelta)
        if last in _LAST:
            for event in reversed(batch):
                if type(event) is Finish:
                    self.finish_reason = event.reason
                    break
        for record in self._records:
            record.note_usage(self)
        if self.completion_tokens > self._context.most:
            raise AnswerTooLong(
                "The answer has more tokens than are left of this API key's limits: its backend did not keep to `max_tokens`."
            )

    def add_thoughts(self, batch: list[Event]) -> list[Event]:
        """
        Return a batch of an answer with thoughts whose usage tells how many of its tokens they are, also where its backend does not.

        Its pieces tell of how many tokens they are made. Of a server that sends many tokens at a time, or a whole answer, they do not: then
        nobody knows how many of them are thoughts, and the usage has None.
        """
        last = batch[-1]
        if type(last) is not Usage or last.reasoning_tokens:
            return batch
        known = self.pieces * _TOLD >= last.completion_tokens > 0
        thoughts = min(self.thoughts, last.completion_tokens) if known else None
        return [*batch[:-1], replace(last, reasoning_tokens=thoughts)]

    def discard(self) -> None:
        """Count nothing of an answer so far: it has failed before its end, and nobody has a part of it."""
        self.hold(0, -self.usage.completion_tokens)
        self.pieces = self.thoughts = 0

    def hold(self, prompt: int, completion: int) -> None:
        """Count so many tokens more, or less, of what was made and is not told; what the backend says in the end has them."""
        if self.said is None:
            self.prompt_tokens += prompt
            self.read_tokens += prompt
            self.completion_tokens += completion

    async def __aenter__(self) -> Self:
        """
        Raises:
            UnilectError: A book does not let the request through.
        """
        try:
            for book in self._books:
                if book.is_on or self._context.limits:
                    record = await book.open(self._context, self._request)
                    if record is not None:
                        self._records.append(record)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """
        Close all records, also those after one that fails, and count the request.

        Raises:
            UnilectError: What must be kept cannot be; only where the answer was whole.
        """
        status = status_of(error)
        try:
            while self._records:
                await self._records.pop().close(self, status)
        except BaseException as failure:
            cause = error or failure
            await self.__aexit__(type(cause), cause, None)
            if error is not None and isinstance(failure, UnilectError):
                return  # what has failed before counts
            raise
        self.finish(status)

    def finish(self, status: int) -> float:
        """
        Count the request, exactly once.

        Returns:
            Seconds since it began.
        """
        series, made, first_s = self._series, self.completion_tokens, self.first_token_s
        took_s = time.perf_counter() - self._start
        if first_s is None:
            series.waiting -= 1
        else:
            series.running -= 1
            if self._is_whole and made:
                series.took(first_s / made)
            elif made > 1:
                series.took((took_s - first_s) / (made - 1))
        series.prompt += self.prompt_tokens
        series.completion += made
        series.cached += self.cached_tokens
        series.statuses[status] += 1
        series.request_duration.observe(took_s)
        del self._context, self._request  # the former holds this: no work for the garbage collector
        return took_s


def status_of(error: BaseException | None) -> int:
    """Return the HTTP status of a request that ended so; 499 where its client has left."""
    if error is None:
        return 200
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return CLIENT_LEFT
    return error.status if isinstance(error, UnilectError) else InternalError.status


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

    def open(
        self, context: Context, model: str, request: Request, *, is_recorded: bool = True
    ) -> RequestAccounting:
        """Open the accounting of a request for a model, to be entered; it may be measured only."""
        books = self.books if is_recorded else ()
        series = self.metrics.series(model, context.endpoint)
        account = RequestAccounting(series, books, context, request)
        context.set_model(model, account)
        return account
