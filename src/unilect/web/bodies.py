"""
Reads request bodies, and bounds them in size, pace and number of bytes.

A body up to `SMALL_BYTES` always passes. What is beyond that counts against one bound for the whole server, from its first byte to the end
of its request: while it is read, while it waits for a model, and while it is answered, since a request is kept until nobody may need it again.

Callers share the bound by dynamic thresholds: none gets more than is left free. So one caller has half of it at most, two a third each, and
there is always room for one more.
Source: https://doi.org/10.1109/90.664262 (dynamic queue length thresholds)
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from unilect.core.bounds import LARGE_BYTES, SMALL_BYTES, one_pass
from unilect.core.errors import BackendUnavailable, BodyTooLarge, RequestTimeout, TooManyWaiting

TOTAL_BYTES = 256 * 1024 * 1024
FIRST_TIMEOUT_S = 30.0  # for the first `SMALL_BYTES`
PACE_S = 10.0  # for `SMALL_BYTES` more
More = Callable[[], Awaitable[bytes]]


class Bodies:
    """
    The large bodies that a server has in memory.

    Args:
        most_bytes: The longest body.
        total_bytes: The most of all large ones together; two of the longest fit in any case.
        timeout_s: Time for the first `SMALL_BYTES`.
        pace_s: Time for `SMALL_BYTES` more; what comes faster makes no wait longer than this good.

    Attributes:
        most_bytes: As given.
        held: The bytes that count, by caller.
    """

    def __init__(
        self,
        most_bytes: int,
        total_bytes: int = TOTAL_BYTES,
        timeout_s: float = FIRST_TIMEOUT_S,
        pace_s: float = PACE_S,
    ) -> None:
        self.held = Counter[str]()
        self._timeout_s = timeout_s
        self._pace_s = pace_s
        self.change(most_bytes, total_bytes)

    def change(self, most_bytes: int, total_bytes: int = TOTAL_BYTES) -> None:
        """Go by other bounds from now on; what is held stays."""
        self.most_bytes = most_bytes
        self._total_bytes = max(total_bytes, 2 * most_bytes)

    def lease(self, caller: str) -> "BodyLease":
        """Make the lease of one body of a caller; it holds nothing yet."""
        return BodyLease(self, caller)

    async def read(self, more: More, announced: int | None, lease: "BodyLease") -> bytes:
        """
        Read a body; its lease has grown by it then, or by the part of it that has come.

        Args:
            more: Awaits and returns the next bytes; none at the end.
            announced: Its Content-Length, if it has one.

        Raises:
            BodyTooLarge, RequestTimeout: As they say.
            TooManyWaiting, BackendUnavailable: As `BodyLease.grow`.
        """
        body = bytearray()
        if announced is not None and announced <= self.most_bytes:
            lease.check(announced)
        async with aclosing(self.chunks(more, announced)) as chunks:
            async for data in chunks:
                lease.grow(len(body) + len(data))
                body += data
        if len(body) <= LARGE_BYTES:
            return bytes(body)
        async with one_pass():
            return bytes(body)

    async def chunks(
        self, more: More, announced: int | None, most_bytes: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """
        Yield a body as it comes. Time counts while its next bytes are waited for.

        Args:
            more, announced: As of `read`.
            most_bytes: The most that it may have; None for the longest body in memory.

        Raises:
            BodyTooLarge, RequestTimeout: As they say.
        """
        limit, loop = most_bytes or self.most_bytes, asyncio.get_running_loop()
        if announced is not None and announced > limit:
            raise self.too_large(most_bytes)
        size, left_s = 0, self._timeout_s
        while True:
            since = loop.time()
            try:
                async with asyncio.timeout(left_s):
                    data = await more()
            except TimeoutError as error:
                raise self._too_slow() from error
            if not data:
                return
            size += len(data)
            if size > limit:
                raise self.too_large(most_bytes)
            left_s -= loop.time() - since
            if size > SMALL_BYTES:  # a leaky bucket: a steady body may come in pieces of any size
                left_s = min(self._pace_s, left_s + self._pace_s * len(data) / SMALL_BYTES)
            yield data

    def too_large(self, most_bytes: int | None = None) -> BodyTooLarge:
        """Return the error for a body over a limit, which is that of bodies in memory where none is given."""
        configured = (
            "" if most_bytes else ", or raise `max_body_bytes` in the server's configuration"
        )
        limit = most_bytes or self.most_bytes
        return BodyTooLarge(
            f"The request's body is larger than {limit} bytes. Send less{configured}."
        )

    def full(self, own_bytes: int) -> TooManyWaiting | BackendUnavailable:
        """
        Return the error for a body that there is no room for.

        Args:
            own_bytes: What other requests of the caller hold.
        """
        if not own_bytes:
            return BackendUnavailable(
                "The server has too many large requests in memory. Send the request again later.",
                retry_after_s=self._pace_s,
            )
        return TooManyWaiting(
            f"Your large requests that wait or are answered have {own_bytes} bytes, which is your share of what this server keeps in "
            "memory. Wait for some of them to end, send fewer at a time, or raise `max_total_body_bytes` in the server's configuration.",
            retry_after_s=self._pace_s,
        )

    def has_room(self, caller: str, more_bytes: int) -> bool:
        """Return True if a caller may have so many bytes more: what is left free is no less than what it has then."""
        free = self._total_bytes - self.held.total() - more_bytes
        return self.held[caller] + more_bytes <= free

    def _too_slow(self) -> RequestTimeout:
        kb = SMALL_BYTES // 1024
        return RequestTimeout(
            f"The first {kb} kB of the request's body did not arrive within {self._timeout_s:g} s, or the rest came slower than "
            f"{kb} kB in {self._pace_s:g} s. Send it again."
        )


class BodyLease:
    """
    The part that one body has of what all large ones may have. It is released once nothing needs its request any more.
    """

    __slots__ = ("_bodies", "_bytes", "_caller")

    def __init__(self, bodies: Bodies, caller: str) -> None:
        self._bodies, self._caller, self._bytes = bodies, caller, 0

    def check(self, size: int) -> int:
        """
        Look for room for a body of a size.

        Returns:
            The bytes by which the lease has to grow.

        Raises:
            TooManyWaiting: The caller's other requests take the caller's share.
            BackendUnavailable: Those of others leave too little.
        """
        more, bodies = size - SMALL_BYTES - self._bytes, self._bodies
        if more > 0 and not bodies.has_room(self._caller, more):
            raise bodies.full(bodies.held[self._caller] - self._bytes)
        return max(more, 0)

    def grow(self, size: int) -> None:
        """Hold as much as a body of a size takes; errors as `check`."""
        if more := self.check(size):
            self._bytes += more
            self._bodies.held[self._caller] += more

    def release(self) -> None:
        """Give all back. Idempotent."""
        held, size = self._bodies.held, self._bytes
        if size:
            self._bytes = 0
            held[self._caller] -= size
            if not held[self._caller]:
                del held[self._caller]
