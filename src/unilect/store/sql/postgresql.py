"""
Connections to PostgreSQL, and its errors in words for the operator.

Source: https://www.postgresql.org/docs/current/runtime-config-client.html, https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import psycopg

from unilect.store.sql.connection import Connection

Error = psycopg.Error
_MAX_AGE_S = 1800.0  # of a connection: what lies between may forget one that is older
#: Classes of codes that tell of the server, and not of a statement.
_ADVICE = {
    "08": "the connection was lost",
    "25": "the server or the user is read-only",
    "28": "the server does not accept the user or the password",
    "3D": "there is no such database on the server; create it",
    "40": "the transaction was undone in favour of others, again and again",
    "42501": "the user may not do this; grant CREATE on the schema",
    "53": "the server is out of disk, memory or connections",
    "55": "it is locked",
    "57": "the server ended this statement, or is stopping",
    "58": "the server's disk fails",
    "XX": "the server's data is damaged",
}
#: Codes of what another transaction has caused, and a second try may not meet: serialization_failure, deadlock_detected,
#: unique_violation (both have made the same row).
_RETRYABLE = ("40001", "40P01", "23505")


class PostgresqlConnection(Connection):
    """
    A connection to a server, made when a transaction begins; one that broke is replaced before the next one.

    Args:
        read_only: Its transactions cannot write, and see one moment.
    """

    is_server = True

    def __init__(self, url: str, timeout_s: float, *, read_only: bool = False) -> None:
        self._url, self._timeout_s = f"postgresql:{url.partition(':')[2]}", timeout_s
        self._driver: psycopg.Connection | None = None
        self._made_at = 0.0
        kind = " ISOLATION LEVEL REPEATABLE READ, READ ONLY" if read_only else ""
        # of this transaction only: a pooler such as pgbouncer gives the connection to others
        self._begin = (
            f"BEGIN{kind}; SET LOCAL statement_timeout = {round(timeout_s * 2000)}; "
            f"SET LOCAL lock_timeout = {round(timeout_s * 1000)}"
        ).encode()

    def begin(self) -> None:
        """Begin a transaction, on a new connection where the one before is too old or was lost."""
        if self._driver is not None and time.monotonic() - self._made_at < _MAX_AGE_S:
            with suppress(psycopg.OperationalError):
                self._driver.execute(self._begin)
                return
        self.close()
        self._driver = psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=max(2, round(self._timeout_s)),
            tcp_user_timeout=round(self._timeout_s * 2000),
        )
        self._made_at = time.monotonic()
        self._driver.execute(self._begin)

    def commit(self) -> None:
        """Commit the transaction."""
        self._open.execute("COMMIT")

    def rollback(self) -> None:
        """Undo the transaction, if there is one; a connection that cannot is closed."""
        try:
            self._open.execute("ROLLBACK")
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        """Close it."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def execute(self, statement: str, values: tuple[Any, ...]) -> psycopg.Cursor:
        """See `Connection`."""
        return self._open.execute(_translate(statement), values)

    def run_many(self, statement: str, rows: Sequence[Sequence[object]]) -> int:
        """Run a statement for each row of values."""
        with self._open.cursor() as cursor:
            cursor.executemany(_translate(statement), rows)
            return cursor.rowcount

    def tables(self) -> set[str]:
        """Read the names of the tables that the user's search path has."""
        found = self.rows("SELECT relname FROM pg_class WHERE relkind = 'r' AND pg_table_is_visible(oid)")  # fmt: skip
        return {name for (name,) in found}

    def lock(self, number: int) -> None:
        """Wait for a lock of the application's own."""
        self.rows("SELECT pg_advisory_xact_lock(?)", number)

    def shrink(self, pages: int) -> bool:
        """Do nothing: autovacuum does it."""
        return False

    @property
    def _open(self) -> psycopg.Connection:
        if self._driver is None:
            raise psycopg.OperationalError("the connection is closed")
        return self._driver


connect = PostgresqlConnection


@lru_cache
def _translate(statement: str) -> bytes:
    return statement.replace("?", "%s").replace("BLOB", "BYTEA").encode()


def reason(error: psycopg.Error) -> str | None:
    """Describe why a server cannot be used; None where a statement of ours was wrong."""
    line = str(error).strip().partition("\n")[0]
    if error.sqlstate is None:  # no server has answered
        is_away = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return f"the server cannot be reached ({line})" if is_away else None
    code = error.sqlstate
    advice = next((text for start, text in _ADVICE.items() if code.startswith(start)), None)
    return advice and f"{advice} ({line})"


def is_retryable(error: psycopg.Error) -> bool:
    """Return True if another transaction has caused it, and a second try may succeed."""
    return error.sqlstate in _RETRYABLE
