"""
The bytes that are promised: to engines that start, until they have taken them, and to models, as long as they stay.

Two loads never reckon with the same bytes: who is promised some is in here before it begins.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol

from unilect.residency.space import Space
from unilect.runtime.memory import own_bytes


class Starting(Protocol):
    """A process that loads a model."""

    @property
    def starting_pid(self) -> int | None:
        """Its id; None before it runs."""


class Ledger:
    """
    The bytes that were promised.

    Attributes:
        claims: Those of models that have a place, by model: all that each may take until it is stopped.
    """

    def __init__(self) -> None:
        self.claims: dict[Hashable, Space] = {}
        self._starting: dict[Starting, int] = {}

    @property
    def claimed(self) -> int:
        """The bytes of all models that have a place, on the machine and its GPUs together."""
        return sum(one.total for one in self.claims.values())

    @contextmanager
    def reserve(self, engine: Starting, size_bytes: int) -> Iterator[None]:
        """The time of an engine's start, at the end of which what it takes is taken, or is not needed any more."""
        self._starting[engine] = size_bytes
        try:
            yield
        finally:
            del self._starting[engine]

    def of_others(self, engine: Starting) -> int:
        """Return bytes that the engines which began to start before this one have yet to take."""
        left = 0
        for other, size_bytes in self._starting.items():
            if other is engine:
                break
            taken = 0 if (pid := other.starting_pid) is None else own_bytes(pid)
            left += max(0, size_bytes - taken)
        return left


#: Of all models and engines of a server: they share the machine's memory.
LEDGER = Ledger()
