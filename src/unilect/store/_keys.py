"""
The statements about keys. Each change of a key takes the next number of one counter, by which servers see what has changed.

The counter is a row, so that changes wait for one another: a number that can be seen has all smaller ones before it.
"""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from unilect.store._tables import key_changes, key_secrets, keys
from unilect.store.keys import Key, Secret, packed


class KeyRows:
    """The keys, in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, key: Key) -> None:
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
                changed=self._next(),
            )
        )

    def add_secret(self, key: str, secret_id: str, digest: bytes) -> None:
        """Insert a secret of a key."""
        self._connection.execute(insert(key_secrets).values(id=secret_id, key=key, digest=digest))

    def end_secrets(self, key: str, at: float) -> None:
        """The secrets that a key has end at a time, unless they end before it."""
        sooner = (key_secrets.c.expires_at.is_(None)) | (key_secrets.c.expires_at > at)
        self._connection.execute(
            update(key_secrets).where(key_secrets.c.key == key, sooner).values(expires_at=at)
        )
        self._connection.execute(update(keys).where(keys.c.id == key).values(changed=self._next()))

    def begin(self) -> int:
        """Begin to change what a key says now: the number of the change. From here on others that change keys wait."""
        return self._next()

    def limit(self, key: str, limits: Mapping[str, float], changed: int) -> None:
        """Give a key other limits."""
        values = {"limits": packed(dict(limits)), "changed": changed}
        self._connection.execute(update(keys).where(keys.c.id == key).values(**values))

    def revoke(self, key: str, at: float) -> None:
        """End a key."""
        self._connection.execute(
            update(keys).where(keys.c.id == key).values(revoked_at=at, changed=self._next())
        )

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
        """The key of an id that was there; where it is not any more, such as in a backup of an earlier time, it is as if revoked."""
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

    def changed(self, since: int) -> tuple[int, list[str]]:
        """The number of the last change, and the keys with later ones than a number."""
        last = self._connection.scalar(select(key_changes.c.number)) or 0
        if last == since:
            return last, []
        # what was committed since the last line belongs to the next look
        rows = self._connection.execute(
            select(keys.c.id).where(keys.c.changed > since, keys.c.changed <= last)
        )
        return last, [row.id for row in rows]

    def _next(self) -> int:
        """The number of the next change."""
        number = self._connection.scalar(
            update(key_changes)
            .values(number=key_changes.c.number + 1)
            .returning(key_changes.c.number)
        )
        if number is None:
            raise LookupError("key_changes has no row")
        return int(number)


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
