"""Tests of unilect.engines.process.reservations."""

import os

from unilect.engines.process.memory import own_bytes
from unilect.engines.process.reservations import Reservations

GB = 10**9


class Engine:
    """One that starts."""

    def __init__(self, pid: int | None = None) -> None:
        self.starting_pid = pid


def test_who_began_first_has_the_memory() -> None:
    """An engine reckons with what those before it will take, until they have started; those after it take no memory from it."""
    reservations, first, second, third = Reservations(), Engine(), Engine(), Engine()
    with reservations.reserve(second, 5):
        with reservations.reserve(first, 7), reservations.reserve(third, 1):
            told = [reservations.of_others(one) for one in (second, first, third)]
        after = reservations.of_others(first)

    assert [0, 5, 12] == told
    assert 5 == after
    assert 0 == reservations.of_others(first)


def test_what_is_taken_is_not_free_any_more() -> None:
    """What a starting process has already taken is not reckoned twice."""
    reservations, first, second = Reservations(), Engine(os.getpid()), Engine()
    taken = own_bytes(os.getpid())
    with reservations.reserve(first, taken + GB), reservations.reserve(second, 0):
        left = reservations.of_others(second)
    with reservations.reserve(first, taken // 2), reservations.reserve(second, 0):
        assert 0 == reservations.of_others(second)

    assert 0 < taken
    assert abs(left - GB) < GB // 10
