"""
The file of an SQLite database: for its user only, and written by one process at a time.

SQLite before 3.51.3 may, very rarely, damage a file where two connections write or checkpoint at the same instant; Debian 12 has 3.40.
So a lock file keeps our processes from each other. A process that dies leaves no lock behind.

Source: https://www.sqlite.org/wal.html#walresetbug
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unilect.store.failures import unavailable

_LOOK_S = 0.002  # between two looks at a lock that another process has


class SqliteFile:
    """
    Database file.

    Attributes:
        path: Where it is.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self.path = path
        self._timeout_s = timeout_s
        self._identity = (0, 0)

    def create(self) -> None:
        """
        Make the file where there is none.

        Raises:
            StoreUnavailable: It cannot be made.
        """
        with self._os_errors():
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._identity = self._look()

    def create_with_folder(self) -> None:
        """
        Make the file as `create` does, and the folder and those above it for this user only.

        Raises:
            StoreUnavailable: It cannot be made, or written to.
        """
        with self._os_errors():
            for folder in (*reversed(self.path.parent.parents), self.path.parent):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
                    _wait_for_disk(folder.parent)  # SQLite waits for what is in its own folder
        with self.alone():
            self.create()

    def is_replaced(self) -> bool:
        """Return True if another file, or none, stands in the place of the one that was opened."""
        try:
            return self._look() != self._identity
        except OSError:
            return True

    def mark(self) -> tuple[int, ...]:
        """
        Read what is another value after every change; empty where there is no file.

        Raises:
            OSError: Its folder may not be looked into.
        """
        found: list[int] = []
        for path in (self.path, f"{self.path}-wal"):
            with suppress(FileNotFoundError, NotADirectoryError):
                looked = os.stat(path)
                found += (looked.st_ino, looked.st_size, looked.st_mtime_ns)
        return tuple(found)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """
        Keep other processes of ours from the file.

        Raises:
            StoreUnavailable: One uses it for too long, or the folder cannot be written.
        """
        with self._os_errors():
            lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._wait_for(lock)
            yield
        finally:
            os.close(lock)  # and with it the lock goes

    def _wait_for(self, lock: int) -> None:
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise unavailable(
                        f"{self.path}: another process keeps it locked. Close that process, or try again."
                    ) from None
                time.sleep(_LOOK_S)

    def _look(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_dev, found.st_ino

    @contextmanager
    def _os_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unavailable(
                f"{error.filename}: cannot be written ({error.strerror}). Check that the folder exists, and that the user of "
                "this process may write to it."
            ) from error


def _wait_for_disk(folder: Path) -> None:
    """Have the names in a folder on the disk; not every file system knows that."""
    with suppress(OSError):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)
