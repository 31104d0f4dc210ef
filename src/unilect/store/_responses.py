"""The statements about stored responses. Every one names the owner; what is too old is not there."""

from collections.abc import Collection, Sequence
from functools import cache
from itertools import chain
from typing import Any

import msgspec
from sqlalchemy import (
    CTE,
    BindParameter,
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
    select,
    update,
)

from unilect.errors import InvalidRequest
from unilect.store._conversations import Conversations
from unilect.store._prepared import Prepared, run_text
from unilect.store._sizes import ROW_BYTES, check_size, in_pieces, size_of
from unilect.store._tables import (
    conversation_items,
    conversations,
    instances,
    response_items,
    responses,
)
from unilect.store.answers import RUNNING, Item, Stored
from unilect.store.ids import home_of

# Statements that every stored response costs are made once: making one takes longer than running it.
_OWN = and_(responses.c.owner == bindparam("own"), responses.c.id == bindparam("one"))
_ALIVE = responses.c.used_at > bindparam("since")
_REMOVE = Prepared(delete(responses).where(_OWN), "own one")
_FIND = select(responses).where(_OWN, _ALIVE)
_INSERTED = [column.name for column in responses.c if column.name != "events"]
_INSERT_ITEMS = Prepared(insert(response_items), "owner response id")
_TELL_EVENTS = Prepared(
    update(responses).where(_OWN).values(events=bindparam("all")), "own one all"
)
#: Responses that one statement inserts: it is a transaction by itself where nothing else has to be written.
AT_ONCE = 32
_TIMES_READ = 4  # what is read for some items, to what may be read at once
_encode_items = msgspec.msgpack.Encoder().encode
_decode_items = msgspec.msgpack.Decoder(tuple[list[Item], list[Item]]).decode


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
    """The rows of one and its ancestors without their texts, the oldest first."""
    up = _upwards()
    own = and_(responses.c.owner == bindparam("own"), responses.c.id == up.c.id)
    names = "owner id parent conversation status instance created_at size events_size"
    columns = [responses.c[name] for name in names.split()]
    return Prepared(
        select(*columns).join(up, own).order_by(up.c.depth.desc()), "own one since most"
    )


def _chain_texts(*names: str) -> Prepared:
    """Some of their texts."""
    up = _upwards()
    own = and_(responses.c.owner == bindparam("own"), responses.c.id == up.c.id)
    columns = [responses.c[name] for name in names]
    return Prepared(
        select(responses.c.id, *columns).join(up, own).order_by(up.c.depth.desc()),
        "own one since most",
    )


_CHAIN, _CHAIN_TALK, _CHAIN_TEXTS = _chain(), _chain_texts("talk"), _chain_texts("talk", "body")
_KEPT = Prepared(select(responses.c.kept_at).where(_OWN, _ALIVE), "own one since")
_KEEP_ONE = Prepared(
    update(responses).where(_OWN).values(used_at=bindparam("until")), "own one until"
)


def _keep() -> Prepared:
    """One and its ancestors are used at a time."""
    here = [responses.c.id, responses.c.parent]
    up = select(*here).where(_OWN, _ALIVE).cte("up", recursive=True)
    before = and_(responses.c.owner == bindparam("own"), responses.c.id == up.c.parent)
    # not `union_all`: it ends where a chain bites its tail
    up = up.union(select(*here).join(up, before).where(_ALIVE))
    them = and_(responses.c.owner == bindparam("own"), responses.c.id.in_(select(up.c.id)))
    until: BindParameter[float] = bindparam("until")
    return Prepared(
        update(responses).where(them).values(used_at=until, kept_at=until), "own one since until"
    )


_KEEP = _keep()


class Responses:
    """
    The responses, in one transaction.

    Args:
        conversations: Those of the same transaction.
        now: The time.
        since: What was used last before this time is not there.
        ahead_s: Ancestors are kept for so much longer than needed, and then not again for so long.
        most_bytes: What may be read at once.
    """

    def __init__(
        self,
        connection: Connection,
        conversations: Conversations,
        now: float,
        since: float,
        ahead_s: float,
        most_bytes: int,
    ) -> None:
        self._connection, self._now, self._since = connection, now, since
        self._ahead_s = ahead_s
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
        sizes = [size_with_rows(one, size) for one, size in zip(some, payloads, strict=True)]
        last = {
            (one.owner, one.id): at for at, one in enumerate(some)
        }  # of one put twice the later
        kept = {at: self._keep(one.owner, one.parent) for at, one in enumerate(some) if one.parent is not None}  # fmt: skip
        rows = [row_of(some[at], sizes[at], self._now, kept.get(at, 0.0)) for at in last.values()]
        if self._insert(rows) < len(rows):  # some are there; nearly always none is
            _REMOVE.run(self._connection, [*last])
            self._insert(rows)
        for at in last.values():
            self._add_items(some[at].owner, some[at].id, foreign_items(some[at]))
            if (events := some[at].events) is not None:
                _TELL_EVENTS.run(self._connection, [(some[at].owner, some[at].id, bytearray(events))])  # fmt: skip
        return [size + self._join(one) for one, size in zip(some, sizes, strict=True)]

    def _insert(self, rows: Sequence[tuple[object, ...]]) -> int:
        groups = [rows[at : at + AT_ONCE] for at in range(0, len(rows), AT_ONCE)]
        return sum([insert_rows(self._connection, group) for group in groups])

    def _add_items(self, owner: str, id: str, items: Collection[str]) -> None:
        """Have items found whose ids do not tell their response."""
        if items:
            _INSERT_ITEMS.run(self._connection, [(owner, id, item) for item in items])

    def _keep(self, owner: str, id: str) -> float:
        """
        A response and its ancestors live as long as what comes now.

        Each row is a page: so they are kept for longer than needed, and what continues the chain soon after has only the last one to keep.

        Returns:
            Until when they are kept.
        """
        found = _KEPT.rows(self._connection, owner, id, self._since)
        if not found:
            return 0.0
        until: float = found[0][0]
        if until >= self._now:
            _KEEP_ONE.run(self._connection, [(owner, id, until)])
            return until
        until = self._now + self._ahead_s
        _KEEP.run(self._connection, [(owner, id, self._since, until)])
        return until

    def _join(self, one: Stored) -> int:
        """Tell what a response belongs to that it is there; the bytes that this takes."""
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
        return None if row is None else _stored(row)

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
        texts = (_CHAIN_TEXTS if with_bodies else _CHAIN_TALK).rows(self._connection, *asked)
        for one, talk, *body in texts:
            stored = found[one]
            stored.input, stored.output = _decode_items(talk)
            if body:
                stored.body = body[0]
        return list(found.values())

    def items(self, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
        """
        Items by their ids, of any response or conversation of an owner; of several with one id the latest.

        Raises:
            InvalidRequest: They are too large, or what has to be read for them.
        """
        since = dict[str, float]()
        found = dict[str, bytes]()
        wanted, read = set(ids), 0
        for created_at, size, response in self._with_items(owner, ids):
            read += size
            check_size(read, self._most_bytes * _TIMES_READ, "input")
            of = and_(responses.c.owner == owner, responses.c.id == response)
            talk = self._connection.scalar(select(responses.c.talk).where(of))
            for item in chain(*_decode_items(talk)) if talk is not None else ():
                if item.id in wanted and created_at >= since.get(item.id, created_at):
                    since[item.id], found[item.id] = created_at, item.body
            check_size(sum(map(len, found.values())), self._most_bytes, "input")
        for some in in_pieces(ids):
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
            for row in self._connection.execute(of_conversations):
                if row.used_at >= since.get(row.id, row.used_at):
                    since[row.id], found[row.id] = row.used_at, row.body
            check_size(sum(map(len, found.values())), self._most_bytes, "input")
        return found

    def _with_items(self, owner: str, ids: Sequence[str]) -> list[tuple[float, int, str]]:
        """The responses that may have items of these ids: when they were made, the bytes of all their items, and their ids."""
        homes = [home for id in ids if (home := home_of(id))]
        for some in in_pieces(ids):
            told = select(response_items.c.response).where(
                response_items.c.owner == owner, response_items.c.id.in_(some)
            )
            homes += self._connection.scalars(told)
        found = list[tuple[float, int, str]]()
        for some in in_pieces(homes):
            asked = select(
                responses.c.created_at, func.length(responses.c.talk), responses.c.id
            ).where(responses.c.owner == owner, responses.c.id.in_(some), self._alive())
            found += [(row[0], row[1], row[2]) for row in self._connection.execute(asked)]
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
        input, _ = _decode_items(row.talk)
        events_size = row.events_size if events is None else len(events)
        size = size_of(body, b"", [*input, *output]) + events_size
        texts: dict[str, Any] = {"talk": _encode_items((input, output)), "body": body}
        if events is not None:
            texts["events"] = events
        self._connection.execute(
            update(responses)
            .where(own)
            .values(status=status, size=size, events_size=events_size, **texts)
        )
        known = and_(response_items.c.owner == owner, response_items.c.response == id)
        self._connection.execute(delete(response_items).where(known))
        self._add_items(owner, id, _foreign(id, [*input, *output]))
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

    def touched_at(self, instance: str) -> float | None:
        """When a server was touched last; None where it is not known."""
        of = instances.c.id == instance
        found: float | None = self._connection.scalar(select(instances.c.touched_at).where(of))
        return found

    def _alive(self) -> ColumnElement[bool]:
        return responses.c.used_at > self._since


def insert_rows(connection: Connection, rows: Sequence[tuple[object, ...]]) -> int:
    """
    Insert those of some rows that are not there, by one statement; how many were inserted.

    Where several threads run, what a statement waits for takes longer than what it does.

    Args:
        rows: As `row_of` makes them; at most `AT_ONCE`.
    """
    text = _insertion(connection.dialect.name).repeated(connection, len(rows))
    return run_text(connection, text, [tuple([value for row in rows for value in row])])


@cache
def _insertion(dialect: str) -> Prepared:
    """The insertion of one that is not there, in the words of a kind of database: both have the same, and SQLAlchemy one for each."""
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]
    row: dict[str, Any] = {name: bindparam(f"its_{name}") for name in _INSERTED}
    # Python's `sqlite3` looks for an adapter of each None (and of each `bytes`), which takes longer than to bind a text
    for name in ("parent", "conversation"):
        row[name] = func.nullif(row[name], literal_column("''"))
    names = " ".join([f"its_{name}" for name in _INSERTED])
    return Prepared(insert(responses).values(row).on_conflict_do_nothing(), names)


def size_with_rows(one: Stored, payload: int) -> int:
    """The bytes that a response takes whose texts have so many."""
    return payload + ROW_BYTES * (1 + len(one.input) + len(one.output))


def row_of(one: Stored, size: int, now: float, kept_at: float = 0.0) -> tuple[object, ...]:
    """The values that are inserted for a response."""
    return (
        one.owner,
        one.id,
        one.parent or "",
        one.conversation or "",
        one.status,
        one.instance,
        one.created_at,
        now,
        size,
        len(one.events or b""),
        kept_at,
        bytearray(_encode_items((one.input, one.output))),
        bytearray(one.body),
    )


def foreign_items(one: Stored) -> set[str]:
    """The ids of a response's items that do not tell this response."""
    return _foreign(one.id, [*one.input, *one.output])


def _foreign(response: str, items: Sequence[Item]) -> set[str]:
    return {item.id for item in items if home_of(item.id) != response}


def _own(owner: str, id: str) -> ColumnElement[bool]:
    return and_(responses.c.owner == owner, responses.c.id == id)


def _stored(row: Row[Any]) -> Stored:
    input, output = _decode_items(row.talk)
    return Stored(
        id=row.id,
        owner=row.owner,
        status=row.status,
        body=row.body,
        input=input,
        output=output,
        parent=row.parent,
        conversation=row.conversation,
        created_at=row.created_at,
        events=row.events,
        instance=row.instance,
    )
