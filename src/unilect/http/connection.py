"""
HTTP/1.1 client connections, one exchange at a time: the hot path to every backend.

Against aiohttp's client it halves what a JSON exchange costs and saves a part of a stream's (docs/performance.md), and it can
guarantee what a pooled client cannot: unsolicited bytes on a kept connection close it, instead of becoming the next caller's answer. It supports no
redirects, cookies, compression or proxies, and refuses answers with ambiguous framing.

Source: https://www.rfc-editor.org/rfc/rfc9112
"""

import asyncio
import select
from collections.abc import Callable, Mapping
from functools import lru_cache
from ssl import SSLContext
from typing import NamedTuple, TypeAlias, cast

from unilect.http.body import ProtocolError, length_of
from unilect.http.reasons import of_connecting

HIGH_WATER_BYTES = 256 * 1024  # what may lie unread before the upstream is made to wait
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_SHORT_HEAD_BYTES = 512
#: Takes bytes in place of the reader that waits for them; false where the reader must.
Tap: TypeAlias = Callable[[bytes], bool]


class Silence(Exception):
    """Read timeout: the server sent nothing for too long."""


class ConnectFailed(ConnectionError):
    """The connection could not be made; the text is the reason, for the operator."""


class ClosedEarly(ConnectionResetError):
    """The connection was closed before the first byte of an answer."""


class Address(NamedTuple):
    """
    The address of a server.

    Attributes:
        host, port: The TCP address; unused for a unix socket.
        tls: Speak TLS with this context, and verify the certificate for `host`; None for plain HTTP.
        socket_path: The unix socket instead.
        connect_to: The IP address of `host`, which is then not resolved again.
    """

    host: str
    port: int
    tls: SSLContext | None
    socket_path: str | None
    connect_to: str | None

    async def connect(self, timeout_s: float) -> "Connection":
        """
        Open a connection.

        Raises:
            ConnectFailed: The connection is refused, or times out.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                if self.socket_path is not None:
                    _, protocol = await loop.create_unix_connection(Connection, self.socket_path)
                else:
                    _, protocol = await loop.create_connection(
                        Connection,
                        self.connect_to or self.host,
                        self.port,
                        ssl=self.tls,
                        server_hostname=self.host if self.tls is not None else None,
                    )
        except (OSError, UnicodeError) as error:  # the latter for a name that cannot be one
            if self.socket_path is not None:
                raise ConnectFailed("nobody listens on its socket") from error
            why = of_connecting(error, self.host, self.port, timeout_s)
            raise ConnectFailed(why) from error
        return protocol


class Connection(asyncio.Protocol):
    """
    One connection: `write` sends bytes, `take` returns the bytes that have arrived, `readable` waits for them.

    Attributes:
        gather_s: How long bytes may be buffered before they are readable; the end of a chunked body is readable at once.
            Waking a task costs more than reading a token's frame, so a non-streaming answer is buffered.
        unread: The bytes that have arrived and were not taken, in pieces.
    """

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self.gather_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._gathering: asyncio.TimerHandle | None = None
        self._poll: select.poll | None = None
        self.unread: list[bytes] = []
        self._size = 0
        self._paused = False
        self._lost: BaseException | None = None
        self._waiter: asyncio.Future[None] = self._loop.create_future()
        self._tap: Tap | None = None
        self._timeout_s = self._silent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def is_fresh(self) -> bool:
        """True while no bytes are unread, here or in the kernel, and the server has not closed: ready for another exchange."""
        if self._lost is not None or self.unread:
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not self._poll.poll(0)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._transport.write(data)

    def readable(self, timeout_s: float, tap: "Tap | None" = None) -> asyncio.Future[None]:
        """
        Return a future that is done when bytes have arrived, or the connection has ended; `Silence` after `timeout_s` without.

        Args:
            tap: Takes what arrives meanwhile, until it declines; its error is the future's.
        """
        if self._waiter.done():
            self._waiter = self._loop.create_future()
        if self.unread or self._lost is not None:
            self._waiter.set_result(None)
            return self._waiter
        self._tap, self._timeout_s = tap, timeout_s
        self._silent_at = self._loop.time() + timeout_s
        if self._timer is not None and self._silent_at < self._timer_at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._set_timer()
        return self._waiter

    def take(self) -> bytes:
        """
        Return all bytes that have arrived; none at the end.

        Raises:
            ConnectionError: The connection broke, and all bytes before that were taken.
        """
        data = self.unread[0] if len(self.unread) == 1 else b"".join(self.unread)
        if not data and isinstance(self._lost, OSError):
            raise ConnectionResetError(*self._lost.args) from self._lost
        self.unread.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return data

    def put_back(self, data: bytes) -> None:
        """Return bytes to the front of the buffer."""
        if data:
            self.unread.insert(0, data)
            self._size += len(data)

    def close(self) -> None:
        """Close the connection; unread bytes are discarded."""
        self._tap = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop when the connection is established."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop when bytes arrive; reading pauses when too many are unread."""
        if self._tap is not None and self._offer(self._tap, data):
            return
        self.unread.append(data)
        self._size += len(data)
        if self._size > HIGH_WATER_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        if not self.gather_s:
            if not self._waiter.done():
                self._waiter.set_result(None)
        elif self._paused or data.endswith(_LAST_CHUNK):
            self._wake()
        elif self._gathering is None:
            self._gathering = self._loop.call_later(self.gather_s, self._end_gathering)

    def _offer(self, tap: "Tap", data: bytes) -> bool:
        """Have the tap take bytes, if somebody still waits for them; what it declines is its last."""
        if not self._waiter.done():
            try:
                if tap(data):
                    self._silent_at = self._loop.time() + self._timeout_s
                    return True
            except Exception as error:  # noqa: BLE001 - the reader's, also a flaw in who takes them
                self._waiter.set_exception(error)
        self._tap = None
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop when the connection has ended, in order or not."""
        self._lost = exc or EOFError()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()

    def _tick(self) -> None:
        """
        End a wait that has lasted too long.

        One timer serves all waits. It is set again only when it fires, or for a wait that must end earlier: a timer for
        each wait would cost more than the wait.
        """
        self._timer = None
        if self._waiter.done():
            return
        if self._loop.time() >= self._silent_at:
            self._waiter.set_exception(Silence())
        else:
            self._set_timer()

    def _set_timer(self) -> None:
        self._timer_at = self._silent_at
        self._timer = self._loop.call_at(self._silent_at, self._tick)

    def _end_gathering(self) -> None:
        """Wake the reader once the time to gather bytes is over; what came may have been taken meanwhile, and a wait that has begun since goes on."""
        self._gathering = None
        if self.unread:
            self._wake()

    def _wake(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if not self._waiter.done():
            self._waiter.set_result(None)


class Head(NamedTuple):
    """
    The head of an answer.

    Attributes:
        status: The HTTP status.
        headers: Names in lower case; of repeated headers the last.
        kind: The content type.
        length: Of the body, as `length_of`.
        keeps: The connection stays open after the body.
    """

    status: int
    headers: Mapping[str, str]
    kind: str
    length: int | None
    keeps: bool


def parse_head(head: bytes) -> Head:
    """
    Return the head of an answer, from its bytes without the last blank line.

    Raises:
        ProtocolError: The head is malformed, or does not tell where its body ends.
    """
    return _parse_cached(head) if len(head) <= _SHORT_HEAD_BYTES else _parse(head)


def _parse(head: bytes) -> Head:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status, _, _ = rest.partition(" ")
    if version not in ("HTTP/1.1", "HTTP/1.0") or not status.isdecimal() or len(status) != 3:
        raise ProtocolError("no HTTP/1 status line")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise ProtocolError("a malformed header line")
        name = name.lower()
        if name in ("content-length", "transfer-encoding") and name in headers:
            raise ProtocolError(f"two {name} headers")
        headers[name] = value.strip()
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    keeps = "close" not in headers.get("connection", "").lower()
    length = length_of(int(status), headers)
    return Head(int(status), headers, headers.get("content-type", ""), length, keeps)


# a server begins many of its answers with the same bytes, or with the same within a second
_parse_cached = lru_cache(256)(_parse)
