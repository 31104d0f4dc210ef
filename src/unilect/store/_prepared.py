"""Statements that are made once: to bind the values of a row by their names takes SQLAlchemy longer than a database takes to write it."""

from collections.abc import Sequence

from sqlalchemy import Connection, Delete, Insert, Update


class Prepared:
    """
    A statement whose text is made once for each kind of database.

    Args:
        statement: It has no values of its own.
        names: Its parameters, in the order in which `run` is given their values.
    """

    def __init__(self, statement: Insert | Update | Delete, names: str) -> None:
        self._statement = statement
        self._names = names.split()
        self._made: dict[str, tuple[str, list[int]]] = {}

    def run(self, connection: Connection, rows: Sequence[tuple[object, ...]]) -> None:
        """Run it once for each row of values."""
        text, order = self._made.get(connection.dialect.name) or self._make(connection)
        if order:
            rows = [tuple([row[at] for at in order]) for row in rows]
        connection.exec_driver_sql(text, list(rows))

    def _make(self, connection: Connection) -> tuple[str, list[int]]:
        """Its text, and the places of the values where the text has them in another order."""
        made = self._statement.compile(dialect=connection.dialect)
        order = [self._names.index(name) for name in made.positiontup or ()]
        if order == [*range(len(self._names))]:
            order = []
        return self._made.setdefault(connection.dialect.name, (str(made), order))
