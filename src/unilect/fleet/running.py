"""
The nodes that commands of this user run on this machine, so that others find them: a file for each, which goes with its command.

A file whose process has ended (it was killed) is removed by who reads it; a process's start time tells it from a later one of its number.
"""

import os
import select
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from unilect.config.store import data_folder

_FOLDER = "fleet"
_STARTED = 19  # of the fields behind the name in /proc/PID/stat, proc(5)


class Running(Struct):
    """
    A node.

    Attributes:
        pid: Of the command.
        started: When, in the kernel's ticks.
        address: HOST:PORT of its cluster's head.
        host: Its own address.
        token_file: The cluster's token.
    """

    pid: int
    started: int
    address: str
    host: str
    token_file: str

    @property
    def is_head(self) -> bool:
        """True if the node is the head of its cluster."""
        return self.address.rpartition(":")[0] == self.host


def list_running(environment: Mapping[str, str]) -> list[Running]:
    """List those that run, the oldest first."""
    folder, running = data_folder(environment), list[Running]()
    for file in folder.joinpath(_FOLDER).glob("*.json") if folder else ():
        with suppress(OSError, msgspec.DecodeError):
            one = msgspec.json.decode(file.read_bytes(), type=Running)
            if start_time(one.pid) == one.started:
                running.append(one)
            else:
                file.unlink()
    return sorted(running, key=lambda one: (one.started, one.pid))


@contextmanager
def announce(
    environment: Mapping[str, str], address: str, host: str, token_file: Path
) -> Iterator[None]:
    """Have others find the node of this process within the block; nobody does where a user has no folder for data."""
    if (folder := data_folder(environment)) is None:
        yield
        return
    pid = os.getpid()
    file = folder / _FOLDER / f"{pid}.json"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    one = Running(pid, start_time(pid) or 0, address, host, str(token_file))
    draft = file.with_suffix(".new")
    draft.write_bytes(msgspec.json.encode(one))
    draft.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def end(one: Running, timeout_s: float) -> bool:
    """Have a command end in order; false where it has not within the time."""
    with suppress(ProcessLookupError), open(os.pidfd_open(one.pid), "rb", buffering=0) as handle:
        if start_time(one.pid) == one.started:
            signal.pidfd_send_signal(handle.fileno(), signal.SIGTERM)
            return bool(select.select([handle], [], [], timeout_s)[0])
    return True


def start_time(pid: int) -> int | None:
    """Return the start time of a process, in ticks since the boot; None where there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[_STARTED])
