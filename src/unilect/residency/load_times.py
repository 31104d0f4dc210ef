"""
The seconds that loads of a model take: those that were measured say what the next one takes, by how much of its files is in the page cache.

A load is what it takes with all of its files in the page cache, and reading the rest.
"""

from collections import deque
from statistics import median
from typing import NamedTuple

_DISK = 500e6  # bytes a second of a file that is not in the page cache
_WARM = 2e9  # the same of one that is, with all that a load does
_START_S = 0.3  # of an engine without a model
_KEPT = 5  # loads of each kind, of which the median counts: one that another load has slowed down is no measure
_FEW = 10  # less than such a part of the files on the disk is as good as none
_LEAST_S = 0.01


class Lie(NamedTuple):
    """The bytes of a model's files, and of those the ones that are not in the page cache."""

    size: float
    cold: float

    @property
    def is_warm(self) -> bool:
        """True if next to nothing has to be read from the disk."""
        return self.cold * _FEW <= self.size


class LoadTimes:
    """The last loads of a model."""

    def __init__(self) -> None:
        self._warm = deque[float](maxlen=_KEPT)
        self._cold = deque[tuple[float, Lie]](maxlen=_KEPT)

    def note(self, seconds: float, lie: Lie) -> None:
        """Keep what a load took, whose files lay like this when it began."""
        if lie.is_warm:
            self._warm.append(seconds)
        else:
            self._cold.append((seconds, lie))

    def expect(self, lie: Lie) -> float:
        """Return the seconds of a load whose files lie like this."""
        return self._warm_s(lie.size) + (0.0 if lie.is_warm else lie.cold / self._rate())

    def _warm_s(self, size: float) -> float:
        """Return the seconds without what is read from the disk."""
        if self._warm:
            return median(self._warm)
        usual = _START_S + size / _WARM
        if not self._cold:
            return usual
        return median(max(min(one, usual), one - lie.cold / _DISK) for one, lie in self._cold)

    def _rate(self) -> float:
        """Return the bytes that the disk gives in a second, by loads that had to read."""
        if not (self._cold and self._warm):
            return _DISK
        warm = median(self._warm)
        return median(lie.cold / max(_LEAST_S, one - warm) for one, lie in self._cold)
