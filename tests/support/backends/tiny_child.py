"""A supervised child that does what it is told, for tests of the lifecycle; `tiny_process` is what runs in it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from support.common.waiting import until
from unilect.answers.attempts import Attempts, any_backend
from unilect.api.backend import Backend, Capabilities
from unilect.core.errors import BackendError
from unilect.core.requests import CompletionRequest
from unilect.engines.process.child_process import ChildProcess
from unilect.engines.process.supervisor import Supervisor
from unilect.models.model import Model


class Tiny(Backend):
    """
    A supervised tiny child.

    Args:
        hang_timeout_s: See `Supervisor`; None watches nothing.
        start_timeout_s: See `ChildProcess`.
        settings: For the child.

    Attributes:
        settings: As given; may be changed between starts.
    """

    def __init__(
        self, hang_timeout_s: float | None = None, start_timeout_s: float = 60.0, **settings: Any
    ) -> None:
        self.settings = settings
        self.process = ChildProcess(
            "tiny",
            [sys.executable, str(Path(__file__).with_name("tiny_process.py"))],
            lambda path: self.settings | {"socket_path": path},
            start_timeout_s=start_timeout_s,
            environment={"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        ask = self._ask if hang_timeout_s is not None else None
        self.supervisor = Supervisor(self.process, ask, hang_timeout_s or 60.0)
        self.capabilities = Capabilities()
        self._model = Model("tiny", cast(Any, self))

    async def ask(self, line: str) -> list[str]:
        """All that the child says to a line, as a request of one model is answered: begun again where the child died of another."""
        request = CompletionRequest(prompt=line)
        with Attempts(self._model, any_backend, request) as attempts:
            while lease := await attempts.lease():
                with lease:
                    return [said async for said in self.generate(line)]
        raise AssertionError("neither an answer nor an error")

    async def begin(self, line: str = "begin") -> Any:
        """An answer of which the first piece has come."""
        running = self.generate(line)
        await anext(running)
        return running

    async def start(self) -> None:
        """Be ready to be asked, as an engine whose child comes back by itself."""

    async def generate(self, line: Any) -> AsyncGenerator[str, None]:
        """What the child says to a line, as an engine asks it."""
        async with self.supervisor.watch(line) as ticket, aclosing(self._said(line)) as pieces:
            async for said in pieces:
                ticket.note_begin()
                yield said

    def kill(self) -> None:
        """Kill the child, as the system would."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)

    async def until(self, state: str) -> None:
        """Wait until the process is in a state."""
        await until(lambda: self.process.state == state)

    async def aclose(self) -> None:
        """Stop it."""
        await self.supervisor.aclose()

    async def _ask(self) -> None:
        if halted(
            self.process.pid
        ):  # told at once: after a short time a busy one would seem to hang, too
            raise TimeoutError
        async for _ in self._said("say well"):
            pass

    async def _said(self, line: str) -> AsyncGenerator[str, None]:
        try:
            reader, writer = await asyncio.open_unix_connection(self.process.socket_path)
        except OSError as error:
            raise BackendError("nobody listens") from error
        try:
            writer.write(f"{line}\n".encode())
            said = b""
            async for said in reader:
                if said != b".\n":
                    yield said.decode().strip()
        except ConnectionError:
            pass
        finally:
            writer.close()
        if said != b".\n":
            raise BackendError("broke off")


def halted(pid: int | None) -> bool:
    """Whether a process stands still."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"
