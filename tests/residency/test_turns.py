"""Tests of unilect.residency.turns."""

from collections import Counter

from unilect.residency.turns import Ticket, Turns


def exchange(asked: dict[str, dict[str, float]], swaps: int) -> list[str]:
    """Give one place in turns to the models that callers always ask for, each of which takes so many seconds; returns the callers served."""
    turns, served = Turns(), list[str]()
    waiting = {(caller, model): turns.admit(caller) for caller in asked for model in asked[caller]}
    for _ in range(swaps):
        caller, model = min(waiting, key=lambda one: turns.rank([waiting[one]]))
        payers = turns.begin([waiting.pop((caller, model))])
        turns.end(payers, asked[caller][model])
        served.append(caller)
        waiting[caller, model] = turns.admit(caller)
    return served


def test_many_models_of_one_caller() -> None:
    """A caller that asks for one model waits for one swap of another at a time, however many models that one alternates between."""
    served = exchange({"many": dict.fromkeys("abcde", 6.0), "one": {"z": 6.0}}, 40)

    assert "many many" not in " ".join(served)


def test_seconds_are_what_is_shared() -> None:
    """Of two callers neither gets more seconds than the other by more than one swap takes, whose loads differ by a factor of ten."""
    seconds = {"large": {"a": 60.0, "b": 60.0}, "small": {"z": 6.0}}
    had = Counter[str]()
    for caller in exchange(seconds, 200):
        had[caller] += int(next(iter(seconds[caller].values())))
        assert abs(had["large"] - had["small"]) <= 60


def test_nobody_saves_up() -> None:
    """Who comes late stands beside those that wait, and not before them for all that it has never been charged."""
    turns = Turns()
    for _ in range(100):
        turns.end(turns.begin([turns.admit("old")]), 6.0)
    late = [turns.admit("late")]
    assert turns.rank(late)[0] > 500
    turns.end(turns.begin(late), 6.0)
    turns.end(turns.begin([turns.admit("late")]), 6.0)

    assert turns.rank([turns.admit("old")]) < turns.rank([turns.admit("late")])


def test_a_model_that_two_wait_for() -> None:
    """Callers that wait for one model share its price, and it stands where the one stands who was charged less."""
    turns = Turns()
    turns.end(turns.begin([turns.admit("x")]), 6.0)
    both = [turns.admit("x"), turns.admit("y")]
    assert (0.0, 0) == turns.rank(both)
    payers = turns.begin(both)
    assert ("x", "y") == payers
    assert (0.0, 1) == turns.rank([Ticket("y", 0.0)])
    turns.end(payers, 4.0)

    assert [(8.0, 0), (2.0, 0)] == [turns.rank([Ticket(one, 0.0)]) for one in "xy"]
    turns.forgive()
    assert (0.0, 0) == turns.rank([turns.admit("x")])
