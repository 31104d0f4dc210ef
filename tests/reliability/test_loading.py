"""Who waits for a model that loads, who leaves, and what a load that fails costs: over HTTP, on an echo whose load the test holds."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from inprocess import until

from support.servers.appserver import App, serving
from unilect.core.errors import BackendUnavailable
from unilect.engines.process import _restarts
from unilect.engines.process.child_process import ChildProcess
from unilect.testing.echo import Echo, Options

CLIENTS = 20


class Held(Echo):
    """
    An echo that is loaded when it is let go.

    Attributes:
        go: Lets it load, or fail.
    """

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self.go = asyncio.Event()

    async def _load(self) -> None:
        self.starts += 1
        await self.go.wait()
        if self.starts <= self._options.failing_starts:
            raise BackendUnavailable("The server is dead.")


async def posted(app: App) -> tuple[int, Any]:
    """The status and the body of a chat that is answered."""
    async with app.chat(stream=False) as response:
        return response.status, await response.json()


async def until_waiting(app: App, count: int) -> None:
    """Wait until so many requests are with the model, those whose client has left not among them."""
    (member,) = app.service.registry.get("m").pool.members

    async def reached() -> bool:
        return member.outstanding == count

    await until(reached)


async def test_impatient_clients_and_a_patient_one() -> None:
    """A model is loaded once, however many clients leave while it loads, and who waits is served."""
    held = Held()
    async with serving(held) as app:
        impatient = [asyncio.create_task(posted(app)) for _ in range(CLIENTS)]
        await until_waiting(app, CLIENTS)
        for task in impatient:
            task.cancel()
        await asyncio.gather(*impatient, return_exceptions=True)
        await until_waiting(app, 0)
        patient = asyncio.create_task(posted(app))
        await until_waiting(app, 1)
        held.go.set()
        status, body = await patient

    assert (200, "Hi") == (status, body["choices"][0]["message"]["content"])
    assert 1 == held.starts


async def test_a_load_that_is_awaited_with_a_deadline() -> None:
    """Clients with less patience than a load takes are what ends their own requests, and not the load."""
    echo = Echo(Options(load_s=0.3))
    async with serving(echo) as app:

        async def impatient() -> None:
            async with asyncio.timeout(0.05):
                await posted(app)

        left = await asyncio.gather(*(impatient() for _ in range(CLIENTS)), return_exceptions=True)
        status, _ = await posted(app)

    assert {TimeoutError} == {type(error) for error in left}
    assert (200, 1) == (status, echo.starts)


async def test_waiters_on_a_dead_upstream() -> None:
    """All who wait for a server that is dead are told by one attempt, with 503, and the next request tries anew."""
    held = Held(Options(failing_starts=1))
    async with serving(held, runs_locally=False) as app:
        waiting = [asyncio.create_task(posted(app)) for _ in range(CLIENTS)]
        await until_waiting(app, CLIENTS)
        held.go.set()
        told = await asyncio.gather(*waiting)
        once = held.starts
        status, _ = await posted(app)

    assert [503] * CLIENTS == [code for code, _ in told]
    assert {"The server is dead."} == {body["error"]["message"] for _, body in told}
    assert (1, 200) == (once, status)


class Failing(ChildProcess):
    """A child of which no start succeeds, and which starts nothing."""

    launches = 0

    async def _launch(self) -> dict[str, Any]:
        self.launches += 1
        raise BackendUnavailable("No memory.")


class Engine(Echo):
    """An echo in a child that cannot be started."""

    def __init__(self, child: Failing) -> None:
        super().__init__()
        self.child = child

    async def start(self) -> None:
        """Start the child."""
        await self.child.start()


async def test_loads_that_fail_are_backed_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of five loads that fail doubles the pause before the next; meanwhile requests are told at once why, and when to come."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(_restarts, "time", clock)
    monkeypatch.setattr(_restarts, "_LONGEST_WAIT_S", 0.0)  # nobody waits for the end of a pause
    engine = Engine(Failing("m", ["none"], lambda path: {}, start_timeout_s=60))
    launches, pauses = [], []
    async with serving(engine) as app:
        for _ in range(5):
            for _ in range(CLIENTS):
                status, body = await posted(app)
                assert (503, "No memory.") == (status, body["error"]["message"])
            launches.append(engine.child.launches)
            with pytest.raises(BackendUnavailable) as caught:
                await engine.start()
            pauses.append(caught.value.retry_after_s or 0.0)
            clock.now += pauses[-1]
    await engine.child.aclose()

    assert [1, 2, 3, 4, 5] == launches
    assert [_restarts.FIRST_PAUSE_S * 2**load for load in range(5)] == pauses
