"""
Connections to SQLite and PostgreSQL, as the store wants them. Contents of statements are in no error: they are prompts.

Source: https://docs.sqlalchemy.org/en/21/dialects/sqlite.html#pysqlite-transactions,
https://www.postgresql.org/docs/current/runtime-config-client.html
"""

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, QueuePool, StaticPool, create_engine, event, make_url

from unilect.store._prepared import begin_deferred, begin_immediate

_SETTINGS = (
    "auto_vacuum = INCREMENTAL",  # before the first table
    "journal_mode = WAL",
    "synchronous = FULL",  # what is committed is there after a loss of power, too
    "foreign_keys = ON",
    "secure_delete = ON",  # what is deleted is overwritten
    "journal_size_limit = 16777216",
)


def sqlite(path: Path | None, timeout_s: float) -> Engine:
    """The one connection that writes to an SQLite file; without a path to a database in memory."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            path or ":memory:", timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            for setting in _SETTINGS:
                connection.execute(f"PRAGMA {setting}")
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool, hide_parameters=True)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        begin_immediate(connection)

    return engine


def sqlite_readers(path: Path, timeout_s: float, most: int) -> Engine:
    """
    Connections that read an SQLite file, at most so many, each in a transaction that sees one moment.

    They neither write nor checkpoint, and so need no lock against those that do.
    """
    place = f"{path.absolute().as_uri()}?mode=ro"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            place, timeout_s, isolation_level=None, check_same_thread=False, uri=True
        )

    engine = create_engine(
        "sqlite://",
        creator=connect,
        poolclass=QueuePool,
        pool_size=most,
        max_overflow=0,
        pool_use_lifo=True,  # each has a cache of its own
        hide_parameters=True,
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        begin_deferred(connection)

    return engine


def postgresql(url: str, timeout_s: float, most: int, *, read_only: bool = False) -> Engine:
    """Connections to a PostgreSQL server, at most so many; one that broke is replaced before it is used."""
    arguments: dict[str, Any] = {
        "connect_timeout": max(2, round(timeout_s)),
        "tcp_user_timeout": round(timeout_s * 2000),
    }
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        paramstyle="format",  # values by their places, as `Prepared` has them
        pool_size=most,
        max_overflow=0,
        pool_pre_ping=True,
        pool_recycle=1800,
        connect_args=arguments,
        hide_parameters=True,
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # of this transaction only: a pooler such as pgbouncer gives the connection to others
        if read_only:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        milliseconds = round(timeout_s * 2000)
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {milliseconds}")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(timeout_s * 1000)}")

    return engine
