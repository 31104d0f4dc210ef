"""The ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "ledger",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("backend", sa.Text, nullable=False),
        sa.Column("dialect", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("prompt", sa.BigInteger, nullable=False),
        sa.Column("cached", sa.BigInteger, nullable=False),
        sa.Column("completion", sa.BigInteger, nullable=False),
        sa.Column("first_token_ms", sa.Double),
        sa.Column("duration_ms", sa.Double, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("finish", sa.Text, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
    )
    op.create_index("ledger_by_time", "ledger", ["at"])
    op.create_index("ledger_by_key", "ledger", ["key", "at"])


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("ledger")
