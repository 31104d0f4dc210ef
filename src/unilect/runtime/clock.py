"""
The time of day for what goes by the calendar, on a system whose clock may be set while the server runs.

A system's clock jumps where somebody sets it wrongly and back, where a virtual machine goes on, or where the network's time arrives after
the start. A budget of a day must not begin anew by that, nor a key expire. So the time here goes on evenly when the system's jumps, and
follows it once the system's clock has stayed at its new time for `BELIEVED_S`.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

log = logging.getLogger("unilect")
#: A system's clock that was set is followed when it has gone on evenly for so long.
BELIEVED_S = 600.0
#: A smaller correction is followed at once; the network's time makes such ones.
SMALL_S = 2.0


def _even() -> Callable[[], float]:
    """Seconds since some moment, by a clock that nobody sets; where there is one, it goes on while the machine sleeps."""
    kind = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if kind is None else partial(time.clock_gettime, kind)


class SteadyClock:
    """
    Seconds since 1970.

    Args:
        system: The clock that may be set, seconds since 1970.
        even: The clock that nobody sets, in seconds.

    Attributes:
        followers: Called after the time was corrected, with the time as it would have been, and as it is.
    """

    def __init__(
        self, system: Callable[[], float] = time.time, even: Callable[[], float] | None = None
    ) -> None:
        self._system, self._even = system, even or _even()
        self.followers: list[Callable[[float, float], None]] = []
        self._ahead = system() - self._even()  # of the even clock
        self._other: float | None = None  # the same by the system's clock, since it was set
        self._since = 0.0  # when that was seen first, by the even clock

    def __call__(self) -> float:
        """Return the time."""
        even = self._even()
        ahead = self._system() - even
        if -SMALL_S < ahead - self._ahead < SMALL_S:
            self._ahead = ahead
            if self._other is not None:
                self._other = None
                log.warning("the system's clock is right again")
            return ahead + even
        return self._hold_time(ahead, even)

    def _hold_time(self, ahead: float, even: float) -> float:
        """Return the time where the system's clock has been set."""
        if self._other is None or abs(ahead - self._other) >= SMALL_S:
            self._other, self._since = ahead, even
            log.warning(
                "the system's clock has jumped by %+.0f s; budgets and keys follow it if it stays so for %.0f minutes",
                ahead - self._ahead,
                BELIEVED_S / 60,
            )
        if even - self._since >= BELIEVED_S:
            before = self._ahead + even
            self._ahead, self._other = ahead, None
            log.warning("the time of budgets and keys follows the system's clock")
            for follow in self.followers:
                follow(before, ahead + even)
        return self._ahead + even
