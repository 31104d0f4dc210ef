"""Tests of unilect.store.sql.schema: tables that are made once, and those of another version or another program."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from unilect.core.errors import StoreUnavailable
from unilect.store.database import Database
from unilect.store.sql import schema
from unilect.store.sql.connection import Connection


async def test_a_new_database(database: Database) -> None:
    """A new database gets the tables of this version, and the first number of the changes of keys."""
    assert schema.VERSION == await database.write(schema.version)
    assert [(1, 0)] == await database.write(
        lambda of: of.rows("SELECT id, number FROM key_changes")
    )


async def test_tables_of_an_older_version(url: str) -> None:
    """Tables of an older version get what they lack, and keep what they have."""
    database = Database(url)

    def make_old(connection: Connection) -> None:
        connection.run("DROP TABLE model_events")
        connection.run("UPDATE unilect_version SET version_num = '0001'")
        connection.run("INSERT INTO instances (id, touched_at) VALUES ('a', 1.0)")

    await database.write(make_old)
    await database.aclose()
    database = Database(url)
    assert schema.VERSION == await database.write(schema.version)
    assert [] == await database.read(lambda of: of.rows("SELECT * FROM model_events"))
    assert [("a", 1.0)] == await database.read(lambda of: of.rows("SELECT * FROM instances"))
    await database.aclose()


async def test_servers_that_start_at_once(url: str) -> None:
    """Servers that open an empty database at the same moment make its tables once, and all of them can use it."""
    databases = [Database(url) for _ in range(4)]
    found = await asyncio.gather(*(one.write(schema.version) for one in databases))
    assert [schema.VERSION] * 4 == found
    for one in databases:
        await one.aclose()


async def test_tables_of_another_program(tmp_path: Path) -> None:
    """A database in which another program has a table of one of our names is told, and left as it was."""
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE ledger (mine)")
    file.close()
    database = Database(f"sqlite:///{path}")
    with pytest.raises(StoreUnavailable) as error:
        await database.write(schema.version)
    assert "cannot be opened" in error.value.for_operator
    assert "ledger" in error.value.for_operator
    await database.aclose()
    with sqlite3.connect(path) as file:
        assert [("ledger",)] == file.execute("SELECT name FROM sqlite_master").fetchall()
    file.close()
