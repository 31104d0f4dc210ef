"""Statements about the ledger."""

from collections.abc import Sequence
from functools import cache
from operator import itemgetter

from unilect.store.records import CORRECTED, PARTS, KeyUsage, LedgerRow, UsageSum
from unilect.store.sql.connection import Connection, make_plain

#: The columns: the fields of a `LedgerRow`, and between them the day.
_COLUMNS = "id, at, day, key, owner, model, backend, dialect, endpoint, prompt, cached, completion, first_token_ms, duration_ms, status, finish, cost"
_NAMES = _COLUMNS.split(", ")
_INSERT = f"""
INSERT INTO ledger ({_COLUMNS}) VALUES ({", ".join("?" * len(_NAMES))})
ON CONFLICT (id) DO UPDATE SET status = excluded.status WHERE excluded.status = {CORRECTED}
"""
_OF_SUM = itemgetter(2, 3, 4, 5)  # what tells the sum of a row's values from others
_MOST_DELETED = 1000  # rows that one transaction deletes
_DAY_S = 86_400
#: Counts of a backend are its own words; beyond these a sum would not fit into the column.
_MOST_TOKENS, _MOST_COST = 10**12, 10**15
_PROBE = LedgerRow(id="probe", at=0.0)
_DELETE_OLD = f"DELETE FROM ledger WHERE id IN (SELECT id FROM ledger WHERE at < ? ORDER BY at LIMIT {_MOST_DELETED})"
_REQUESTS = "SELECT at, model, duration_ms FROM ledger WHERE at >= ? AND status IN (200, 499) ORDER BY at LIMIT 1000000"
_SUMS = "sum(requests) AS requests, sum(prompt) AS prompt, sum(completion) AS completion, sum(cost) AS cost"


def add(connection: Connection, rows: Sequence[LedgerRow]) -> None:
    """Insert rows. Of one whose id is there nothing changes, unless the new one has the status `CORRECTED`."""
    # in this order, of two who add to the same sums one waits, and not both
    connection.run_many(_INSERT, sorted(map(_values, rows), key=_OF_SUM))


def probe(connection: Connection) -> None:
    """Write what leaves nothing behind."""
    add(connection, [_PROBE])
    connection.run("DELETE FROM ledger WHERE id = ?", _PROBE.id)


def usage_since(connection: Connection, since: float, key: str | None) -> list[KeyUsage]:
    """Sum up what every key, or one, has used of every model since a time."""
    rows = connection.rows(_summing(("key", "owner", "model"), key is not None), *_bounds(since, key))  # fmt: skip
    return [
        KeyUsage(key, owner, model, int(prompt + completion), int(cost))
        for key, owner, model, _, prompt, completion, cost in rows
    ]


def sums(
    connection: Connection, by: Sequence[str], since: float, key: str | None
) -> list[UsageSum]:
    """Sum up all requests since a time, of one key or of all, for each value of the columns `by`."""
    rows = connection.rows(_summing(tuple(by), key is not None), *_bounds(since, key))
    parts = [dict.fromkeys(PARTS) | dict(zip(by, row, strict=False)) for row in rows]
    ids = list({one["key"] for one in parts}) if "key" in by else []
    names = dict(connection.rows("SELECT id, name FROM keys WHERE id = ANY(?)", ids))
    return [
        UsageSum(
            **one,
            name=names.get(one["key"], one["key"]),
            requests=int(requests),
            prompt=int(prompt),
            completion=int(completion),
            cost=int(cost),
        )
        for one, (*_, requests, prompt, completion, cost) in zip(parts, rows, strict=True)
        if requests
    ]


def requests_since(connection: Connection, since: float) -> list[tuple[float, str, float]]:
    """Read the time, the model and the seconds of requests since a time, in their order."""
    rows = connection.rows(_REQUESTS, since)
    return [(float(at), str(model), float(ms or 0) / 1000) for at, model, ms in rows]


def delete_before(connection: Connection, at: float) -> bool:
    """Delete some rows of requests that came before a time; returns True if there may be more."""
    return connection.run(_DELETE_OLD, at) == _MOST_DELETED


@cache
def _summing(by: tuple[str, ...], of_key: bool) -> str:
    """Make the query of sums since a time: of whole days, and of the rows of the day in which it lies; the values are `_bounds`."""
    where = "key = ? AND" if of_key else ""
    columns = "day, key, owner, model"
    totals = f"SELECT {columns}, requests, prompt, completion, cost FROM ledger_totals WHERE {where} day >= ?"
    rows = f"SELECT {columns}, 1, prompt, completion, cost FROM ledger WHERE {where} at >= ? AND at < ?"
    parts = ", ".join(by)
    grouped = f"GROUP BY {parts}" if by else ""
    return f"SELECT {', '.join([*by, _SUMS])} FROM ({totals} UNION ALL {rows}) AS used {grouped}"


def _bounds(since: float, key: str | None) -> tuple[object, ...]:
    day, second = divmod(since, _DAY_S)
    first = day + bool(second)  # the first whole day
    of_key = () if key is None else (key,)
    return (*of_key, first, *of_key, since, first * _DAY_S)


def _values(row: LedgerRow) -> tuple[object, ...]:
    """Make the values of a row, in the order of `_COLUMNS`, as every database takes them."""
    texts = row.key, row.owner, row.model, row.backend, row.dialect, row.endpoint
    tokens = row.prompt, row.cached, row.completion
    return (
        *(row.id, row.at, int(row.at // _DAY_S)),
        *map(make_plain, texts),
        *[min(max(count, 0), _MOST_TOKENS) for count in tokens],
        *(row.first_token_ms, row.duration_ms, row.status, make_plain(row.finish)),
        min(max(row.cost, 0), _MOST_COST),
    )
