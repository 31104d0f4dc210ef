"""
API keys in the store: who has one, what it may do, and until when. Of a key's text only the digest is here.

A key has one secret, or two for a while after it was rotated: its id, and all that is kept under it, stay the same.
"""

import re
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from unilect.core.errors import ConfigError
from unilect.runtime.context import ANONYMOUS
from unilect.store.database import Database
from unilect.store.records import Key, KeyChanges, Secret
from unilect.store.sql import keys
from unilect.store.sql.connection import Connection

#: The names, in usage and limits, of a key of the store and of one of the configuration.
_IDS = re.compile(r"key_[0-9A-Za-z]{8}|key-[0-9a-f]{16}")
_MOST_CHARACTERS = 100
#: Characters that show nothing, beside those that `str.isprintable` refuses: fillers, and selectors of variants.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


class KeyStore:
    """
    The keys of a database.

    Every method may raise `StoreUnavailable`.

    Args:
        clock: Seconds since 1970.

    Attributes:
        clock: As given.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self.clock = database, clock

    async def create(
        self,
        name: str,
        secret_id: str,
        digest: bytes,
        *,
        owner: str = "",
        models: Sequence[str] | None = None,
        limits: Mapping[str, float] | None = None,
        lasts_s: float | None = None,
        require: bool = False,
    ) -> Key:
        """
        Add a key.

        Args:
            secret_id: The public part of its secret, which becomes the key's id, too.
            lasts_s: None for ever.
            require: Running servers that ask for no keys do so from now on.

        Raises:
            ConfigError: Another key that can be used has the name, or could be meant by it; or the name or the owner, which its path
                says, is no word.
        """
        check_word("name", name)
        if owner:
            check_word("owner", owner)
        now = self.clock()
        key = Key(
            id=f"key_{secret_id}",
            name=name,
            owner=owner,
            models=None if models is None else tuple(models),
            limits=limits or {},
            created_at=now,
            expires_at=None if lasts_s is None else now + lasts_s,
        )

        def add(connection: Connection) -> Key:
            number = keys.begin(connection)
            if any(one.name == name and one.is_usable(now) for one in keys.all(connection)):
                raise ConfigError(
                    f"a key named {name} exists. Choose another name, or `unilect keys rotate {name}` for a new secret.",
                    ("name",),
                )
            keys.add(connection, key, number)
            keys.add_secret(connection, key.id, secret_id, digest)
            if require:
                keys.require(connection, number)
            return key

        return await self._database.write(add)

    async def all(self) -> list[Key]:
        """Read every key, the oldest first."""
        return await self._database.read(lambda connection: keys.all(connection))

    async def revoke(self, name: str) -> Key:
        """
        End a key, with all its secrets.

        Args:
            name: Its name or its id.

        Raises:
            ConfigError: There is none that can be used.
        """
        now = self.clock()
        return await self._change(
            name, lambda connection, key, number: keys.revoke(connection, key.id, now, number)
        )

    async def delete(self, name: str) -> tuple[Key, int]:
        """
        Remove a key, also one that has ended, and its secrets. What it has used and stored stays under its id.

        Args:
            name: Its name or its id.

        Returns:
            The key, and how many keys are left.

        Raises:
            ConfigError: There is none, or several have the name.
        """
        now = self.clock()

        def remove(connection: Connection) -> tuple[Key, int]:
            number = keys.begin(connection)
            every = keys.all(connection)
            found = _of(every, name)
            if not found:
                raise _unknown(every, name, now)
            if len(found) > 1:
                ids = ", ".join(f"{key.id} ({state(key, now)})" for key in found[:20])
                raise ConfigError(f"{name}: {len(found)} keys have this name: {ids}. Name one by its id.")  # fmt: skip
            keys.delete(connection, found[0].id, number)
            return found[0], len(every) - 1

        return await self._database.write(remove)

    async def rotate(self, name: str, secret_id: str, digest: bytes, overlap_s: float) -> Key:
        """
        Give a key another secret; those that it has can be used for a while.

        Args:
            name: Its name or its id.
            overlap_s: For how long.

        Raises:
            ConfigError: There is none that can be used.
        """
        end = self.clock() + overlap_s

        def replace(connection: Connection, key: Key, number: int) -> None:
            keys.end_secrets(connection, key.id, end, number)
            keys.add_secret(connection, key.id, secret_id, digest)

        return await self._change(name, replace)

    async def limit(self, name: str, limits: Mapping[str, float | None]) -> Key:
        """
        Change limits of a key; those that are not named stay.

        Args:
            name: Its name or its id.
            limits: By name; None for a limit that it is not to have any more.

        Raises:
            ConfigError: There is none that can be used.
        """

        def change(connection: Connection, key: Key, number: int) -> None:
            merged = {**key.limits, **limits}
            kept = {limit: most for limit, most in merged.items() if most is not None}
            keys.limit(connection, key.id, kept, number)

        return await self._change(name, change)

    async def _change(self, name: str, change: Callable[[Connection, Key, int], None]) -> Key:
        """Change a key that can be used, by its name or its id, with the number of the change; returns it as it is then."""
        now = self.clock()

        def run(connection: Connection) -> Key:
            number = keys.begin(connection)
            key = _choose_usable(keys.all(connection), name, now)
            change(connection, key, number)
            return keys.get(connection, key.id)

        return await self._database.write(run)

    async def find(self, secret_id: str) -> Secret | None:
        """Read the secret with this public part."""
        return await self._database.read(lambda connection: keys.find(connection, secret_id))

    async def get_by_name(self, name: str) -> Key | None:
        """Read the key of an id or a name; of several the one that can be used, or else the newest."""
        now = self.clock()

        found = _of(
            await self._database.read(lambda connection: keys.by_name(connection, name)), name
        )
        usable = [key for key in found if key.is_usable(now)]
        return next(reversed(usable or found), None)

    async def get(self, id: str) -> Key:
        """Read the key of an id that was there; where it is not any more, it is as if revoked."""
        return await self._database.read(lambda connection: keys.get(connection, id))

    async def changes_since(self, since: int) -> KeyChanges | None:
        """
        Read what has changed; None for nothing.

        Args:
            since: The number that the last call returned; 0 at first.
        """
        # not by `read`, which does not wait for a transaction that is being committed: the file's `mark` may have it already
        return await self._database.write(lambda connection: keys.changes(connection, since))

    def mark(self) -> object | None:
        """See `Database.mark`."""
        return self._database.mark()


def check_word(what: str, text: str) -> None:
    """
    Check the name or the owner of a new key: a word whose characters all show, and that means nothing else.

    Args:
        what: `name` or `owner`, which becomes the error's path.

    Raises:
        ConfigError: It is not so.
    """
    if (
        not 1 <= len(text) <= _MOST_CHARACTERS
        or " " in text
        or not text.isprintable()
        or _INVISIBLE.search(text)
    ):
        raise ConfigError(
            f"{text[:50]!r} is not a word; expected 1 to {_MOST_CHARACTERS} visible characters without spaces.",
            (what,),
        )
    if unicodedata.normalize("NFKC", text).casefold() == ANONYMOUS:
        raise ConfigError(f"{text} stands for requests without a key. Choose another word.", (what,))  # fmt: skip
    if what == "name" and _IDS.fullmatch(text):
        raise ConfigError(f"{text} has the form of a key's id. Choose another name.", (what,))


def describe(key: Key, now: float) -> dict[str, Any]:
    """Return what programs are told of a key; times in ISO 8601, UTC."""
    return {
        "id": key.id,
        "name": key.name,
        "owner": key.owner,
        "models": None if key.models is None else list(key.models),
        "limits": dict(key.limits),
        "created_at": _time(key.created_at),
        "expires_at": _time(key.expires_at),
        "revoked_at": _time(key.revoked_at),
        "state": state(key, now),
    }


def state(key: Key, now: float) -> str:
    """Return `active`, `revoked` or `expired`."""
    if key.is_usable(now):
        return "active"
    return "expired" if key.revoked_at is None else "revoked"


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _choose_usable(keys: Sequence[Key], name: str, now: float) -> Key:
    """
    Choose the key of an id, or of a name.

    Raises:
        ConfigError: There is none that can be used.
    """
    of_name = _of(keys, name)
    usable = [key for key in of_name if key.is_usable(now)]
    if usable:
        return usable[-1]
    if not of_name:
        raise _unknown(keys, name, now)
    why = "expired" if of_name[-1].revoked_at is None else "been revoked"
    raise ConfigError(f"{name}: this key has {why} already.")


def _unknown(keys: Sequence[Key], name: str, now: float) -> ConfigError:
    """Make the error for a name that no key has."""
    names = ", ".join([key.name for key in keys if key.is_usable(now)][:20]) or "none"
    return ConfigError(f"{name}: there is no key of this name. The keys are: {names}.")


def _of(keys: Sequence[Key], name: str) -> list[Key]:
    """Choose the key of an id, or else those of a name: who names an id means no key that is only called so."""
    return [key for key in keys if key.id == name] or [key for key in keys if key.name == name]
