"""
Grammars and JSON Schemas of clients: checked, compiled in a helper process with limits, and validated against finished answers.

A constraint that passes is safe for an engine: it neither crashes nor hangs it.
"""

from unilect.core.errors import InvalidRequest


class ConstraintError(ValueError):
    """A grammar or schema that cannot be compiled: what is wrong, where, and what to do."""


def is_llguidance(grammar: str) -> bool:
    """Return True for a grammar in llguidance's own language; others are GBNF."""
    return grammar.lstrip().startswith("%llguidance")


def uncompilable(param: str, why: str) -> InvalidRequest:
    """Return the error for a constraint that cannot be compiled; its reason may repeat the constraint, so that the log has none."""
    told = f"`{param}` cannot be compiled"
    return InvalidRequest(
        f"{told}: {why.rstrip('.')}. Correct it, or make it simpler.",
        param=param,
        logged=f"{told}.",
    )
