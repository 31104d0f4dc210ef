"""
The statements about keys. Each change of a key takes the next number of one counter, by which servers see what has changed.

The counter is a row, so that changes wait for one another: a number that can be seen has all smaller ones before it. Two more rows, which
are made when they are first needed, say with which change running servers were told to ask for keys, and which change last deleted a key.
"""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from unilect.store._tables import key_changes, key_secrets, keys
from unilect.store.keys import Changes, Key, Secret, packed

_CHANGED, _REQUIRED, _DELETED = 1, 2, 3  # the rows of `key_changes`


class KeyRows:
    """The keys, in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self) -> int:
        """
        Begin to change keys, before anything is read that the change depends on: others that change keys wait from here on.

        Returns:
            The number of the change.
        """
        number = self._connection.scalar(
            update(key_changes)
            .where(key_changes.c.id == _CHANGED)
            .values(number=key_changes.c.number + 1)
            .returning(key_changes.c.number)
        )
        if number is None:
            raise LookupError("key_changes has no row")
        return int(number)

    def add(self, key: Key, number: int) -> None:
        """Insert a key."""
        self._connection.execute(
            insert(keys).values(
                id=key.id,
                name=key.name,
                owner=key.owner,
                models=None if key.models is None else packed(key.models),
                limits=packed(dict(key.limits)),
                created_at=key.created_at,
                expires_at=key.expires_at,
                changed=number,
            )
        )

    def add_secret(self, key: str, secret_id: str, digest: bytes) -> None:
        """Insert a secret of a key."""
        self._connection.execute(insert(key_secrets).values(id=secret_id, key=key, digest=digest))

    def end_secrets(self, key: str, at: float, number: int) -> None:
        """Have the secrets of a key end at a time, unless they end before it."""
        sooner = (key_secrets.c.expires_at.is_(None)) | (key_secrets.c.expires_at > at)
        self._connection.execute(
            update(key_secrets).where(key_secrets.c.key == key, sooner).values(expires_at=at)
        )
        self._change(key, changed=number)

    def limit(self, key: str, limits: Mapping[str, float], number: int) -> None:
        """Give a key other limits."""
        self._change(key, limits=packed(dict(limits)), changed=number)

    def revoke(self, key: str, at: float, number: int) -> None:
        """End a key."""
        self._change(key, revoked_at=at, changed=number)

    def delete(self, key: str, number: int) -> None:
        """Delete a key and its secrets."""
        self._connection.execute(delete(keys).where(keys.c.id == key))
        self._note(_DELETED, number)

    def require(self, number: int) -> None:
        """Tell running servers to ask for keys."""
        self._note(_REQUIRED, number)

    def all(self) -> list[Key]:
        """Every key, the oldest first."""
        rows = self._connection.execute(select(keys).order_by(keys.c.created_at, keys.c.id))
        return [_key(row) for row in rows]

    def named(self, name: str) -> list[Key]:
        """Every key of a name or an id, the oldest first."""
        of_name = (keys.c.name == name) | (keys.c.id == name)
        rows = self._connection.execute(
            select(keys).where(of_name).order_by(keys.c.created_at, keys.c.id)
        )
        return [_key(row) for row in rows]

    def get(self, id: str) -> Key:
        """The key of an id that was there; where it has been deleted, or a backup of an earlier time has come, it is as if revoked."""
        row = self._connection.execute(select(keys).where(keys.c.id == id)).first()
        return _key(row) if row else Key(id=id, name=id, created_at=0.0, revoked_at=0.0)

    def find(self, secret_id: str) -> Secret | None:
        """The secret with this public part."""
        row = self._connection.execute(
            select(keys, key_secrets.c.digest, key_secrets.c.expires_at.label("secret_expires_at"))
            .join(keys, keys.c.id == key_secrets.c.key)
            .where(key_secrets.c.id == secret_id)
        ).first()
        if row is None:
            return None
        return Secret(key=_key(row), digest=row.digest, expires_at=row.secret_expires_at)

    def changed(self, since: int) -> Changes | None:
        """Read what has changed since a number; None for nothing."""
        found = self._connection.execute(select(key_changes.c.id, key_changes.c.number))
        numbers: dict[int, int] = {row.id: row.number for row in found}
        last = numbers.get(_CHANGED, 0)
        if last == since:
            return None
        # what was committed since the last line belongs to the next look
        rows = self._connection.execute(
            select(keys.c.id).where(keys.c.changed > since, keys.c.changed <= last)
        )
        ids = [row.id for row in rows]
        any_key = self._connection.scalar(select(keys.c.id).limit(1))
        return Changes(
            number=last,
            ids=ids,
            deleted=numbers.get(_DELETED, 0) > since,
            required=numbers.get(_REQUIRED, 0),
            has_keys=any_key is not None,
        )

    def _change(self, key: str, **values: object) -> None:
        self._connection.execute(update(keys).where(keys.c.id == key).values(**values))

    def _note(self, row: int, number: int) -> None:
        """Put the number of a change into a row that may not be there yet; `begin` keeps others from making it."""
        noted = self._connection.execute(
            update(key_changes).where(key_changes.c.id == row).values(number=number)
        )
        if not noted.rowcount:
            self._connection.execute(insert(key_changes).values(id=row, number=number))


def _key(row: Row[Any]) -> Key:
    return Key(
        id=row.id,
        name=row.name,
        owner=row.owner,
        models=None if row.models is None else tuple(json.loads(row.models)),
        limits=json.loads(row.limits),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
