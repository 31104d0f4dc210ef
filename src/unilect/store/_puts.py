"""Responses that are put at the same time share a transaction: one costs as much as all that is written in it, and waits for the disk."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from unilect.errors import StoreUnavailable
from unilect.tasks import Tasks

if TYPE_CHECKING:
    from unilect.store.answers import Stored

MOST = 256
GATHER_S = 0.005
MOST_BYTES = 16 * 1024**2
Outcome: TypeAlias = int | BaseException
Write: TypeAlias = "Callable[[Sequence[Stored]], Awaitable[Sequence[Outcome]]]"


class Puts:
    """
    Puts responses, in the order in which they come. While a transaction runs, those that come wait for the next one.

    Args:
        write: Puts some in one transaction; for each the bytes that it takes, or what is wrong with it.
        tasks: Where the work is done.
    """

    def __init__(self, write: Write, tasks: Tasks) -> None:
        self._write = write
        self._tasks = tasks
        self._waiting: deque[tuple[Stored, asyncio.Future[int]]] = deque()
        self._writer: asyncio.Task[None] | None = None

    async def put(self, stored: "Stored") -> int:
        """
        Put a response; it is stored also where its caller leaves meanwhile.

        Returns:
            The bytes that it takes.

        Raises:
            UnilectError: As `write` raises, or says of this response.
        """
        end = asyncio.get_running_loop().create_future()
        self._waiting.append((stored, end))
        if self._writer is None or self._writer.done():
            self._writer = self._tasks.start("the writer of responses", self._write_all())
        size: int = await end
        return size

    async def _write_all(self) -> None:
        """Write until nobody waits. Who waits when this is cancelled is told."""
        some: list[tuple[Stored, asyncio.Future[int]]] = []
        try:
            while self._waiting:
                if (
                    some and len(self._waiting) > 1
                ):  # many are at it: more come while these wait a little
                    await asyncio.sleep(GATHER_S)
                some = self._take()
                for (_, end), outcome in zip(some, await self._outcomes(some), strict=True):
                    if end.cancelled():
                        continue
                    if isinstance(outcome, BaseException):
                        end.set_exception(outcome)
                    else:
                        end.set_result(outcome)
        finally:
            for _, end in (*some, *self._waiting):
                if not end.done():
                    end.set_exception(StoreUnavailable("The server is stopping.", retry_after_s=5))
            self._waiting.clear()

    async def _outcomes(
        self, some: "Sequence[tuple[Stored, asyncio.Future[int]]]"
    ) -> Sequence[Outcome]:
        """What becomes of each. Where the database refuses all for the sake of one, each is put alone."""
        written = self._write([stored for stored, _ in some])
        (found,) = await asyncio.gather(written, return_exceptions=True)
        if not isinstance(found, BaseException):
            return found
        if isinstance(found, StoreUnavailable) or len(some) == 1:
            return [found] * len(some)
        return [(await self._outcomes([each]))[0] for each in some]

    def _take(self) -> "list[tuple[Stored, asyncio.Future[int]]]":
        """The next ones: at least one, and no more than a transaction should have."""
        some: list[tuple[Stored, asyncio.Future[int]]] = []
        size = 0
        while self._waiting and len(some) < MOST:
            size += self._waiting[0][0].payload_bytes()
            if some and size > MOST_BYTES:
                break
            some.append(self._waiting.popleft())
        return some
