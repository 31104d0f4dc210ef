"""Tests of the migrations of the store, on SQLite and on PostgreSQL."""

from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select, text

import unilect.store
from ledger_rows import DIFFERENCES, row
from unilect.store._migrate import NEWEST, upgrade
from unilect.store._tables import METADATA, key_changes
from unilect.store.answers import Answers, Item, Stored
from unilect.store.database import Database
from unilect.store.ids import OUTPUT, item_id, response_id
from unilect.store.ledger import Ledger

FOLDER = Path(unilect.store.__file__ or "").parent / "migrations"


def downgrade(connection: Connection, revision: str) -> None:
    """Make the tables as they were."""
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.downgrade(config, revision)


def test_the_newest() -> None:
    """The revision that a store looks for is the last one."""
    assert [NEWEST] == ScriptDirectory(str(FOLDER)).get_heads()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.heavy)])
async def test_the_tables(kind: str, new_url: Callable[[str], str]) -> None:
    """Tables are made at once as the migrations make them, which take them away again and make them anew."""

    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"version_table": "unilect_version"})
        return list(compare_metadata(context, METADATA))

    def back(connection: Connection) -> list[str]:
        downgrade(connection, "base")
        return inspect(connection).get_table_names()

    database = Database(new_url(kind))
    assert [] == await database.write(differences)
    made = await database.write(lambda connection: connection.execute(select(key_changes)).all())
    assert ["unilect_version"] == await database.write(back)
    await database.write(upgrade)
    assert [] == await database.write(differences)
    anew = await database.write(lambda connection: connection.execute(select(key_changes)).all())
    assert [(1, 0)] == made == anew
    await database.aclose()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.heavy)])
async def test_responses_of_an_older_version(kind: str, new_url: Callable[[str], str]) -> None:
    """Responses that are stored as rows of parts become one row each, and are found as before: by their ids, as chains, by their items' ids."""

    def older(connection: Connection) -> list[tuple[object, ...]]:
        downgrade(connection, "0003")
        parts = "SELECT owner, response, kind, position, id, body FROM response_parts ORDER BY response, kind, position"
        return [tuple(row) for row in connection.execute(text(parts))]

    url, me = new_url(kind), "me"
    own = response_id()
    output = [Item(item_id(own, "msg", OUTPUT), b"said")]
    some = [
        Stored("a", me, "completed", b"of a", [Item("i", b"in")], [], None, None, 1.0, b"events"),
        Stored("b", me, "failed", b"", [], [], "a", "room", 2.0, None, "server"),
        Stored(own, me, "completed", b"\0\xff", [Item("i", b"in again")], output, "b", None, 3.0),
        *(
            Stored(f"many{n:03}", me, "completed", b"x", [], [], None, None, 4.0)
            for n in range(120)
        ),
    ]
    database = Database(url)
    answers = Answers(database)
    for one in some:
        await answers.put(one)
    parts = await database.write(older)
    await answers.aclose()
    await database.aclose()
    assert [
        (me, "a", 0, 0, None, b"of a"),
        (me, "a", 1, 0, None, b"events"),
        (me, "a", 2, 0, "i", b"in"),
        (me, "b", 0, 0, None, b""),
    ] == parts[:4]
    assert (me, own, 3, 0, output[0].id, b"said") == parts[-1]
    assert 4 + 120 + 3 == len(parts)

    database = Database(url)
    answers = Answers(database)
    assert some == [await answers.get(me, one.id) for one in some]
    assert ["a", "b", own] == [one.id for one in await answers.chain(me, own) or []]
    assert {"i": b"in again", output[0].id: b"said"} == await answers.items(me, ["i", output[0].id])
    await answers.put(Stored("c", me, "completed", b"", [], [], own, None, 5.0))
    assert 4 == len(await answers.chain(me, "c") or [])
    assert await answers.delete(me, "a")
    assert {"i": b"in again"} == await answers.items(me, ["i"])
    await answers.aclose()
    await database.aclose()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.heavy)])
async def test_a_ledger_of_an_older_version(kind: str, new_url: Callable[[str], str]) -> None:
    """The rows of a ledger that had no sums are in them, and so is what comes and goes from then on."""
    url, day_s = new_url(kind), 86_400.0
    database = Database(url)
    ledger = Ledger(database, clock=lambda: 12 * day_s)
    rows = [row(at=(10 + number % 3) * day_s, key=f"key_{number % 2}") for number in range(20)]
    await ledger.write(rows)
    before = await ledger.sums()
    await database.write(lambda connection: downgrade(connection, "0005"))
    await ledger.aclose()
    await database.aclose()

    database = Database(url)
    ledger = Ledger(database, max_age_s=day_s, clock=lambda: 12 * day_s)
    assert before == await ledger.sums()
    await ledger.write([row(at=12 * day_s, key="key_0"), rows[0]])
    await ledger.sweep()
    assert 20 + 1 - 7 == sum(one.requests for one in await ledger.sums())
    assert [] == await database.read(lambda of: of.execute(text(DIFFERENCES)).all())
    await ledger.aclose()
    await database.aclose()
