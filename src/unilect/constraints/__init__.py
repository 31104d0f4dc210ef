"""
Grammars and JSON Schemas of clients: looked at, compiled in a helper process with limits, and held against finished answers.

What passes here can be given to an engine: it neither kills it nor keeps it busy for long.
"""


class ConstraintError(ValueError):
    """A grammar or schema that cannot be followed: what is wrong, where, and what to do."""
