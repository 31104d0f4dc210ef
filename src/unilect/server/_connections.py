"""
The connections of clients: how many there may be, how long each may stay silent, and when a slow or a vanished one is let go.

1. A connection is *silent* until the head of its request is whole, *answering* until its answer is written, and *idle* between
   two requests; a head of which a part came before the last answer was written counts once more of it comes. A silent one has `head_s` for its first byte, and as long again from there for the rest of the head.
2. When the table is full the oldest silent connection makes room for a new one, else the oldest idle one, else the new one is
   refused. One that answers is never closed for a newcomer.
3. Whatever is written (a stream, a whole answer, an error), the client must take `PROGRESS_BYTES` of it, or all, in every
   `slow_client_s`. That is one deadline for all answers, in every phase, also while the server stops.
4. A client that vanished without a FIN is noticed by the kernel's keep-alive while nothing is under way to it, and by its
   missing acknowledgements else. TCP_USER_TIMEOUT would do both, but Linux then also ends connections to clients that are
   alive and merely do not read for so long.
5. Bytes that bring nothing are bounded by their number, not only by time: `HEAD_BYTES` before a head is whole, of framing
   (sizes and extensions of chunks) `FRAMING_BYTES` more than of the body itself, and `DISCARDED_BYTES` of a body that nobody reads any more.

One timer looks after all connections; no connection has timers of its own but aiohttp's.
"""

import asyncio
import logging
import socket
import struct
import sys
import time
from collections import Counter
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from aiohttp import web
from msgspec import Struct

from unilect.core.bounds import most_background, most_further_parts, open_files
from unilect.web.aiohttp_internals import Protocol

log = logging.getLogger("unilect")
RESERVED_FILES = 128  # for what is no client: engines, models' files, listening sockets
MOST_CONNECTIONS = 20_000  # each takes about 10 kB
# a burst of clients that shake hands at the same time is none to push each other out
MOST_SILENT = 4096
PROGRESS_BYTES = 16 * 1024
#: aiohttp bounds each line and their number, and takes any line breaks before the first.
HEAD_BYTES = 64 * 1024
#: Beside as much as the body has: chunks of five bytes may go on, those of one byte may be 65,536.
FRAMING_BYTES = 256 * 1024
#: A client that reads only once it has sent all learns why it was refused.
DISCARDED_BYTES = 8 * 1024 * 1024
UNANSWERED = 3  # so many retransmissions or probes in a row
CHECKED_AT_ONCE = 5_000  # connections whose writing one sweep looks at, in a few milliseconds
TOLD_EVERY_S = 10.0
_TCP_INFO = struct.Struct(
    "=2xBB52xI60xQ16xI"
)  # retransmits, probes, last_ack_recv, bytes_acked, notsent_bytes
SILENT, ANSWERING, IDLE = range(3)
_NAMES = {SILENT: "silent", ANSWERING: "answering", IDLE: "idle"}
#: Why connections are closed or refused, as metrics say it, and as the log does.
_REASONS = {
    "address_limit": "over max_connections_per_address",
    "full": "refused, since all others are in use",
    "silent_evicted": "silent, to make room",
    "idle_evicted": "idle, to make room",
    "head_timeout": "without a whole request head in time",
    "head_size": "sent too much before a whole request head",
    "framing": "sent a body that is framing for the most part",
    "unread_body": "sent on after its request was answered",
    "vanished": "vanished: nothing was acknowledged",
    "slow": "slow: what they asked for was not read",
}


class Limits(Struct, frozen=True, kw_only=True):
    """
    The limits of connections.

    Attributes:
        connections: The most at a time.
        silent: The most that have not sent a whole head.
        per_address: The most from one address that is not loopback, or None.
        head_s: Time for the first byte, and again for the rest of the head.
        idle_s: Time between two requests.
        slow_client_s: Time in which a client must read something.
        vanished_s: Time without an acknowledgement after which a client to whom something is under way is gone.
        keep_alive_s: Silence before the kernel's first keep-alive probe, between probes, and how many may go unanswered.
        sweep_s: Time between two checks of all connections.
    """

    connections: int = 1024
    silent: int = 512
    per_address: int | None = None
    head_s: float = 10.0
    idle_s: float = 75.0
    slow_client_s: float = 60.0
    vanished_s: float = 14.0
    keep_alive_s: tuple[int, int, int] = (8, 3, 3)
    sweep_s: float = 1.0


def limits_of_system(wanted: int | None = None, per_address: int | None = None) -> Limits:
    """
    Return the limits that the process's open files allow, with one for each client's upstream, and some for responses in the background and for
    further parts of requests.

    Args:
        wanted: The most connections, where that is configured.
    """
    reserved = RESERVED_FILES + most_background() + most_further_parts()
    files = open_files() or 2 * MOST_CONNECTIONS + reserved
    possible = max((files - reserved) // 2, files // 4)
    if wanted is not None and wanted > possible:
        log.warning(
            "max_connections: %d open files allow %d connections, not %d; raise `ulimit -n`.",
            files,
            possible,
            wanted,
        )
    most = min(possible, MOST_CONNECTIONS if wanted is None else wanted)
    return Limits(
        connections=most, silent=max(1, min(MOST_SILENT, most // 2)), per_address=per_address
    )


class Connection(Protocol):
    """
    One connection, from `accept` to its end.

    Attributes:
        sock: Its socket.
        address: The client's, without the port.
        state: SILENT, ANSWERING or IDLE.
        opening: The task that makes the connection usable (TLS), until it is.
        dropped: The server has ended it, perhaps before the event loop had it.
        is_fresh: Not a byte of a head has come that was not whole.
    """

    def __init__(
        self,
        table: "Connections",
        sock: socket.socket,
        address: str,
        server: web.Server,
        **options: Any,
    ) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self.sock = sock
        self.address = address
        self.state = SILENT
        self.opening: asyncio.Task[None] | None = None
        self.dropped = False
        self.is_fresh = True
        self._table = table
        self._stands_since: float | None = None  # the client takes nothing
        self._stands_at = 0
        self._taken, self._taken_of = 0, (0, "")  # bytes, of which request and of what

    def data_received(self, data: bytes) -> None:
        """Take bytes of a head or a body."""
        super().data_received(data)
        if self.state != ANSWERING and self.waiting:  # nearly always: a head comes in one piece
            self._table.turn(self, ANSWERING)
        elif data:  # none: aiohttp's own look at what it has kept
            self._more(len(data))

    def _more(self, size: int) -> None:
        """Count bytes that begin no answer: of a head, of a body, or of a body that nobody reads any more."""
        if self.state != ANSWERING:
            self._table.note_head(self)
        if (body := self.body) is not None:
            why, most = "framing", 2 * body.total_bytes + FRAMING_BYTES
        elif self.awaits_head:
            why, most = "head_size", HEAD_BYTES
        else:  # aiohttp reads on, for a client that reads only once it has sent all
            why, most = "unread_body", DISCARDED_BYTES
        if self._taken_of != (of := (self.requests, why)):
            # what came with the head of a request may be the end of the one before it
            self._taken, self._taken_of = -size if why == "framing" else 0, of
        self._taken += size
        if self._taken > most:
            self._table.close(self, why)

    def log_access(
        self, request: web.BaseRequest, response: web.StreamResponse, time: float | None
    ) -> None:
        """Note that an answer is written: aiohttp would log it here."""
        if not self.waiting:  # else the next request is here already
            self._table.turn(self, IDLE)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Take an ended connection off the table."""
        self._table.discard(self)
        super().connection_lost(exc)

    def drop(self) -> None:
        """End the connection at once."""
        self.dropped = True
        self._table.discard(self)
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    @property
    def is_sending(self) -> bool:
        """True while bytes for the client wait on this side."""
        info = _tcp_info(self.sock)
        return self._waits(info) if info is not None else False

    def fault(self, now: float, limits: Limits) -> str:
        """Return the reason for which the connection must end, a word of `_REASONS`; empty for none. The client is gone, or takes too little of what waits for it."""
        info = _tcp_info(self.sock)
        if info is None:
            return ""
        if info.unanswered >= UNANSWERED and info.silent_s >= limits.vanished_s:
            return "vanished"
        if not self._waits(info):
            self._stands_since = None
            return ""
        if self._stands_since is None or info.acknowledged >= self._stands_at + PROGRESS_BYTES:
            self._stands_since, self._stands_at = now, info.acknowledged
        slow = now - self._stands_since >= limits.slow_client_s
        return "slow" if slow else ""

    def _waits(self, info: "_TcpInfo") -> bool:
        transport = self.transport
        return info.not_sent > 0 or (
            transport is not None and transport.get_write_buffer_size() > 0
        )


class _TcpInfo(NamedTuple):
    """
    The kernel's state of a connection (`struct tcp_info` in linux/tcp.h).

    Attributes:
        unanswered: Retransmissions and probes since the last answer.
        silent_s: Time since the last acknowledgement.
        acknowledged: Bytes that the client's kernel has taken.
        not_sent: Bytes that it has no room for.
    """

    unanswered: int
    silent_s: float
    acknowledged: int
    not_sent: int


def _tcp_info(sock: socket.socket) -> _TcpInfo | None:
    """None where there is no such thing: the socket is closed, or this is not Linux."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        again, probes, silent_ms, acknowledged, not_sent = _TCP_INFO.unpack(raw)
    except (OSError, struct.error):
        return None
    return _TcpInfo(again + probes, silent_ms / 1000, acknowledged, not_sent)


class Connections:
    """
    The table of all connections of a server, on whatever address they came.

    Attributes:
        limits: What they may do.
        accepted: How many there have been.
        closed: How many were closed by the server, or refused, by a word of `_REASONS`.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.accepted = 0
        self._all: dict[Connection, None] = {}
        # by state, and since when; the oldest first
        self._since: tuple[dict[Connection, float], ...] = ({}, {}, {})
        self._silent, _, self._idle = self._since
        self._addresses = Counter[str]()
        self._closed, self._told_at = Counter[str](), 0.0
        self.closed = Counter(dict.fromkeys(_REASONS, 0))
        self._cursor = 0
        self._swept_at, self._clock = 0.0, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._now = time.monotonic  # which event loops go by, too

    def __len__(self) -> int:
        return len(self._all)

    @property
    def busy(self) -> int:
        """Connections on which a request is answered, or the end of an answer still has to be sent."""
        return sum(each.state == ANSWERING or each.is_sending for each in self._all)

    @property
    def states(self) -> dict[str, int]:
        """The number of connections in each state."""
        return {name: len(self._since[state]) for state, name in _NAMES.items()}

    def admit(self, address: str) -> bool:
        """Return True if a new connection from an address may come. An old one may be closed for it."""
        limit = self.limits.per_address
        if limit is not None and self._addresses[address] >= limit and not _is_loopback(address):
            self._count("address_limit")
            return False
        if len(self._silent) >= self.limits.silent:
            return self.make_room()
        return len(self._all) < self.limits.connections or self.make_room()

    def make_room(self) -> bool:
        """Close the oldest silent connection, or else the oldest idle one; false where there is none."""
        for each in self._silent:
            self.close(each, "silent_evicted")
            return True
        for each in self._idle:
            if not each.is_sending:
                self.close(each, "idle_evicted")
                return True
        self._count("full")
        return False

    def add(self, connection: Connection) -> None:
        """Enter a connection that was accepted."""
        self.accepted += 1
        self._all[connection] = None
        self._silent[connection] = self._now()
        self._addresses[connection.address] += 1
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.limits.sweep_s, self._sweep)

    def note_head(self, connection: Connection) -> None:
        """Note that bytes of a head came, which is not whole; the first of them starts its clock anew."""
        if connection.state == IDLE or connection.is_fresh:
            connection.is_fresh = False
            self.turn(connection, SILENT)

    def turn(self, connection: Connection, state: int) -> None:
        """Change the state of a connection."""
        if connection in self._all:
            self._since[connection.state].pop(connection, None)
            connection.state = state
            self._since[state][connection] = self._now()

    def discard(self, connection: Connection) -> None:
        """Remove a connection that has ended, or is about to."""
        if connection not in self._all:
            return
        del self._all[connection]
        self._since[connection.state].pop(connection, None)
        self._addresses[connection.address] -= 1
        if not self._addresses[connection.address]:
            del self._addresses[connection.address]

    async def aclose(self, patience_s: float) -> None:
        """Give what is being sent so long to arrive, then close all."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self._all:
                    await asyncio.sleep(0.02)
        for each in list(self._all):
            each.drop()
        if self._timer is not None:
            self._timer.cancel()
        self._tell(self._now())

    def _sweep(self) -> None:
        """Close what has been silent or idle, slow or gone for too long."""
        limits, now = self.limits, self._now()
        for table, patience_s, why in (
            (self._silent, limits.head_s, "head_timeout"),
            (self._idle, limits.idle_s, ""),
        ):
            while table:
                oldest, since = next(iter(table.items()))
                if now - since < patience_s:
                    break
                table.pop(oldest)
                # else the client may still read; the write deadline holds
                if not oldest.is_sending:
                    self.close(oldest, why)
        # a standstill of this process is no fault of a client's: time that nobody could write in does not count
        self._clock += min(now - self._swept_at, 2 * limits.sweep_s)
        self._swept_at = now
        for each in self._some():
            if why := each.fault(self._clock, limits):
                self.close(each, why)
        if self._closed and now - self._told_at >= TOLD_EVERY_S:
            self._tell(now)
        self._timer = asyncio.get_running_loop().call_later(limits.sweep_s, self._sweep)

    def _some(self) -> list[Connection]:
        """Return the connections whose turn it is to be looked at; all, where they are few."""
        start = self._cursor if self._cursor < len(self._all) else 0
        found = list(islice(self._all, start, start + CHECKED_AT_ONCE))
        self._cursor = start + CHECKED_AT_ONCE
        return found

    def close(self, connection: Connection, why: str) -> None:
        """End a connection, and count why; one that was idle for long needs no word."""
        self._count(why)
        connection.drop()

    def _count(self, why: str) -> None:
        if why:
            self._closed[why] += 1
            self.closed[why] += 1

    def _tell(self, now: float) -> None:
        """Log what was closed, in one line however much it was."""
        for why, count in self._closed.items():
            log.info("closed %d connection%s: %s", count, "s" * (count != 1), _REASONS[why])
        self._closed.clear()
        self._told_at = now


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "")
