"""
Statements that delete what is too old, or too much, in transactions of some rows. Of what is too much whoever has the most loses the oldest
first, so that nobody's responses end for those of another.
"""

from heapq import heapify, heapreplace
from typing import NamedTuple

from unilect.store.records import RUNNING
from unilect.store.sql.connection import Connection
from unilect.store.sql.scope import Scope

_AT_ONCE = 100
_FREED_PAGES = 1000  # of a file, given back at once
_LOCK = 0x756E696C  # of whoever deletes what is too much; any number that is nobody else's
_INSTANCE_S = 86_400.0  # a server that was not heard of for so long is forgotten
_IN_ORDER = f"ORDER BY used_at, created_at LIMIT {_AT_ONCE}"
_OF_RESPONSES = (
    "SELECT used_at, created_at, size, id, parent FROM responses WHERE owner = ? AND status"
)
_IDLE = f"{_OF_RESPONSES} NOT IN {RUNNING} {_IN_ORDER}"
_RUNNING = f"{_OF_RESPONSES} IN {RUNNING} {_IN_ORDER}"
_CONVERSED = (
    f"SELECT used_at, created_at, size, id, NULL FROM conversations WHERE owner = ? {_IN_ORDER}"
)
_LET_GO = """
UPDATE responses SET used_at = ? WHERE owner = ? AND id = ? AND used_at > ? AND NOT EXISTS (
  SELECT 1 FROM responses AS later WHERE later.owner = responses.owner AND later.parent = responses.id
)
"""


class _Table:
    """Statements about a table whose rows may be deleted."""

    def __init__(self, name: str) -> None:
        self.uses = f"SELECT owner, count(*), sum(size) FROM {name} GROUP BY owner"
        self.old_owners = f"SELECT owner FROM {name} GROUP BY owner HAVING min(used_at) <= ?"
        self.old = f"SELECT owner, id FROM {name} WHERE owner = ? AND used_at <= ? ORDER BY used_at LIMIT ?"
        self.delete = f"DELETE FROM {name} WHERE owner = ? AND id = ?"


_RESPONSES, _CONVERSATIONS = _Table("responses"), _Table("conversations")
_TABLES = (_RESPONSES, _CONVERSATIONS)


class _Row(NamedTuple):
    """Row that may be deleted: when it was used last and made, its size, its id, the response before it, and its table."""

    used_at: float
    created_at: float
    size: int
    id: str
    parent: str | None
    table: _Table


def totals(connection: Connection, scope: Scope) -> tuple[int, int]:
    """Count all responses and conversations, and their bytes."""
    uses = _uses(connection).values()
    return sum(use[0] for use in uses), sum(use[1] for use in uses)


def delete_old(connection: Connection, scope: Scope) -> bool:
    """Delete some that were used last before `since`; returns True if there may be more."""
    connection.run("DELETE FROM instances WHERE touched_at < ?", scope.now - _INSTANCE_S)
    more = False
    for table in _TABLES:
        old = list[tuple[str, ...]]()
        # an index tells each owner's oldest, and no row that stays is looked at
        for (owner,) in connection.rows(table.old_owners, scope.since):
            old += connection.rows(table.old, owner, scope.since, _AT_ONCE - len(old))
            if len(old) == _AT_ONCE:
                more = True
                break
        connection.run_many(table.delete, old)
    return more


def delete_oldest(connection: Connection, scope: Scope, most: int, most_bytes: int) -> bool:
    """
    Delete some where there are more than so many, or more bytes: each time the oldest of the owner who has the most. Returns True where there is
    more to delete. Responses that a server works on go when their owner has nothing else: whoever waits for one has not had it. What
    stood before one that goes is the owner's next to go, unless something else continues it.
    """
    connection.lock(
        _LOCK
    )  # of two that count and delete at once, one would delete for the other, too
    uses = _uses(connection)
    left = [sum(use[0] for use in uses.values()), sum(use[1] for use in uses.values())]
    by, bound = (1, most_bytes) if left[1] > most_bytes else (0, most)
    heap = [(-use[by], owner) for owner, use in uses.items()]
    heapify(heap)
    rows: dict[str, list[_Row]] = {}
    gone: list[tuple[str, _Row]] = []
    while heap and left[by] > bound and len(gone) < _AT_ONCE:
        owner = heap[0][1]
        if owner not in rows:
            rows[owner] = _oldest_of(connection, owner)
        if not rows[owner]:
            break  # all that was looked up of it is gone
        row = rows[owner].pop()
        gone.append((owner, row))
        for use in (left, uses[owner]):
            use[0] -= 1
            use[1] -= row.size
        heapreplace(heap, (-uses[owner][by], owner))
    for table in _TABLES:
        connection.run_many(table.delete, [(owner, row.id) for owner, row in gone if row.table is table])  # fmt: skip
    first: dict[str, float] = {}
    for owner, row in gone:
        first.setdefault(owner, row.used_at)
    # those that were kept ahead for what continued them, and that nothing continues any more
    ahead = [(first[owner], owner, row.parent, scope.now) for owner, row in gone if row.parent is not None]  # fmt: skip
    connection.run_many(_LET_GO, ahead)
    return bool(gone) and (left[0] > most or left[1] > most_bytes)


def shrink(connection: Connection, scope: Scope) -> bool:
    """Give some room in a file back to the disk; returns True if there is more. It is alone in a transaction."""
    return connection.shrink(_FREED_PAGES)


def _uses(connection: Connection) -> dict[str, list[int]]:
    """Count the responses and conversations of each owner, and their bytes."""
    found: dict[str, list[int]] = {}
    for table in _TABLES:
        for owner, count, size in connection.rows(table.uses):
            use = found.setdefault(owner, [0, 0])
            use[0] += int(count)
            use[1] += int(size)
    return found


def _oldest_of(connection: Connection, owner: str) -> list[_Row]:
    """Read some of an owner's that are to go, the next one last."""
    found = [_Row._make((*row, _RESPONSES)) for row in connection.rows(_IDLE, owner)]
    found += [_Row._make((*row, _CONVERSATIONS)) for row in connection.rows(_CONVERSED, owner)]
    if not found:
        found = [_Row._make((*row, _RESPONSES)) for row in connection.rows(_RUNNING, owner)]
    return sorted(found, key=lambda row: row[:2], reverse=True)
