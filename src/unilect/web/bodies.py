"""
Reads request bodies, within limits of size, time and total memory.

A body up to `SMALL_BYTES` always passes. What is beyond that counts against one budget for the whole server, so that clients who
send half a body and wait cannot fill the memory. A body that makes no way is given up, and its share of the budget comes back.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from unilect.bounds import LARGE_BYTES, SMALL_BYTES, one_pass
from unilect.errors import BackendUnavailable, BodyTooLarge, RequestTimeout

BUDGET_BYTES = 128 * 1024 * 1024
BODY_TIMEOUT_S = 30.0
More = Callable[[], Awaitable[bytes]]
PACE_S = 10.0  # in each such time a body over SMALL_BYTES brings SMALL_BYTES more, or ends


class Bodies:
    """
    The bodies that a server reads at a time.

    Args:
        most_bytes: The longest body.
        budget_bytes: What the large ones may take together, as far as they have come.
        timeout_s, pace_s: How long one may take, and how long for `SMALL_BYTES` more.

    Attributes:
        most_bytes: As given.
    """

    def __init__(
        self,
        most_bytes: int,
        budget_bytes: int = BUDGET_BYTES,
        timeout_s: float = BODY_TIMEOUT_S,
        pace_s: float = PACE_S,
    ) -> None:
        self.most_bytes = most_bytes
        self._budget_bytes = self._free_bytes = max(budget_bytes, most_bytes)
        self._timeout_s = timeout_s
        self._pace_s = pace_s

    def change(self, most_bytes: int) -> None:
        """Take bodies of another length from now on; the budget grows where one of them would not fit into it."""
        self.most_bytes = most_bytes
        grown = max(0, most_bytes - self._budget_bytes)
        self._budget_bytes += grown
        self._free_bytes += grown

    async def read(self, more: More, announced: int | None) -> bytes:
        """
        Read a body.

        Args:
            more: Awaits and returns the next bytes; none at the end.
            announced: Its Content-Length, if it has one.

        Raises:
            BodyTooLarge, RequestTimeout: As they say.
            BackendUnavailable: The others take all of the budget.
        """
        body, taken = bytearray(), 0
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                aclosing(self.chunks(more, announced)) as chunks,
            ):
                async for data in chunks:
                    body += data
                    beyond = max(0, len(body) - SMALL_BYTES)
                    self._free_bytes -= beyond - taken
                    taken = beyond
                    if self._free_bytes < 0:
                        raise BackendUnavailable(
                            "The server is reading too many large requests. Send the request again.",
                            retry_after_s=self._pace_s,
                        )
            if len(body) <= LARGE_BYTES:
                return bytes(body)
            async with one_pass():
                return bytes(body)
        except TimeoutError as error:
            raise self._too_slow() from error
        finally:
            self._free_bytes += taken

    async def chunks(
        self, more: More, announced: int | None, most_bytes: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """
        A body as it comes. Time counts while its next bytes are waited for.

        Args:
            more, announced: As of `read`.
            most_bytes: The most that it may have; None for the longest body in memory.

        Raises:
            BodyTooLarge, RequestTimeout: As they say.
        """
        limit, loop = most_bytes or self.most_bytes, asyncio.get_running_loop()
        if announced is not None and announced > limit:
            raise self.too_large(most_bytes)
        size, goal, left_s = 0, SMALL_BYTES, self._timeout_s
        while True:
            since = loop.time()
            try:
                async with asyncio.timeout(left_s):
                    data = await more()
            except TimeoutError as error:
                raise self._too_slow() from error
            if not data:
                return
            left_s -= loop.time() - since
            size += len(data)
            if size > limit:
                raise self.too_large(most_bytes)
            if size > goal:
                goal, left_s = size + SMALL_BYTES, self._pace_s
            yield data

    def too_large(self, most_bytes: int | None = None) -> BodyTooLarge:
        """The error for a body over a limit, which is that of bodies in memory where none is given."""
        configured = (
            "" if most_bytes else ", or raise `max_body_bytes` in the server's configuration"
        )
        limit = most_bytes or self.most_bytes
        return BodyTooLarge(
            f"The request's body is larger than {limit} bytes. Send less{configured}."
        )

    def _too_slow(self) -> RequestTimeout:
        return RequestTimeout(
            f"The request's body did not arrive within {self._timeout_s:g} s, or came slower than "
            f"{SMALL_BYTES // 1024} kB in {self._pace_s:g} s. Send it again."
        )
