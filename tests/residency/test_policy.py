"""Tests of unilect.residency.policy."""

import random
from itertools import combinations

import pytest

from unilect.residency.policy import Loaded, choose_victims, find_lack, keep_promise, turn_s
from unilect.residency.space import Space

GB = 10**9


def loaded(name: str, size: int = GB, reload_s: float = 1.0, idle_s: float = 100.0, stays_s: float = 1000.0, runs: bool = False) -> Loaded:  # fmt: skip
    """A model in memory."""
    return Loaded(name, Space(size), reload_s, 0.0 if runs else idle_s, stays_s, 5.0, runs)


def names(*models: Loaded, lacking: int = GB) -> list[str] | None:
    """The names of those that go."""
    chosen = choose_victims(models, Space(lacking))
    return None if chosen is None else sorted(one.name for one in chosen)


def test_the_cheapest_goes() -> None:
    """Of two idle models the one goes that loads faster, of equal ones the one that was used longer ago, and one in use comes last."""
    assert ["b"] == names(loaded("a", reload_s=9), loaded("b"))
    assert ["a"] == names(loaded("a", idle_s=500), loaded("b"))
    assert ["a"] == names(loaded("a", reload_s=3), loaded("b", runs=True))
    assert ["a", "b"] == names(loaded("a"), loaded("b", runs=True), lacking=2 * GB)


def test_one_that_fits_is_better_than_two() -> None:
    """No more leave than are needed: a single large one, or two small ones, whichever costs less."""
    small = loaded("a"), loaded("b")
    assert ["c"] == names(*small, loaded("c", 2 * GB), lacking=2 * GB)
    assert ["a", "b"] == names(*small, loaded("c", 2 * GB, reload_s=9), lacking=2 * GB)


def test_nobody_goes_in_vain() -> None:
    """Nobody leaves where all together are not enough, or where nothing is lacking."""
    assert names(loaded("a"), lacking=2 * GB) is None
    assert [] == names(loaded("a"), lacking=0)


def test_many_models() -> None:
    """Of many models enough leave, and none of them for nothing."""
    chance = random.Random(3)
    many = [loaded(str(at), chance.randrange(GB), chance.random() * 9) for at in range(40)]
    chosen = choose_victims(many, Space(5 * GB))

    assert chosen is not None
    size = sum(one.space.total for one in chosen)
    assert size >= 5 * GB
    assert not any(size - one.space.total >= 5 * GB for one in chosen)
    few = many[:8]
    best = min(
        sum(one.cost for one in some)
        for count in range(1, 9)
        for some in combinations(few, count)
        if sum(one.space.total for one in some) >= GB
    )
    exact = choose_victims(few, Space(GB))
    assert exact is not None
    assert best == sum(one.cost for one in exact)


def test_a_turn() -> None:
    """A model that is asked for stays for its turn, and one that nobody asks for goes at once; a turn is a multiple of the load."""
    assert 3.0 == loaded("a", stays_s=2, runs=True).due_s
    assert 0.0 == loaded("a", stays_s=6, runs=True).due_s
    assert 0.0 == loaded("a", stays_s=2, idle_s=100).due_s
    assert (
        0.75 == loaded("a", stays_s=2, idle_s=0.25).due_s
    )  # by then it is as well to load it again
    assert (5.0, 40.0) == (turn_s(5.0, 0.5), turn_s(5.0, 10.0))


def test_who_is_always_asked_stays() -> None:
    """Two models take turns in one place, and a third that is asked for all the time keeps its own."""
    steady, newcomer = (
        loaded("steady", runs=True),
        loaded("new", reload_s=1.5, stays_s=5, runs=True),
    )
    assert ["new"] == names(steady, newcomer)


def test_who_loads_is_waited_for() -> None:
    """A model that is being loaded is the newest of those that are asked for, and stays until it is loaded, and its turn is over."""
    loading = loaded("loading", stays_s=-2, runs=True)
    assert 7.0 == loading.due_s
    assert ["loading"] == names(loaded("steady", runs=True), loading)
    assert ["idle"] == names(loaded("idle"), loading)


def test_a_promise() -> None:
    """Those that somebody was told to wait for are kept to, unless they are not enough any more, or others leave sooner."""
    told, newer = loaded("told", stays_s=3, runs=True), loaded("newer", stays_s=1, runs=True)
    assert [told] == keep_promise([told], [newer], Space(GB))
    assert [newer] == keep_promise([told], [newer], Space(2 * GB))
    assert [newer] == keep_promise([], [newer], Space(GB))
    assert keep_promise([told], None, Space(GB)) is None
    idle = loaded("idle")
    assert [idle] == keep_promise([told], [idle], Space(GB))


@pytest.mark.parametrize(
    ("need", "whole", "free", "lacking"),
    [
        ((8, 0), (8, 0), (2, 5), (6, 0)),
        ((8, 0), (8, 0), (9, -5), (0, 0)),  # what others have too much of a GPU is not its own
        ((4, 8), (8, 8), (0, 0), (4, 8)),
        ((3, 8), (8, 8), (0, 0), (0, 8)),  # beside pinned ones it would have little
    ],
)
def test_the_lack_of_gpus(
    need: tuple[int, ...], whole: tuple[int, ...], free: tuple[int, ...], lacking: tuple[int, ...]
) -> None:
    """A model lacks of each GPU what is not free there, where pinned ones leave it at least half of what it would take."""
    assert Space(-1, lacking) == find_lack(Space(8, need), Space(8, whole), Space(9, free))


@pytest.mark.parametrize("more", [0, 20])
def test_who_leaves_a_gpu(more: int) -> None:
    """Those leave that are on the GPU which lacks, though others would cost less; of few models and of many."""
    others = [loaded(str(at), reload_s=0.1) for at in range(more)]
    a, b = loaded("a", reload_s=3), loaded("b", reload_s=2)
    a, b = a._replace(space=Space(GB, (GB, 0))), b._replace(space=Space(GB, (0, GB)))
    idle = [*others, a, b]
    assert [a] == choose_victims(idle, Space(-GB, (GB, 0)))
    assert [b] == choose_victims(idle, Space(-GB, (0, GB)))
    assert {a, b} == set(choose_victims(idle, Space(0, (1, 1))) or ())
    assert choose_victims(idle, Space(0, (2 * GB, 0))) is None
    assert [] == choose_victims(idle, Space(-1, (0, 0)))
