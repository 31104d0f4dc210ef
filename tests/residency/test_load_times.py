"""Tests of unilect.residency.load_times."""

import pytest

from unilect.residency.load_times import Lie, LoadTimes

GB = 10**9
WARM, COLD = Lie(GB, 0), Lie(GB, GB)


def test_before_any_load() -> None:
    """A model that was never loaded is expected by the size of its files, and later where they have to be read."""
    times = LoadTimes()
    assert times.expect(Lie(0, 0)) < times.expect(WARM) < times.expect(COLD)


def test_by_kind() -> None:
    """A load is expected as those before it with the files in the page cache, or out of it; between them in between."""
    times = LoadTimes()
    times.note(2.0, WARM)
    times.note(10.0, COLD)
    assert (2.0, 10.0, 6.0) == pytest.approx(
        [times.expect(one) for one in (WARM, COLD, Lie(GB, GB / 2))]
    )


def test_one_slow_load() -> None:
    """One load that was slowed down changes nothing; when most are slow, they are what is expected."""
    times = LoadTimes()
    for seconds in (2.0, 2.0, 9.0):
        times.note(seconds, WARM)
    assert 2.0 == times.expect(WARM)
    for _ in range(3):
        times.note(9.0, WARM)
    assert 9.0 == times.expect(WARM)


def test_after_one_cold_load() -> None:
    """After the first load, which had to read, the next one is expected without the reading; a slow engine stays slow, a fast disk is believed."""
    times = LoadTimes()
    times.note(8.0, COLD)
    assert 6.0 == pytest.approx(times.expect(WARM))
    assert 8.0 == pytest.approx(times.expect(COLD))
    times = LoadTimes()
    times.note(0.5, COLD)
    assert times.expect(WARM) <= 0.5
