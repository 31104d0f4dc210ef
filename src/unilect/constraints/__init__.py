"""
Grammars and JSON Schemas of clients: checked, compiled in a helper process with limits, and validated against finished answers.

A constraint that passes is safe for an engine: it neither crashes nor hangs it.
"""


class ConstraintError(ValueError):
    """A grammar or schema that cannot be compiled: what is wrong, where, and what to do."""
