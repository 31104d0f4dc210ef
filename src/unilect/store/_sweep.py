"""What is too old, or too much, is deleted, the oldest first, in transactions of some rows."""

import sqlite3
from typing import TypeAlias, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    delete,
    exists,
    func,
    null,
    select,
    tuple_,
    update,
)

from unilect.store._tables import conversations, instances, responses
from unilect.store.answers import RUNNING

_AT_ONCE = 100
_FREED_PAGES = 1000  # of a file, given back at once
_SWEEPING = (
    0x756E696C  # the lock of whoever deletes what is too much; any number that is nobody else's
)
_INSTANCE_S = 86_400.0  # a server that was not heard of for so long is forgotten

_Row: TypeAlias = tuple[float, float, int, Table, tuple[str, str], str | None]


def totals(connection: Connection) -> tuple[int, int]:
    """How many responses and conversations there are, and their bytes."""
    count, size = 0, 0
    for table in (responses, conversations):
        row = connection.execute(
            select(func.count(), func.coalesce(func.sum(table.c.size), 0)).select_from(table)
        ).one()
        count, size = count + int(row[0]), size + int(row[1])
    return count, size


def delete_old(connection: Connection, since: float, now: float) -> bool:
    """Delete some that were used last before a time; whether there may be more."""
    connection.execute(delete(instances).where(instances.c.touched_at < now - _INSTANCE_S))
    more = False
    for table in (responses, conversations):
        rows = connection.execute(
            select(table.c.owner, table.c.id)
            .where(table.c.used_at <= since)
            .order_by(table.c.used_at)
            .limit(_AT_ONCE)
        ).all()
        _delete(connection, table, [(row.owner, row.id) for row in rows])
        more |= len(rows) == _AT_ONCE
    return more


def delete_oldest(connection: Connection, most: int, most_bytes: int, now: float) -> bool:
    """
    Delete some of the oldest where there are more than so many, or more bytes; whether there are more to delete. Responses that a server
    works on go when nothing else is left: whoever waits for one has not had it. What stood before one that goes is the next to go, unless
    something else continues it.
    """
    if (
        connection.dialect.name == "postgresql"
    ):  # of two that count and delete at once, one would delete for the other, too
        connection.execute(select(func.pg_advisory_xact_lock(_SWEEPING)))
    count, size = totals(connection)
    runs = responses.c.status.in_(RUNNING)
    rows = [*_oldest(connection, responses, ~runs), *_oldest(connection, conversations)]
    rows = rows or _oldest(connection, responses, runs)
    rows.sort(key=lambda row: row[:2])
    gone: dict[Table, list[tuple[str, str]]] = {responses: [], conversations: []}
    before: list[tuple[str, str]] = []
    for _, _, bytes_, table, key, parent in rows[:_AT_ONCE]:
        if count <= most and size <= most_bytes:
            break
        gone[table].append(key)
        before += [(key[0], parent)] if parent is not None else []
        count, size = count - 1, size - bytes_
    for table, keys in gone.items():
        _delete(connection, table, keys)
    if before:
        _let_go(connection, before, rows[0][0], now)
    return bool(rows) and (count > most or size > most_bytes)


def _oldest(connection: Connection, table: Table, *which: ColumnElement[bool]) -> list[_Row]:
    """When each was used last and made, its size, its table, its key, and of a response the one before."""
    parent = table.c.parent if table is responses else null().label("parent")
    rows = connection.execute(
        select(table.c.used_at, table.c.created_at, table.c.size, table.c.owner, table.c.id, parent)
        .where(*which)
        .order_by(table.c.used_at, table.c.created_at)
        .limit(_AT_ONCE)
    )
    return [
        (row.used_at, row.created_at, row.size, table, (row.owner, row.id), row.parent)
        for row in rows
    ]


def _let_go(connection: Connection, some: list[tuple[str, str]], at: float, now: float) -> None:
    """Responses that were kept ahead for those that continued them, and that nothing continues any more, were used last at a time."""
    next_ = responses.alias()
    continued = exists().where(next_.c.owner == responses.c.owner, next_.c.parent == responses.c.id)
    ahead = and_(tuple_(responses.c.owner, responses.c.id).in_(some), responses.c.used_at > now)
    connection.execute(update(responses).where(ahead, ~continued).values(used_at=at))


def _delete(connection: Connection, table: Table, keys: list[tuple[str, str]]) -> None:
    if keys:  # one statement for any number of them: each form of one is kept, made ready, for a long time
        connection.execute(delete(table).where(tuple_(table.c.owner, table.c.id).in_(keys)))


def shrink(connection: Connection) -> bool:
    """
    Give some pages of an SQLite file back to the disk; whether there are more. PostgreSQL's autovacuum does its own.

    It is alone in a transaction: a script commits first, and is the only way in which Python takes all steps of this statement.
    """
    if connection.dialect.name != "sqlite":
        return False
    driver = cast("sqlite3.Connection", connection.connection.driver_connection)
    driver.executescript(f"PRAGMA incremental_vacuum({_FREED_PAGES})")
    (left,) = driver.execute("PRAGMA freelist_count").fetchone()
    return bool(left)
