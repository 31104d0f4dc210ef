"""A child that answers in `frames`, with a connection for each call, and the supervision of its requests."""

from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import msgspec

from unilect.api.backend import Batches
from unilect.core.errors import BackendError, BackendTimeout, BackendUnavailable, UnilectError
from unilect.engines.process.child_process import ChildProcess
from unilect.engines.process.supervisor import Supervisor
from unilect.wire import frames

_Value = TypeVar("_Value")


class FrameServer:
    """
    A child and the calls to it.

    Args:
        process: The child.
        timeout_s: How long it may be silent within an answer.
        ping_timeout_s: How long it may take to answer a `ping` between two steps; None for a child that answers none.

    Attributes:
        process: As given.
        supervisor: Of the requests in it.
    """

    def __init__(
        self, process: ChildProcess, timeout_s: float, ping_timeout_s: float | None = None
    ) -> None:
        self.process = process
        self._timeout_s = timeout_s
        self.supervisor = (
            Supervisor(process)
            if ping_timeout_s is None
            else Supervisor(process, self._ping, ping_timeout_s)
        )

    async def call(self, operation: str, body: Any, kind: type[_Value]) -> _Value:
        """Return the value that a call is answered with; few such calls run at the same time."""
        request = (operation, body)
        value = await self.supervisor.call(request, partial(self.value, operation, body))
        return msgspec.msgpack.decode(value, type=kind)

    async def value(
        self, operation: str, body: Any, adapter: str | None = None, patient: bool = False
    ) -> bytes:
        """
        The value that a call is answered with, as msgpack.

        Raises:
            UnilectError: As the child says; or it is gone.
        """
        call = frames.Call(operation, frames.raw(body), adapter)
        return await frames.value_of(self.replies(call, patient), "engine process")

    async def batches(self, operation: str, body: Any) -> Batches:
        """
        Yield the events that a call is answered with.

        Raises:
            UnilectError: As the child says; or it is gone.
        """
        call = frames.Call(operation, frames.raw(body))
        async with aclosing(self.replies(call)) as replies:
            async for reply in replies:
                yield frames.events_of(reply)

    def replies(self, call: frames.Call, patient: bool = False) -> frames.Replies:
        """
        Return all replies to a call. Closing the generator tells the child that nobody waits any longer.

        Args:
            patient: However long they take.

        Raises:
            UnilectError: As the child says; or it is gone.
        """
        wait_s = None if patient else self._timeout_s
        return frames.exchange(self.process.socket_path, call, _meaning, wait_s)

    async def _ping(self) -> None:
        """Ask something that the child answers between two steps."""
        await self.value("ping", None, patient=True)  # how patient, the watchdog knows


def _meaning(failure: Exception) -> UnilectError:
    """Make the error for a child that does not answer to the end."""
    match failure:
        case ConnectionRefusedError():
            return BackendUnavailable(
                "The engine process is unreachable. Try again.", retry_after_s=1
            )
        case TimeoutError():
            return BackendTimeout(
                "Timeout: the engine sent nothing for too long. The answer was aborted. Try again, or ask for a shorter one."
            )
    return BackendError("The engine process ended. Send the request again.")
