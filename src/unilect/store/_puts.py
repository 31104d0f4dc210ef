"""Responses that are put at the same time share a transaction: one costs as much as all that is written in it, and waits for the disk."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from unilect.errors import StoreUnavailable

if TYPE_CHECKING:
    from unilect.store.answers import Stored

MOST = 256
GATHER_S = 0.005
DENSE_S = 0.02  # between two that are put at busy times
MOST_BYTES = 16 * 1024**2
Outcome: TypeAlias = int | BaseException
Write: TypeAlias = "Callable[[Sequence[Stored]], asyncio.Future[Sequence[Outcome]]]"
Waiting: TypeAlias = "tuple[Stored, asyncio.Future[int]]"


class Puts:
    """
    Puts responses, in the order in which they come. While a transaction runs, those that come wait for the next one. Where they come one soon after the other,
    it waits a moment for more: whatever is written in it, it costs two switches of threads, five pages and a wait for the disk.

    It is idle, writing, gathering (a timer runs) or closed. No task stands between a transaction and those that wait for it: it would cost as much as
    the statement.

    Args:
        write: Puts some in one transaction; for each the bytes that it takes, or what is wrong with it.

    Attributes:
        coming: How many are being made that will be put, with those that wait: where all of them wait, no more is waited for.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self.coming = 0
        self._waiting: deque[Waiting] = deque()
        self._writing: Sequence[Waiting] = ()
        self._alone = 0  # of those that wait are written one by one
        self._put_at = -math.inf  # the one before the last
        self._last_at = -math.inf
        self._gathering: asyncio.TimerHandle | None = None
        self._closed = False

    def put(self, stored: "Stored") -> "asyncio.Future[int]":
        """
        Put a response; it is stored also where its caller leaves meanwhile.

        Returns:
            The bytes that it takes; errors as of `write`, or of this response.
        """
        loop = asyncio.get_running_loop()
        end: asyncio.Future[int] = loop.create_future()
        if self._closed:
            end.set_exception(_stopping())
            return end
        self._waiting.append((stored, end))
        self._put_at, self._last_at = self._last_at, loop.time()
        if not self._writing:
            self._begin_or_gather(loop)
        return end

    def close(self) -> None:
        """Write no more, and tell those that wait. Idempotent."""
        self._closed = True
        if self._gathering is not None:
            self._gathering.cancel()
        for _, end in (*self._writing, *self._waiting):
            _settle(end, _stopping())
        self._waiting.clear()

    def _begin_or_gather(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin a transaction, or wait for more."""
        are_all = self.coming <= len(self._waiting) or len(self._waiting) >= MOST
        if are_all or self._alone or self._last_at - self._put_at > DENSE_S:
            if self._gathering is not None:
                self._gathering.cancel()
            self._begin()
        elif self._gathering is None:
            self._gathering = loop.call_later(GATHER_S, self._begin)

    def _begin(self) -> None:
        self._gathering = None
        self._writing = some = self._take()
        self._write([stored for stored, _ in some]).add_done_callback(partial(self._ended, some))

    def _ended(self, some: Sequence[Waiting], work: "asyncio.Future[Sequence[Outcome]]") -> None:
        """A transaction has ended: tell who waits for it, and begin the next one."""
        error = _stopping() if work.cancelled() else work.exception()
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
            self._begin_or_gather(asyncio.get_running_loop())

    def _take(self) -> list[Waiting]:
        """The next ones: at least one, and no more than a transaction should have."""
        if self._alone:
            self._alone -= 1
            return [self._waiting.popleft()]
        some: list[Waiting] = []
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


def _stopping() -> StoreUnavailable:
    return StoreUnavailable("The server is stopping. Try again soon.", retry_after_s=5)
