"""
The choice of the models that make room for another one, as functions of what is known: nothing here waits, or has an effect.

A model that was loaded keeps its turn for a time made of what a swap costs (`turn_s`), so that at most a fifth of the time goes by with
loading; whoever waits for its memory gets it at the end of that turn at the latest, but for answers that run then. One that is being loaded
is the newest, and is waited for: else one that is asked for all the time would leave whenever two others take turns.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from unilect.residency.space import NOTHING, Space, sum_up

#: Loads' lengths that a model stays at least, while it is asked for.
TURN = 4.0
_HALF_S = 60.0  # after so long without a request it is half as likely that the next one comes soon
_ASKED = 4.0  # how much more likely a model is needed again at once that is being asked for
_STEADY = 3.0  # turns after which a model counts as one that is always asked for, whose place is not the one that others take turns in
_MOST = 10  # models of which every set is looked at
_LEAST_S = 0.05  # no load is for nothing
_LEAST_SHARE = 1e-9  # of what is lacking
_LEAST_PART = 2  # of what it would take of a GPU a model gets such a part, or nobody leaves for it


class Loaded(NamedTuple):
    """
    A model in memory that may go, or may once it is loaded.

    Attributes:
        name: Its name.
        space: What is free once it is gone.
        reload_s: Seconds to load it again, as its file lies now.
        idle_s: Seconds since its last request came; 0 while one runs.
        stays_s: Seconds since it was loaded; below 0 until it is.
        turn_s: So long it stays at least while it is asked for.
        runs: A request runs in it.
    """

    name: str
    space: Space
    reload_s: float
    idle_s: float
    stays_s: float
    turn_s: float
    runs: bool = False

    @property
    def is_asked(self) -> bool:
        """True while its next request is likely to come before it could be loaded again."""
        return self.idle_s < max(self.reload_s, _LEAST_S)

    @property
    def due_s(self) -> float:
        """Seconds until it may go: at once if nobody asks for it, else at the end of its turn."""
        if not self.is_asked:
            return 0.0
        left_s = max(0.0, self.turn_s - self.stays_s)
        return left_s if self.runs else min(left_s, max(self.reload_s, _LEAST_S) - self.idle_s)

    @property
    def cost(self) -> float:
        """The seconds that it would cost to have it go: those of its load, as likely as it is asked for again; more where it always is."""
        reload_s = max(self.reload_s, _LEAST_S)
        if not self.is_asked:
            return reload_s / (1 + self.idle_s / _HALF_S)
        turns = self.stays_s / max(self.turn_s, _LEAST_S)
        return reload_s * _ASKED * (1 + min(_STEADY, max(0.0, turns)))


def turn_s(swap_wait_s: float, load_s: float) -> float:
    """Return how long a model stays that is asked for, while others wait."""
    return max(swap_wait_s, TURN * load_s)


def find_lack(need: Space, whole: Space, free: Space) -> Space:
    """
    Return the bytes that a model lacks; of the sum it may be less than 0.

    It lacks nothing of a GPU where pinned models leave it only a small part of what it would take: it is slow, whoever leaves.

    Args:
        need: What it is to have.
        whole: The same if no model was pinned.
        free: What is free.
    """
    gpus = zip(need.gpus, whole.gpus, free.gpus, strict=False)
    lacks = (
        max(0, one - left) if one and one * _LEAST_PART >= all_ else 0 for one, all_, left in gpus
    )
    return Space(need.total - free.total, tuple(lacks))


def choose_victims(loaded: Sequence[Loaded], lacking: Space) -> list[Loaded] | None:
    """
    Choose the cheapest set of models whose bytes are enough; None where all together are not.

    All sets are looked at for a few models; of more the cheapest for what they free go first, and who is not needed in the end stays.
    """
    if NOTHING.covers(lacking):
        return []
    if not _sum(loaded).covers(lacking):
        return None
    order = sorted(loaded, key=lambda one: one.cost / max(_LEAST_SHARE, _share(one.space, lacking)))
    if len(order) > _MOST:
        return _choose_greedily(order, lacking)
    best, least = list(order), math.inf
    priced = [(one.cost, one) for one in order]
    for count in range(1, len(order) + 1):
        for some in combinations(priced, count):
            cost = sum(price for price, _ in some)
            if cost < least and _sum(one for _, one in some).covers(lacking):
                best, least = [one for _, one in some], cost
    return best


def keep_promise(
    told: list[Loaded], chosen: list[Loaded] | None, lacking: Space
) -> list[Loaded] | None:
    """Return those for which somebody was told to wait, unless they are not enough any more, or those that are chosen now leave sooner."""
    if not chosen or not _sum(told).covers(lacking):
        return chosen
    return min(chosen, told, key=lambda some: max(one.due_s for one in some))


def _choose_greedily(order: Sequence[Loaded], lacking: Space) -> list[Loaded]:
    """Take the first that are enough, and leave out again whom the others make superfluous, the dearest first."""
    chosen, size = list[Loaded](), NOTHING
    for one in order:
        if size.covers(lacking):
            break
        chosen.append(one)
        size += one.space
    for one in sorted(chosen, key=lambda one: -one.cost):
        if (size - one.space).covers(lacking):
            chosen.remove(one)
            size -= one.space
    return chosen


def _sum(some: Iterable[Loaded]) -> Space:
    return sum_up(one.space for one in some)


def _share(space: Space, lacking: Space) -> float:
    """Return the part of what is lacking that is in some bytes, more than 1 where they are more; the parts of each GPU are added."""
    lacks, sizes = (lacking.total, *lacking.gpus), (space.total, *space.gpus)
    both = zip(lacks, sizes, strict=False)
    return sum(size / lack for lack, size in both if lack > 0)
