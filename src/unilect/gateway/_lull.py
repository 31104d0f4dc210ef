"""
Waiting while the event loop has other work: what is done in groups is cheaper the more there is of it, and the processor must not be idle meanwhile.

A loop does not tell whether it has anything to do. It tells by how long a turn of it takes: the shortest one that was seen had nothing else
in it, and one that takes several times as long had.
"""

import asyncio
import math
import time
from collections.abc import Callable

_SHORT = 5  # times the shortest turn


class Lull:
    """
    The next moment in which the event loop has nothing else to do.

    Args:
        clock: Seconds, as exact as can be; the loop's own has milliseconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._shortest_s = math.inf

    async def wait(self, most_s: float) -> None:
        """Wait for it; for so long at most."""
        now = self._clock()
        until = now + most_s
        while now < until:
            await asyncio.sleep(0)
            before, now = now, self._clock()
            taken_s = now - before
            if taken_s < self._shortest_s:
                self._shortest_s = taken_s
            if taken_s <= _SHORT * self._shortest_s:
                return
