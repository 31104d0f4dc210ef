"""Responses that are saved at the same time share a transaction: one costs as much as all that is written in it, and waits for the disk."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from unilect.core.errors import StoreUnavailable
from unilect.store.failures import stopping
from unilect.store.records import StoredResponse

MOST = 256
BATCH_WINDOW_S = 0.005
BUSY_S = 0.02  # between two that are saved at busy times
MOST_BYTES = 16 * 1024**2
Outcome: TypeAlias = int | BaseException
Write: TypeAlias = Callable[[Sequence[StoredResponse]], "asyncio.Future[Sequence[Outcome]]"]
_Waiting: TypeAlias = "tuple[StoredResponse, asyncio.Future[int]]"


class ResponseBatchWriter:
    """
    Writer of responses, in the order in which they come. While a transaction runs, those that come wait for the next one. Where they come one
    soon after the other, it waits a moment for more: whatever is written in it, it costs two switches of threads, five pages and a wait for the disk.

    It is idle, writing, waiting (a timer runs) or closed. No task stands between a transaction and those that wait for it: it would cost as much as
    the statement.

    Args:
        write: Saves some in one transaction; for each the bytes that it takes, or what is wrong with it.

    Attributes:
        pending: How many are being made that will be saved, with those that wait: where all of them wait, no more is waited for.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self.pending = 0
        self._waiting: deque[_Waiting] = deque()
        self._writing: Sequence[_Waiting] = ()
        self._alone = 0  # of those that wait are written one by one
        self._before_last_at = -math.inf
        self._last_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def save(self, stored: StoredResponse) -> "asyncio.Future[int]":
        """
        Save a response; also where its caller leaves meanwhile.

        Returns:
            The bytes that it takes; errors as of `write`, or of this response.
        """
        loop = asyncio.get_running_loop()
        end: asyncio.Future[int] = loop.create_future()
        if self._closed:
            end.set_exception(stopping())
            return end
        self._waiting.append((stored, end))
        self._before_last_at, self._last_at = self._last_at, loop.time()
        if not self._writing:
            self._begin_or_wait(loop)
        return end

    def close(self) -> None:
        """Write no more, and tell those that wait. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _, end in (*self._writing, *self._waiting):
            _settle(end, stopping())
        self._waiting.clear()

    def _begin_or_wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin a transaction, or wait for more."""
        are_all = self.pending <= len(self._waiting) or len(self._waiting) >= MOST
        if are_all or self._alone or self._last_at - self._before_last_at > BUSY_S:
            if self._timer is not None:
                self._timer.cancel()
            self._begin()
        elif self._timer is None:
            self._timer = loop.call_later(BATCH_WINDOW_S, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._writing = some = self._take()
        self._write([stored for stored, _ in some]).add_done_callback(partial(self._finish, some))

    def _finish(self, some: Sequence[_Waiting], work: "asyncio.Future[Sequence[Outcome]]") -> None:
        """Tell who waits for a transaction that has ended, and begin the next one."""
        error = stopping() if work.cancelled() else work.exception()
        self._writing = ()
        if error is None:
            for (_, end), outcome in zip(some, work.result(), strict=True):
                _settle(end, outcome)
        elif isinstance(error, StoreUnavailable) or len(some) == 1 or self._closed:
            for _, end in some:
                _settle(end, error)
        else:  # the database refuses all for the sake of one
            self._waiting.extendleft(reversed(some))
            self._alone = len(some)
        if self._waiting and not self._closed:
            self._begin_or_wait(asyncio.get_running_loop())

    def _take(self) -> list[_Waiting]:
        """Take the next ones: at least one, and no more than a transaction should have."""
        if self._alone:
            self._alone -= 1
            return [self._waiting.popleft()]
        some: list[_Waiting] = []
        size = 0
        while self._waiting and len(some) < MOST:
            size += self._waiting[0][0].payload_bytes()
            if some and size > MOST_BYTES:
                break
            some.append(self._waiting.popleft())
        return some


def _settle(end: "asyncio.Future[int]", outcome: Outcome) -> None:
    if end.done():  # who waited has left
        return
    if isinstance(outcome, BaseException):
        end.set_exception(outcome)
    else:
        end.set_result(outcome)
