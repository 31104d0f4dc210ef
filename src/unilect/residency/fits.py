"""The fits of models that are not in memory: what the residency would do if each was loaded now."""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, NamedTuple

from unilect.residency.policy import Loaded
from unilect.residency.residency import Residency
from unilect.residency.seat import Seat, State
from unilect.residency.space import NOTHING, Space


class Fit(NamedTuple):
    """
    The fit of a model that is not in memory.

    Attributes:
        verdict: *now*: its bytes are free. *evicts*: others leave for it, at the end of their turns. *waits*: not even all that may leave
            now have enough. *never*: the operator's budget has no room for it.
        evicts: The names of those that leave, sorted.
    """

    verdict: Literal["now", "evicts", "waits", "never"]
    evicts: Sequence[str] = ()


class Fits:
    """
    The fits of models at one moment.

    Args:
        residency: Has their places.
    """

    def __init__(self, residency: Residency) -> None:
        self._residency, self._account = residency, residency.account
        self._free = self._account.find_free()
        self._known: dict[Space, Fit] = {}  # by the bytes that are lacking: to choose is not cheap

    def of(self, seat: Seat) -> Fit | None:
        """Return the fit of a model; None where it has its bytes, or they are promised to it."""
        if seat.state is not State.GONE:
            return None
        if not self._account.can_fit(seat):
            return Fit("never")
        lacking = self._account.find_lack(seat, self._account.find_need(seat), self._free)
        lacking = lacking.join(NOTHING)
        if lacking not in self._known:
            self._known[lacking] = self._find(lacking)
        return self._known[lacking]

    def _find(self, lacking: Space) -> Fit:
        victims = [] if NOTHING.covers(lacking) else self._residency.choose(self._movable, lacking)
        if victims is None:
            return Fit("waits")
        return Fit("evicts", sorted(one.name for one in victims)) if victims else Fit("now")

    @cached_property
    def _movable(self) -> list[Loaded]:
        return [one for _, one in self._residency.list_movable(None) if one.stays_s >= 0]
