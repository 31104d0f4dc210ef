"""
API keys in the store: who has one, what it may do, and until when. Of a key's text only the digest is here.

A key has one secret, or two for a while after it was rotated: its id, and all that is kept under it, stay the same.
"""

import json
import re
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import Struct

from unilect.context import ANONYMOUS
from unilect.errors import ConfigError
from unilect.store.database import Database

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from unilect.store._keys import KeyRows

_Result = TypeVar("_Result")
#: The names, in usage and limits, of a key of the store and of one of the configuration.
_IDS = re.compile(r"key_[0-9A-Za-z]{8}|key-[0-9a-f]{16}")
_MOST_CHARACTERS = 100
#: Characters that show nothing, beside those that `str.isprintable` refuses: fillers, and selectors of variants.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


class Key(Struct, frozen=True, kw_only=True):
    """
    One key.

    Attributes:
        id: Of the key itself; it outlives its secrets.
        name: What people call it; no two keys that can be used have the same.
        owner: Whose it is; empty for nobody's.
        models: The names of the models that it may use; None for all.
        limits: Its limits, by name.
        created_at, expires_at, revoked_at: Seconds since 1970; None for never.
    """

    id: str
    name: str
    owner: str = ""
    models: tuple[str, ...] | None = None
    limits: Mapping[str, float] = {}
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None


class Secret(Struct, frozen=True, kw_only=True):
    """
    One secret of a key.

    Attributes:
        key: Whose it is.
        digest: Of its text.
        expires_at: Seconds since 1970, of a secret that was replaced; None for as long as the key.
    """

    key: Key
    digest: bytes
    expires_at: float | None = None


class Changes(NamedTuple):
    """
    Changes of keys since a server looked.

    Attributes:
        number: What to ask with the next time.
        ids: The ids of the keys that have changed and are still there.
        deleted: Keys have been deleted.
        required: The number of the change with which running servers were told to ask for keys; 0 for none.
        has_keys: There are keys, also such as cannot be used any more.
    """

    number: int
    ids: list[str]
    deleted: bool
    required: int
    has_keys: bool


class StoredKeys:
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

        def add(rows: "KeyRows") -> Key:
            number = rows.begin()
            if any(one.name == name and is_usable(one, now) for one in rows.all()):
                raise ConfigError(
                    f"a key named {name} exists. Choose another name, or `unilect keys rotate {name}` for a new secret.",
                    ("name",),
                )
            rows.add(key, number)
            rows.add_secret(key.id, secret_id, digest)
            if require:
                rows.require(number)
            return key

        return await self._write(add)

    async def all(self) -> list[Key]:
        """Every key, the oldest first."""
        return await self._read(lambda rows: rows.all())

    async def revoke(self, name: str) -> Key:
        """
        End a key, with all its secrets.

        Args:
            name: Its name or its id.

        Raises:
            ConfigError: There is none that can be used.
        """
        now = self.clock()

        def end(rows: "KeyRows") -> Key:
            number = rows.begin()
            key = _named(rows.all(), name, now)
            rows.revoke(key.id, now, number)
            return rows.get(key.id)

        return await self._write(end)

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

        def remove(rows: "KeyRows") -> tuple[Key, int]:
            number = rows.begin()
            every = rows.all()
            found = _of(every, name)
            if not found:
                raise _unknown(every, name, now)
            if len(found) > 1:
                ids = ", ".join(f"{key.id} ({state(key, now)})" for key in found[:20])
                raise ConfigError(f"{name}: {len(found)} keys have this name: {ids}. Name one by its id.")  # fmt: skip
            rows.delete(found[0].id, number)
            return found[0], len(every) - 1

        return await self._write(remove)

    async def rotate(self, name: str, secret_id: str, digest: bytes, overlap_s: float) -> Key:
        """
        Give a key another secret; those that it has can be used for a while.

        Args:
            name: Its name or its id.
            overlap_s: For how long.

        Raises:
            ConfigError: There is none that can be used.
        """
        now = self.clock()

        def replace(rows: "KeyRows") -> Key:
            number = rows.begin()
            key = _named(rows.all(), name, now)
            rows.end_secrets(key.id, now + overlap_s, number)
            rows.add_secret(key.id, secret_id, digest)
            return key

        return await self._write(replace)

    async def limit(self, name: str, limits: Mapping[str, float | None]) -> Key:
        """
        Change limits of a key; those that are not named stay.

        Args:
            name: Its name or its id.
            limits: By name; None for a limit that it is not to have any more.

        Raises:
            ConfigError: There is none that can be used.
        """
        now = self.clock()

        def change(rows: "KeyRows") -> Key:
            number = rows.begin()
            key = _named(rows.all(), name, now)
            changed = {**key.limits, **limits}
            rows.limit(key.id, {n: most for n, most in changed.items() if most is not None}, number)
            return rows.get(key.id)

        return await self._write(change)

    async def find(self, secret_id: str) -> Secret | None:
        """The secret with this public part."""
        return await self._read(lambda rows: rows.find(secret_id))

    async def named(self, name: str) -> Key | None:
        """The key of an id or a name; of several the one that can be used, or else the newest."""
        now = self.clock()

        def look(rows: "KeyRows") -> Key | None:
            found = _of(rows.named(name), name)
            usable = [key for key in found if is_usable(key, now)]
            return next(reversed(usable or found), None)

        return await self._read(look)

    async def get(self, id: str) -> Key:
        """The key of an id that was there; where it is not any more, it is as if revoked."""
        return await self._read(lambda rows: rows.get(id))

    async def changed(self, since: int) -> Changes | None:
        """
        Read what has changed; None for nothing.

        Args:
            since: The number that the last call returned; 0 at first.
        """
        # not by `read`, which does not wait for a transaction that is being committed: the file's `mark` may have it already
        return await self._write(lambda rows: rows.changed(since))

    def mark(self) -> object | None:
        """See `Database.mark`."""
        return self._database.mark()

    async def _write(self, ask: "Callable[[KeyRows], _Result]") -> _Result:
        return await self._database.write(partial(_ask, ask))

    async def _read(self, ask: "Callable[[KeyRows], _Result]") -> _Result:
        return await self._database.read(partial(_ask, ask))


def _ask(ask: "Callable[[KeyRows], _Result]", connection: "Connection") -> _Result:
    """Ask something of the rows, in a transaction."""
    from unilect.store._keys import KeyRows

    return ask(KeyRows(connection))


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


def is_usable(key: Key, now: float) -> bool:
    """Whether a key is neither revoked nor expired."""
    return key.revoked_at is None and (key.expires_at is None or now < key.expires_at)


def told(key: Key, now: float) -> dict[str, Any]:
    """Tell programs what is known of a key; times in ISO 8601, UTC."""
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
    """Tell `active`, `revoked` or `expired`."""
    if is_usable(key, now):
        return "active"
    return "expired" if key.revoked_at is None else "revoked"


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _named(keys: Sequence[Key], name: str, now: float) -> Key:
    """
    The key of an id, or of a name.

    Raises:
        ConfigError: There is none that can be used.
    """
    of_name = _of(keys, name)
    usable = [key for key in of_name if is_usable(key, now)]
    if usable:
        return usable[-1]
    if of_name:
        why = "revoked" if of_name[-1].revoked_at is not None else "expired"
        raise ConfigError(f"{name}: this key has {'been revoked' if why == 'revoked' else why} already.")  # fmt: skip
    raise _unknown(keys, name, now)


def _unknown(keys: Sequence[Key], name: str, now: float) -> ConfigError:
    """Make the error for a name that no key has."""
    names = ", ".join([key.name for key in keys if is_usable(key, now)][:20]) or "none"
    return ConfigError(f"{name}: there is no key of this name. The keys are: {names}.")


def _of(keys: Sequence[Key], name: str) -> list[Key]:
    """The key of an id, or else those of a name: who names an id means no key that is only called so."""
    return [key for key in keys if key.id == name] or [key for key in keys if key.name == name]


def packed(value: object) -> str:
    """A value as the JSON of a column."""
    return json.dumps(value, ensure_ascii=False)
