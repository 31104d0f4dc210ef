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
_WORK = {"INSERT": _ADD, "DELETE": _SUBTRACT}


def create_triggers(connection: Connection) -> None:
    """Create the triggers of the ledger, whose tables are there."""
    for event, work in _WORK.items():
        name = f"ledger_totals_on_{event.lower()}"
        begin = f"CREATE TRIGGER {name} AFTER {event} ON ledger FOR EACH ROW"
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(f"{begin} BEGIN {work} END")
        else:
            body = f"BEGIN {work} RETURN NULL; END"
            connection.exec_driver_sql(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$"
            )
            connection.exec_driver_sql(f"{begin} EXECUTE FUNCTION {name}()")


def drop_triggers(connection: Connection) -> None:
    """Remove them."""
    for event in _WORK:
        name = f"ledger_totals_on_{event.lower()}"
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
        else:
            connection.exec_driver_sql(f"DROP FUNCTION {name} CASCADE")
