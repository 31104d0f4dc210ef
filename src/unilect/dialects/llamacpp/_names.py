"""Names in the native protocol: those of errors, and of what was not understood."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from unilect.core.errors import UnilectError
from unilect.core.requests import Request


@contextmanager
def native_names(names: Mapping[str, str]) -> Iterator[None]:
    """Errors name the parameters as the client does."""
    try:
        yield
    except UnilectError as error:
        if (ours := error.param) is not None and ours in names:
            theirs = names[ours]
            error.message = error.message.replace(f"`{ours}`", f"`{theirs}`")
            error.param = theirs
        raise


def list_ignored(asked: Request) -> list[str]:
    """The fields that an endpoint has no place for."""
    return sorted(asked.raw_fields.keys() - asked.gateway_fields)
