"""
The default unix socket of the admin API: in a folder of the server's user, under the server's port.

`unilect ps` and the like find the running servers of a user by these sockets.
"""

import errno
import os
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from unilect.server._acceptor import Acceptor, remove_stale

_NEW_S = 5.0  # a younger socket may be one that another server has bound and not listened at yet


def listen(acceptor: Acceptor, folders: Iterable[Path], port: int) -> Path:
    """
    Accept from now on at a socket in the first of some folders in which one can be made.

    Returns:
        Its path.

    Raises:
        OSError: There is no such folder; the message names each with its reason.
    """
    reasons = []
    for folder in folders:
        try:
            _make_private(folder)
            _sweep(folder)
            return _listen_in(acceptor, folder, port)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror or error}")
    raise OSError("; ".join(reasons) or "the path of every folder is too long for a socket")


def _listen_in(acceptor: Acceptor, folder: Path, port: int) -> Path:
    """
    Listen under the port, or under port and process where a server has the same port at another address.

    Raises:
        OSError: No socket can be made there.
    """
    path = folder / f"{port}.sock"
    try:
        acceptor.listen_at(path)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        path = folder / f"{port}-{os.getpid()}.sock"
        acceptor.listen_at(path)
    return path


def _make_private(folder: Path) -> None:
    """
    Make a folder, and those above it, that only our user may enter.

    Raises:
        OSError: It cannot be made, or is another user's: anybody may make one in the folder for temporary files.
    """
    for each in (*reversed(folder.parents), folder):
        with suppress(FileExistsError):
            if not each.exists():
                each.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it is not a folder of this user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)


def _sweep(folder: Path) -> None:
    """Remove the sockets of servers that were killed."""
    for path in folder.glob("*.sock"):
        with suppress(OSError):  # a server listens there, or has just removed it
            if time.time() - path.lstat().st_ctime > _NEW_S:
                remove_stale(path)
