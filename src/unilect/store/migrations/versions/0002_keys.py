"""API keys."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("models", sa.Text),
        sa.Column("limits", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("revoked_at", sa.Double),
        sa.Column("changed", sa.BigInteger, nullable=False),
    )
    op.create_index("keys_by_change", "keys", ["changed"])
    op.create_table(
        "key_secrets",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, sa.ForeignKey("keys.id", ondelete="CASCADE"), nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    changes = op.create_table(
        "key_changes",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, nullable=False),
    )
    op.bulk_insert(changes, [{"id": 1, "number": 0}])


def downgrade() -> None:
    """Remove the tables."""
    for table in ("key_changes", "key_secrets", "keys"):
        op.drop_table(table)
