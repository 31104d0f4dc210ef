"""Statements that are made once: to bind the values of a row by their names takes SQLAlchemy longer than a database takes to write it."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Delete, Insert, Select, Update
from sqlalchemy.exc import DBAPIError


class Prepared:
    """
    A statement whose text is made once for each kind of database.

    Args:
        statement: It has no values of its own.
        names: Its parameters, in the order in which their values are given.
    """

    def __init__(self, statement: Insert | Update | Delete | Select[Any], names: str) -> None:
        self._statement = statement
        self._names = names.split()
        self._made: dict[str, tuple[str, list[int]]] = {}
        self._repeated: dict[tuple[str, int], str] = {}

    def run(self, connection: Connection, rows: Sequence[tuple[object, ...]]) -> int:
        """Run it once for each row of values; how many rows of the table it has changed in all."""
        text, order = self._made.get(connection.dialect.name) or self._make(connection)
        if order:
            rows = [tuple([row[at] for at in order]) for row in rows]
        return run_text(connection, text, list(rows))

    def rows(self, connection: Connection, *values: object) -> Sequence[Sequence[Any]]:
        """Run it once, and read all that it finds: values as the database's driver has them. Errors as of `run_text`."""
        text, order = self._made.get(connection.dialect.name) or self._make(connection)
        if order:
            values = tuple([values[at] for at in order])
        if connection.dialect.name != "sqlite":
            return connection.exec_driver_sql(text, values).all()
        return _asked(connection, text, values)

    def repeated(self, connection: Connection, count: int) -> str:
        """The text of an insertion of so many rows at once, the values of which are given one after the other."""
        kind = connection.dialect.name, count
        return self._repeated.get(kind) or self._repeat(connection, *kind)

    def _repeat(self, connection: Connection, kind: str, count: int) -> str:
        text, order = self._made.get(kind) or self._make(connection)
        before, values, row_on = text.partition(" VALUES ")
        row, on, after = row_on.partition(" ON CONFLICT ")
        assert not order
        assert row.startswith("(")
        all = before + values + ", ".join([row] * count) + on + after
        return self._repeated.setdefault((kind, count), all)

    def _make(self, connection: Connection) -> tuple[str, list[int]]:
        """Its text, and the places of the values where the text has them in another order."""
        made = self._statement.compile(dialect=connection.dialect)
        order = [self._names.index(name) for name in made.positiontup or ()]
        if order == [*range(len(self._names))]:
            order = []
        return self._made.setdefault(connection.dialect.name, (str(made), order))


def run_text(connection: Connection, text: str, rows: list[tuple[object, ...]]) -> int:
    """
    Run a statement in the words of the database, once for each row of values; how many rows of the table it has changed.

    The one connection to an SQLite file needs nothing of what SQLAlchemy does around a statement, which takes several times
    as long as the statement. A connection to a server does: it may be lost.

    Raises:
        DBAPIError: As SQLAlchemy would raise.
    """
    if connection.dialect.name != "sqlite":
        return connection.exec_driver_sql(text, rows).rowcount
    cursor = connection.connection.cursor()
    try:
        cursor.executemany(text, rows)
    except sqlite3.Error as error:
        raise _as_sqlalchemy(error, text, connection) from error
    finally:
        cursor.close()
    return cursor.rowcount


def begin_immediate(connection: Connection) -> None:
    """Begin a transaction of SQLite that will write; errors as of `run_text`."""
    _asked(connection, "BEGIN IMMEDIATE", ())


def begin_deferred(connection: Connection) -> None:
    """Begin a transaction of SQLite that will only read; errors as of `run_text`."""
    _asked(connection, "BEGIN", ())


def _asked(connection: Connection, text: str, values: tuple[object, ...]) -> Sequence[Any]:
    """What SQLite answers to a statement."""
    cursor = connection.connection.cursor()
    try:
        return cursor.execute(text, values).fetchall()  # type: ignore[no-any-return]
    except sqlite3.Error as error:
        raise _as_sqlalchemy(error, text, connection) from error
    finally:
        cursor.close()


def _as_sqlalchemy(error: sqlite3.Error, text: str, connection: Connection) -> BaseException:
    """An error of SQLite as SQLAlchemy raises it, without the values of the statement."""
    return DBAPIError.instance(
        text, None, error, sqlite3.Error, hide_parameters=True, dialect=connection.dialect
    )
