"""Tests of unilect.scheduling.retry_budget."""

from hypothesis import strategies as st

from support.common.properties import given
from unilect.scheduling.retry_budget import EARNED, MOST, OVERDRAFT, RESERVE, RetryBudgets


def test_retries_that_are_answered_cost_nothing() -> None:
    """As long as retries are answered, every failure is tried again, many at the same time, too."""
    budgets = RetryBudgets()
    for _ in range(50):
        running = [budgets.request("a") for _ in range(int(OVERDRAFT + RESERVE))]
        assert all(one.take() for one in running)
        for one in running:
            one.settle(failed=False)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40))
def test_retries_that_fail(bursts: list[int]) -> None:
    """However many requests come at a time, of those that always fail no more are tried again than a few, and one for twenty."""
    budgets, requests, retries = RetryBudgets(), 0, 0
    for burst in bursts:
        running = [budgets.request("a") for _ in range(burst)]
        requests += burst
        retries += sum(one.take() for one in running)
        for one in running:
            one.settle(failed=True)

    assert retries <= OVERDRAFT + RESERVE + EARNED * requests + 1e-6


def test_each_caller_has_a_budget() -> None:
    """What one caller has used up another one still has."""
    budgets = RetryBudgets()
    for _ in range(90):
        one = budgets.request("a")
        one.take()
        one.settle(failed=True)

    assert (False, True) == (budgets.request("a").take(), budgets.request("b").take())


def test_who_leaves_gets_it_back() -> None:
    """A retry whose end nobody sees is given back, and says nothing of the next ones."""
    budgets = RetryBudgets()
    for _ in range(100):
        one = budgets.request("a")
        assert one.take()
        one.settle(failed=None)


def test_what_is_saved_up_is_bounded() -> None:
    """Many good requests earn a bounded number of retries, and many callers leave nothing behind."""
    budgets = RetryBudgets()
    for _ in range(1000):
        budgets.request("a").settle(failed=False)
    first = budgets.request("a")
    taken = 0
    while first.take():
        taken += 1
    for number in range(5000):
        budgets.request(f"{number}")

    assert taken == MOST + OVERDRAFT
    assert len(budgets._budgets) <= 1024
