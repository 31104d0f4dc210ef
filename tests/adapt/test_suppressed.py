"""Tests of unilect.adapt.suppressed; tests/reliability/test_ways_around.py has them behind a server."""

from support.common.entries import meter_of
from unilect.accounting.metrics import Metrics
from unilect.adapt.suppressed import SuppressedUsage
from unilect.core.events import Finish, Progress, TextDelta, Usage
from unilect.runtime.context import CURRENT_REQUEST, Context


def test_answers_that_are_held() -> None:
    """SuppressedUsage answers count as they are made, as their backend says in the end; one that is told counts as it is told, beside those before."""
    meter = meter_of(Metrics())
    CURRENT_REQUEST.set(Context(meter=meter))
    first = SuppressedUsage()
    first.see([Progress(1, 10)])
    first.see([Progress(10, 10), TextDelta("a"), TextDelta("b")])
    assert Usage(10, 2, 0) == meter.usage
    first.see([Finish("stop"), Usage(12, 5)])
    assert Usage(12, 5, 0) == meter.usage

    second = SuppressedUsage()
    second.see([TextDelta("abc", tokens=3)])
    assert Usage(12, 8, 0) == meter.usage
    second.see([TextDelta("d"), Usage(0, 0)])  # nobody says what it has used
    second.release()
    assert Usage(12, 5, 0) == meter.usage
    meter.see([TextDelta("abcd", tokens=4)])
    assert Usage(12, 9, 0) == meter.usage
    meter.see([Finish("stop"), Usage(24, 10)])
    assert Usage(24, 10) == meter.usage
    meter.finish(200)


def test_nobody_measures() -> None:
    """Where nothing measures a request nothing is counted."""
    CURRENT_REQUEST.set(None)
    held = SuppressedUsage()
    held.see([TextDelta("a"), Usage(1, 1)])
    held.release()
