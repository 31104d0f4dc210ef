"""The bytes of files that an operator names, which may be anything: a device without an end, a pipe that nobody writes to, a folder."""

import errno
import os
import stat
from pathlib import Path


def read_plain(path: str | Path, most_bytes: int) -> bytes:
    """
    Read a regular file.

    Raises:
        OSError: It cannot be read, is no regular file or too large; `strerror` says why.
    """
    name = str(path)
    try:
        _check_regular(os.stat(name), name)  # a look before, since opening a device does something
        opened = open(name, "rb", opener=_open_without_waiting)  # noqa: SIM115
    except ValueError as error:
        raise OSError(errno.EINVAL, "its path holds what no path can", name) from error
    with opened:
        _check_regular(os.fstat(opened.fileno()), name)
        data = opened.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", name)
    return data


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _check_regular(found: os.stat_result, name: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", name)
