"""Statements about what has happened to models."""

from collections.abc import Sequence

import msgspec

from unilect.store.records import ModelEvent
from unilect.store.sql.connection import Connection, make_plain

KEPT = 200  # of each model, by all servers
_COLUMNS = "model, at, server, kind, reason, numbers"
_LONGEST_REASON = 2000
_INSERT = f"INSERT INTO model_events ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_LAST = f"SELECT {_COLUMNS} FROM model_events WHERE model = ? ORDER BY at DESC LIMIT {KEPT}"
_DELETE_MANY = f"""
DELETE FROM model_events WHERE model = ? AND at <= (
  SELECT at FROM model_events WHERE model = ? ORDER BY at DESC LIMIT 1 OFFSET {KEPT}
)
"""


def add(connection: Connection, events: Sequence[ModelEvent], since: float) -> None:
    """Insert events that are not there yet; those before a time, and beyond `KEPT` of their models, are deleted."""
    connection.run_many(_INSERT, sorted(map(_values, events)))
    connection.run("DELETE FROM model_events WHERE at < ?", since)
    models = sorted({make_plain(one.model) for one in events})
    connection.run_many(_DELETE_MANY, [(model, model) for model in models])


def read_last(connection: Connection, model: str) -> list[ModelEvent]:
    """Read the last events of a model, the oldest first."""
    return [
        ModelEvent(
            model,
            float(at),
            server,
            kind,
            reason,
            msgspec.json.decode(numbers, type=dict[str, float]),
        )
        for model, at, server, kind, reason, numbers in reversed(
            connection.rows(_LAST, make_plain(model))
        )
    ]


def _values(event: ModelEvent) -> tuple[object, ...]:
    numbers = msgspec.json.encode(event.numbers).decode()
    reason = make_plain(event.reason, _LONGEST_REASON)
    return make_plain(event.model), event.at, event.server, event.kind, reason, numbers
