"""The account of a server's memory: what its models may take, what they were promised, and what one of them needs and lacks."""

from collections.abc import Collection, Mapping

from unilect.core.errors import ModelTooLarge
from unilect.residency.events import describe_size
from unilect.residency.ledger import Ledger
from unilect.residency.policy import find_lack
from unilect.residency.seat import Resident, Seat
from unilect.residency.space import NOTHING, Space, sum_up


class Account:
    """
    The account of a server's memory.

    Of the sum what cannot fit is refused, where the operator has set a budget. Of a GPU nothing is: a model needs there no more than it can
    have, and has the rest elsewhere.

    Args:
        budget: The bytes that all models together may take.
        is_hard: The operator has said so.
        seats: The models that take part.
        ledger: Has the promises.

    Attributes:
        budget, is_hard: As given.
        claims: The promises, by place.
    """

    def __init__(
        self, budget: Space, is_hard: bool, seats: Mapping[Resident, Seat], ledger: Ledger
    ) -> None:
        self.budget, self.is_hard, self._seats = budget, is_hard, seats
        self.claims = ledger.claims

    @property
    def claimed(self) -> Space:
        """The bytes of the models that have a place."""
        return sum_up(self.claims[seat] for seat in self._seats.values() if seat.has_place)

    @property
    def _going(self) -> Collection[Seat]:
        """The models whose bytes will be free soon."""
        return {one for one in self._seats.values() if one.goes}

    def find_free(self) -> Space:
        """Return the bytes that are promised to nobody who stays; less than 0 where too much is."""
        going = self._going
        taken = (size for seat, size in self.claims.items() if seat not in going)
        return self.budget - sum_up(taken)

    def reckon(self, seat: Seat) -> Space:
        """Return the bytes that a model takes at most, of each GPU no more than pinned ones leave it."""
        need = seat.need
        gpus = need.cap(self._find_most(seat)).gpus if self.budget.gpus else ()
        return Space(need.total, gpus)

    def find_need(self, seat: Seat) -> Space:
        """Return the bytes that a model is to have: no more than it can, where nobody has said that it must not be tried."""
        need = self.reckon(seat)
        total = need.total if self.is_hard else min(need.total, self._find_most(seat).total)
        return Space(total, need.gpus)

    def find_lack(self, seat: Seat, need: Space, free: Space) -> Space:
        """Return what a model lacks that is to have so much, where so much is free."""
        return find_lack(need, seat.need.cap(self.budget), free)

    def grow(self, seat: Seat) -> Space:
        """Promise a model what it takes by now, where that is more; returns its promise."""
        claim = self.claims[seat] = self.claims[seat].join(self.reckon(seat))
        return claim

    def may_start(self, seat: Seat) -> bool:
        """Return True if what was promised to a model is there, or as much of it as ever: it waits for nobody who goes."""
        size, left, going = self.claims[seat], self.budget - self.claimed, self._going
        lacking = self.find_lack(seat, size, left)
        held = sum_up(self.claims[one] for one in going)
        gpus = zip(lacking.gpus, held.gpus, strict=False)
        return not going or not (lacking.total > 0 or any(lack and holds for lack, holds in gpus))

    def can_fit(self, seat: Seat) -> bool:
        """Return False where the operator's budget has no room for a model, whatever leaves."""
        return not self.is_hard or seat.need.total <= self._find_most(seat).total

    def check_fits(self, seat: Seat) -> None:
        """
        Raises:
            ModelTooLarge: As `can_fit`.
        """
        if self.can_fit(seat):
            return
        need, most, budget = seat.need.total, self._find_most(seat).total, self.budget.total
        pins = budget - most
        beside = f", of which pinned models have {describe_size(pins)}" if pins else ""
        sizes = f"it needs {describe_size(need)}, and `memory` is {describe_size(budget)}{beside}"
        told = (
            f"{seat.model.name}: refused: {sizes}. Lower its `context` or `parallel`, take fewer bits, or raise `memory`"
            f"{', or unpin a model' if pins else ''}."
        )
        seat.events.add("refused", told, need_bytes=need, most_bytes=most)
        raise ModelTooLarge(
            f"The model `{seat.model.name}` does not fit into this server's memory: {sizes}. Ask another model.",
            reason=told,
        )

    def _find_most(self, seat: Seat) -> Space:
        """Return the bytes that a model can ever have, beside those that are pinned."""
        others = (one for one in self._seats.values() if one.model.name != seat.model.name)
        pinned = sum_up(one.need for one in others if one.model.pinned)
        return (self.budget - pinned).join(NOTHING)
