"""Statements about stored responses. Each names the owner; what is too old is not there."""

from collections.abc import Collection, Sequence
from itertools import chain as chained
from typing import Any

import msgspec

from unilect.core.errors import InvalidRequest
from unilect.store.ids import home_of
from unilect.store.records import RUNNING, Item, StoredResponse
from unilect.store.sql import conversations
from unilect.store.sql.connection import Connection
from unilect.store.sql.scope import ROW_BYTES, Scope, size_of

_TIMES_READ = 4  # what is read for some items, to what may be read at once
_COLUMNS = "owner, id, parent, conversation, status, instance, created_at, used_at, size, events_size, kept_at, talk, body, events"
_INSERT = f"INSERT INTO responses ({_COLUMNS}) VALUES ({', '.join('?' * (_COLUMNS.count(',') + 1))}) ON CONFLICT DO NOTHING"
_LIVING = "FROM responses WHERE owner = ? AND id = ? AND used_at > ?"
_GET = f"SELECT status, body, talk, parent, conversation, created_at, events, instance {_LIVING}"
_TOUCH = "INSERT INTO instances (id, touched_at) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET touched_at = excluded.touched_at"
_UPWARDS = """
WITH RECURSIVE up (owner, id, parent, depth) AS (
  SELECT owner, id, parent, 0 FROM responses WHERE owner = ? AND id = ? AND used_at > ?
  UNION ALL SELECT r.owner, r.id, r.parent, up.depth + 1
  FROM up JOIN responses r ON r.owner = up.owner AND r.id = up.parent WHERE r.used_at > ? AND up.depth < ?
)
"""
_OF_UPWARDS = "FROM up JOIN responses r ON r.owner = up.owner AND r.id = up.id ORDER BY up.depth DESC"  # fmt: skip
_CHAIN = f"{_UPWARDS} SELECT r.id, r.parent, r.conversation, r.status, r.instance, r.created_at, r.size - r.events_size {_OF_UPWARDS}"
_CHAIN_TALK = f"{_UPWARDS} SELECT r.id, r.talk {_OF_UPWARDS}"
_CHAIN_TEXTS = f"{_UPWARDS} SELECT r.id, r.talk, r.body {_OF_UPWARDS}"
# not UNION ALL: this one ends where a chain bites its tail
_KEEP = """
WITH RECURSIVE up (owner, id, parent) AS (
  SELECT owner, id, parent FROM responses WHERE owner = ? AND id = ? AND used_at > ?
  UNION SELECT r.owner, r.id, r.parent
  FROM up JOIN responses r ON r.owner = up.owner AND r.id = up.parent WHERE r.used_at > ?
)
UPDATE responses SET used_at = ?, kept_at = ? WHERE owner = ? AND id IN (SELECT id FROM up)
"""
_UPDATE = """
UPDATE responses SET status = ?, size = ?, events_size = ?, talk = ?, body = ?, events = coalesce(?, events)
WHERE owner = ? AND id = ?
"""
_OF_CONVERSATIONS = """
FROM conversation_items i JOIN conversations c ON c.owner = i.owner AND c.id = i.conversation
WHERE i.owner = ? AND i.id = ANY(?) AND c.used_at > ?
"""
_CONVERSATION_BYTES = f"SELECT sum(length(i.body)) {_OF_CONVERSATIONS}"
_CONVERSATION_ITEMS = f"SELECT c.used_at, i.id, i.body {_OF_CONVERSATIONS}"
_encode_items = msgspec.msgpack.Encoder().encode
_decode_items = msgspec.msgpack.Decoder(tuple[list[Item], list[Item]]).decode


def save(
    connection: Connection, scope: Scope, some: Sequence[tuple[StoredResponse, int]]
) -> list[int]:
    """
    Insert or replace responses, keep their ancestors, and append their items to their conversations.

    Args:
        some: Each with the bytes of its texts.

    Returns:
        The bytes that each takes.
    """
    rows, sizes = dict[tuple[str, str], tuple[object, ...]](), list[int]()
    last = dict[tuple[str, str], StoredResponse]()  # of one saved twice the later
    for one, payload in some:
        kept_at = 0.0 if one.parent is None else _keep(connection, scope, one.owner, one.parent)
        sizes.append(payload + ROW_BYTES * (1 + len(one.input) + len(one.output)))
        texts = (_encode_items((one.input, one.output)), one.body, one.events)
        numbers = (one.created_at, scope.now, sizes[-1], len(one.events or b""), kept_at)
        ids = (one.owner, one.id, one.parent, one.conversation)
        rows[one.owner, one.id] = (*ids, one.status, one.instance, *numbers, *texts)
        last[one.owner, one.id] = one
    values = [*rows.values()]
    if connection.run_many(_INSERT, values) < len(rows):  # some are there; nearly always none is
        connection.run_many("DELETE FROM responses WHERE owner = ? AND id = ?", [*rows])
        connection.run_many(_INSERT, values)
    for one in last.values():
        _add_items(connection, one.owner, one.id, one.input + one.output)
    return [
        size + _join(connection, scope, one) for (one, _), size in zip(some, sizes, strict=True)
    ]


def get(connection: Connection, scope: Scope, owner: str, id: str) -> StoredResponse | None:
    """Read a response, with its events."""
    row = connection.row(_GET, owner, id, scope.since)
    if row is None:
        return None
    status, body, talk, *rest = row
    return StoredResponse(id, owner, status, body, *_decode_items(talk), *rest)


def chain(
    connection: Connection, scope: Scope, owner: str, id: str, most: int, with_bodies: bool
) -> list[StoredResponse] | None:
    """
    Read a response after its ancestors, the oldest first, without events; None where one is missing.

    Raises:
        InvalidRequest: They are too many, or too large.
    """
    asked = (owner, id, scope.since, scope.since, most)
    rows = connection.rows(_CHAIN, *asked)
    if not rows:
        return None
    if len(rows) > most:
        raise InvalidRequest(
            f"previous_response_id: more than {most} responses stand before this one. Send the conversation as `input` instead.",
            param="previous_response_id",
        )
    if rows[0][1] is not None:
        return None
    scope.check_size(sum([row[-1] for row in rows]), "previous_response_id")
    found: dict[str, StoredResponse] = {}
    for one, parent, conversation, status, instance, created_at, _ in rows:
        own = (parent, conversation, created_at)
        found[one] = StoredResponse(one, owner, status, b"", [], [], *own, instance=instance)
    for one, talk, *body in _texts(connection, with_bodies, *asked):
        stored = found[one]
        stored.input, stored.output = _decode_items(talk)
        if body:
            stored.body = body[0]
    return list(found.values())


def items(connection: Connection, scope: Scope, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
    """
    Read items by their ids, of any response or conversation of an owner; of several with one id the latest.

    Raises:
        InvalidRequest: They are too large, or what has to be read for them.
    """
    since, found = dict[str, float](), dict[str, bytes]()
    wanted, read = set(ids), 0

    def take(at: float, id: str, body: bytes) -> None:
        if id in wanted and at >= since.get(id, at):
            since[id], found[id] = at, body

    for created_at, size, response in _with_items(connection, scope, owner, ids):
        read += size
        scope.check_size(read, "input", _TIMES_READ)
        talk = connection.scalar(
            "SELECT talk FROM responses WHERE owner = ? AND id = ?", owner, response
        )
        for item in chained(*_decode_items(talk)) if talk is not None else ():
            take(created_at, item.id, item.body)
        scope.check_size(sum(map(len, found.values())), "input")
    asked = (owner, list(wanted), scope.since)
    scope.check_size(connection.scalar(_CONVERSATION_BYTES, *asked) or 0, "input", _TIMES_READ)
    for row in connection.rows(_CONVERSATION_ITEMS, *asked):
        take(*row)
    scope.check_size(sum(map(len, found.values())), "input")
    return found


def delete(connection: Connection, scope: Scope, owner: str, id: str) -> bool:
    """Remove a response; returns True if it was there."""
    return connection.run(f"DELETE {_LIVING}", owner, id, scope.since) > 0


def update(
    connection: Connection,
    scope: Scope,
    owner: str,
    id: str,
    status: str,
    body: bytes,
    output: Sequence[Item],
    events: bytes | None,
    only_if: Collection[str],
) -> int | None:
    """
    Change a response, and append its output to its conversation.

    Args:
        events: None leaves those that are stored.
        only_if: Statuses in which it may be changed; none for any.

    Returns:
        The bytes that this adds; None where it was not changed.
    """
    found = f"SELECT status, talk, events_size, size, conversation {_LIVING} FOR UPDATE"
    row = connection.row(found, owner, id, scope.since)
    if row is None or (only_if and row[0] not in only_if):
        return None
    _, talk, events_size, old_size, conversation = row
    input, _ = _decode_items(talk)
    events_size = events_size if events is None else len(events)
    size = size_of(body, [*input, *output]) + events_size
    texts = (_encode_items((input, output)), body, events)
    connection.run(_UPDATE, status, size, events_size, *texts, owner, id)
    connection.run("DELETE FROM response_items WHERE owner = ? AND response = ?", owner, id)
    _add_items(connection, owner, id, [*input, *output])
    added: int = size - old_size
    if conversation is not None:
        added += conversations.append(connection, scope, owner, conversation, output) or 0
    return added


def touch(connection: Connection, scope: Scope, instance: str) -> None:
    """Note that a server lives."""
    connection.run(_TOUCH, instance, scope.now)


def is_older(connection: Connection, scope: Scope, stored: StoredResponse, before: float) -> bool:
    """Return True if the server that works on a response was touched last before a time; one that is not known, when the response was made."""
    at = connection.scalar("SELECT touched_at FROM instances WHERE id = ?", stored.instance)
    return (stored.created_at if at is None else at) < before


def _add_items(connection: Connection, owner: str, id: str, items: Sequence[Item]) -> None:
    """Have items found whose ids do not tell their response."""
    foreign = {item.id for item in items if home_of(item.id) != id}
    if foreign:
        connection.run_many(
            "INSERT INTO response_items (owner, response, id) VALUES (?, ?, ?)",
            [(owner, id, item) for item in foreign],
        )


def _keep(connection: Connection, scope: Scope, owner: str, id: str) -> float:
    """
    Let a response and its ancestors live as long as what comes now.

    Each row is a page: so they are kept for longer than needed, and what continues the chain soon after has only the last one to keep.

    Returns:
        Until when they are kept; 0 where there is no such response.
    """
    until: float | None
    until = connection.scalar(f"SELECT kept_at {_LIVING}", owner, id, scope.since)
    if until is None:
        return 0.0
    if until >= scope.now:
        connection.run(
            "UPDATE responses SET used_at = ? WHERE owner = ? AND id = ?", until, owner, id
        )
        return until
    until = scope.now + scope.ahead_s
    connection.run(_KEEP, owner, id, scope.since, scope.since, until, until, owner)
    return until


def _join(connection: Connection, scope: Scope, one: StoredResponse) -> int:
    """Tell what a response belongs to that it is there; returns the bytes that this takes."""
    if one.instance and one.status in RUNNING:
        touch(connection, scope, one.instance)
    if one.conversation is None:
        return 0
    items = [*one.input, *one.output]
    return conversations.append(connection, scope, one.owner, one.conversation, items) or 0


def _texts(connection: Connection, with_bodies: bool, *asked: object) -> list[tuple[Any, ...]]:
    """Read the items of a chain, and its bodies."""
    return connection.rows(_CHAIN_TEXTS if with_bodies else _CHAIN_TALK, *asked)


def _with_items(
    connection: Connection, scope: Scope, owner: str, ids: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Read the responses that may have items of these ids: when they were made, the bytes of all their items, and their ids."""
    homes = {home for id in ids if (home := home_of(id))}
    told = "SELECT response FROM response_items WHERE owner = ? AND id = ANY(?)"
    homes |= {home for (home,) in connection.rows(told, owner, list(ids))}
    sizes = "SELECT created_at, length(talk), id FROM responses WHERE owner = ? AND id = ANY(?) AND used_at > ?"
    return connection.rows(sizes, owner, list(homes), scope.since)
