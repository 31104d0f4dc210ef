"""Tests of unilect.models.registry: names, and models that leave."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator

import pytest

from support.backends.engine import Spy
from support.backends.leases import acquire
from unilect.config.server import ModelConfig
from unilect.core.errors import ModelNotFound
from unilect.demo import MODEL
from unilect.engines.gguf.engine import GgufEngine
from unilect.models import registry as registries
from unilect.models.model import Model
from unilect.models.registry import Registry


@pytest.fixture
async def spy() -> AsyncIterator[Spy]:
    """The bundled model's engine, not started, and what becomes of it."""
    backend = Spy(GgufEngine("demo", MODEL, ModelConfig()))
    yield backend
    await backend.aclose()


def alive(spy: Spy) -> bool:
    """Whether the engine's process lives."""
    return bool(spy._generator.process.alive)


async def test_get(spy: Spy) -> None:
    """A model is found by its name and its aliases; the first is the default."""
    one, two = Model("one", spy, aliases=["a", "two"]), Model("two", spy, aliases=["b"])
    registry = Registry([one, two])

    assert [one, one, one, two, two] == [
        registry.get(name) for name in (None, "one", "a", "two", "b")
    ]


@pytest.mark.heavy
async def test_what_has_left_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that was taken out leaves nothing in memory once it has stopped: its engine, and the process's side of it, refer to each other."""
    monkeypatch.setattr(registries, "_FREE_AFTER_S", 0)
    served = Registry([Model("m", GgufEngine("demo", MODEL, ModelConfig()))])
    lease = await acquire(served.get("m"))
    engine = weakref.ref(served.get("m").pool.members[0].backend)
    gc.disable()  # it might come by chance
    try:
        served.swap([])
        assert engine() is not None
        lease.release()
        del lease
        async with asyncio.timeout(30):
            while engine() is not None:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
        await served.aclose()

    assert [] == served._leaving


@pytest.mark.parametrize("name", ["", "ONE", "one ", "three", "x" * 10_000])
async def test_unknown_models(spy: Spy, name: str) -> None:
    """An unknown name is an error that lists the models, and is not repeated at length."""
    registry = Registry([Model("one", spy)])
    with pytest.raises(ModelNotFound) as raised:
        registry.get(name)

    assert raised.value.param == "model"
    assert "one" in raised.value.message
    assert len(raised.value.message) < 300


async def test_start(spy: Spy) -> None:
    """The models that are named are started, and all are stopped."""
    idle = Spy(GgufEngine("idle", MODEL, ModelConfig()))
    registry = Registry([Model("m", spy), Model("idle", idle)])
    await registry.start(["m"])
    assert (True, False) == (alive(spy), alive(idle))
    await registry.aclose()

    assert (False, 1, 1) == (alive(spy), spy.stops, idle.stops)
