"""
The order in which models get their places, by what those who wait for them were charged for earlier loads.

A swap makes others wait for as long as it takes, and for the turn that the loaded model keeps after it. These seconds are charged to the
callers whose requests caused it, in equal parts, as tokens are in a backend's queue (`scheduling/fair_order.py`).

1. A model stands where that one of its callers stands who was charged least; among equals those first for whom the fewest models load.
2. Nobody saves up turns: who begins to wait stands at the present round at least. Nobody pays for loads for which nobody waited: all debts
   are off as soon as no request waits.
3. So of two callers that both wait all the time, neither gets more seconds than the other by more than one swap takes, however many models
   each of them asks for.
"""

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple


class Ticket(NamedTuple):
    """
    A request that waits for a model's place.

    Attributes:
        caller: Who has sent it.
        round: The round in which it came.
    """

    caller: str
    round: float


class Turns:
    """What callers were charged for loads, in seconds."""

    def __init__(self) -> None:
        self._charged: dict[str, float] = {}
        self._loading = Counter[str]()
        self._round = 0.0

    def forgive(self) -> None:
        """Forget all debts, since nobody waits."""
        self._charged.clear()
        self._round = 0.0

    def admit(self, caller: str) -> Ticket:
        """Make the ticket of a request that begins to wait."""
        return Ticket(caller, self._round)

    def rank(self, waiting: Collection[Ticket]) -> tuple[float, int]:
        """Return the place of a model with these requests: the seconds that its caller was charged, and how many models load for it."""
        places = ((self._find_round(one), self._loading[one.caller]) for one in waiting)
        return min(places, default=(self._round, 0))

    def begin(self, waiting: Collection[Ticket]) -> tuple[str, ...]:
        """Begin the load that these requests wait for; returns who pays for it."""
        self._round = max(self._round, self.rank(waiting)[0])
        for one in waiting:
            self._charged[one.caller] = self._find_round(one)
        payers = tuple(dict.fromkeys(one.caller for one in waiting))
        self._loading.update(payers)
        return payers

    def end(self, payers: Collection[str], seconds: float) -> None:
        """End a load, which made others wait for so long."""
        self._loading.subtract(payers)
        self._loading = +self._loading
        for caller in payers:
            self._charged[caller] = self._charged.get(caller, 0.0) + seconds / len(payers)

    def _find_round(self, ticket: Ticket) -> float:
        return max(ticket.round, self._charged.get(ticket.caller, 0.0))
