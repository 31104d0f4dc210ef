"""
Statements about keys. Each change of a key takes the next number of one counter, by which servers see what has changed.

The counter is a row, so that changes wait for one another: a number that can be seen has all smaller ones before it. Two more rows, which
are made when they are first needed, say with which change running servers were told to ask for keys, and which change last deleted a key.
"""

import json
from collections.abc import Mapping
from typing import Any

from unilect.store.records import Key, KeyChanges, Secret
from unilect.store.sql.connection import Connection

_CHANGED, _REQUIRED, _DELETED = 1, 2, 3  # the rows of `key_changes`
_COLUMNS = ", ".join(f"k.{name}" for name in Key.__struct_fields__)
_SELECT = f"SELECT {_COLUMNS} FROM keys k"
_IN_ORDER = "ORDER BY k.created_at, k.id"
_INSERT = "INSERT INTO keys (id, name, owner, models, limits, created_at, expires_at, changed) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_END_SECRETS = (
    "UPDATE key_secrets SET expires_at = ? WHERE key = ? AND (expires_at IS NULL OR expires_at > ?)"
)
_SECRET = f"SELECT s.digest, s.expires_at, {_COLUMNS} FROM key_secrets s JOIN keys k ON k.id = s.key WHERE s.id = ?"
_NOTE = "INSERT INTO key_changes (id, number) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET number = excluded.number"


def begin(connection: Connection) -> int:
    """
    Begin to change keys, before anything is read that the change depends on: others that change keys wait from here on.

    Returns:
        The number of the change.
    """
    number = connection.scalar("UPDATE key_changes SET number = number + 1 WHERE id = ? RETURNING number", _CHANGED)  # fmt: skip
    if number is None:
        raise LookupError("key_changes has no row")
    return int(number)


def add(connection: Connection, key: Key, number: int) -> None:
    """Insert a key."""
    models = None if key.models is None else _json(key.models)
    times = (key.created_at, key.expires_at)
    connection.run(_INSERT, key.id, key.name, key.owner, models, _json(dict(key.limits)), *times, number)  # fmt: skip


def add_secret(connection: Connection, key: str, secret_id: str, digest: bytes) -> None:
    """Insert a secret of a key."""
    connection.run("INSERT INTO key_secrets (id, key, digest) VALUES (?, ?, ?)", secret_id, key, digest)  # fmt: skip


def end_secrets(connection: Connection, key: str, at: float, number: int) -> None:
    """Have the secrets of a key end at a time, unless they end before it."""
    connection.run(_END_SECRETS, at, key, at)
    connection.run("UPDATE keys SET changed = ? WHERE id = ?", number, key)


def limit(connection: Connection, key: str, limits: Mapping[str, float], number: int) -> None:
    """Give a key other limits."""
    changed = "UPDATE keys SET limits = ?, changed = ? WHERE id = ?"
    connection.run(changed, _json(dict(limits)), number, key)


def revoke(connection: Connection, key: str, at: float, number: int) -> None:
    """End a key."""
    connection.run("UPDATE keys SET revoked_at = ?, changed = ? WHERE id = ?", at, number, key)


def delete(connection: Connection, key: str, number: int) -> None:
    """Delete a key and its secrets."""
    connection.run("DELETE FROM keys WHERE id = ?", key)
    connection.run(_NOTE, _DELETED, number)


def require(connection: Connection, number: int) -> None:
    """Tell running servers to ask for keys."""
    connection.run(_NOTE, _REQUIRED, number)


def all(connection: Connection) -> list[Key]:
    """Read every key, the oldest first."""
    return [_key(*row) for row in connection.rows(f"{_SELECT} {_IN_ORDER}")]


def by_name(connection: Connection, name: str) -> list[Key]:
    """Read every key of a name or an id, the oldest first."""
    rows = connection.rows(f"{_SELECT} WHERE k.name = ? OR k.id = ? {_IN_ORDER}", name, name)
    return [_key(*row) for row in rows]


def get(connection: Connection, id: str) -> Key:
    """Read the key of an id that was there; where it has been deleted, or a backup of an earlier time has come, it is as if revoked."""
    row = connection.row(f"{_SELECT} WHERE k.id = ?", id)
    return _key(*row) if row else Key(id=id, name=id, created_at=0.0, revoked_at=0.0)


def find(connection: Connection, secret_id: str) -> Secret | None:
    """Read the secret with this public part."""
    row = connection.row(_SECRET, secret_id)
    return Secret(key=_key(*row[2:]), digest=row[0], expires_at=row[1]) if row else None


def changes(connection: Connection, since: int) -> KeyChanges | None:
    """Read what has changed since a number; None for nothing."""
    numbers = dict[int, int](connection.rows("SELECT id, number FROM key_changes"))
    last = numbers.get(_CHANGED, 0)
    if last == since:
        return None
    # what was committed since the last line belongs to the next look
    ids = connection.rows("SELECT id FROM keys WHERE changed > ? AND changed <= ?", since, last)
    return KeyChanges(
        number=last,
        ids=[id for (id,) in ids],
        deleted=numbers.get(_DELETED, 0) > since,
        required=numbers.get(_REQUIRED, 0),
        has_keys=connection.row("SELECT id FROM keys LIMIT 1") is not None,
    )


def _key(*row: Any) -> Key:
    values = dict(zip(Key.__struct_fields__, row, strict=True))
    models = None if values["models"] is None else tuple(json.loads(values["models"]))
    return Key(**values | {"models": models, "limits": json.loads(values["limits"])})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
