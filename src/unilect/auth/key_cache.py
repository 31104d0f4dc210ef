"""
The keys of the store, as a server knows them: looked up once, and again where one has changed.

1. A server looks twice a second whether a key has changed, and so sees what other processes do within a second. Of an SQLite file it
   looks at the time of its last change first; while there is no file, nothing is opened. What the server itself changes it knows at once.
2. A server asks for keys where its store had any at its first look, also where all are revoked. One that found none goes on without, so
   that nobody who creates a key locks others out, until it is told to ask: by a mark in the store, or by a reload.
3. A running request ends within a second where its key was revoked or deleted, or expires.
4. A text that may be a key and is not known is looked up in the store, `_LOOK_UPS` at a time: whoever makes up many waits for himself, and
   holds up nobody whose key is known.
5. What a server knows it goes on using while the store cannot be read, for `STALE_S`; then it lets nobody in, if it asks for keys.
"""

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeVar

from unilect.auth.secret import id_of, is_mistyped
from unilect.core.errors import AuthenticationError, StoreUnavailable
from unilect.runtime.context import Requests
from unilect.runtime.tasks import Tasks
from unilect.store.database import ABSENT
from unilect.store.keys import KeyStore
from unilect.store.records import Key, KeyChanges, Secret

log = logging.getLogger("unilect")
_Kept = TypeVar("_Kept")

LOOK_S = 0.4
STALE_S = 60.0
_MOST = 20_000
_MOST_UNKNOWN = 4096
_LOOK_UPS = 2
_WAIT_S = 5.0  # for one of these
_TRIES = 3  # keys may change while one is looked up


class KeyCache:
    """
    A cache of the keys of a store.

    Args:
        stored: The keys.
        clock: Seconds since 1970.
        requests: The requests that are being answered: those of a key that ends are ended.
        configured: The configuration has keys, so that one is required anyway.

    Attributes:
        stored, configured: As passed; the latter changes with the configuration.
        is_open: The store was read, and this server asks for no keys because of it.
        on_change: Called with the ids of keys that have changed since this server has known them.
        on_look: Called after each look at the store, also one that has failed.
    """

    def __init__(
        self,
        stored: KeyStore,
        clock: Callable[[], float] = time.time,
        requests: Requests | None = None,
        *,
        configured: bool = False,
    ) -> None:
        self.stored, self._clock = stored, clock
        self._requests: Requests = {} if requests is None else requests
        self.on_change: Callable[[Iterable[str]], None] = lambda keys: None
        self.on_look: Callable[[], None] = lambda: None
        self.configured = configured
        self._keys: dict[str, Key] = {}  # by their ids, as they were looked up last
        self._stale: set[str] = set()  # ids of keys that have changed since
        self._known: dict[bytes, Secret] = {}
        self._unknown = dict[bytes, None]()  # however many come, they displace none that are known
        self._tasks = Tasks()
        self._watching: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        self._look_ups = asyncio.Semaphore(_LOOK_UPS)
        self._number = 0
        self.is_open, self._has_keys = False, False
        self._told = 0  # the number of the change with which servers were told to ask for keys, as it was seen last
        self._mark: object = None  # of the database, as it was looked at last
        self._looked_at: float | None = None

    @property
    def required(self) -> bool:
        """
        True if this server asks for keys because of its store.

        Raises:
            StoreUnavailable: Nobody knows: the store was never read, or not for too long by a server that asks for keys.
        """
        if not self.is_open:
            self.check_fresh()
        return not self.is_open

    @property
    def has_keys(self) -> bool:
        """
        True if the store has keys, also such as cannot be used any more.

        Raises:
            StoreUnavailable: Nobody knows.
        """
        self.check_fresh()
        return self._has_keys

    async def open(self) -> None:
        """Look, and go on looking; what fails is told in the log, and tried again."""
        if self._watching is None:
            await self._look()
            self._watching = self._tasks.start("the look at the API keys", self._watch())

    async def aclose(self) -> None:
        """Look no more. Idempotent."""
        await self._tasks.aclose()

    async def refresh(self) -> None:
        """Look now: what has changed before this call holds when it returns, for running requests too, unless the store cannot be read."""
        await self._look(anew=True)
        await self._end_requests()

    async def count(self) -> int:
        """
        Count the keys that can be used.

        Raises:
            StoreUnavailable: They cannot be read.
        """
        if self.stored.mark() == ABSENT:
            return 0
        now = self._clock()
        return sum(key.is_usable(now) for key in await self.stored.all())

    def require_if_any(self, why: str) -> None:
        """
        Ask for keys from now on where the store has any.

        Args:
            why: For the log.
        """
        if self._has_keys:
            self._require(why)

    def _require(self, why: str) -> None:
        if self.is_open:
            self.is_open = False
            if not self.configured:
                log.warning("every request needs an API key from now on: %s", why)

    async def key(self, secret: str, hashed: bytes) -> Key:
        """
        Find the key that a secret belongs to.

        Args:
            hashed: The secret's digest.

        Raises:
            AuthenticationError: There is none that can be used; why, is told to who has its secret.
            StoreUnavailable: It cannot be looked up now.
        """
        self.check_fresh()
        found = self._known.get(hashed)
        if found is None and hashed not in self._unknown:
            found = await self._find(secret, hashed)
        if found is None:
            raise wrong("this server does not know it.")
        if (why := _why_not(found.key, found.expires_at, self._clock())) is not None:
            raise why
        self._keys[found.key.id] = found.key
        return found.key

    def check_fresh(self) -> None:
        """
        Raises:
            StoreUnavailable: The store was never read, or not for too long.
        """
        if self._looked_at is None or time.monotonic() - self._looked_at > STALE_S:
            raise _unreadable()

    async def _find(self, secret: str, hashed: bytes) -> Secret | None:
        if is_mistyped(secret):
            raise wrong("it has a typing error, or a part is missing.")
        secret_id = id_of(secret)
        if secret_id is None or self.stored.mark() == ABSENT:
            return None
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._look_ups.acquire()
        except TimeoutError:
            raise _unreadable("keys: too many that are not known come at once") from None
        try:
            # several may have waited with the same one
            if hashed in self._known or hashed in self._unknown:
                return self._known.get(hashed)
            return await self._look_up(secret_id, hashed)
        finally:
            self._look_ups.release()

    async def _look_up(self, secret_id: str, hashed: bytes) -> Secret | None:
        for _ in range(_TRIES):
            number = self._number
            try:
                found = await self.stored.find(secret_id)
            except StoreUnavailable as error:
                raise _unreadable(error.reason) from error
            if number == self._number:  # else it may have changed meanwhile
                break
        if found is not None and not hmac.compare_digest(found.digest, hashed):
            found = None
        if number == self._number:
            if found is None:
                _keep(self._unknown, hashed, None, _MOST_UNKNOWN)
            else:
                _keep(self._known, hashed, found, _MOST)
        return found

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._look()
            await self._end_requests()

    async def _end_requests(self) -> None:
        """End what runs with a key that cannot be used any more, and forget the keys that nothing runs with."""
        running = {context.caller for context in self._requests.values()}
        self._stale &= running
        self._keys = {id: key for id, key in self._keys.items() if id in running}
        try:
            for id in list(self._stale):
                key = self._keys[id] = await self.stored.get(id)
                self._stale.discard(id)
                for context in self._requests.values():
                    if context.caller == id:
                        context.limits = key.limits
        except StoreUnavailable:
            pass  # the log tells it already; it is looked up again
        now = self._clock()
        ended = {
            id: why
            for id, key in self._keys.items()
            if (why := _why_not(key, None, now)) is not None
        }
        for context in list(self._requests.values()) if ended else ():
            if context.caller in ended:
                context.end(ended[context.caller].alone())

    async def _look(self, anew: bool = False) -> None:
        """
        Forget what has changed.

        Args:
            anew: Also where the database looks as it did.
        """
        async with self._looking:
            with suppress(StoreUnavailable):  # the log tells it already
                await self._read(anew)
            self.on_look()

    async def _read(self, anew: bool) -> None:
        """
        Look, as `_look`.

        Raises:
            StoreUnavailable: The keys cannot be read.
        """
        changes, mark = None, self.stored.mark()
        if mark != ABSENT and (mark is None or mark != self._mark or anew):
            changes = await self.stored.changes_since(self._number)
            self._mark = mark
        is_first, self._looked_at = self._looked_at is None, time.monotonic()
        self.is_open = self.is_open or is_first
        if changes is not None:
            self._forget(changes, is_first)
            self._decide(changes, is_first)

    def _forget(self, changes: KeyChanges, is_first: bool) -> None:
        """Forget the keys that have changed, and tell who has to know; what runs with them is looked at again."""
        is_other = changes.number < self._number  # another database stands there, such as a backup
        self._number = changes.number
        ids = set(changes.ids)
        if is_other or changes.deleted:  # nobody says which are gone
            ids |= {one.key.id for one in self._known.values()} | self._keys.keys()
        self._stale |= ids
        self._unknown = {}
        self._known = {h: one for h, one in self._known.items() if one.key.id not in ids}
        if changes.ids and not is_first:
            self.on_change(changes.ids)

    def _decide(self, changes: KeyChanges, is_first: bool) -> None:
        """Decide whether keys are asked for, and say what a person who has created one may not expect."""
        is_told = changes.required > self._told and not is_first
        had_keys, self._has_keys, self._told = self._has_keys, changes.has_keys, changes.required
        if is_first:
            self.is_open = not changes.has_keys
        elif is_told:
            self._require("`unilect keys create --require` has said so")
        if changes.has_keys and self.is_open and not (had_keys or self.configured):
            log.warning(
                "the store has API keys now, and this server goes on without asking for them, since it was started without any; "
                "restart it, reload its file, or run `unilect keys create NAME --require`"
            )


def _keep(kept: dict[bytes, _Kept], name: bytes, value: _Kept, most: int) -> None:
    """Keep a value, and no more than so many: the one that was kept first gives way."""
    if len(kept) >= most:
        del kept[next(iter(kept))]
    kept[name] = value


def _why_not(key: Key, secret_expires_at: float | None, now: float) -> AuthenticationError | None:
    """Make the error of a key, or of its secret, that has ended; None where it can be used now."""
    if key.revoked_at is not None:
        return wrong("it has been revoked.")
    ends = [at for at in (key.expires_at, secret_expires_at) if at is not None and at <= now]
    if not ends:
        return None
    return wrong(f"it has expired at {datetime.fromtimestamp(min(ends), UTC):%Y-%m-%d %H:%M} UTC.")


def _unreadable(reason: str | None = None) -> StoreUnavailable:
    told = "This server cannot read its store now, which may hold API keys, so it lets nobody in. Try again later, or ask its operator."
    return StoreUnavailable(told, reason=reason, retry_after_s=5)


def wrong(why: str) -> AuthenticationError:
    """Make the error for a key that was sent and cannot be used."""
    error = AuthenticationError(
        f"Incorrect API key provided: {why} Copy it again, or ask the operator for another one."
    )
    error.wrong = True
    return error
