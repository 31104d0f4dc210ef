"""Requests of several callers, without a server."""

from collections.abc import Iterator
from contextlib import contextmanager

from unilect.runtime.context import IN_HAND, Context


@contextmanager
def of(caller: str) -> Iterator[None]:
    """Have what is done in the block be done for a request of this caller's."""
    before = IN_HAND.set(Context(caller=caller))
    try:
        yield
    finally:
        IN_HAND.reset(before)
