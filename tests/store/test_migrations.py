"""Tests of the migrations of the store, on SQLite and on PostgreSQL."""

from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select

import unilect.store
from unilect.store._migrate import NEWEST, upgrade
from unilect.store._tables import METADATA, key_changes
from unilect.store.database import Database

FOLDER = Path(unilect.store.__file__ or "").parent / "migrations"


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
        config = Config()
        config.set_main_option("script_location", str(FOLDER))
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        return inspect(connection).get_table_names()

    database = Database(new_url(kind))
    assert [] == await database.run(differences)
    made = await database.run(lambda connection: connection.execute(select(key_changes)).all())
    assert ["unilect_version"] == await database.run(back)
    await database.run(upgrade)
    assert [] == await database.run(differences)
    anew = await database.run(lambda connection: connection.execute(select(key_changes)).all())
    assert [(1, 0)] == made == anew
    await database.aclose()
