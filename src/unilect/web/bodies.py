"""
Reads request bodies, within limits of size, time and total memory.

A body up to `SMALL_BYTES` always passes. What is beyond that counts against one budget for the whole server, so that clients who
send half a body and wait cannot fill the memory. A body that makes no way is given up, and its share of the budget comes back.
"""

import asyncio
from collections.abc import Awaitable, Callable

from unilect.errors import BackendUnavailable, BodyTooLarge, RequestTimeout

SMALL_BYTES = 64 * 1024
BUDGET_BYTES = 128 * 1024 * 1024
BODY_TIMEOUT_S = 30.0
PACE_S = 10.0  # in each such time a body over SMALL_BYTES brings SMALL_BYTES more, or ends


class Bodies:
    """
    The bodies that a server reads at a time.

    Args:
        most_bytes: The longest body.
        budget_bytes: What the large ones may take together, as far as they have come.
        timeout_s, pace_s: How long one may take, and how long for `SMALL_BYTES` more.
    """

    def __init__(
        self,
        most_bytes: int,
        budget_bytes: int = BUDGET_BYTES,
        timeout_s: float = BODY_TIMEOUT_S,
        pace_s: float = PACE_S,
    ) -> None:
        self._most_bytes = most_bytes
        self._free_bytes = max(budget_bytes, most_bytes)
        self._timeout_s = timeout_s
        self._pace_s = pace_s

    async def read(self, more: Callable[[], Awaitable[bytes]], announced: int | None) -> bytes:
        """
        Read a body.

        Args:
            more: Awaits and returns the next bytes; none at the end.
            announced: Its Content-Length, if it has one.

        Raises:
            BodyTooLarge, RequestTimeout: As they say.
            BackendUnavailable: The others take all of the budget.
        """
        if announced is not None and announced > self._most_bytes:
            raise self.too_large()
        body, taken = bytearray(), 0
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout_s
        paced, goal = end, 0
        try:
            async with asyncio.timeout_at(end) as timer:
                while data := await more():
                    body += data
                    size = len(body)
                    if size > self._most_bytes:
                        raise self.too_large()
                    if size <= SMALL_BYTES:
                        continue
                    if size >= goal:
                        goal, paced = size + SMALL_BYTES, min(end, loop.time() + self._pace_s)
                        timer.reschedule(paced)
                    self._free_bytes -= size - SMALL_BYTES - taken
                    taken = size - SMALL_BYTES
                    if self._free_bytes < 0:
                        raise BackendUnavailable(
                            "The server is reading too many large requests. Send the request again.",
                            retry_after_s=self._pace_s,
                        )
            return bytes(body)
        except TimeoutError as error:
            raise RequestTimeout(
                f"The request's body did not arrive within {self._timeout_s:g} s, or came slower than "
                f"{SMALL_BYTES // 1024} kB in {self._pace_s:g} s. Send it again."
            ) from error
        finally:
            self._free_bytes += taken

    def too_large(self) -> BodyTooLarge:
        """The error for a body over the limit."""
        return BodyTooLarge(
            f"The request's body is larger than {self._most_bytes} bytes. Send less, or raise "
            "`max_body_bytes` in the server's configuration."
        )
