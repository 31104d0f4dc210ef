"""
The triggers of the database that keep the sums of the ledger's rows (`ledger_totals`): a row and its part of the sums come, and go, in
one statement, whoever writes or deletes it. Nothing else of a row changes than its status, which is in no sum.

Source: https://www.sqlite.org/lang_createtrigger.html, https://www.postgresql.org/docs/current/plpgsql-trigger.html
"""

from sqlalchemy import Connection

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
_CREATE = {
    "sqlite": (f"{_ON_INSERT} BEGIN {_ADD} END", f"{_ON_DELETE} BEGIN {_SUBTRACT} END"),
    "postgresql": (
        f"CREATE FUNCTION ledger_add() {_FUNCTION} $$BEGIN {_ADD} RETURN NULL; END$$",
        f"CREATE FUNCTION ledger_subtract() {_FUNCTION} $$BEGIN {_SUBTRACT} RETURN NULL; END$$",
        f"{_ON_INSERT} EXECUTE FUNCTION ledger_add()",
        f"{_ON_DELETE} EXECUTE FUNCTION ledger_subtract()",
    ),
}
_DROP = {
    "sqlite": ("DROP TRIGGER ledger_inserted", "DROP TRIGGER ledger_deleted"),
    "postgresql": ("DROP FUNCTION ledger_add CASCADE", "DROP FUNCTION ledger_subtract CASCADE"),
}


def create_triggers(connection: Connection) -> None:
    """Create the triggers of the ledger, whose tables are there."""
    for statement in _CREATE[connection.dialect.name]:
        connection.exec_driver_sql(statement)


def drop_triggers(connection: Connection) -> None:
    """Remove them."""
    for statement in _DROP[connection.dialect.name]:
        connection.exec_driver_sql(statement)
