"""
The limits that a child process sets for itself when it starts: it ends with its parent, and its memory has a bound.

A limit on data segments holds for what a process allocates, and not for files that it maps: the weights of a GGUF do not count.

Source: https://docs.kernel.org/filesystems/proc.html (oom_score_adj, status), getrlimit(2) (RLIMIT_DATA), prctl(2)
"""

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

USER_SIGNALS = signal.SIGUSR1, signal.SIGUSR2
_PR_SET_PDEATHSIG = 1
_FIRST_TO_GO = "1000"  # the kernel's highest


def die_with(parent: int, ending: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send a signal when the parent dies, also if it has died already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, ending)
        if os.getppid() != parent:
            os.kill(os.getpid(), ending)


def ignore_user_signals() -> None:
    """Leave those to the server that a tool sends to all processes of a service, such as to rotate logs: by default they end a process."""
    for number in USER_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def name_signal(number: int) -> str:
    """Return the name of a signal; of those for real time only the first and the last have one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def go_first() -> None:
    """Have the kernel end this process before others when memory runs out all the same."""
    with suppress(OSError):  # another system
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)


def data_bytes() -> int | None:
    """Return the bytes that this process has allocated, touched or not; None where the system does not say."""
    data = field_of(Path("/proc/self/status"), "VmData:")
    return None if data is None else data * 1024


def read_kernel_file(file: Path) -> str:
    """
    Return the text of one of the kernel's files; they are short, and a server's start reads a thousand, which buffers would slow down.

    Raises:
        OSError: It cannot be read.
    """
    with file.open("rb", buffering=0) as raw:
        return raw.read().decode()


def field_of(file: Path, name: str) -> int | None:
    """Return the number behind a name in one of the kernel's files; None where there is none."""
    try:
        lines = read_kernel_file(file).splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith(name))
    return next((int(words[1]) for words in found if words[0] == name), None)


def limit_growth(more_bytes: int, for_good: bool = False) -> None:
    """From now on this process may allocate so much more, and gets no memory beyond that; `for_good` it cannot raise the limit."""
    data = data_bytes()
    if data is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = data + max(0, more_bytes)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit if for_good else hard))
