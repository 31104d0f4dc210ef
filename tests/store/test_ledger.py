"""Tests of unilect.store.ledger, on SQLite, in memory and on PostgreSQL: the sums of a model, and rows that are there once."""

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from support.common.clock import Clock
from support.common.ledger_rows import DIFFERENCES, row
from unilect.store.database import Database
from unilect.store.keys import KeyStore
from unilect.store.ledger import Ledger
from unilect.store.records import CORRECTED, PARTS, KeyUsage, LedgerRow, UsageSum
from unilect.store.sql.connection import Connection

NOW = 1_800_000_000.0
DAY_S = 86_400
ROWS = st.builds(
    row,
    at=st.floats(NOW - 3 * DAY_S, NOW),
    key=st.sampled_from(["key_AAAA", "key-12345678", "anonymous"]),
    owner=st.sampled_from(["", "lab"]),
    model=st.sampled_from(["a", "b"]),
    prompt=st.integers(0, 10_000),
    completion=st.integers(0, 10_000),
    cost=st.integers(0, 10**9),
)


@pytest.fixture
def ledger(database: Database, clock: Clock) -> Ledger:
    """The ledger of a new database."""
    return Ledger(database, max_age_s=100 * DAY_S, clock=clock)


def summed(
    rows: list[LedgerRow], by: tuple[str, ...], since: float, key: str | None
) -> list[UsageSum]:
    """The sums as the words say."""
    groups = dict[tuple[object, ...], list[LedgerRow]]()
    for one in rows:
        if one.at >= since and key in (None, one.key):
            parts = {"key": one.key, "model": one.model, "day": int(one.at // DAY_S)}
            groups.setdefault(tuple(parts[name] for name in by), []).append(one)
    found = [
        UsageSum(
            **({"key": None, "model": None, "day": None} | dict(zip(by, parts, strict=True))),
            name=parts[by.index("key")] if "key" in by else None,
            requests=len(some),
            prompt=sum(one.prompt for one in some),
            completion=sum(one.completion for one in some),
            cost=sum(one.cost for one in some),
        )
        for parts, some in groups.items()
    ]
    return sorted(found, key=lambda one: (one.day or 0, one.name or "", one.model or ""))


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.heavy)])
async def test_sums(kind: str, new_url: Callable[[str], str], clock: Clock) -> None:
    """Sums by any parts, since any time, of one key or of all, are those of the rows that were written, whatever was written twice or deleted."""
    database = Database(new_url(kind))
    ledger = Ledger(database, max_age_s=4 * DAY_S, clock=clock)
    written: list[LedgerRow] = []
    asked = [by for length in range(len(PARTS) + 1) for by in combinations(PARTS, length)]

    def differences(connection: Connection) -> list[Any]:
        return connection.rows(DIFFERENCES)

    async def check(
        groups: list[list[LedgerRow]], again: int, since: float, key: str | None
    ) -> None:
        for group in groups:
            await ledger.write(group)
            written.extend(group)
        if written:
            status = 200 if again % 2 else CORRECTED
            await ledger.write([structs.replace(written[again % len(written)], status=status)])
        if again % 5 == 0:
            clock.now += 0.2 * DAY_S
            await ledger.sweep()
            written[:] = [one for one in written if one.at >= clock.now - 4 * DAY_S]
        assert [] == await database.read(differences)
        for by in asked:
            assert summed(written, by, since, key) == await ledger.sums(by, since, key)
        used = Counter[tuple[str, str, str, str]]()
        for one in written:
            if one.at >= since:
                used[one.key, one.owner, one.model, "tokens"] += one.prompt + one.completion
                used[one.key, one.owner, one.model, "cost"] += one.cost
        found = await ledger.read_usage(since)
        assert used == {
            (one.key, one.owner, one.model, name): value
            for one in found
            for name, value in (("tokens", one.tokens), ("cost", one.cost))
        }
        assert len(found) == len({(one.key, one.owner, one.model) for one in found})

    loop = asyncio.get_running_loop()

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.lists(st.lists(ROWS, min_size=1, max_size=6), max_size=3),
        st.integers(0, 100),
        st.floats(NOW - 3 * DAY_S, NOW) | st.sampled_from([NOW // DAY_S * DAY_S]),
        st.sampled_from([None, "key_AAAA", "key_BBBB"]),
    )
    def property(groups: list[list[LedgerRow]], again: int, since: float, key: str | None) -> None:
        asyncio.run_coroutine_threadsafe(check(groups, again, since, key), loop).result(60)

    await asyncio.to_thread(property)
    assert written
    await ledger.aclose()
    await database.aclose()


async def test_what_is_kept(database: Database, ledger: Ledger) -> None:
    """A row keeps all that was said of it; texts and numbers that no database takes are made such as it does."""
    whole = row(
        key="key_A",
        owner="lab\0\ud800",
        backend="http://***@host/v1",
        dialect="openai",
        endpoint="chat.completions",
        cached=7,
        first_token_ms=12.5,
        duration_ms=99.5,
        finish="stop",
    )
    wild = row(model="m" * 10_000, prompt=-5, completion=2**70, cost=2**80)
    await ledger.write([whole, wild])
    await ledger.write([])

    def read(connection: Connection) -> list[dict[str, object]]:
        names = [*LedgerRow.__struct_fields__, "day"]
        found = connection.rows(f"SELECT {', '.join(names)} FROM ledger ORDER BY prompt DESC")
        return [dict(zip(names, one, strict=True)) for one in found]

    first, second = await database.write(read)
    expected = structs.asdict(whole) | {"owner": "lab?", "day": int(whole.at // DAY_S)}
    assert expected == first
    assert (400, 0, 10**12, 10**15) == (len(str(second["model"])), second["prompt"], second["completion"], second["cost"])  # fmt: skip
    await ledger.aclose()


@pytest.mark.parametrize("count", [1, 32, 33, 100])
async def test_many_at_once(ledger: Ledger, count: int) -> None:
    """However many rows are written together, all are there; of two with one id the first is, but for a status that is corrected."""
    rows = [row(completion=number) for number in range(count)]
    again = structs.replace(rows[0], completion=10**6, status=CORRECTED)
    await ledger.write([*rows, again])
    (sums,) = await ledger.sums(())
    assert (count, sum(range(count))) == (sums.requests, sums.completion)
    assert CORRECTED == await status_of(ledger, rows[0].id)
    await ledger.aclose()


async def test_a_corrected_status(ledger: Ledger) -> None:
    """A row that is written again changes its status alone, and only where its client was told that it could not be kept."""
    one = row(status=200, completion=5)
    await ledger.write([one])
    await ledger.write([structs.replace(one, status=499, completion=1)])
    assert 200 == await status_of(ledger, one.id)
    await ledger.write([structs.replace(one, status=CORRECTED, completion=1)])
    assert CORRECTED == await status_of(ledger, one.id)
    assert [5] == [one.completion for one in await ledger.sums(())]
    await ledger.aclose()


async def status_of(ledger: Ledger, id: str) -> int:
    """The status of a row."""
    found = await ledger._database.read(
        lambda connection: connection.scalar("SELECT status FROM ledger WHERE id = ?", id)
    )
    assert isinstance(found, int)
    return found


async def test_two_servers(url: str) -> None:
    """Servers that write rows of the same keys at the same time, in any order, wait for each other, and lose nothing of the sums."""
    databases = [Database(url) for _ in range(2)]
    ledgers = [Ledger(one) for one in databases]
    keys = ["key_A", "key_B", "key_C"]
    for _ in range(5):
        await asyncio.gather(
            *(
                one.write([row(key=key) for key in order])
                for one, order in zip(ledgers, (keys, keys[::-1]), strict=True)
            )
        )
    found = await ledgers[0].sums(("key",))
    assert [("key_A", 10), ("key_B", 10), ("key_C", 10)] == [(one.key, one.requests) for one in found]  # fmt: skip
    for of in (*ledgers, *databases):
        await of.aclose()


async def test_names_of_keys(database: Database, ledger: Ledger, clock: Clock) -> None:
    """A key of the store is told by its name, another by its id."""
    await KeyStore(database, clock).create("ann", "AAAA", b"digest")
    await ledger.write([row(key="key_AAAA"), row(key="key-12345678"), row(key="")])

    found = [(one.key, one.name) for one in await ledger.sums(("key",))]
    assert [("", ""), ("key_AAAA", "ann"), ("key-12345678", "key-12345678")] == found
    assert [(None, None, 3)] == [(one.key, one.name, one.requests) for one in await ledger.sums(())]
    await ledger.aclose()


async def test_nothing(ledger: Ledger) -> None:
    """Where nothing was written there are no sums; to find out whether something could be written leaves nothing behind."""
    await ledger.probe()
    await ledger.probe()
    assert ([], [], []) == (
        await ledger.sums(),
        await ledger.sums(()),
        await ledger.read_usage(0.0),
    )
    await ledger.aclose()


async def test_retention(ledger: Ledger, clock: Clock) -> None:
    """Rows are deleted when their time is over, however many there are, and no other."""
    await ledger.write([row(at=clock.now - 100 * DAY_S - 1) for _ in range(1001)])
    await ledger.write([row(at=clock.now - 99 * DAY_S), row(at=clock.now)])
    await ledger.sweep()

    assert [2] == [one.requests for one in await ledger.sums(())]
    clock.now += 2 * DAY_S
    await ledger.sweep()
    assert [KeyUsage("key_A", "", "m", 3, 0)] == await ledger.read_usage(0.0)
    await ledger.aclose()
