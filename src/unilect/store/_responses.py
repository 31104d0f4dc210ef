"""The statements about stored responses. Every one names the owner; what is too old is not there."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from unilect.errors import InvalidRequest
from unilect.store._conversations import Conversations
from unilect.store._prepared import Prepared
from unilect.store._sizes import ROW_BYTES, check_size, in_pieces, size_of
from unilect.store._tables import (
    BODY,
    EVENTS,
    INPUT,
    OUTPUT,
    conversation_items,
    conversations,
    instances,
    response_parts,
    responses,
)
from unilect.store.answers import RUNNING, Item, Stored

# Statements that every stored response costs are made once: making one takes longer than running it.
_OWN = and_(responses.c.owner == bindparam("own"), responses.c.id == bindparam("one"))
_ALIVE = responses.c.used_at > bindparam("since")
_REMOVE = Prepared(delete(responses).where(_OWN), "own one")
_FIND = select(responses).where(_OWN, _ALIVE)
_INSERT = Prepared(
    insert(responses),
    "owner id parent conversation status instance created_at used_at size events_size",
)
_INSERT_PARTS = Prepared(insert(response_parts), "owner response kind position id body")
_PARTS = (
    select(
        response_parts.c.response, response_parts.c.kind, response_parts.c.id, response_parts.c.body
    )
    .where(response_parts.c.owner == bindparam("own"))
    .where(response_parts.c.response.in_(bindparam("some", expanding=True)))
    .where(response_parts.c.kind != bindparam("without"))
    .order_by(response_parts.c.response, response_parts.c.kind, response_parts.c.position)
)
_NOTHING = -1  # no kind of part


def _keep() -> Prepared:
    """One and its ancestors are used now."""
    here = [responses.c.id, responses.c.parent]
    up = select(*here).where(_OWN, _ALIVE).cte("up", recursive=True)
    before = and_(responses.c.owner == bindparam("own"), responses.c.id == up.c.parent)
    # not `union_all`: it ends where a chain bites its tail
    up = up.union(select(*here).join(up, before).where(_ALIVE))
    them = and_(responses.c.owner == bindparam("own"), responses.c.id.in_(select(up.c.id)))
    return Prepared(
        update(responses).where(them).values(used_at=bindparam("now")), "own one since now"
    )


_KEEP = _keep()


class Responses:
    """
    The responses, in one transaction.

    Args:
        conversations: Those of the same transaction.
        now: The time.
        since: What was used last before this time is not there.
        most_bytes: What may be read at once.
    """

    def __init__(
        self,
        connection: Connection,
        conversations: Conversations,
        now: float,
        since: float,
        most_bytes: int,
    ) -> None:
        self._connection, self._now, self._since = connection, now, since
        self._most_bytes = most_bytes
        self._conversations = conversations

    def put(self, some: Sequence[Stored]) -> list[int]:
        """Insert or replace some, keep their ancestors, and append their items to their conversations; the bytes that each takes."""
        last = {(one.owner, one.id): one for one in some}  # of one that is put twice the later
        if not last:
            return []
        sizes = [size_of(one.body, one.events, [*one.input, *one.output]) for one in some]
        _REMOVE.run(self._connection, [*last])
        _INSERT.run(self._connection, [self._row(one) for one in last.values()])
        parts = [
            part
            for one in last.values()
            for part in _parts(one.owner, one.id, one.body, one.events, one.output, one.input)
        ]
        _INSERT_PARTS.run(self._connection, parts)
        for at, one in enumerate(some):
            sizes[at] += self._join(one)
        return sizes

    def _row(self, one: Stored) -> tuple[object, ...]:
        size = size_of(one.body, one.events, [*one.input, *one.output])
        own = (one.owner, one.id, one.parent, one.conversation, one.status, one.instance)
        return (*own, one.created_at, self._now, size, len(one.events or b""))

    def _join(self, one: Stored) -> int:
        """Tell what a response belongs to that it is there; the bytes that this takes."""
        if one.parent is not None:
            _KEEP.run(self._connection, [(one.owner, one.parent, self._since, self._now)])
        if one.instance and one.status in RUNNING:
            self.touch(one.instance)
        if one.conversation is None:
            return 0
        items = [*one.input, *one.output]
        return self._conversations.append(one.owner, one.conversation, items) or 0

    def get(self, owner: str, id: str) -> Stored | None:
        """One, with its events."""
        key = {"own": owner, "one": id, "since": self._since}
        row = self._connection.execute(_FIND, key).first()
        if row is None:
            return None
        stored = _without_parts(row)
        self._read_parts(owner, {id: stored}, with_events=True)
        return stored

    def chain(self, owner: str, id: str, most: int) -> list[Stored] | None:
        """
        One after its ancestors, the oldest first, without events; None where one is missing.

        Raises:
            InvalidRequest: They are too many, or too large.
        """
        up = self._upwards(owner, id, most)
        rows = self._connection.execute(
            select(responses)
            .join(up, and_(responses.c.owner == owner, responses.c.id == up.c.id))
            .order_by(up.c.depth.desc())
        ).all()
        if not rows:
            return None
        if len(rows) > most:
            raise InvalidRequest(
                f"previous_response_id: more than {most} responses stand before this one. Send the conversation as `input` instead.",
                param="previous_response_id",
            )
        if rows[0].parent is not None:
            return None
        check_size(
            sum(row.size - row.events_size for row in rows),
            self._most_bytes,
            "previous_response_id",
        )
        found = {row.id: _without_parts(row) for row in rows}
        self._read_parts(owner, found, with_events=False)
        return list(found.values())

    def items(self, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
        """
        Items by their ids, of any response or conversation of an owner; of several with one id the latest.

        Raises:
            InvalidRequest: They are too large.
        """
        found = dict[str, bytes]()
        for some in in_pieces(ids):
            of_responses = (
                select(responses.c.used_at, response_parts.c.id, response_parts.c.body)
                .join(
                    responses,
                    and_(
                        responses.c.owner == response_parts.c.owner,
                        responses.c.id == response_parts.c.response,
                    ),
                )
                .where(response_parts.c.owner == owner, response_parts.c.id.in_(some))
                .where(self._alive())
            )
            of_conversations = (
                select(conversations.c.used_at, conversation_items.c.id, conversation_items.c.body)
                .join(
                    conversations,
                    and_(
                        conversations.c.owner == conversation_items.c.owner,
                        conversations.c.id == conversation_items.c.conversation,
                    ),
                )
                .where(conversation_items.c.owner == owner, conversation_items.c.id.in_(some))
                .where(conversations.c.used_at > self._since)
            )
            rows = of_responses.union_all(of_conversations).order_by("used_at")
            found |= {row.id: row.body for row in self._connection.execute(rows)}
            check_size(sum(map(len, found.values())), self._most_bytes, "input")
        return found

    def delete(self, owner: str, id: str) -> bool:
        """Remove one; whether it was there."""
        gone = self._connection.execute(delete(responses).where(_own(owner, id), self._alive()))
        return gone.rowcount > 0

    def update(
        self,
        owner: str,
        id: str,
        status: str,
        body: bytes,
        output: Sequence[Item],
        events: bytes | None,
        only_if: Collection[str],
    ) -> int | None:
        """Change one, and append its output to its conversation; the bytes that this adds, None where it was not changed."""
        own = _own(owner, id)
        row = self._connection.execute(
            select(responses).where(own, self._alive()).with_for_update()
        ).first()
        if row is None or (only_if and row.status not in only_if):
            return None
        self._connection.execute(
            delete(response_parts).where(
                response_parts.c.owner == owner,
                response_parts.c.response == id,
                response_parts.c.kind.in_([BODY, OUTPUT] + [EVENTS] * (events is not None)),
            )
        )
        _INSERT_PARTS.run(self._connection, _parts(owner, id, body, events, output))
        input_size = self._connection.scalar(
            select(
                func.coalesce(func.sum(func.length(response_parts.c.body) + ROW_BYTES), 0)
            ).where(
                response_parts.c.owner == owner,
                response_parts.c.response == id,
                response_parts.c.kind == INPUT,
            )
        )
        events_size = row.events_size if events is None else len(events)
        size = size_of(body, b"", output) + events_size + int(input_size or 0)
        self._connection.execute(
            update(responses).where(own).values(status=status, size=size, events_size=events_size)
        )
        added: int = size - row.size
        if row.conversation is not None:
            added += self._conversations.append(owner, row.conversation, output) or 0
        return added

    def touch(self, instance: str) -> None:
        """A server lives."""
        changed = self._connection.execute(
            update(instances).where(instances.c.id == instance).values(touched_at=self._now)
        )
        if not changed.rowcount:
            self._connection.execute(insert(instances).values(id=instance, touched_at=self._now))

    def stale(self, before: float) -> list[tuple[str, str]]:
        """Owner and id of those that run on a server which has not been touched since a time."""
        rows = self._connection.execute(
            select(responses.c.owner, responses.c.id)
            .outerjoin(instances, instances.c.id == responses.c.instance)
            .where(responses.c.status.in_(RUNNING), self._alive())
            .where(
                or_(
                    instances.c.touched_at < before,
                    and_(instances.c.id.is_(None), responses.c.created_at < before),
                )
            )
            .order_by(responses.c.created_at)
        )
        return [(row.owner, row.id) for row in rows]

    def _alive(self) -> ColumnElement[bool]:
        return responses.c.used_at > self._since

    def _upwards(self, owner: str, id: str, most: int) -> CTE:
        """One and its ancestors, at most one more than so many: id, parent and how far away."""
        here = [responses.c.id, responses.c.parent]
        up = (
            select(*here, literal(0).label("depth"))
            .where(_own(owner, id), self._alive())
            .cte("up", recursive=True)
        )
        return up.union_all(
            select(*here, up.c.depth + 1)
            .join(up, and_(responses.c.owner == owner, responses.c.id == up.c.parent))
            .where(self._alive(), up.c.depth < most)
        )

    def _read_parts(self, owner: str, found: dict[str, Stored], with_events: bool) -> None:
        without = _NOTHING if with_events else EVENTS
        for some in in_pieces(list(found)):
            rows = self._connection.execute(
                _PARTS, {"own": owner, "some": some, "without": without}
            )
            for response, kind, id, body in rows:
                stored = found[response]
                if kind == BODY:
                    stored.body = body
                elif kind == EVENTS:
                    stored.events = body
                else:
                    (stored.input if kind == INPUT else stored.output).append(Item(id, body))


def _parts(
    owner: str,
    id: str,
    body: bytes,
    events: bytes | None,
    output: Sequence[Item],
    input: Sequence[Item] = (),
) -> list[tuple[object, ...]]:
    """The rows of a response's parts."""
    parts: list[tuple[object, ...]] = [(owner, id, BODY, 0, None, body)]
    if events is not None:
        parts.append((owner, id, EVENTS, 0, None, events))
    for kind, items in ((INPUT, input), (OUTPUT, output)):
        for position, item in enumerate(items):
            parts.append((owner, id, kind, position, item.id, item.body))
    return parts


def _own(owner: str, id: str) -> ColumnElement[bool]:
    return and_(responses.c.owner == owner, responses.c.id == id)


def _without_parts(row: Row[Any]) -> Stored:
    return Stored(
        id=row.id,
        owner=row.owner,
        status=row.status,
        body=b"",
        input=[],
        output=[],
        parent=row.parent,
        conversation=row.conversation,
        created_at=row.created_at,
        instance=row.instance,
    )
