"""Tests of unilect.residency.policy."""

import random
from itertools import combinations

from unilect.residency.policy import Loaded, choose_victims, keep_promise, turn_s

GB = 10**9


def loaded(name: str, size: int = GB, reload_s: float = 1.0, idle_s: float = 100.0, stays_s: float = 1000.0, runs: bool = False) -> Loaded:  # fmt: skip
    """A model in memory."""
    return Loaded(name, size, reload_s, 0.0 if runs else idle_s, stays_s, 5.0, runs)


def names(*models: Loaded, lacking: int = GB) -> list[str] | None:
    """The names of those that go."""
    chosen = choose_victims(models, lacking)
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
    chosen = choose_victims(many, 5 * GB)

    assert chosen is not None
    size = sum(one.bytes for one in chosen)
    assert size >= 5 * GB
    assert not any(size - one.bytes >= 5 * GB for one in chosen)
    few = many[:8]
    best = min(
        sum(one.cost for one in some)
        for count in range(1, 9)
        for some in combinations(few, count)
        if sum(one.bytes for one in some) >= GB
    )
    exact = choose_victims(few, GB)
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
    assert [told] == keep_promise([told], [newer], GB)
    assert [newer] == keep_promise([told], [newer], 2 * GB)
    assert [newer] == keep_promise([], [newer], GB)
    assert keep_promise([told], None, GB) is None
    idle = loaded("idle")
    assert [idle] == keep_promise([told], [idle], GB)
