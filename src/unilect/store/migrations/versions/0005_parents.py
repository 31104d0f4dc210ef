"""Responses are found by the one that stands before them; that which run were found by an index that nothing used."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_CONTINUES = sa.text("parent IS NOT NULL")
_RUNS = sa.text("status IN ('queued', 'in_progress')")


def upgrade() -> None:
    """Have one index instead of the other."""
    op.drop_index("responses_running", "responses")
    columns = ["owner", "parent"]
    op.create_index("responses_by_parent", "responses", columns, sqlite_where=_CONTINUES, postgresql_where=_CONTINUES)  # fmt: skip


def downgrade() -> None:
    """Have the other one again."""
    op.drop_index("responses_by_parent", "responses")
    op.create_index("responses_running", "responses", ["instance"], sqlite_where=_RUNS, postgresql_where=_RUNS)  # fmt: skip
