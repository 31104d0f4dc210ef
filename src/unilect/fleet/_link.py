"""The gateway's side of the process that holds its connection to Ray; the models of one configuration share it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

from unilect import frames
from unilect.config.fleet import FleetConfig, head_of
from unilect.config.server import process_environment
from unilect.engines.process.child_process import ChildProcess, python_command
from unilect.errors import BackendError, BackendTimeout, BackendUnavailable
from unilect.fleet import wire

_CHILD = "unilect.fleet._child"
_START_TIMEOUT_S = 120.0
_OBJECT_STORE_BYTES = 100 * 1024 * 1024  # what crosses is small, and does not lie in it
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
#: Ray's own, which every process of a cluster with TLS needs: https://docs.ray.io/en/latest/ray-core/configure.html#tls-authentication
_TLS = ("RAY_USE_TLS", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
Replies: TypeAlias = AsyncGenerator[frames.Reply, None]


class Link:
    """
    One process, and the models that use it.

    Args:
        fleet: Which cluster; without an address one of this machine alone.

    Attributes:
        child: The process.
    """

    def __init__(self, fleet: FleetConfig) -> None:
        settings = {"address": head_of(fleet), "object_store_bytes": _OBJECT_STORE_BYTES}
        self.child = ChildProcess(
            "fleet",
            python_command(_CHILD),
            lambda socket_path: settings | {"socket_path": socket_path},
            start_timeout_s=_START_TIMEOUT_S,
            environment=_ENVIRONMENT | _tls(process_environment()) | _token(fleet),
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
        """A model stops; the last one stops the process."""
        self._users.discard(model)
        if not self._users:
            await self.child.aclose()

    async def value(self, asked: wire.Asked, timeout_s: float) -> bytes:
        """
        The value that a question is answered with, as msgpack.

        Raises:
            UnilectError: As is answered; or the process is gone.
        """
        async with aclosing(self.replies(asked, timeout_s)) as replies:
            async for reply in replies:
                if value := bytes(reply.value):
                    return value
        raise BackendError("The model's replica sent an empty answer.")

    async def replies(self, asked: wire.Asked, timeout_s: float) -> Replies:
        """
        All replies to a question. Closing the generator tells the replica that nobody waits any longer.

        Args:
            timeout_s: The longest time without a reply.

        Raises:
            UnilectError: As is answered; or the process is gone.
        """
        try:
            reader, writer = await asyncio.open_unix_connection(self.child.socket_path)
        except OSError as error:
            raise BackendUnavailable(
                "The connection to the cluster is being restored. Try again.", retry_after_s=1
            ) from error
        try:
            writer.write(frames.packed(asked))
            last = False
            while not last:
                async with asyncio.timeout(timeout_s):
                    body = await frames.read(reader)
                reply = frames.reply_of(body)
                last = reply.last
                yield reply
        except TimeoutError as error:
            raise BackendTimeout(
                "Timeout: the model's replica sent nothing for too long. The answer was aborted."
            ) from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise BackendError("The model's replica ended during the answer.") from error
        finally:
            writer.close()


def _tls(environment: Mapping[str, str]) -> dict[str, str]:
    """How Ray finds the certificates of its cluster; they are files."""
    return {name: environment[name] for name in _TLS if name in environment}


def _token(fleet: FleetConfig) -> dict[str, str]:
    """How Ray finds the token of its cluster; where none is named, one of its own for this user."""
    if fleet.token_file is None:
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": fleet.token_file}


def link_of(shared: dict[Any, Any], fleet: FleetConfig) -> Link:
    """The process that the models of one configuration share."""
    return shared.setdefault(Link, Link(fleet))  # type: ignore[no-any-return]
