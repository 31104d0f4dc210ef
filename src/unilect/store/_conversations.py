"""The statements about conversations: lists of items with a name. Every one names the owner; what is too old is not there."""

from collections.abc import Sequence

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from unilect.errors import InvalidRequest
from unilect.store._sizes import ROW_BYTES, check_size, in_pieces, size_of
from unilect.store._tables import conversation_items, conversations
from unilect.store.answers import Item

_items = conversation_items.c


class Conversations:
    """
    The conversations, in one transaction.

    Args:
        now: The time.
        since: What was used last before this time is not there.
        most_bytes: What may be read at once.
    """

    def __init__(self, connection: Connection, now: float, since: float, most_bytes: int) -> None:
        self._connection, self._now, self._since = connection, now, since
        self._most_bytes = most_bytes

    def create(self, owner: str, id: str, metadata: bytes, items: Sequence[Item]) -> int:
        """Begin one; the bytes that it takes."""
        self._connection.execute(delete(conversations).where(_own(owner, id)))
        own_size = size_of(metadata, b"", ())
        self._connection.execute(
            insert(conversations).values(
                owner=owner,
                id=id,
                metadata=metadata,
                created_at=self._now,
                used_at=self._now,
                size=own_size,
                next_position=0,
            )
        )
        return own_size + (self.append(owner, id, items) or 0)

    def get(self, owner: str, id: str) -> tuple[bytes, float] | None:
        """Its metadata, and when it began."""
        row = self._connection.execute(
            select(conversations.c.metadata, conversations.c.created_at).where(
                _own(owner, id), self._alive()
            )
        ).first()
        return None if row is None else (row.metadata, row.created_at)

    def update(self, owner: str, id: str, metadata: bytes) -> bool:
        """Give it other metadata; whether it was there."""
        size = conversations.c.size - func.length(conversations.c.metadata) + len(metadata)
        changed = self._connection.execute(
            update(conversations)
            .where(_own(owner, id), self._alive())
            .values(metadata=metadata, size=size, used_at=self._now)
        )
        return changed.rowcount > 0

    def delete(self, owner: str, id: str) -> bool:
        """Remove it with its items; whether it was there."""
        gone = self._connection.execute(delete(conversations).where(_own(owner, id), self._alive()))
        return gone.rowcount > 0

    def append(self, owner: str, id: str, items: Sequence[Item]) -> int | None:
        """
        Add items at its end; one whose id it has replaces that one in its place.

        Returns:
            The bytes that this adds; None where there is no such conversation.
        """
        row = self._connection.execute(
            select(conversations.c.next_position)
            .where(_own(owner, id), self._alive())
            .with_for_update()
        ).first()
        if row is None:
            return None
        new = {item.id: item.body for item in items}
        old = dict[str, int]()
        for some in in_pieces(list(new)):
            rows = self._connection.execute(
                select(_items.id, func.length(_items.body)).where(
                    self._within(owner, id), _items.id.in_(some)
                )
            )
            old |= {item: size for item, size in rows}
        if old:
            self._connection.execute(
                update(conversation_items)
                .where(self._within(owner, id), _items.id == bindparam("item"))
                .values(body=bindparam("new_body")),
                [{"item": item, "new_body": new[item]} for item in old],
            )
        added = [item for item in new if item not in old]
        if added:
            self._connection.execute(
                insert(conversation_items),
                [
                    {
                        "owner": owner,
                        "conversation": id,
                        "position": position,
                        "id": item,
                        "body": new[item],
                    }
                    for position, item in enumerate(added, row.next_position)
                ],
            )
        size = sum(map(len, new.values())) - sum(old.values()) + ROW_BYTES * len(added)
        self._connection.execute(
            update(conversations)
            .where(_own(owner, id))
            .values(
                used_at=self._now,
                size=conversations.c.size + size,
                next_position=row.next_position + len(added),
            )
        )
        return size

    def whole(self, owner: str, id: str, most: int) -> list[Item] | None:
        """
        Its items, at most so many, the oldest first; None: it is not there.

        Raises:
            InvalidRequest: It is too large.
        """
        size = self._connection.scalar(
            select(conversations.c.size).where(_own(owner, id), self._alive())
        )
        if size is None:
            return None
        check_size(size, self._most_bytes, "conversation")
        rows = self._connection.execute(
            select(_items.id, _items.body)
            .where(self._within(owner, id))
            .order_by(_items.position)
            .limit(most)
        )
        return [Item(row.id, row.body) for row in rows]

    def list(
        self, owner: str, id: str, after: str | None, limit: int, newest_first: bool
    ) -> tuple[list[Item], bool] | None:
        """
        Some of its items, and whether there are more; fewer than the limit where they are large. None: it is not there.

        Raises:
            InvalidRequest: It has no item `after`.
        """
        if self.get(owner, id) is None:
            return None
        here, order = self._within(owner, id), _items.position.asc()
        if newest_first:
            order = _items.position.desc()
        if after is not None:
            start = self._connection.scalar(select(_items.position).where(here, _items.id == after))
            if start is None:
                raise InvalidRequest(
                    f"after: the conversation has no item {after[:100]!r}. Send the `last_id` of a page before.",
                    param="after",
                )
            here &= _items.position < start if newest_first else _items.position > start
        sizes = self._connection.execute(
            select(_items.position, func.length(_items.body))
            .where(here)
            .order_by(order)
            .limit(limit + 1)
        ).all()
        total, taken = 0, list[int]()
        for position, size in sizes[:limit]:
            total += size
            if taken and total > self._most_bytes:
                break
            taken.append(position)
        if not taken:
            return [], bool(sizes)
        rows = self._connection.execute(
            select(_items.id, _items.body)
            .where(self._within(owner, id), _items.position.between(min(taken), max(taken)))
            .order_by(order)
        )
        return [Item(row.id, row.body) for row in rows], len(taken) < len(sizes)

    def item(self, owner: str, id: str, item: str) -> Item | None:
        """One of its items."""
        if self.get(owner, id) is None:
            return None
        body = self._connection.scalar(
            select(_items.body).where(self._within(owner, id), _items.id == item)
        )
        return None if body is None else Item(item, body)

    def delete_item(self, owner: str, id: str, item: str) -> bool:
        """Remove one of its items; whether it was there."""
        if (found := self.item(owner, id, item)) is None:
            return False
        self._connection.execute(
            delete(conversation_items).where(self._within(owner, id), _items.id == item)
        )
        self._connection.execute(
            update(conversations)
            .where(_own(owner, id))
            .values(
                size=conversations.c.size - len(found.body) - ROW_BYTES,
                used_at=self._now,
            )
        )
        return True

    def _alive(self) -> ColumnElement[bool]:
        return conversations.c.used_at > self._since

    def _within(self, owner: str, id: str) -> ColumnElement[bool]:
        return and_(_items.owner == owner, _items.conversation == id)


def _own(owner: str, id: str) -> ColumnElement[bool]:
    return and_(conversations.c.owner == owner, conversations.c.id == id)
