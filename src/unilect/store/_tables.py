"""
The tables. A response is one row, of which its texts are the last columns: what reads only the others does not read the pages of large texts.

`used_at` is when something was last added that needs the row, in seconds since 1970: it lives so long and the configured age.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)

METADATA = MetaData()

responses = Table(
    "responses",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("parent", Text),
    Column("conversation", Text),
    Column("status", Text, nullable=False),
    Column("instance", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("used_at", Double, nullable=False),
    Column("size", BigInteger, nullable=False),  # bytes of all texts
    Column("events_size", BigInteger, nullable=False),  # and of the events alone
    Column("kept_at", Double, nullable=False),  # `used_at` of no ancestor is before this
    Column(
        "talk", LargeBinary, nullable=False
    ),  # MessagePack: input and output, of each id and body
    Column("body", LargeBinary, nullable=False),
    Column("events", LargeBinary),
    Index("responses_by_use", "owner", "used_at", "size"),
    Index(
        "responses_by_parent",
        "owner",
        "parent",
        sqlite_where=text("parent IS NOT NULL"),
        postgresql_where=text("parent IS NOT NULL"),
    ),
)
response_items = Table(  # where items are whose ids do not tell it
    "response_items",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("response", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    ForeignKeyConstraint(
        ["owner", "response"], ["responses.owner", "responses.id"], ondelete="CASCADE"
    ),
    Index("response_items_by_id", "owner", "id"),
    sqlite_with_rowid=False,
)
conversations = Table(
    "conversations",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("metadata", LargeBinary, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("used_at", Double, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("next_position", Integer, nullable=False),
    Index("conversations_by_use", "owner", "used_at", "size"),
)
conversation_items = Table(
    "conversation_items",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    ForeignKeyConstraint(
        ["owner", "conversation"], ["conversations.owner", "conversations.id"], ondelete="CASCADE"
    ),
    Index("conversation_items_by_id", "owner", "id", "conversation", unique=True),
)
keys = Table(
    "keys",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("models", Text),  # a JSON list
    Column("limits", Text, nullable=False),  # a JSON object
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    Column("changed", BigInteger, nullable=False),  # the number of its last change
    Index("keys_by_change", "changed"),
)
key_secrets = Table(
    "key_secrets",
    METADATA,
    Column("id", Text, primary_key=True),  # the public part of the secret
    Column("key", Text, ForeignKey("keys.id", ondelete="CASCADE"), nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("expires_at", Double),
)
key_changes = Table(  # numbers of changes: of the last one, and of those that `KeyRows` names
    "key_changes",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
)
ledger = Table(
    "ledger",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("at", Double, nullable=False),  # when the request came
    Column("day", Integer, nullable=False),  # days since 1970 of that, UTC
    Column("key", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("prompt", BigInteger, nullable=False),  # tokens, also the next two
    Column("cached", BigInteger, nullable=False),
    Column("completion", BigInteger, nullable=False),
    Column("first_token_ms", Double),
    Column("duration_ms", Double, nullable=False),
    Column("status", Integer, nullable=False),
    Column("finish", Text, nullable=False),
    Column("cost", BigInteger, nullable=False),  # millionths of the currency
    Index("ledger_by_time", "at"),
    Index("ledger_by_key", "key", "at"),
)
ledger_totals = Table(  # the sums of the ledger's rows, see `_totals`
    "ledger_totals",
    METADATA,
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("key", Text, primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("prompt", BigInteger, nullable=False),
    Column("completion", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Index("ledger_totals_by_key", "key", "day"),
    sqlite_with_rowid=False,
)
instances = Table(
    "instances",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("touched_at", Double, nullable=False),
)
