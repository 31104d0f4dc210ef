"""Parts of the supervision of a child that know nothing of its state."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

_PF_EXITING = 0x4  # of the flags in /proc/PID/stat: the process ends, and closes what it has open


def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill a keeper that lives, or was killed itself, and what is left of its group."""
    if process.returncode in (None, -signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def is_ending(pid: int) -> bool:
    """Return True if a process is exiting or gone; False where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return os.path.exists("/proc/self")
    return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


async def read_lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream, but for those without an end (a bar of progress): a reader that gave up would stop the writer."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # what came of it is dropped
            continue
        if not line:
            return
        yield line
