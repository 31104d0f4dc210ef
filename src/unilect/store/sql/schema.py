"""
The tables of a database: made where there are none, completed where an older version of unilect has made them, and refused where a newer
one has. Of several processes that open it at once one makes them, and the others wait.

Source: https://www.sqlite.org/lang_createtrigger.html, https://www.postgresql.org/docs/current/plpgsql-trigger.html
"""

from collections.abc import Sequence
from pathlib import Path

from unilect.store.failures import unavailable
from unilect.store.sql.connection import Connection

#: The version of the tables that schema.sql makes.
VERSION = "0002"
#: The tables that those of an older version lack.
_LACKS = {"0001": ("model_events",)}
_LOCK = 0x756E696C  # any number that no other program's
_ADD = """
INSERT INTO ledger_totals (day, key, owner, model, requests, prompt, completion, cost)
VALUES (new.day, new.key, new.owner, new.model, 1, new.prompt, new.completion, new.cost)
ON CONFLICT (day, key, owner, model) DO UPDATE SET
  requests = ledger_totals.requests + 1, prompt = ledger_totals.prompt + excluded.prompt,
  completion = ledger_totals.completion + excluded.completion, cost = ledger_totals.cost + excluded.cost;
"""
_OF_OLD = "day = old.day AND key = old.key AND owner = old.owner AND model = old.model"
_SUBTRACT = f"""
UPDATE ledger_totals SET
  requests = requests - 1, prompt = prompt - old.prompt, completion = completion - old.completion, cost = cost - old.cost
WHERE {_OF_OLD};
DELETE FROM ledger_totals WHERE {_OF_OLD} AND requests = 0;
"""
_ON_INSERT = "CREATE TRIGGER ledger_inserted AFTER INSERT ON ledger FOR EACH ROW"
_ON_DELETE = "CREATE TRIGGER ledger_deleted AFTER DELETE ON ledger FOR EACH ROW"
_FUNCTION = "RETURNS trigger LANGUAGE plpgsql AS"
_SQLITE = (f"{_ON_INSERT} BEGIN {_ADD} END", f"{_ON_DELETE} BEGIN {_SUBTRACT} END")
_POSTGRESQL = (
    f"CREATE FUNCTION ledger_add() {_FUNCTION} $$BEGIN {_ADD} RETURN NULL; END$$",
    f"CREATE FUNCTION ledger_subtract() {_FUNCTION} $$BEGIN {_SUBTRACT} RETURN NULL; END$$",
    f"{_ON_INSERT} EXECUTE FUNCTION ledger_add()",
    f"{_ON_DELETE} EXECUTE FUNCTION ledger_subtract()",
)


def ensure(connection: Connection) -> None:
    """
    Make the tables where there are none, or where some are missing.

    Raises:
        StoreUnavailable: A newer version of unilect has made the tables.
    """
    connection.lock(_LOCK)
    found = version(connection)
    if not found:
        _create(connection)
    elif found in _LACKS:
        _complete(connection, _LACKS[found])
    elif found != VERSION:
        raise unavailable(
            f"the database has the tables of another version of unilect ({found}), newer than {VERSION}. Update unilect, or set "
            "another `url` in [store]."
        )


def version(connection: Connection) -> str:
    """Read the version of the tables; empty where there are none."""
    if "unilect_version" not in connection.tables():
        return ""
    return connection.scalar("SELECT version_num FROM unilect_version") or ""


def _create(connection: Connection) -> None:
    """Make all tables; of a name that is there already the database complains."""
    triggers = _POSTGRESQL if connection.is_server else _SQLITE
    for statement in (*_read_statements(connection), *triggers):
        connection.run(statement)
    connection.run("INSERT INTO unilect_version (version_num) VALUES (?)", VERSION)


def _complete(connection: Connection, tables: Sequence[str]) -> None:
    """Make the tables that are missing."""
    for statement in _read_statements(connection):
        if any(f"CREATE TABLE {table} " in statement for table in tables):
            connection.run(statement)
    connection.run("UPDATE unilect_version SET version_num = ?", VERSION)


def _read_statements(connection: Connection) -> list[str]:
    """Read the statements that make the tables."""
    statements = Path(__file__).with_name("schema.sql").read_text()
    if connection.is_server:
        statements = statements.replace(" WITHOUT ROWID", "")
    return statements.split("\n\n")
