"""The gateway's side of the process that holds its connection to Ray; the models of one configuration share it."""

from pathlib import Path
from typing import Any

from unilect.config.fleet import FleetConfig, head_of
from unilect.config.server import process_environment
from unilect.core.errors import BackendTimeout, EngineDied, UnilectError
from unilect.engines.process.child_process import ChildProcess, python_command
from unilect.fleet import token, wire
from unilect.fleet.environment import CONNECTION, ray_environment, tls_of
from unilect.wire import frames

_CHILD = "unilect.fleet.driver.child"
_START_TIMEOUT_S = 120.0
_RECONNECT_S = 60.0
_OBJECT_STORE_BYTES = 100 * 1024 * 1024  # what crosses is small, and does not lie in it
_LOST = "The connection to the cluster was lost during the answer. Send the request again."


class Link:
    """
    One process, and the models that use it.

    Args:
        fleet: Which cluster; without an address one of this machine alone.

    Attributes:
        child: The process.
    """

    def __init__(self, fleet: FleetConfig) -> None:
        self.child = ChildProcess(
            "fleet",
            python_command(_CHILD),
            lambda socket_path: {
                "socket_path": socket_path,
                "address": head_of(fleet),
                "object_store_bytes": _OBJECT_STORE_BYTES,
                # a wrong address fails at once; one that has served may come back
                "patience_s": _RECONNECT_S if self.child.starts else 0.0,
            },
            start_timeout_s=_START_TIMEOUT_S,
            environment=ray_environment(head_of(fleet).rpartition(":")[0], _token(fleet))
            | tls_of(process_environment())
            | CONNECTION,
        )
        self._users: set[str] = set()

    async def start(self, model: str) -> int:
        """
        Have it run.

        Returns:
            Which of its lives this is.

        Raises:
            BackendUnavailable: It cannot be started, or Ray cannot.
        """
        self._users.add(model)
        await self.child.start()
        return self.child.starts

    async def stop(self, model: str) -> None:
        """Stop for a model; the last one stops the process."""
        self._users.discard(model)
        if not self._users:
            await self.child.aclose()

    async def value(self, request: wire.DriverRequest, *waits_s: float) -> bytes:
        """
        Return the value that a request is answered with, as msgpack; see `replies`.

        Raises:
            UnilectError: As is answered; or the process is gone.
        """
        return await frames.value_of(self.replies(request, *waits_s), "model's replica")

    def replies(self, request: wire.DriverRequest, *waits_s: float) -> frames.Replies:
        """
        Return all replies to a request. The first one to a call has nothing in it, and says that a replica has taken the call. Closing the
        generator tells the replica that nobody waits any longer.

        Args:
            waits_s: The longest time until the first reply, the second one and so on; the last is also for all that follow.

        Raises:
            UnilectError: As is answered; or the process is gone.
        """
        return frames.exchange(self.child.socket_path, request, _meaning, *waits_s)


def _meaning(failure: Exception) -> UnilectError:
    """Make the error for a process that does not answer to the end."""
    if isinstance(failure, TimeoutError):
        return BackendTimeout(
            "Timeout: the model's replica sent nothing for too long. The answer was aborted. Try again, or ask for a shorter one."
        )
    return EngineDied(_LOST)


def _token(fleet: FleetConfig) -> Path | None:
    """Return the file with the cluster's token. A cluster of our own has one that Ray makes for this user."""
    if fleet.token_file is not None:
        return token.check(Path(fleet.token_file))
    file = token.default_file(process_environment()) if fleet.address else None
    return token.check(file) if file is not None and file.exists() else None


def link_of(shared: dict[Any, Any], fleet: FleetConfig) -> Link:
    """Return the process that the models of one configuration share."""
    if Link not in shared:
        shared[Link] = Link(fleet)
    return shared[Link]  # type: ignore[no-any-return]
