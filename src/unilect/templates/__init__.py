"""Chat templates: rendered as transformers renders them, in a sandbox, and what they take of a conversation."""
