"""Requests of several callers, without a server."""

from collections.abc import Iterator
from contextlib import contextmanager

from unilect.runtime.context import CURRENT_REQUEST, Context


@contextmanager
def of(caller: str) -> Iterator[None]:
    """Have what is done in the block be done for a request of this caller's."""
    before = CURRENT_REQUEST.set(Context(caller=caller))
    try:
        yield
    finally:
        CURRENT_REQUEST.reset(before)
