"""The statements about the ledger."""

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import chain
from operator import itemgetter

from msgspec import structs
from sqlalchemy import (
    ColumnElement,
    Connection,
    Subquery,
    delete,
    func,
    literal_column,
    select,
    true,
    union_all,
)

from unilect.store._prepared import Prepared, run_text
from unilect.store._tables import keys, ledger, ledger_totals
from unilect.store.ledger import CORRECTED, Row, Sum, Used

#: The columns: the fields of a `Row`, and between them the day.
_NAMES = "id at day key owner model backend dialect endpoint prompt cached completion first_token_ms duration_ms status finish cost"
_OF_SUM = itemgetter(2, 3, 4, 5)  # what tells the sum of a row's values from others
_SUMMED = ("requests", "prompt", "completion", "cost")
_TEXTS = ["key", "owner", "model", "backend", "dialect", "endpoint", "finish"]
#: Rows that one statement of SQLite inserts: several threads run, and what a statement waits for takes longer than what it does.
AT_ONCE = 32
_MOST_DELETED = 1000  # rows that one transaction deletes
_DAY_S = 86_400
#: Counts of a backend are its own words; beyond these a sum would not fit into the column.
_MOST_TOKENS, _MOST_COST = 10**12, 10**15
_LONGEST = 400
_PROBE = Row(id="probe", at=0.0)


class LedgerRows:
    """The ledger, in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, rows: Sequence[Row]) -> bool:
        """Insert rows; true. Of one whose id is there nothing changes, unless the new one has the status `CORRECTED`."""
        connection, kind = self._connection, self._connection.dialect.name
        values, insertion = [_values(row) for row in rows], _insert(kind)
        if kind != "sqlite" and values:  # one statement of PostgreSQL takes no id twice
            values.sort(key=_OF_SUM)  # of two who add to the same sums one waits, and not both
            insertion.run(connection, values)
            return True
        for at in range(0, len(values), AT_ONCE):
            some = values[at : at + AT_ONCE]
            text = insertion.repeated(connection, len(some))
            run_text(connection, text, [tuple(chain.from_iterable(some))])
        return True

    def probe(self) -> None:
        """Write what leaves nothing behind."""
        self.add([_PROBE])
        self._connection.execute(delete(ledger).where(ledger.c.id == _PROBE.id))

    def used(self, since: float, key: str | None) -> list[Used]:
        """Sum up what every key, or one, has used of every model since a time."""
        all = _since(since, key)
        parts = (all.c.key, all.c.owner, all.c.model)
        sums = func.sum(all.c.prompt + all.c.completion), func.sum(all.c.cost)
        rows = self._connection.execute(select(*parts, *sums).group_by(*parts))
        return [Used(*row[:3], tokens=int(row[3]), cost=int(row[4])) for row in rows]

    def sums(self, by: Sequence[str], since: float, key: str | None) -> list[Sum]:
        """Sum up all requests since a time, of one key or of all, for each value of the columns `by`."""
        all = _since(since, key)
        parts = [all.c[name] for name in by]
        numbers = [func.sum(all.c[name]).label(f"of_{name}") for name in _SUMMED]
        found = select(*parts, *numbers).group_by(*parts).subquery()
        asked = select(found)
        if "key" in by:
            asked = select(found, keys.c.name).outerjoin(keys, keys.c.id == found.c.key)
        return [
            Sum(
                key=row.get("key"),
                name=row.get("name") or row.get("key"),
                model=row.get("model"),
                day=row.get("day"),
                **{name: int(row[f"of_{name}"]) for name in _SUMMED},
            )
            for row in self._connection.execute(asked).mappings()
            if row["of_requests"]
        ]

    def delete_before(self, at: float) -> bool:
        """Delete some rows of requests that came before a time; whether there may be more."""
        old = select(ledger.c.id).where(ledger.c.at < at).order_by(ledger.c.at).limit(_MOST_DELETED)
        gone = self._connection.execute(delete(ledger).where(ledger.c.id.in_(old)))
        return gone.rowcount == _MOST_DELETED


def _since(since: float, key: str | None) -> Subquery:
    """Select the sums of all requests since a time, of one key or of all: of whole days, and the rows of the day in which it lies."""
    day, second = divmod(since, _DAY_S)
    totals = select(ledger_totals).where(ledger_totals.c.day >= day + bool(second))
    of_key = true() if key is None else ledger_totals.c.key == key
    if not second:
        return totals.where(of_key).subquery()
    one: ColumnElement[int] = literal_column("1").label("requests")
    rows = select(
        *(one if part.name == "requests" else ledger.c[part.name] for part in ledger_totals.c)
    )
    rows = rows.where(ledger.c.at >= since, ledger.c.at < (day + 1) * _DAY_S)
    of_row = true() if key is None else ledger.c.key == key
    return union_all(totals.where(of_key), rows.where(of_row)).subquery()


@cache
def _insert(dialect: str) -> Prepared:
    """The insertion of rows, in the words of a kind of database: both have the same, and SQLAlchemy one for each."""
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]
    statement = insert(ledger)
    statement = statement.on_conflict_do_update(
        index_elements=["id"],
        set_={"status": statement.excluded.status},
        where=statement.excluded.status == literal_column(str(CORRECTED)),
    )
    return Prepared(statement, _NAMES)


def _values(row: Row) -> tuple[object, ...]:
    """The values of a row, in the order of `_NAMES`, as every database takes them."""
    numbers = (row.prompt, row.cached, row.completion, row.cost)
    if min(numbers) < 0 or max(numbers) > _MOST_TOKENS:
        row = _bounded(row)
    if not _are_plain(row.key, row.owner, row.model, row.backend, row.dialect, row.endpoint, row.finish):  # fmt: skip
        texts = {name: _plain(getattr(row, name)) for name in _TEXTS}
        row = structs.replace(row, **texts)
    values = structs.astuple(row)
    return (*values[:2], int(row.at // _DAY_S), *values[2:])


def _bounded(row: Row) -> Row:
    most = dict.fromkeys(("prompt", "cached", "completion"), _MOST_TOKENS) | {"cost": _MOST_COST}
    numbers = {name: min(max(getattr(row, name), 0), its_most) for name, its_most in most.items()}
    return structs.replace(row, **numbers)


@lru_cache(256)
def _are_plain(*texts: str) -> bool:
    """Whether every database takes texts, most of which come again and again."""
    return all(text == _plain(text) for text in texts)


def _plain(text: str) -> str:
    return text[:_LONGEST].encode(errors="replace").decode().replace("\0", "")
