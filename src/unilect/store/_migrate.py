"""
The tables of a database: made where there are none, and brought up to date by Alembic where they are older. Of several processes that
open it at once, one does it and the others wait.

Alembic takes a second to import and to make the tables, and most databases never need it.

Source: https://alembic.sqlalchemy.org/en/latest/cookbook.html#sharing-a-connection-across-one-or-more-programmatic-migration-commands
"""

from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, text

from unilect.store._failures import unavailable
from unilect.store._tables import METADATA, key_changes
from unilect.store._totals import create_triggers

#: The newest revision in migrations/versions; a database that has it needs no look at them, and no import of Alembic.
NEWEST = "0007"
_FOLDER = Path(__file__).parent / "migrations"
_LOCK = 0x756E696C  # any number that no other program's


def up_to_date(connection: Connection) -> None:
    """
    Make what is missing, in the transaction of a connection.

    Raises:
        StoreUnavailable: A newer version of unilect has made the tables.
    """
    if connection.dialect.name == "postgresql":  # SQLite's transaction has the lock already
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    has_version = inspect(connection).has_table("unilect_version")
    found = (
        connection.scalar(text("SELECT version_num FROM unilect_version")) if has_version else ""
    )
    if not has_version:
        _make(connection)
    elif found != NEWEST:
        upgrade(connection, found)


def upgrade(connection: Connection, found: str = "") -> None:
    """
    Run all migrations that a database has not had.

    Raises:
        StoreUnavailable: Its revision is unknown here.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    if connection.dialect.name == "postgresql":  # a large table takes its time
        connection.execute(text("SET LOCAL statement_timeout = 0"))
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise unavailable(
            f"the database has the tables of another version of unilect ({found}), newer than {NEWEST}. Update unilect, or set "
            "another `url` in [store]."
        ) from error


def _make(connection: Connection) -> None:
    """Make all tables as the migrations would; of a name that is there already the database complains, as it does of these."""
    METADATA.create_all(connection, checkfirst=False)
    create_triggers(connection)
    connection.execute(insert(key_changes).values(id=1, number=0))
    version = Table(
        "unilect_version", MetaData(), Column("version_num", String(32), primary_key=True)
    )
    version.create(connection)
    connection.execute(insert(version).values(version_num=NEWEST))
