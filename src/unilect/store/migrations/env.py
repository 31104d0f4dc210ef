"""Alembic runs this: the migrations go through the connection, and the transaction, that `_migrate` has."""

from alembic import context

from unilect.store._tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table="unilect_version",
)
with context.begin_transaction():
    context.run_migrations()
