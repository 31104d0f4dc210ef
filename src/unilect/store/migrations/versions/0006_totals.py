"""The sums of the ledger's rows have a table of their own, which triggers keep."""

import sqlalchemy as sa
from alembic import op

from unilect.store._totals import create_triggers, drop_triggers

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Make the table, and fill it from the rows that are there."""
    op.create_table(
        "ledger_totals",
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("prompt", sa.BigInteger, nullable=False),
        sa.Column("completion", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("ledger_totals_by_key", "ledger_totals", ["key", "day"])
    connection = op.get_bind()
    create_triggers(connection)  # first: on PostgreSQL nobody writes a row from here on
    connection.exec_driver_sql(
        "INSERT INTO ledger_totals (day, key, owner, model, requests, prompt, completion, cost) "
        "SELECT day, key, owner, model, count(*), sum(prompt), sum(completion), sum(cost) FROM ledger "
        "GROUP BY day, key, owner, model"
    )


def downgrade() -> None:
    """Remove the table."""
    drop_triggers(op.get_bind())
    op.drop_table("ledger_totals")
