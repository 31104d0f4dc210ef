"""
The connection to the HTTP server of a child: one for each of its lives.
"""

from collections.abc import Callable

from unilect.engines.process.child_process import ChildProcess
from unilect.http.client import HttpServer, RaiseFor


class ChildServer:
    """
    The only owner of the connection to a child.

    Args:
        child: The process.
        key: The API key that it asks for.
        timeout_s: The read timeout.
        raise_for: See `HttpServer`.
        on_new_life: Called when a life of the child is over or a new one has begun, before anything is asked in it.
    """

    def __init__(
        self,
        child: ChildProcess,
        key: str,
        timeout_s: float,
        raise_for: RaiseFor | None = None,
        on_new_life: Callable[[], None] = lambda: None,
    ) -> None:
        self._child = child
        self._headers = {"Authorization": f"Bearer {key}"}
        self._timeout_s = timeout_s
        self._raise_for = raise_for
        self._on_new_life = on_new_life
        self._life: int | None = None
        self._server: HttpServer | None = None

    async def connect(self) -> HttpServer:
        """Return the connection to the child's present life; what still waits for an answer of an earlier one fails."""
        life = self._child.starts if self._child.pid is not None else None
        old = self._server
        if old is not None and life == self._life:
            return old
        new = HttpServer(
            "http://engine",
            headers=self._headers,
            socket_path=self._child.socket_path,
            timeout_s=self._timeout_s,
            raise_for=self._raise_for,
        )
        # before anything is waited for: whoever comes meanwhile finds the new life
        self._life, self._server = life, new
        self._on_new_life()
        if old is not None:
            await old.aclose()
        return new

    async def aclose(self) -> None:
        """Close the connection; what waits for an answer fails."""
        server, self._server = self._server, None
        if server is not None:
            await server.aclose()
