"""Tests of unilect.residency.fits: what is told of a load is what a load then does."""

import asyncio

import pytest

from support.backends.rooms import hold, model, room, use
from support.common.waiting import until
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.residency.fits import Fit, Fits


def fit_of(registry: Registry, one: Model) -> Fit | None:
    """The fit of a model now."""
    assert registry.residency is not None
    assert one.place is not None
    return Fits(registry.residency).of(one.place)


async def test_a_fit_comes_true() -> None:
    """Who fits is loaded beside the others; who does not is loaded instead of the one that was named."""
    a, b, c = model("a"), model("b"), model("c")
    async with room(a, b, c) as registry:
        await use(a)
        assert (None, Fit("now")) == (fit_of(registry, a), fit_of(registry, b))
        await use(b)
        assert a.place is not None
        a.used_at, a.place.loaded_at = a.used_at - 100, a.used_at - 200
        assert Fit("evicts", ["a"]) == fit_of(registry, c)
        await use(c)

        assert [False, True, True] == [one.runs_here for one in (a, b, c)]


@pytest.mark.parametrize(("pinned", "size"), [(0, 30), (15, 10)])
async def test_what_can_never_fit(pinned: int, size: int) -> None:
    """The operator's budget has no room for it, or none beside a model that never leaves."""
    one, other = model("one", size), model("pinned", pinned, pinned=True)
    async with room(one, other) as registry:
        assert Fit("never") == fit_of(registry, one)


async def test_what_nobody_leaves_for() -> None:
    """A model that is being loaded does not leave."""
    a, b = model("a", 15), model("b")
    started = hold(a, "start")
    async with room(a, b) as registry:
        loading = asyncio.create_task(use(a))
        await until(lambda: a.is_loading)
        assert Fit("waits") == fit_of(registry, b)
        started.set()
        await loading
        assert Fit("evicts", ["a"]) == fit_of(registry, b)
