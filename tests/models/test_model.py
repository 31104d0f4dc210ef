"""Tests of unilect.models.model, on the bundled model's engine."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.backends.engine import Spy, chat, completion
from support.backends.leases import acquire
from support.common.waiting import until
from unilect.config.server import ModelConfig
from unilect.core.errors import BackendUnavailable
from unilect.core.requests import ChatRequest, Message
from unilect.demo import MODEL
from unilect.engines.gguf.engine import GgufEngine
from unilect.models.model import Model
from unilect.scheduling.fair_queue import QueueSettings
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import Echo, Options

IDLE_S = 0.001


@pytest.fixture
async def spy() -> AsyncIterator[Spy]:
    """The bundled model's engine, not started, and what becomes of it."""
    backend = Spy(GgufEngine("demo", MODEL, ModelConfig()))
    yield backend
    await backend.aclose()


async def until_stopped(model: Model) -> None:
    """Return once the model's idle stop is over."""
    while model._idle_timer is not None or model.stopping is not None:
        await asyncio.sleep(0)


def alive(spy: Spy) -> bool:
    """Whether the engine's process lives."""
    return bool(spy._generator.process.alive)


# Leases


async def test_a_lease_starts_the_backend(spy: Spy) -> None:
    """A model starts with its first lease, and many at the same time start it once."""
    model = Model("m", spy)
    assert not alive(spy)
    await asyncio.gather(*(acquire(model) for _ in range(20)))

    assert alive(spy)
    pid = spy._generator.process.pid
    await acquire(model)
    assert pid == spy._generator.process.pid


async def test_an_idle_backend_is_stopped(spy: Spy, caplog: pytest.LogCaptureFixture) -> None:
    """A backend that nobody uses for `idle_stop_s` is stopped, and started by the next lease, which is logged."""
    caplog.set_level("INFO", "unilect")
    model = Model("m", spy, idle_stop_s=IDLE_S)
    for _ in range(2):
        lease = await acquire(model)
        assert alive(spy)
        lease.release()
        await until_stopped(model)
        assert not alive(spy)

    assert spy.stops == 2
    assert 2 == caplog.text.count("m: starting, for a request")
    assert 2 == caplog.text.count("m: started in ")


async def test_a_stay_that_is_asked_for(spy: Spy) -> None:
    """How long a model stays can be said until it is stopped: for ever, for a time, or no longer than something runs."""
    model = Model("m", spy, idle_stop_s=3600)
    lease = await acquire(model)
    model.set_keep_alive(0)
    assert (None, True) == (model.stopping, model.runs_here)
    lease.release()
    await until_stopped(model)
    assert not alive(spy)

    (await acquire(model)).release()
    now_s = asyncio.get_running_loop().time()
    assert model.idle_stop_at is not None
    assert 3000 < model.idle_stop_at - now_s <= 3601
    model.set_keep_alive(60)
    assert model.idle_stop_at < now_s + 3000
    model.set_keep_alive(None)
    assert model.idle_stop_at is None
    model.set_keep_alive(0)
    await until_stopped(model)
    assert (False, 2) == (model.runs_here, spy.stops)


async def test_a_stay_of_what_never_stops(spy: Spy) -> None:
    """A model that is never stopped by itself is stopped once it was said how long it stays, and then stays again; one of another server always does."""
    model = Model("m", spy)
    for seconds in (IDLE_S, 0):
        (await acquire(model)).release()
        assert (None, None) == (model.idle_stop_at, model.stopping)
        model.set_keep_alive(seconds)
        await until_stopped(model)
        assert not alive(spy)
    elsewhere = Model("m", spy, runs_locally=False)
    (await acquire(elsewhere)).release()
    for seconds in (IDLE_S, 0):
        elsewhere.set_keep_alive(seconds)

    assert (None, None, 2) == (elsewhere.idle_stop_at, elsewhere.stopping, spy.stops)


@pytest.mark.parametrize("drains", [False, True])
async def test_a_stay_that_is_said_during_a_stop(spy: Spy, drains: bool) -> None:
    """What is said of a stay while a model is being stopped holds for the request that waits for the end of that."""
    model = Model("m", spy)
    (await acquire(model)).release()
    model.set_keep_alive(0)
    waiting = asyncio.create_task(acquire(model))
    await until(lambda: model.in_use == 1)
    assert model.stopping is not None
    if drains:
        model.drain()
    else:
        model.set_keep_alive(0)
    (await waiting).release()
    await until_stopped(model)

    assert (False, 2) == (alive(spy), spy.stops)


async def test_a_stay_of_what_does_not_run(spy: Spy) -> None:
    """A model that is told to stop once more, while it stops and when it has, stays as configured when it runs again."""
    model = Model("m", spy, idle_stop_s=3600)
    (await acquire(model)).release()
    model.set_keep_alive(0)
    model.set_keep_alive(0)
    await until_stopped(model)
    model.set_keep_alive(0)
    (await acquire(model)).release()

    assert model.idle_stop_at is not None
    assert (True, 1) == (alive(spy), spy.stops)


async def test_a_stay_of_a_drained_model(spy: Spy) -> None:
    """A model that is drained is stopped after its last request, whatever a request that is refused meanwhile has said of its stay."""
    model = Model("m", spy)
    lease = await acquire(model)
    model.drain()
    with pytest.raises(BackendUnavailable, match="drained"):
        await acquire(model)
    model.set_keep_alive(None)
    lease.release()
    await until_stopped(model)

    assert ("draining", False, 1) == (model.state, alive(spy), spy.stops)


async def test_a_lease_keeps_the_backend(spy: Spy) -> None:
    """A backend is not stopped while one of its leases is out."""
    model = Model("m", spy, idle_stop_s=IDLE_S)
    lease = await acquire(model)
    await acquire(model)
    lease.release()

    assert model._idle_timer is None
    assert alive(spy)


async def test_a_lease_before_the_stop(spy: Spy) -> None:
    """A lease that comes before the idle time is over cancels the stop."""
    model = Model("m", spy, idle_stop_s=60)
    lease = await acquire(model)
    lease.release()
    assert model._idle_timer is not None
    await acquire(model)

    assert (None, 0) == (model._idle_timer, spy.stops)


async def test_a_lease_during_the_stop(spy: Spy) -> None:
    """A lease that comes while the backend is being stopped waits, and finds it started."""
    model = Model("m", spy, idle_stop_s=IDLE_S)
    lease = await acquire(model)
    lease.release()
    while model.stopping is None:
        await asyncio.sleep(0)
    await acquire(model)

    assert alive(spy)


async def test_no_idle_stop(spy: Spy) -> None:
    """Without `idle_stop_s` a backend runs on."""
    model = Model("m", spy)
    lease = await acquire(model)
    lease.release()

    assert model._idle_timer is None


async def test_a_backend_that_cannot_start(tmp_path: Path) -> None:
    """A lease on a backend that cannot start is an error, and no lease."""
    path = tmp_path / "x.gguf"
    shutil.copy(MODEL, path)
    backend = GgufEngine("x", path, ModelConfig())
    path.unlink()
    model = Model("x", backend, idle_stop_s=60)
    with pytest.raises(BackendUnavailable):
        await acquire(model)

    assert model._in_use == 0
    await model.aclose()


async def test_closing_cancels_the_idle_stop(spy: Spy) -> None:
    """A model that is closed stops its backend once, and forgets about being idle."""
    model = Model("m", spy, idle_stop_s=60)
    lease = await acquire(model)
    lease.release()
    timer = model._idle_timer
    await model.aclose()

    assert timer is not None
    assert (True, False, 1) == (timer.cancelled(), alive(spy), spy.stops)


# Starts that nobody waits for any more


async def test_a_load_that_nobody_waits_for(spy: Spy) -> None:
    """A load goes on without the request that has begun it: the model tells what it does, and stays as long as is said then."""
    model = Model("m", spy)
    asked = asyncio.create_task(acquire(model))
    await until(lambda: spy._generator.process.state == "loading")
    asked.cancel()
    await asyncio.wait({asked})
    assert ("loading", 0, False) == (model.state, model.in_use, model.runs_here)
    await until(lambda: model.state == "ready")
    assert (True, True) == (alive(spy), model.runs_here)
    model.set_keep_alive(0)
    await until_stopped(model)

    assert ("stopped", False, False) == (model.state, alive(spy), model.runs_here)


@pytest.mark.parametrize("drains", [False, True])
async def test_a_stop_of_a_load_that_nobody_waits_for(spy: Spy, drains: bool) -> None:
    """A load that an operator has begun, and waits for no more, ends when the model is stopped or drained."""
    model = Model("m", spy)
    begun = asyncio.create_task(model.start())
    await until(lambda: spy._generator.process.state == "loading")
    begun.cancel()
    await asyncio.wait({begun})
    if drains:
        model.drain()
    else:
        model.set_keep_alive(0)
    await until_stopped(model)

    assert ("stopped", 1) == (spy._generator.process.state, spy.stops)
    assert ("draining" if drains else "stopped") == model.state


async def test_one_of_two_engines_cannot_start(spy: Spy) -> None:
    """Of a model that could not be started whole what runs counts, and is stopped when the model is."""
    model = Model("m", [PooledBackend(spy), PooledBackend(Echo(Options(failing_starts=9)))])
    with pytest.raises(BackendUnavailable, match="failing_starts"):
        await model.start()
    assert ("ready", True, True) == (model.state, model.runs_here, alive(spy))
    model.set_keep_alive(0)
    await until_stopped(model)

    assert ("stopped", False) == (model.state, alive(spy))


# Defaults


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (0.5, ["x"])),
        ({"temperature": 0.1}, (0.1, ["x"])),
        ({"temperature": None}, (None, ["x"])),
        ({"stop": []}, (0.5, [])),
    ],
)
async def test_defaults(spy: Spy, fields: dict[str, Any], expected: tuple[Any, Any]) -> None:
    """A default stands where a request leaves the parameter out; a null says that none is wanted."""
    model = Model("m", spy, defaults={"temperature": 0.5, "stop": ["x"]})
    request = chat(**fields)
    if "temperature" not in fields:
        request = request.changed(temperature=None)
    given = model.settings.apply(request)

    assert expected == (given.temperature, given.stop)
    if expected[0] is not None:
        assert bytes(given.raw_fields["temperature"]) == str(expected[0]).encode()


async def test_defaults_of_other_requests(spy: Spy) -> None:
    """A default of a parameter that a kind of request does not have is left out there."""
    model = Model("m", spy, defaults={"reasoning_effort": "low", "echo": True})

    assert "echo" not in model.settings.apply(chat()).raw_fields
    assert "reasoning_effort" not in model.settings.apply(completion()).raw_fields
    assert model.settings.apply(completion()).echo is True


async def test_defaults_without_wire(spy: Spy) -> None:
    """A request that another dialect built gets the defaults too."""
    model = Model("m", spy, defaults={"temperature": 0.5})
    request = ChatRequest(messages=[Message("user", "Hi")])

    assert model.settings.apply(request).temperature == 0.5


def test_slots() -> None:
    """How many requests a model answers at a time is known before its first one: of its backends together, where something bounds them."""
    bounded = [PooledBackend(Echo(), queue=QueueSettings(max_in_flight=most)) for most in (2, 3)]

    assert 5 == Model("m", bounded).slots
    assert Model("m", Echo()).slots is None


# The registry
