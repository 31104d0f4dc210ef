"""The statements about stored responses. Every one names the owner; what is too old is not there."""

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    CTE,
    Column,
    ColumnElement,
    Connection,
    Integer,
    Row,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
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
_NAMES = " ".join([f"its_{column.name}" for column in responses.c])
_INSERT_PARTS = Prepared(insert(response_parts), "owner response kind position id body")
_of_part = response_parts.c
_PARTS = Prepared(
    select(_of_part.kind, _of_part.id, _of_part.body)
    .where(_of_part.owner == bindparam("own"), _of_part.response == bindparam("one"))
    .order_by(_of_part.kind, _of_part.position),
    "own one",
)


def _upwards() -> CTE:
    """One and its ancestors, at most one more than so many: id, parent and how far away."""
    here = [responses.c.id, responses.c.parent]
    none = literal_column("0", Integer).label("depth")
    up = select(*here, none).where(_OWN, _ALIVE).cte("up", recursive=True)
    before = and_(responses.c.owner == bindparam("own"), responses.c.id == up.c.parent)
    return up.union_all(
        select(*here, up.c.depth + literal_column("1", Integer))
        .join(up, before)
        .where(_ALIVE, up.c.depth < bindparam("most"))
    )


def _chain() -> Prepared:
    """The rows of one and its ancestors, the oldest first."""
    up = _upwards()
    own = and_(responses.c.owner == bindparam("own"), responses.c.id == up.c.id)
    columns = [column for column in responses.c if column.name != "used_at"]
    return Prepared(
        select(*columns).join(up, own).order_by(up.c.depth.desc()), "own one since most"
    )


def _chain_parts() -> Prepared:
    """Their parts from a kind on, but for their events."""
    up = _upwards()
    own = and_(_of_part.owner == bindparam("own"), _of_part.response == up.c.id)
    return Prepared(
        select(_of_part.response, _of_part.kind, _of_part.id, _of_part.body)
        .join(up, own)
        .where(_of_part.kind >= bindparam("least"), _of_part.kind != literal_column(str(EVENTS)))
        .order_by(up.c.depth.desc(), _of_part.kind, _of_part.position),
        "own one since most least",
    )


_CHAIN, _CHAIN_PARTS = _chain(), _chain_parts()


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

    def put(self, some: Sequence[Stored], payloads: Sequence[int]) -> list[int]:
        """
        Insert or replace some, keep their ancestors, and append their items to their conversations.

        Args:
            payloads: The bytes of the texts of each.

        Returns:
            The bytes that each takes.
        """
        if not some:
            return []
        sizes = [
            payload + ROW_BYTES * (1 + len(one.input) + len(one.output))
            for one, payload in zip(some, payloads, strict=True)
        ]
        last = {
            (one.owner, one.id): at for at, one in enumerate(some)
        }  # of one put twice the later
        rows, parts = [], []
        for at in last.values():
            one = some[at]
            rows.append(self._row(one, sizes[at]))
            parts += _parts(one.owner, one.id, one.body, one.events, one.output, one.input)
        insert = _insert(self._connection.dialect.name)
        if insert.run(self._connection, rows) < len(rows):  # some are there; nearly always none is
            _REMOVE.run(self._connection, [*last])
            insert.run(self._connection, rows)
        _INSERT_PARTS.run(self._connection, parts)
        return [size + self._join(one) for one, size in zip(some, sizes, strict=True)]

    def _row(self, one: Stored, size: int) -> tuple[object, ...]:
        return (
            one.owner,
            one.id,
            one.parent or "",
            one.conversation or "",
            one.status,
            one.instance,
            one.created_at,
            self._now,
            size,
            len(one.events or b""),
        )

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
        self._read_parts(owner, stored)
        return stored

    def chain(
        self, owner: str, id: str, most: int, with_bodies: bool = True
    ) -> list[Stored] | None:
        """
        One after its ancestors, the oldest first, without events; None where one is missing.

        Raises:
            InvalidRequest: They are too many, or too large.
        """
        asked = (owner, id, self._since, most)
        rows = _CHAIN.rows(self._connection, *asked)
        if not rows:
            return None
        if len(rows) > most:
            raise InvalidRequest(
                f"previous_response_id: more than {most} responses stand before this one. Send the conversation as `input` instead.",
                param="previous_response_id",
            )
        if rows[0][2] is not None:
            return None
        payload = sum([size - events_size for *_, size, events_size in rows])
        check_size(payload, self._most_bytes, "previous_response_id")
        found: dict[str, Stored] = {}
        for _, one, parent, conversation, status, instance, created_at, *_ in rows:
            own = (parent, conversation, created_at)
            found[one] = Stored(one, owner, status, b"", [], [], *own, instance=instance)
        least = BODY if with_bodies else INPUT
        for response, kind, item, body in _CHAIN_PARTS.rows(self._connection, *asked, least):
            stored = found[response]
            if kind == BODY:
                stored.body = body
            else:
                (stored.input if kind == INPUT else stored.output).append(Item(item, body))
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

    def _read_parts(self, owner: str, stored: Stored) -> None:
        for kind, id, body in _PARTS.rows(self._connection, owner, stored.id):
            if kind == BODY:
                stored.body = body
            elif kind == EVENTS:
                stored.events = body
            else:
                (stored.input if kind == INPUT else stored.output).append(Item(id, body))


@cache
def _insert(dialect: str) -> Prepared:
    """The insertion of those that are not there, in the words of a kind of database: both have the same, and SQLAlchemy one for each."""
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]
    # Python's `sqlite3` looks for an adapter of each None (and of each `bytes`), which takes longer than to bind a text
    ids = {responses.c[name]: func.nullif(bindparam(f"its_{name}"), literal_column("''")) for name in ("parent", "conversation")}  # fmt: skip
    own: dict[Column[Any], Any] = {
        column: bindparam(f"its_{column.name}") for column in responses.c
    }
    return Prepared(insert(responses).values(own | ids).on_conflict_do_nothing(), _NAMES)


def _parts(
    owner: str,
    id: str,
    body: bytes,
    events: bytes | None,
    output: Sequence[Item],
    input: Sequence[Item] = (),
) -> list[tuple[object, ...]]:
    """The rows of a response's parts."""
    parts: list[tuple[object, ...]] = [(owner, id, BODY, 0, None, bytearray(body))]
    if events is not None:
        parts.append((owner, id, EVENTS, 0, None, bytearray(events)))
    for kind, items in ((INPUT, input), (OUTPUT, output)):
        for position, item in enumerate(items):
            parts.append((owner, id, kind, position, item.id, bytearray(item.body)))
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
