"""Indexes of what is stored by owner and age, since who has most of it loses it first."""

from alembic import op

revision = "0007"
down_revision = "0006"

_TABLES = ("responses", "conversations")


def upgrade() -> None:
    """Have indexes that begin with the owner."""
    for table in _TABLES:
        op.create_index(f"{table}_by_use", table, ["owner", "used_at", "size"])
        op.drop_index(f"{table}_by_age", table)


def downgrade() -> None:
    """Have the older ones again."""
    for table in _TABLES:
        op.create_index(f"{table}_by_age", table, ["used_at", "size"])
        op.drop_index(f"{table}_by_use", table)
