"""
The restarts of a child: when it may be started again after it died, and after starts that failed.

1. A child that dies is started again at once, and from the second death in `FORGIVEN_AFTER_S` on after a pause that doubles with every
   one; after `MAX_DEATHS` of them it is given up until that time has passed, or until it is forgiven. Deaths for which one request is
   known to be to blame do not count (`_crash_blame.py`).
2. A start that fails is repeated after a pause that doubles, too.
"""

import time
from collections import deque

from unilect.core.errors import BackendUnavailable, ModelTooLarge

FORGIVEN_AFTER_S = 600.0
MAX_DEATHS = 5
# of the second death, and of the first start that fails: a single death is usually an accident, and clients wait for the new child
FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 30.0
_LONGEST_WAIT_S = 2.5  # for a pause to end; of a longer one requests are told at once


class Restarts:
    """
    The deaths and the failed starts of one child. Times are of `time.monotonic`.

    Attributes:
        deaths: When it died, without the deaths that do not count.
        failures: The starts that failed since it was last ready.
        ended_at: When it died or failed last; 0 for never.
    """

    def __init__(self) -> None:
        self.deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self.failures = 0
        self.ended_at = 0.0
        self._failure = BackendUnavailable("")  # the last one

    def note_death(self, solved: int) -> None:
        """Count a death; `solved`: how many of the last ones, with this one, have a culprit now, and do not count."""
        self.ended_at = time.monotonic()
        self.deaths.append(self.ended_at)
        for _ in range(min(solved, len(self.deaths))):
            self.deaths.pop()

    def note_failure(self, error: BackendUnavailable) -> None:
        """Count a start that failed."""
        self.failures += 1
        self._failure = error.alone()
        self.ended_at = time.monotonic()

    def forgive(self) -> None:
        """Forget all of it."""
        self.deaths.clear()
        self.failures, self.ended_at = 0, 0.0

    @property
    def is_given_up(self) -> bool:
        """True while it has died too often to be started again."""
        now = time.monotonic()
        while self.deaths and now - self.deaths[0] > FORGIVEN_AFTER_S:
            self.deaths.popleft()
        return len(self.deaths) == MAX_DEATHS

    @property
    def rest_s(self) -> float:
        """Seconds until it may be started again."""
        if self.is_given_up:
            return self.deaths[0] + FORGIVEN_AFTER_S - time.monotonic()
        times = max(len(self.deaths) - 1, self.failures)
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(10, times - 1)) if times > 0 else 0.0
        return max(0.0, self.ended_at + pause_s - time.monotonic()) if self.ended_at else 0.0

    def check(self) -> None:
        """
        Check that a request may wait for the next start.

        Raises:
            BackendUnavailable: It is given up, or its start fails again and again.
        """
        if self.is_given_up:
            raise BackendUnavailable(
                f"The engine of this model died {MAX_DEATHS} times within {FORGIVEN_AFTER_S:.0f} s and "
                "is not restarted for now. The server's log has the reason.",
                retry_after_s=self.rest_s,
            )
        if self.failures and (rest_s := self.rest_s) > _LONGEST_WAIT_S:
            if isinstance(self._failure, ModelTooLarge):
                raise self._failure.alone()
            raise BackendUnavailable(
                self._failure.message, retry_after_s=rest_s, reason=self._failure.reason
            )

    def describe(self) -> str:
        """Describe what comes after a death, in words."""
        rest_s = self.rest_s
        if self.is_given_up:
            return f"it died {MAX_DEATHS} times within {FORGIVEN_AFTER_S:.0f} s, and is not started again for {rest_s:.0f} s, unless it is loaded by hand"
        return f"it is started again in {rest_s:.1f} s" if rest_s > 0 else "it is started again at once"  # fmt: skip
