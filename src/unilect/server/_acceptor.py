"""
Accepts the connections of one address, within the bounds of `server/_connections.py`.

The event loop's own server would accept until the process has no file descriptor left, and would show a TLS client only after its
handshake. Here each connection is in the table from `accept` on, and running out of descriptors neither spins nor locks anybody out.
"""

import asyncio
import errno
import logging
import os
import socket
import ssl
import stat
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from unilect.server._connections import Connection, Connections, Limits

log = logging.getLogger("unilect")
BACKLOG = 1024
ACCEPTED_AT_ONCE = 64  # then it is the others' turn
PAUSE_S = 0.05  # without descriptors, until those that were closed are free
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_ABSENT = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


class Acceptor:
    """
    Accepts for one server.

    Args:
        server: aiohttp's, which has the routes.
        connections: The table that all addresses share.
        tls: The certificate; None for plain HTTP.
        options: Of aiohttp's protocol.

    Attributes:
        tls: As given; another one is used for connections that are accepted after it was set.
    """

    def __init__(
        self,
        server: web.Server,
        connections: Connections,
        tls: ssl.SSLContext | None = None,
        **options: object,
    ) -> None:
        self._server, self._options = server, options
        self._connections = connections
        self.tls = tls
        self._sockets: list[socket.socket] = []
        self._path: Path | None = None
        self._spare = -1

    async def listen(self, host: str, port: int) -> int:
        """
        Accept from now on, at every address that a host name means. Connections inherit from its sockets that the kernel asks, while
        nothing is under way, whether the client is still there.

        Returns:
            The port.

        Raises:
            OSError: None of them can be listened on.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for number, (family, _, _, _, address) in enumerate(dict.fromkeys(found)):
                try:
                    bound = socket.create_server(
                        (str(address[0]), port), family=family, backlog=BACKLOG
                    )
                except OSError as error:
                    last = number == len(found) - 1 and not self._sockets
                    if error.errno not in _ABSENT or last:
                        raise
                    continue
                port = bound.getsockname()[1]
                bound.setblocking(False)
                self._sockets.append(bound)
                watch_for_silence(bound, self._connections.limits)
        except OSError:
            self.close()
            raise
        self._begin()
        return port

    def listen_at(self, path: Path) -> None:
        """
        Accept from now on at a unix socket, to which only our own user may connect. One that a process has left behind is replaced.

        Raises:
            OSError: It cannot be made there; EADDRINUSE where a server listens, or where something else has the name.
        """
        remove_stale(path)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # what `bind` makes has this mode from the first moment
            os.fchmod(bound.fileno(), 0o600)
            bound.bind(str(path))
            self._path = path
            bound.listen(BACKLOG)
            bound.setblocking(False)
        except OSError:
            bound.close()
            self.close()
            raise
        self._sockets.append(bound)
        self._begin()

    def _begin(self) -> None:
        self._spare = os.open(os.devnull, os.O_RDONLY)
        for each in self._sockets:
            asyncio.get_running_loop().add_reader(each, self._accept, each)

    def close(self) -> None:
        """Accept no more; what was accepted goes on."""
        if self._path is not None:
            with suppress(OSError):  # somebody has removed it
                self._path.unlink()
            self._path = None
        for each in self._sockets:
            asyncio.get_running_loop().remove_reader(each)
            each.close()
        self._sockets.clear()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, address = listening.accept()
            except OSError as error:  # nobody is left, or left again, or there are no descriptors
                if error.errno in _EXHAUSTED:
                    self._free_descriptor(listening)
                return
            host = str(address[0]) if address else ""  # a unix socket's client has none
            if not self._connections.admit(host):
                sock.close()
                continue
            connection = Connection(self._connections, sock, host, self._server, **self._options)
            self._connections.add(connection)
            # the event loop has the task until it begins, and the connection from there
            asyncio.get_running_loop().create_task(self._open(connection))

    async def _open(self, connection: Connection) -> None:
        """Hand a connection to the event loop; with TLS, once its handshake is done."""
        handshake_s = None if self.tls is None else self._connections.limits.head_s
        connection.opening = asyncio.current_task()
        try:
            if not connection.dropped:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection,
                    connection.sock,
                    ssl=self.tls,
                    ssl_handshake_timeout=handshake_s,
                )
        except OSError as error:  # no TLS, or none that we speak, or the client left
            log.debug("a connection could not be opened: %s", error)
        finally:
            connection.opening = None
            if connection.transport is None:
                self._connections.discard(connection)
                connection.sock.close()

    def _free_descriptor(self, listening: socket.socket) -> None:
        """Without descriptors: close somebody who asks nothing, or else refuse the one who waits."""
        loop = asyncio.get_running_loop()
        if not self._connections.make_room():
            with suppress(OSError):  # one descriptor, to take the connection with and close it
                os.close(self._spare)
                self._spare = -1
                listening.accept()[0].close()
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)
        loop.remove_reader(listening)
        loop.call_later(PAUSE_S, self._again, listening)

    def _again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)


def remove_stale(path: Path) -> None:
    """
    Remove a unix socket that nobody listens at.

    Raises:
        OSError: Something else has this name.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    in_use = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    if not stat.S_ISSOCK(mode):
        raise in_use
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:  # its queue is full
            pass
    raise in_use


def watch_for_silence(sock: socket.socket, limits: Limits) -> None:
    """Have the kernel ask, while nothing is under way, whether the client is still there."""
    idle_s, interval_s, count = limits.keep_alive_s
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", idle_s),
        ("TCP_KEEPINTVL", interval_s),
        ("TCP_KEEPCNT", count),
    ):
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
