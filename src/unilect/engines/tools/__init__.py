"""Tools and messages in the formats of models' templates, and the parsing of tool calls."""
