"""Names of what an endpoint of the native protocol does not understand."""

from unilect.api.parameters.rules import parameters_of
from unilect.core.requests import Request


def list_ignored(asked: Request) -> list[str]:
    """Return the fields that an endpoint has no place for."""
    return sorted(asked.raw_fields.keys() - (parameters_of(type(asked)) - {"user"}))
