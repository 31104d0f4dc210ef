"""A response is one row: its texts are columns, and items are found by the response that their ids tell, or by a table of the others."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_BODY, _EVENTS, _INPUT, _OUTPUT = range(4)
_AT_ONCE = 100  # responses that are written at once
_LARGE_BYTES = 16 * 1024**2  # or fewer, of so many bytes
_TEXTS = ("talk", "body", "events")

_responses = sa.table(
    "responses", *(sa.column(name) for name in ("owner", "id", *_TEXTS)), sa.column("used_at")
)
_parts = sa.table(
    "response_parts",
    *(sa.column(name) for name in ("owner", "response", "kind", "position", "id", "body")),
)
_items = sa.table("response_items", *(sa.column(name) for name in ("owner", "response", "id")))


def upgrade() -> None:
    """Add the columns, fill them from the table of parts, and remove that."""
    for name in ("talk", "body"):
        op.add_column(
            "responses", sa.Column(name, sa.LargeBinary, nullable=False, server_default="")
        )
    op.add_column("responses", sa.Column("events", sa.LargeBinary))
    op.add_column("responses", sa.Column("kept_at", sa.Double, nullable=False, server_default="0"))
    op.create_table(
        "response_items",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("response", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.ForeignKeyConstraint(
            ["owner", "response"], ["responses.owner", "responses.id"], ondelete="CASCADE"
        ),
        sqlite_with_rowid=False,
    )
    op.create_index("response_items_by_id", "response_items", ["owner", "id"])
    connection = op.get_bind()
    own = sa.and_(_responses.c.owner == sa.bindparam("own"), _responses.c.id == sa.bindparam("one"))
    change = sa.update(_responses).where(own).values({name: sa.bindparam(name) for name in _TEXTS})
    for some in _in_groups(_joined(connection)):
        connection.execute(change, [texts for texts, _ in some])
        ids = [
            {"owner": texts["own"], "response": texts["one"], "id": id}
            for texts, items in some
            for id in items
        ]
        if ids:
            connection.execute(sa.insert(_items), ids)
    op.drop_table("response_parts")


def downgrade() -> None:
    """Put the texts back into a table of parts."""
    op.create_table(
        "response_parts",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("response", sa.Text, primary_key=True),
        sa.Column("kind", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(
            ["owner", "response"], ["responses.owner", "responses.id"], ondelete="CASCADE"
        ),
    )
    op.create_index("response_parts_by_id", "response_parts", ["owner", "id"])
    connection = op.get_bind()
    names = ("owner", "response", "kind", "position", "id", "body")
    asked = sa.select(*(_responses.c[name] for name in ("owner", "id", *_TEXTS)))
    for owner, id, talk, body, events in _read(connection, asked):
        parts = [(_BODY, 0, None, body)]
        if events is not None:
            parts.append((_EVENTS, 0, None, events))
        for kind, some in zip((_INPUT, _OUTPUT), msgspec.msgpack.decode(talk), strict=True):
            parts += [(kind, at, *item) for at, item in enumerate(some)]
        rows = [dict(zip(names, (owner, id, *part), strict=True)) for part in parts]
        connection.execute(sa.insert(_parts), rows)
    op.drop_table("response_items")
    for name in (*_TEXTS, "kept_at"):
        op.drop_column("responses", name)


def _read(connection: sa.Connection, asked: sa.Select[*tuple[Any, ...]]) -> Iterator[Any]:
    """Rows as they are needed, and not all at once."""
    return iter(connection.execute(asked, execution_options={"stream_results": True}))


def _joined(connection: sa.Connection) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The texts of each response, and the ids of its items."""
    column = _parts.c
    order = (column.owner, column.response, column.kind, column.position)
    found = _read(connection, sa.select(*order, column.id, column.body).order_by(*order))
    for (owner, response), parts in groupby(found, lambda row: (row[0], row[1])):
        texts: dict[str, Any] = {"own": owner, "one": response, "body": b"", "events": None}
        items: tuple[list[tuple[str, bytes]], list[tuple[str, bytes]]] = ([], [])
        for _, _, kind, _, id, body in parts:
            if kind == _BODY:
                texts["body"] = body
            elif kind == _EVENTS:
                texts["events"] = body
            else:
                items[kind - _INPUT].append((id, body))
        texts["talk"] = msgspec.msgpack.encode(items)
        yield texts, list({id for some in items for id, _ in some})


def _in_groups(
    all: Iterator[tuple[dict[str, Any], list[str]]],
) -> Iterator[list[tuple[dict[str, Any], list[str]]]]:
    """As many as are written at once."""
    some, size = [], 0
    for one in all:
        some.append(one)
        size += sum([len(one[0][name] or b"") for name in _TEXTS])
        if len(some) == _AT_ONCE or size > _LARGE_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
