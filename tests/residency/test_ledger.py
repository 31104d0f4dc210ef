"""Tests of unilect.residency.ledger."""

import os

from unilect.residency.ledger import Ledger
from unilect.runtime.memory import own_bytes

GB = 10**9


class Engine:
    """One that starts."""

    def __init__(self, pid: int | None = None) -> None:
        self.starting_pid = pid


def test_who_began_first_has_the_memory() -> None:
    """An engine reckons with what those before it will take, until they have started; those after it take no memory from it."""
    ledger, first, second, third = Ledger(), Engine(), Engine(), Engine()
    with ledger.reserve(second, 5):
        with ledger.reserve(first, 7), ledger.reserve(third, 1):
            told = [ledger.of_others(one) for one in (second, first, third)]
        after = ledger.of_others(first)

    assert [0, 5, 12] == told
    assert 5 == after
    assert 0 == ledger.of_others(first)


def test_what_is_taken_is_not_free_any_more() -> None:
    """What a starting process has already taken is not reckoned twice."""
    ledger, first, second = Ledger(), Engine(os.getpid()), Engine()
    taken = own_bytes(os.getpid())
    with ledger.reserve(first, taken + GB), ledger.reserve(second, 0):
        left = ledger.of_others(second)
    with ledger.reserve(first, taken // 2), ledger.reserve(second, 0):
        assert 0 == ledger.of_others(second)

    assert 0 < taken
    assert abs(left - GB) < GB // 10
