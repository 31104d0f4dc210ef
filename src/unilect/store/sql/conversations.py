"""Statements about conversations: lists of items with a name. Each names the owner; what is too old is not there."""

from collections.abc import Sequence

from unilect.core.errors import InvalidRequest
from unilect.store.records import Item
from unilect.store.sql.connection import Connection
from unilect.store.sql.scope import ROW_BYTES, Scope, size_of

_ALIVE = "WHERE owner = ? AND id = ? AND used_at > ?"
_APPENDED = "UPDATE conversations SET used_at = ?, size = size + ?, next_position = next_position + ? WHERE owner = ? AND id = ?"
_OF_ITEMS = "FROM conversation_items WHERE owner = ? AND conversation = ?"
_SIZES = f"SELECT position, length(body) {_OF_ITEMS} AND position"
_OLDER = f"{_SIZES} < ? ORDER BY position DESC LIMIT ?"
_NEWER = f"{_SIZES} > ? ORDER BY position LIMIT ?"
_BETWEEN = f"SELECT id, body {_OF_ITEMS} AND position BETWEEN ? AND ? ORDER BY position"
_OLDEST = f"SELECT id, body {_OF_ITEMS} ORDER BY position LIMIT ?"
_CREATE = """
INSERT INTO conversations (owner, id, metadata, created_at, used_at, size, next_position) VALUES (?, ?, ?, ?, ?, ?, 0)
"""


def create(
    connection: Connection, scope: Scope, owner: str, id: str, metadata: bytes, items: Sequence[Item]
) -> int:  # fmt: skip
    """Begin a conversation; returns the bytes that it takes."""
    connection.run("DELETE FROM conversations WHERE owner = ? AND id = ?", owner, id)
    own_size = size_of(metadata, ())
    connection.run(_CREATE, owner, id, metadata, scope.now, scope.now, own_size)
    return own_size + (append(connection, scope, owner, id, items) or 0)


def get(connection: Connection, scope: Scope, owner: str, id: str) -> tuple[bytes, float] | None:
    """Read its metadata, and when it began."""
    found = f"SELECT metadata, created_at FROM conversations {_ALIVE}"
    row = connection.row(found, owner, id, scope.since)
    return None if row is None else (row[0], row[1])


def update(connection: Connection, scope: Scope, owner: str, id: str, metadata: bytes) -> bool:
    """Give it other metadata; returns True if it was there."""
    changed = f"UPDATE conversations SET size = size - length(metadata) + ?, metadata = ?, used_at = ? {_ALIVE}"
    values = (len(metadata), metadata, scope.now)
    return connection.run(changed, *values, owner, id, scope.since) > 0


def delete(connection: Connection, scope: Scope, owner: str, id: str) -> bool:
    """Remove it with its items; returns True if it was there."""
    return connection.run(f"DELETE FROM conversations {_ALIVE}", owner, id, scope.since) > 0


def append(
    connection: Connection, scope: Scope, owner: str, id: str, items: Sequence[Item]
) -> int | None:
    """
    Add items at its end; one whose id it has replaces that one in its place.

    Returns:
        The bytes that this adds; None where there is no such conversation.
    """
    position = connection.scalar(
        f"SELECT next_position FROM conversations {_ALIVE} FOR UPDATE", owner, id, scope.since
    )
    if position is None:
        return None
    new = {item.id: item.body for item in items}
    there = connection.rows(
        f"SELECT id, length(body) {_OF_ITEMS} AND id = ANY(?)", owner, id, [*new]
    )
    old = dict[str, int](there)
    if old:
        connection.run_many(
            "UPDATE conversation_items SET body = ? WHERE owner = ? AND conversation = ? AND id = ?",
            [(new[item], owner, id, item) for item in old],
        )
    added = [item for item in new if item not in old]
    if added:
        connection.run_many(
            "INSERT INTO conversation_items (owner, conversation, position, id, body) VALUES (?, ?, ?, ?, ?)",
            [(owner, id, at, item, new[item]) for at, item in enumerate(added, position)],
        )
    size = sum(map(len, new.values())) - sum(old.values()) + ROW_BYTES * len(added)
    connection.run(_APPENDED, scope.now, size, len(added), owner, id)
    return size


def whole(
    connection: Connection, scope: Scope, owner: str, id: str, most: int
) -> list[Item] | None:
    """
    Read its items, at most so many, the oldest first; None where it is not there.

    Raises:
        InvalidRequest: It is too large.
    """
    size = connection.scalar(f"SELECT size FROM conversations {_ALIVE}", owner, id, scope.since)
    if size is None:
        return None
    scope.check_size(size, "conversation")
    rows = connection.rows(_OLDEST, owner, id, most)
    return [Item(*row) for row in rows]


def page(
    connection: Connection,
    scope: Scope,
    owner: str,
    id: str,
    after: str | None,
    limit: int,
    newest_first: bool,
) -> tuple[list[Item], bool] | None:
    """
    Read some of its items, and whether there are more; fewer than the limit where they are large. None where it is not there.

    Raises:
        InvalidRequest: It has no item `after`.
    """
    if get(connection, scope, owner, id) is None:
        return None
    start = -1 if not newest_first else 2**31 - 1
    if after is not None:
        at = connection.scalar(f"SELECT position {_OF_ITEMS} AND id = ?", owner, id, after)
        if at is None:
            raise InvalidRequest(
                f"after: the conversation has no item {after[:100]!r}. Send the `last_id` of a page before.",
                param="after",
            )
        start = at
    sizes = connection.rows(_OLDER if newest_first else _NEWER, owner, id, start, limit + 1)
    total, taken = 0, list[int]()
    for position, size in sizes[:limit]:
        total += size
        if taken and total > scope.most_bytes:
            break
        taken.append(position)
    if not taken:
        return [], bool(sizes)
    rows = connection.rows(_BETWEEN, owner, id, min(taken), max(taken))
    items = [Item(*row) for row in rows]
    return items[::-1] if newest_first else items, len(taken) < len(sizes)


def item(connection: Connection, scope: Scope, owner: str, id: str, item: str) -> Item | None:
    """Read one of its items."""
    if get(connection, scope, owner, id) is None:
        return None
    body = connection.scalar(f"SELECT body {_OF_ITEMS} AND id = ?", owner, id, item)
    return None if body is None else Item(item, body)


def delete_item(connection: Connection, scope: Scope, owner: str, id: str, item_id: str) -> bool:
    """Remove one of its items; returns True if it was there."""
    found = item(connection, scope, owner, id, item_id)
    if found is None:
        return False
    connection.run(f"DELETE {_OF_ITEMS} AND id = ?", owner, id, item_id)
    connection.run(_APPENDED, scope.now, -len(found.body) - ROW_BYTES, 0, owner, id)
    return True
