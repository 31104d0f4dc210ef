-- The tables. Statements are apart by an empty line; BLOB is BYTEA on PostgreSQL, and WITHOUT ROWID is SQLite's alone.
-- A response is one row, of which its texts are the last columns: what reads only the others does not read the pages of large texts.
-- `used_at` is when something was last added that needs the row, in seconds since 1970: it lives so long and the configured age.
CREATE TABLE responses (
  owner TEXT NOT NULL,
  id TEXT NOT NULL,
  parent TEXT,
  conversation TEXT,
  status TEXT NOT NULL,
  instance TEXT NOT NULL,
  created_at DOUBLE PRECISION NOT NULL,
  used_at DOUBLE PRECISION NOT NULL,
  size BIGINT NOT NULL, -- bytes of all texts
  events_size BIGINT NOT NULL, -- and of the events alone
  kept_at DOUBLE PRECISION NOT NULL, -- `used_at` of no ancestor is before this
  talk BLOB NOT NULL, -- MessagePack: input and output, of each id and body
  body BLOB NOT NULL,
  events BLOB,
  PRIMARY KEY (owner, id)
)

CREATE INDEX responses_by_use ON responses (owner, used_at, size)

CREATE INDEX responses_by_parent ON responses (owner, parent) WHERE parent IS NOT NULL

-- Where items are whose ids do not tell it.
CREATE TABLE response_items (
  owner TEXT NOT NULL,
  response TEXT NOT NULL,
  id TEXT NOT NULL,
  PRIMARY KEY (owner, response, id),
  FOREIGN KEY (owner, response) REFERENCES responses (owner, id) ON DELETE CASCADE
) WITHOUT ROWID

CREATE INDEX response_items_by_id ON response_items (owner, id)

CREATE TABLE conversations (
  owner TEXT NOT NULL,
  id TEXT NOT NULL,
  metadata BLOB NOT NULL,
  created_at DOUBLE PRECISION NOT NULL,
  used_at DOUBLE PRECISION NOT NULL,
  size BIGINT NOT NULL,
  next_position INTEGER NOT NULL,
  PRIMARY KEY (owner, id)
)

CREATE INDEX conversations_by_use ON conversations (owner, used_at, size)

CREATE TABLE conversation_items (
  owner TEXT NOT NULL,
  conversation TEXT NOT NULL,
  position INTEGER NOT NULL,
  id TEXT NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (owner, conversation, position),
  FOREIGN KEY (owner, conversation) REFERENCES conversations (owner, id) ON DELETE CASCADE
)

CREATE UNIQUE INDEX conversation_items_by_id ON conversation_items (owner, id, conversation)

CREATE TABLE instances (
  id TEXT NOT NULL PRIMARY KEY,
  touched_at DOUBLE PRECISION NOT NULL
)

CREATE TABLE keys (
  id TEXT NOT NULL PRIMARY KEY,
  name TEXT NOT NULL,
  owner TEXT NOT NULL,
  models TEXT, -- a JSON list
  limits TEXT NOT NULL, -- a JSON object
  created_at DOUBLE PRECISION NOT NULL,
  expires_at DOUBLE PRECISION,
  revoked_at DOUBLE PRECISION,
  changed BIGINT NOT NULL -- the number of its last change
)

CREATE INDEX keys_by_change ON keys (changed)

CREATE TABLE key_secrets (
  id TEXT NOT NULL PRIMARY KEY, -- the public part of the secret
  key TEXT NOT NULL REFERENCES keys (id) ON DELETE CASCADE,
  digest BLOB NOT NULL,
  expires_at DOUBLE PRECISION
)

-- Numbers of changes: of the last one, and of those that `keys.py` names.
CREATE TABLE key_changes (
  id INTEGER NOT NULL PRIMARY KEY,
  number BIGINT NOT NULL
)

INSERT INTO key_changes (id, number) VALUES (1, 0)

CREATE TABLE ledger (
  id TEXT NOT NULL PRIMARY KEY,
  at DOUBLE PRECISION NOT NULL, -- when the request came
  day INTEGER NOT NULL, -- days since 1970 of that, UTC
  key TEXT NOT NULL,
  owner TEXT NOT NULL,
  model TEXT NOT NULL,
  backend TEXT NOT NULL,
  dialect TEXT NOT NULL,
  endpoint TEXT NOT NULL,
  prompt BIGINT NOT NULL, -- tokens, also the next two
  cached BIGINT NOT NULL,
  completion BIGINT NOT NULL,
  first_token_ms DOUBLE PRECISION,
  duration_ms DOUBLE PRECISION NOT NULL,
  status INTEGER NOT NULL,
  finish TEXT NOT NULL,
  cost BIGINT NOT NULL -- millionths of the currency
)

CREATE INDEX ledger_by_time ON ledger (at)

CREATE INDEX ledger_by_key ON ledger (key, at)

-- The sums of the ledger's rows, which triggers keep: a row and its part of the sums come, and go, in one statement, whoever writes or
-- deletes it. Nothing else of a row changes than its status, which is in no sum.
CREATE TABLE ledger_totals (
  day INTEGER NOT NULL,
  key TEXT NOT NULL,
  owner TEXT NOT NULL,
  model TEXT NOT NULL,
  requests BIGINT NOT NULL,
  prompt BIGINT NOT NULL,
  completion BIGINT NOT NULL,
  cost BIGINT NOT NULL,
  PRIMARY KEY (day, key, owner, model)
) WITHOUT ROWID

CREATE INDEX ledger_totals_by_key ON ledger_totals (key, day)

-- What has happened to models: to their places in memory, and to their processes.
CREATE TABLE model_events (
  model TEXT NOT NULL,
  at DOUBLE PRECISION NOT NULL,
  server TEXT NOT NULL,
  kind TEXT NOT NULL,
  reason TEXT NOT NULL,
  numbers TEXT NOT NULL, -- a JSON object
  PRIMARY KEY (model, at, server, kind)
) WITHOUT ROWID

CREATE TABLE unilect_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)
