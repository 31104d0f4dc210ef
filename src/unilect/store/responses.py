"""
Stored responses, their items, and conversations: each is seen by its owner only, expires, and gives way where there are too many.

Source: https://platform.openai.com/docs/api-reference/responses
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeVar, TypeVarTuple

from unilect.core.errors import InvalidRequest, StoreUnavailable
from unilect.runtime.tasks import Tasks
from unilect.store.batches import Outcome, ResponseBatchWriter
from unilect.store.database import Database
from unilect.store.records import Item, StoredResponse
from unilect.store.sql import conversations, responses, sweep
from unilect.store.sql.connection import Connection
from unilect.store.sql.scope import Scope

_Result = TypeVar("_Result")
_Args = TypeVarTuple("_Args")
_DAY_S = 86_400.0
#: Ancestors are kept for this part of `max_age_s` longer than needed, and no longer than so many seconds.
_AHEAD, _MOST_AHEAD_S = 0.01, 3600.0
_SWEEP_S = 600.0  # between two looks at what is too old
_ROOM = 0.95  # of what is allowed is left after what is too much was deleted
_LONGEST_ID = 256
#: Items that one call may store, or ask for by id.
MAX_ITEMS = 20_000


class ResponseStore:
    """
    Stored responses and conversations.

    Every method may raise `StoreUnavailable`. What a method has confirmed by returning is in the database.

    Args:
        max_age_s: How long a response is kept after it was saved; a conversation after its last change. What stands before a response is kept
            as long as that, and up to a hundredth of this and an hour longer.
        max_bytes, max_count: What is kept of all owners together; beyond it whoever has the most loses the oldest. A little more may be
            there for a moment.
        most_read_bytes: What one call may bring into memory.
        clock: Seconds since 1970.

    Attributes:
        clock: As given.
        instance: The server, as `StoredResponse` names it.
    """

    def __init__(
        self,
        database: Database,
        *,
        max_age_s: float = 30 * _DAY_S,
        max_bytes: int = 1024**3,
        max_count: int = 100_000,
        most_read_bytes: int = 64 * 1024**2,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._max_age_s, self._max_bytes, self._max_count = max_age_s, max_bytes, max_count
        self.most_read_bytes, self.clock = most_read_bytes, clock
        self._ahead_s = min(max_age_s * _AHEAD, _MOST_AHEAD_S)
        self.instance = f"server_{os.urandom(16).hex()}"
        self._tasks = Tasks()
        self._batches = ResponseBatchWriter(self._save_all)
        self._sweeper: asyncio.Task[None] | None = None
        self._too_much = asyncio.Event()
        self._count, self._bytes = 0, 0  # as the last sweep found them, and what came since

    def expect(self, more: int) -> None:
        """Announce that so many more will be saved, or fewer: those that come soon after one another are written together."""
        self._batches.pending += more

    async def save(self, stored: StoredResponse) -> None:
        """
        Insert a response, or replace it; its ancestors live as long as it does.

        With a conversation its input and output are appended to that in the same transaction; an item whose id the conversation has
        replaces that one in its place. A conversation that is gone gets nothing, and the response is stored.

        Raises:
            InvalidRequest: It is larger than all that may be stored.
        """
        self._count_added(await self._batches.save(stored))

    def _save_all(self, some: Sequence[StoredResponse]) -> "asyncio.Future[Sequence[Outcome]]":
        """Save responses in one transaction; returns for each the bytes that it takes, or why it was not saved."""
        scope = self._scope()

        def save(connection: Connection) -> list[Outcome]:
            judged = [self._size_of(one) for one in some]
            good = [(one, size) for one, size in zip(some, judged, strict=True) if isinstance(size, int)]  # fmt: skip
            taken = iter(responses.save(connection, scope, good))
            return [next(taken) if isinstance(found, int) else found for found in judged]

        self._start_sweeping()
        return self._database.write(save)

    def _size_of(self, stored: StoredResponse) -> int | InvalidRequest:
        """Return the bytes of a response's texts, or why it cannot be stored."""
        ids = [item.id for item in stored.input + stored.output]
        size = stored.payload_bytes()
        try:
            _check_count(len(ids), "store")
            ids.append(stored.id)
            ids += [id for id in (stored.parent, stored.conversation) if id is not None]
            _check_ids(ids, "id")
            self._check_size(size)
        except InvalidRequest as error:
            return error
        return size

    async def get(self, owner: str, id: str) -> StoredResponse | None:
        """Read a response, with its events."""
        return await self._read(responses.get, owner, id) if _is_id(id) else None

    async def chain(
        self, owner: str, id: str, most: int = 1000, *, with_bodies: bool = True
    ) -> list[StoredResponse] | None:
        """
        Read a response after its ancestors, the oldest first, without their events; None where one of them is missing.

        Args:
            with_bodies: False leaves the response objects out; their items are read.

        Raises:
            InvalidRequest: There are more than `most`, or they are too large to be read.
        """
        if not _is_id(id):
            return None
        return await self._read(responses.chain, owner, id, most, with_bodies)

    async def items(self, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
        """
        Read the bodies of items by their ids, of any response or conversation of the owner; those that are missing are left out.

        Raises:
            InvalidRequest: They are too many, or too large to be read.
        """
        _check_count(len(ids), "input")
        known = [id for id in ids if _is_id(id)]
        return await self._read(responses.items, owner, known) if known else {}

    async def delete(self, owner: str, id: str) -> bool:
        """Remove a response; returns True if it was there. Items that it has brought into a conversation stay there."""
        return _is_id(id) and await self._write(responses.delete, owner, id)

    async def update(
        self,
        owner: str,
        id: str,
        *,
        status: str,
        body: bytes,
        output: Sequence[Item],
        events: bytes | None = None,
        only_if: Collection[str] = (),
    ) -> bool:
        """
        Change a response that runs in the background, and append its output to its conversation; returns True if it was changed.

        Args:
            events: None leaves those that are stored.
            only_if: Statuses in which it may be changed; any by default.

        Raises:
            InvalidRequest: It is larger than all that may be stored.
        """
        if not _is_id(id):
            return False

        changed = (owner, id, status, body, output, events, only_if)
        added = self._check_and_write((), (body, events or b""), output, responses.update, *changed)
        return self._count_added(await added, 0)

    async def touch(self, instance: str) -> None:
        """Note that this server lives, and works on the responses that have its name."""
        await self._write(responses.touch, instance)

    async def is_stale(self, stored: StoredResponse, older_than_s: float) -> bool:
        """Return True if the server that works on a response was not touched for so long."""
        return await self._read(responses.is_older, stored, self.clock() - older_than_s)

    async def create_conversation(
        self, owner: str, metadata: bytes, items: Sequence[Item] = (), id: str = ""
    ) -> str:
        """
        Begin a conversation.

        Args:
            metadata: Its JSON.
            id: Made here by default: `conv_` and 128 random bits.

        Raises:
            InvalidRequest: It is larger than all that may be stored.
        """
        new = id or f"conv_{os.urandom(16).hex()}"
        created = (owner, new, metadata, items)
        added = self._check_and_write([new], [metadata], items, conversations.create, *created)
        self._count_added(await added)
        return new

    async def conversation(self, owner: str, id: str) -> tuple[bytes, float] | None:
        """Read the metadata of a conversation, and when it began."""
        return await self._read(conversations.get, owner, id) if _is_id(id) else None

    async def update_conversation(self, owner: str, id: str, metadata: bytes) -> bool:
        """Give a conversation other metadata; returns True if it was there."""
        return _is_id(id) and await self._write(conversations.update, owner, id, metadata)

    async def delete_conversation(self, owner: str, id: str) -> bool:
        """Remove a conversation with its items; returns True if it was there. Responses that belong to it stay."""
        return _is_id(id) and await self._write(conversations.delete, owner, id)

    async def add_items(self, owner: str, id: str, items: Sequence[Item]) -> bool:
        """
        Append items to a conversation, as `save` does; returns True if it was there.

        Raises:
            InvalidRequest: They are larger than all that may be stored.
        """
        if not _is_id(id):
            return False
        added = self._check_and_write((), (), items, conversations.append, owner, id, items)
        return self._count_added(await added, 0)

    async def list_items(
        self,
        owner: str,
        id: str,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
    ) -> tuple[list[Item], bool] | None:
        """
        Read a page of a conversation's items, and whether there are more; None where there is no such conversation.

        A page has fewer items than the limit where they are too large to be read at once.

        Args:
            after: The id of the last item of the page before.

        Raises:
            InvalidRequest: The conversation has no item `after`.
        """
        if not _is_id(id):
            return None
        if after is not None:
            _check_ids([after], "after")
        return await self._read(conversations.page, owner, id, after, limit, newest_first)

    async def whole(self, owner: str, id: str, most: int) -> list[Item] | None:
        """
        Read the items of a conversation, at most so many, the oldest first; None where there is no such conversation.

        Raises:
            InvalidRequest: It is too large to be read at once.
        """
        return await self._read(conversations.whole, owner, id, most) if _is_id(id) else None

    async def item(self, owner: str, id: str, item_id: str) -> Item | None:
        """Read one item of a conversation."""
        if not _is_id(id) or not _is_id(item_id):
            return None
        return await self._read(conversations.item, owner, id, item_id)

    async def delete_item(self, owner: str, id: str, item_id: str) -> bool:
        """Remove an item from a conversation; returns True if it was there."""
        if not _is_id(id) or not _is_id(item_id):
            return False
        return await self._write(conversations.delete_item, owner, id, item_id)

    async def sweep(self) -> None:
        """Delete what is too old, and where there is too much the oldest of whoever has the most; done in the background, too, while the store is used."""
        database, bind = self._database, self._bind
        while await database.write(bind(sweep.delete_old)):
            pass
        self._count, self._bytes = await database.read(bind(sweep.totals))
        if self._is_too_much():
            count, size = int(self._max_count * _ROOM), int(self._max_bytes * _ROOM)
            while await database.write(bind(sweep.delete_oldest, count, size)):
                pass
            self._count, self._bytes = await database.read(bind(sweep.totals))
        while await database.write(bind(sweep.shrink)):
            pass

    async def aclose(self) -> None:
        """End what goes on in the background; the database stays open. Idempotent."""
        self._batches.close()
        await self._tasks.aclose()

    def _write(
        self, function: Callable[[Connection, Scope, *_Args], _Result], *args: *_Args
    ) -> "asyncio.Future[_Result]":
        """Call a function in a transaction, and return its result."""
        self._start_sweeping()
        return self._database.write(self._bind(function, *args))

    def _read(
        self, function: Callable[[Connection, Scope, *_Args], _Result], *args: *_Args
    ) -> "asyncio.Future[_Result]":
        """Call a function that writes nothing in a transaction, and return its result."""
        self._start_sweeping()
        return self._database.read(self._bind(function, *args))

    def _bind(
        self, function: Callable[[Connection, Scope, *_Args], _Result], *args: *_Args
    ) -> Callable[[Connection], _Result]:
        scope = self._scope()
        return lambda connection: function(connection, scope, *args)

    def _scope(self) -> Scope:
        now = self.clock()
        return Scope(now, now - self._max_age_s, self._ahead_s, self.most_read_bytes)

    def _start_sweeping(self) -> None:
        if self._sweeper is None:
            self._sweeper = self._tasks.start("the sweep of the store", self._sweep_on())

    async def _sweep_on(self) -> None:
        while True:
            with suppress(StoreUnavailable):  # the log tells it already
                await self.sweep()
            self._too_much.clear()
            try:
                async with asyncio.timeout(_SWEEP_S):
                    await self._too_much.wait()
            except TimeoutError:
                continue

    def _count_added(self, size: int | None, count: int = 1) -> bool:
        """Count what was added, and have it swept where that is too much; returns False if it is None, for nothing."""
        if size is None:
            return False
        self._count, self._bytes = self._count + count, self._bytes + size
        if self._is_too_much():
            self._too_much.set()
        return True

    def _is_too_much(self) -> bool:
        return self._count > self._max_count or self._bytes > self._max_bytes

    def _check_and_write(
        self,
        ids: Collection[str],
        bodies: Collection[bytes],
        items: Collection[Item],
        function: Callable[[Connection, Scope, *_Args], int | None],
        *args: *_Args,
    ) -> "asyncio.Future[int | None]":
        """
        Write something, once it is checked that it can be stored: in the thread, as it may be much.

        Raises:
            InvalidRequest: It cannot.
        """

        def check(connection: Connection, scope: Scope) -> int | None:
            _check_count(len(items), "store")
            _check_ids([*ids, *[item.id for item in items]], "id")
            self._check_size(sum(map(len, bodies)) + sum([len(item.body) for item in items]))
            return function(connection, scope, *args)

        return self._write(check)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes * _ROOM:
            raise InvalidRequest(
                f"store: this has {size} bytes, and the store holds {self._max_bytes} in all. Send `store: false`.",
                param="store",
            )


def _check_count(count: int, param: str) -> None:
    if count > MAX_ITEMS:
        raise InvalidRequest(
            f"{param}: {count} items are more than the {MAX_ITEMS} that the store takes at once. Send fewer, with `store: false`.",
            param=param,
        )


def _check_ids(ids: Collection[str], param: str) -> None:
    for id in ids:
        if not _is_id(id):
            raise InvalidRequest(
                f"{param}: expected 1 to {_LONGEST_ID} characters that are Unicode and not NUL, found {id[:50]!a}.",
                param=param,
            )


def _is_id(id: str) -> bool:
    """Return True if a text can be an id in every database."""
    try:
        id.encode()
    except UnicodeEncodeError:
        return False
    return 0 < len(id) <= _LONGEST_ID and "\0" not in id
