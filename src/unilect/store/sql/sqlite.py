"""
Connections to SQLite, and its errors in words for the operator.

Source: https://www.sqlite.org/pragma.html, https://www.sqlite.org/wal.html, https://www.sqlite.org/rescode.html
"""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from unilect.store.sql.connection import FOR_UPDATE, ONE_OF, Connection

Error = sqlite3.Error
_SETTINGS = (
    "auto_vacuum = INCREMENTAL",  # before the first table
    "journal_mode = WAL",
    "synchronous = FULL",  # what is committed is there after a loss of power, too
    "foreign_keys = ON",
    "secure_delete = ON",  # what is deleted is overwritten
    "journal_size_limit = 16777216",
)
#: How the names of errors begin, and what to do.
_ADVICE = {
    "SQLITE_FULL": "the disk is full; make room",
    "SQLITE_IOERR": "the disk cannot be read or written, or is full; make room, and look into the kernel's log",
    "SQLITE_READONLY": "cannot be written; let the user of this process write to the file and its folder",
    "SQLITE_CANTOPEN": "cannot be opened; let the user of this process write to the file and its folder",
    "SQLITE_PERM": "cannot be written; let the user of this process write to the file and its folder",
    "SQLITE_BUSY": "another program keeps it locked; close that",
    "SQLITE_LOCKED": "another program keeps it locked; close that",
    "SQLITE_NOTADB": "is not an SQLite database; name another file, or move this one away",
    "SQLITE_CORRUPT": "is damaged; restore it, or move it away",
    "SQLITE_PROTOCOL": "its locks do not work; keep it on a local disk",
}


class SqliteConnection(Connection):
    """
    A connection to a file, or to a database in memory of its own.

    Args:
        path: None for memory.
        read_only: It can neither write nor checkpoint, and so needs no lock against those that do.
    """

    is_server = False

    def __init__(self, path: Path | None, timeout_s: float, *, read_only: bool = False) -> None:
        place = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}" if path else ":memory:"  # fmt: skip
        self._begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"
        self._driver = sqlite3.connect(
            place, timeout_s, isolation_level=None, check_same_thread=False, uri=True
        )
        try:
            for setting in () if read_only else _SETTINGS:
                self._driver.execute(f"PRAGMA {setting}")
        except BaseException:
            self._driver.close()
            raise

    def begin(self) -> None:
        """Begin a transaction; one that will write has the lock of all that write from here on."""
        self._driver.execute(self._begin)

    def commit(self) -> None:
        """Commit the transaction, if there is one."""
        self._driver.commit()

    def rollback(self) -> None:
        """Undo the transaction, if there is one."""
        with suppress(sqlite3.Error):
            self._driver.rollback()

    def close(self) -> None:
        """Close it."""
        self._driver.close()

    def run_many(self, statement: str, rows: Sequence[Sequence[object]]) -> int:
        """Run a statement for each row of values."""
        return self._driver.executemany(_translate(statement), rows).rowcount

    def tables(self) -> set[str]:
        """Read the names of the tables."""
        return {name for (name,) in self._driver.execute("SELECT name FROM sqlite_master")}

    def lock(self, number: int) -> None:
        """Do nothing: a transaction that writes has the only lock already."""

    def shrink(self, pages: int) -> bool:
        """Commit, and give pages back: a script is the only way in which Python takes all steps of this statement."""
        self._driver.executescript(f"PRAGMA incremental_vacuum({pages})")
        return bool(self.scalar("PRAGMA freelist_count"))

    def execute(self, statement: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
        """See `Connection`."""
        if ONE_OF in statement:  # a list is bound as JSON
            values = tuple(json.dumps(one) if isinstance(one, list) else one for one in values)
        return self._driver.execute(_translate(statement), values)

    def copy_to(self, path: Path) -> None:
        """Copy the database into a file, which is complete without others beside it."""
        with closing(sqlite3.connect(path)) as copy:
            self._driver.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.commit()


connect = SqliteConnection


@lru_cache
def _translate(statement: str) -> str:
    return statement.replace(ONE_OF, " IN (SELECT value FROM json_each(?))").replace(FOR_UPDATE, "")


def reason(error: sqlite3.Error) -> str | None:
    """Describe what is wrong with a file, and what to do; None where a statement of ours was wrong."""
    name = getattr(error, "sqlite_errorname", "")
    advice = next((text for code, text in _ADVICE.items() if name.startswith(code)), None)
    return advice and f"{advice} ({error})"


def is_retryable(error: sqlite3.Error) -> bool:
    """Return False: there is one writer, whose transaction nobody undoes."""
    return False
