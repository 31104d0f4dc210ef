"""A child with an HTTP server: its process, the supervision of requests, and a connection for each of its lives."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from unilect.engines.process.child_process import ChildProcess
from unilect.engines.process.supervisor import Supervisor
from unilect.http.client import HttpServer, RaiseFor

_Value = TypeVar("_Value")


class ChildServer:
    """
    The only owner of the connection to a child.

    Args:
        process: The child.
        key: The API key that it asks for.
        timeout_s: The read timeout.
        raise_for: See `HttpServer`.
        on_new_life: Called when a life of the child is over or a new one has begun, before anything is asked in it.
        probe: Asks the child something that waits its turn among the requests; see `Supervisor`.
        hang_timeout_s: How long the answer to that may take.

    Attributes:
        process: As given.
        supervisor: Of the requests in it.
    """

    def __init__(
        self,
        process: ChildProcess,
        key: str,
        timeout_s: float,
        raise_for: RaiseFor,
        on_new_life: Callable[[], None],
        probe: Callable[[HttpServer], Awaitable[object]] | None = None,
        hang_timeout_s: float = 60.0,
    ) -> None:
        self.process = process
        self._probe = probe
        ask = self._ask if probe is not None else None
        self.supervisor = Supervisor(process, ask, hang_timeout_s, acks_requests=True)
        self._headers = {"Authorization": f"Bearer {key}"}
        self._timeout_s = timeout_s
        self._raise_for = raise_for
        self._on_new_life = on_new_life
        self._life: int | None = None
        self._server: HttpServer | None = None

    @property
    def is_known(self) -> bool:
        """True if something has been asked in the last life of the child: what is noted of a life is of that one."""
        return self._life == self.process.starts

    async def connect(self) -> HttpServer:
        """Return the connection to the child's present life; what still waits for an answer of an earlier one fails."""
        life = self.process.starts if self.process.pid is not None else None
        old = self._server
        if old is not None and life == self._life:
            return old
        new = self._make()
        # before anything is waited for: whoever comes meanwhile finds the new life
        self._life, self._server = life, new
        self._on_new_life()
        if old is not None:
            await old.aclose()
        return new

    @asynccontextmanager
    async def connect_apart(self) -> AsyncIterator[HttpServer]:
        """A connection of its own, also to a child that is about to be stopped."""
        server = self._make()
        try:
            yield server
        finally:
            await server.aclose()

    async def call(self, request: Any, ask: Callable[[HttpServer], Awaitable[_Value]]) -> _Value:
        """Return the one value that the child answers with; few such calls run at the same time."""

        async def function() -> _Value:
            return await ask(await self.connect())

        return await self.supervisor.call(request, function)

    async def aclose(self) -> None:
        """Close the connection, and stop the child; what waits for an answer fails."""
        server, self._server = self._server, None
        if server is not None:
            await server.aclose()
        await self.supervisor.aclose()

    async def _ask(self) -> None:
        assert self._probe is not None  # else nothing is asked
        await self._probe(await self.connect())

    def _make(self) -> HttpServer:
        return HttpServer(
            "http://engine",
            headers=self._headers,
            socket_path=self.process.socket_path,
            timeout_s=self._timeout_s,
            raise_for=self._raise_for,
        )
