"""
Deletes what is too old, or too much, in transactions of some rows. Of what is too much whoever has the most loses the oldest first, so that
nobody's responses end for those of another.
"""

import sqlite3
from heapq import heapify, heapreplace
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
        old = _old(connection, table, since)
        _delete(connection, table, old)
        more |= len(old) == _AT_ONCE
    return more


def _old(connection: Connection, table: Table, since: float) -> list[tuple[str, str]]:
    """Some that were used last before a time; an index tells each owner's oldest, and no row that stays is looked at."""
    owner, used_at = table.c.owner, table.c.used_at
    owners = connection.scalars(
        select(owner).group_by(owner).having(func.min(used_at) <= since)
    ).all()
    found: list[tuple[str, str]] = []
    for one in owners:
        rows = connection.execute(
            select(owner, table.c.id)
            .where(owner == one, used_at <= since)
            .order_by(used_at)
            .limit(_AT_ONCE - len(found))
        )
        found += [(row.owner, row.id) for row in rows]
        if len(found) == _AT_ONCE:
            break
    return found


def delete_oldest(connection: Connection, most: int, most_bytes: int, now: float) -> bool:
    """
    Delete some where there are more than so many, or more bytes: each time the oldest of the owner who has the most. Returns True where there is
    more to delete. Responses that a server works on go when their owner has nothing else: whoever waits for one has not had it. What
    stood before one that goes is the owner's next to go, unless something else continues it.
    """
    if (
        connection.dialect.name == "postgresql"
    ):  # of two that count and delete at once, one would delete for the other, too
        connection.execute(select(func.pg_advisory_xact_lock(_SWEEPING)))
    uses = _uses(connection)
    left = [sum(use[0] for use in uses.values()), sum(use[1] for use in uses.values())]
    by, bound = (1, most_bytes) if left[1] > most_bytes else (0, most)
    heap = [(-use[by], owner) for owner, use in uses.items()]
    heapify(heap)
    rows: dict[str, list[_Row]] = {}
    gone: list[_Row] = []
    while heap and left[by] > bound and len(gone) < _AT_ONCE:
        owner = heap[0][1]
        if owner not in rows:
            rows[owner] = _oldest_of(connection, owner)
        if not rows[owner]:
            break  # all that was looked up of it is gone
        row = rows[owner].pop()
        gone.append(row)
        for use in (left, uses[owner]):
            use[0] -= 1
            use[1] -= row[2]
        heapreplace(heap, (-uses[owner][by], owner))
    for table in (responses, conversations):
        _delete(connection, table, [key for *_, of, key, _ in gone if of is table])
    for owner in rows:
        mine = [row for row in gone if row[4][0] == owner]
        before = [(owner, parent) for *_, parent in mine if parent is not None]
        if before:
            _let_go(connection, before, mine[0][0], now)
    return bool(gone) and (left[0] > most or left[1] > most_bytes)


def _uses(connection: Connection) -> dict[str, list[int]]:
    """Count the responses and conversations of each owner, and their bytes."""
    found: dict[str, list[int]] = {}
    for table in (responses, conversations):
        rows = connection.execute(
            select(table.c.owner, func.count(), func.sum(table.c.size)).group_by(table.c.owner)
        )
        for owner, count, size in rows:
            use = found.setdefault(owner, [0, 0])
            use[0] += int(count)
            use[1] += int(size)
    return found


def _oldest_of(connection: Connection, owner: str) -> list[_Row]:
    """Some of an owner's that are to go, the next one last."""
    runs = responses.c.status.in_(RUNNING)
    rows = _oldest(connection, owner, responses, ~runs)
    rows += _oldest(connection, owner, conversations)
    return sorted(
        rows or _oldest(connection, owner, responses, runs), key=lambda row: row[:2], reverse=True
    )


def _oldest(
    connection: Connection, owner: str, table: Table, *which: ColumnElement[bool]
) -> list[_Row]:
    """When each was used last and made, its size, its table, its key, and of a response the one before."""
    parent = table.c.parent if table is responses else null().label("parent")
    rows = connection.execute(
        select(table.c.used_at, table.c.created_at, table.c.size, table.c.owner, table.c.id, parent)
        .where(table.c.owner == owner, *which)
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
