"""
Memory that engines which start at the same time will take: none counts as free what another one is about to fill.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from unilect.engines.process.memory import own_bytes


class Starting(Protocol):
    """A process that loads a model."""

    @property
    def starting_pid(self) -> int | None:
        """Its id; None before it runs."""


class Reservations:
    """The memory that the starting engines of this process will take."""

    def __init__(self) -> None:
        self._bytes: dict[Starting, int] = {}

    @contextmanager
    def reserve(self, engine: Starting, size_bytes: int) -> Iterator[None]:
        """The time of an engine's start, at the end of which what it takes is taken, or is not needed any more."""
        self._bytes[engine] = size_bytes
        try:
            yield
        finally:
            del self._bytes[engine]

    def of_others(self, engine: Starting) -> int:
        """Return bytes that the engines which began to start before this one have yet to take."""
        left = 0
        for other, size_bytes in self._bytes.items():
            if other is engine:
                break
            taken = 0 if (pid := other.starting_pid) is None else own_bytes(pid)
            left += max(0, size_bytes - taken)
        return left


#: Of all engines of a server: they share the machine's memory.
RESERVATIONS = Reservations()
