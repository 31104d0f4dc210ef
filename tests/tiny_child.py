"""
A child that does what it is told, for tests of the lifecycle: the real child's side around a server of one line a connection.

`say X` is answered with X. `begin` is answered with a line, and then with nothing; `wait` with nothing at all. `die` ends the process,
`stop` halts it, `eat N` takes N MiB and is answered with `ate` or `no memory`.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from unilect.engines.process import child as _child
from unilect.engines.process.child_process import ChildProcess
from unilect.engines.process.supervisor import Supervisor
from unilect.errors import BackendError


class Tiny:
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
            [sys.executable, __file__],
            lambda path: self.settings | {"socket_path": path},
            start_timeout_s=start_timeout_s,
            environment={"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        ask = self._ask if hang_timeout_s is not None else None
        self.supervisor = Supervisor(self.process, ask, hang_timeout_s or 60.0)

    async def ask(self, line: str) -> list[str]:
        """All that the child says to a line, as an engine asks it."""
        return [said async for said in self.supervisor.run(line, lambda: self._said(line))]

    async def begin(self, line: str = "begin") -> Any:
        """An answer of which the first piece has come."""
        running = self.supervisor.run(line, lambda: self._said(line))
        await anext(running)
        return running

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


async def until(condition: Any, deadline_s: float = 60.0) -> None:
    """
    Wait until a condition holds.

    Raises:
        TimeoutError: It did not hold in time.
    """
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.001)


_eaten: list[Any] = []


def _serve(settings: dict[str, Any]) -> dict[str, Any]:
    if log := settings.get("log"):
        with Path(log).open("a") as file:
            file.write("spawn\n")
    if gate := settings.get("gate"):  # loads until the file is there
        while not Path(gate).exists():
            time.sleep(0.005)
    if holder := settings.get("holder"):  # keeps stderr open until the file is there
        loop = f"while [ ! -e '{holder}' ]; do sleep 0.01; done"
        subprocess.Popen(["/bin/sh", "-c", loop], stdin=subprocess.DEVNULL)
    if words := settings.get("words"):
        print(words, file=sys.stderr, flush=True)
    match settings.get("load"):
        case "die":
            signal.raise_signal(signal.SIGSEGV)
        case "fail":
            raise ValueError("the file is broken")
    server = socket.socket(socket.AF_UNIX)
    server.bind(settings["socket_path"])
    server.listen(64)
    threading.Thread(target=_accept, args=(server,), daemon=True).start()
    return {"grows_bytes": settings["grows_bytes"]} if "grows_bytes" in settings else {}


def _accept(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, connection.makefile("rw") as stream:
        verb, _, rest = stream.readline().strip().partition(" ")
        match verb:
            case "say":
                stream.write(f"{rest}\n")
            case "begin" | "wait":
                if verb == "begin":
                    stream.write("a piece\n")
                    stream.flush()
                stream.readline()
            case "die":
                signal.raise_signal(signal.SIGABRT)
            case "stop":
                signal.raise_signal(signal.SIGSTOP)
            case "eat":
                try:
                    _eaten.append(bytearray(int(rest.split()[0]) * 2**20))
                    stream.write("ate\n")
                except MemoryError:
                    stream.write("no memory\n")
        stream.write(".\n")


if __name__ == "__main__":
    _child.run(_serve)
