"""The bytes of a model, or of many: one sum for the machine and its GPUs together, and beside it those of each GPU."""

from collections.abc import Callable, Iterable
from itertools import zip_longest

from msgspec import Struct


class Space(Struct, frozen=True):
    """
    Some bytes.

    Attributes:
        total: On the machine and its GPUs together.
        gpus: Of these the ones on each GPU, in the order of `gpu_memory`; those that are left out have none.
    """

    total: int = 0
    gpus: tuple[int, ...] = ()

    def __add__(self, other: "Space") -> "Space":
        """Return both together."""
        return sum_up((self, other))

    def __sub__(self, other: "Space") -> "Space":
        """Return what is left without another one; numbers below 0 where it has more."""
        return self._pair(other, lambda one, two: one - two)

    def cap(self, other: "Space") -> "Space":
        """Return the smaller one of each two numbers."""
        return self._pair(other, min)

    def join(self, other: "Space") -> "Space":
        """Return the larger one of each two numbers."""
        return self._pair(other, max)

    def covers(self, other: "Space") -> bool:
        """Return True if it is enough for another one."""
        return self.total >= other.total and all(one >= 0 for one in (self - other).gpus)

    def _pair(self, other: "Space", make: Callable[[int, int], int]) -> "Space":
        pairs = zip_longest(self.gpus, other.gpus, fillvalue=0)
        return Space(make(self.total, other.total), tuple(make(*pair) for pair in pairs))


#: No bytes at all.
NOTHING = Space()


def sum_up(spaces: Iterable[Space]) -> Space:
    """Add up the bytes of some."""
    some = list(spaces)
    gpus = zip_longest(*(one.gpus for one in some), fillvalue=0)
    return Space(sum(one.total for one in some), tuple(map(sum, gpus)))
