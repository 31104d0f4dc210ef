"""Stored responses and conversations."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    _responses()
    _conversations()
    op.create_table(
        "instances",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("touched_at", sa.Double, nullable=False),
    )


def downgrade() -> None:
    """Remove the tables."""
    for table in (
        "instances",
        "conversation_items",
        "conversations",
        "response_parts",
        "responses",
    ):
        op.drop_table(table)


def _responses() -> None:
    op.create_table(
        "responses",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("parent", sa.Text),
        sa.Column("conversation", sa.Text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("used_at", sa.Double, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("events_size", sa.BigInteger, nullable=False),
    )
    running = sa.text("status IN ('queued', 'in_progress')")
    op.create_index("responses_by_age", "responses", ["used_at", "size"])
    op.create_index(
        "responses_running",
        "responses",
        ["instance"],
        sqlite_where=running,
        postgresql_where=running,
    )
    op.create_table(
        "response_parts",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("response", sa.Text, primary_key=True),
        sa.Column("kind", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(
            ["owner", "response"], ["responses.owner", "responses.id"], ondelete="CASCADE"
        ),
    )
    op.create_index("response_parts_by_id", "response_parts", ["owner", "id"])


def _conversations() -> None:
    op.create_table(
        "conversations",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("used_at", sa.Double, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("next_position", sa.Integer, nullable=False),
    )
    op.create_index("conversations_by_age", "conversations", ["used_at", "size"])
    op.create_table(
        "conversation_items",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("conversation", sa.Text, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(
            ["owner", "conversation"],
            ["conversations.owner", "conversations.id"],
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "conversation_items_by_id",
        "conversation_items",
        ["owner", "id", "conversation"],
        unique=True,
    )
