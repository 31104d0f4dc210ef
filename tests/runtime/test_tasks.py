"""Tests of unilect.runtime.tasks."""

import asyncio
import threading
from contextlib import suppress

import pytest

from unilect.core.errors import BackendUnavailable, UnilectError
from unilect.runtime.context import CURRENT_REQUEST, Context
from unilect.runtime.tasks import (
    Tasks,
    close_each,
    join_shared,
    list_in_slices,
    run_aside,
    spawn_detached,
)


async def caller() -> Context | None:
    """Whose request this is."""
    return CURRENT_REQUEST.get()


async def test_work_that_outlives_a_request() -> None:
    """What a request has caused, and does not belong to it, knows nothing of it; a task of its own does."""
    mine = Context(request_id="req-1", caller="me")
    token = CURRENT_REQUEST.set(mine)
    try:
        assert [mine, None] == [await asyncio.create_task(caller()), await spawn_detached(caller())]
    finally:
        CURRENT_REQUEST.reset(token)


async def test_ends_that_fail() -> None:
    """Each part is closed, in order, whatever the others do; no error is lost, and the first stands first."""
    closed = list[str]()

    async def fails(name: str) -> None:
        closed.append(name)
        raise KeyError(name)

    async def ends() -> None:
        closed.append("ends")

    with pytest.raises(KeyError) as raised:
        await close_each(ends, lambda: fails("first"), lambda: fails("second"), ends)
    assert ["ends", "first", "second", "ends"] == closed
    assert ["'second'", "'first'"] == [str(raised.value), str(raised.value.__context__)]
    await close_each(ends)


async def test_work_that_is_stopped() -> None:
    """All who wait for work that is cancelled are told so, and who leaves is cancelled and stops nothing."""
    gate = asyncio.Event()
    work = spawn_detached(gate.wait())
    left, *others = (asyncio.create_task(join_shared(work)) for _ in range(3))
    await asyncio.sleep(0)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert not work.done()
    work.cancel()
    for other in others:
        with pytest.raises(BackendUnavailable, match="was stopped"):
            await other


async def test_a_flaw_that_nobody_asks_for(caplog: pytest.LogCaptureFixture) -> None:
    """A flaw of a task that nobody waits for is logged; an error of ours is for who waits."""

    async def fail(error: Exception) -> None:
        raise error

    flaw, told = (
        spawn_detached(fail(KeyError("oops"))),
        spawn_detached(fail(BackendUnavailable("told"))),
    )
    await asyncio.wait({flaw, told})
    await asyncio.sleep(0)

    assert ["KeyError: 'oops'"] == [
        (record.exc_text or "").splitlines()[-1] for record in caplog.records
    ]


async def test_background_work_ends_with_its_owner() -> None:
    """Work that runs when its owner ends is cancelled, and has ended, with what it cleans up, when the owner has."""
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Future()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    tasks = Tasks()
    running, done = tasks.start("long work", work()), tasks.start("short work", asyncio.sleep(0))
    await asyncio.gather(begun.wait(), done)
    await tasks.aclose()

    assert ("long work", True, True) == (running.get_name(), running.cancelled(), cleaned.is_set())
    await tasks.aclose()


@pytest.mark.parametrize("error", [BackendUnavailable("no backend"), KeyError("flaw")])
async def test_background_work_that_fails(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Work that fails is told in the log by its name, an error of ours without its traceback."""

    async def fail() -> None:
        raise error

    tasks = Tasks()
    await asyncio.wait([tasks.start("the batch", fail())])
    await tasks.aclose()

    (record,) = caplog.records
    assert record.getMessage().startswith("the batch failed")
    assert isinstance(error, UnilectError) == (record.exc_info is None)


async def test_background_work_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Work that goes on when it is cancelled is told by its name, and does not keep its owner from ending."""
    monkeypatch.setattr("unilect.runtime.tasks.END_TIMEOUT_S", 0)
    begun, end = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        while not end.is_set():
            with suppress(asyncio.CancelledError):
                await end.wait()

    tasks = Tasks()
    task = tasks.start("the stubborn", stubborn())
    await begun.wait()
    await tasks.aclose()
    assert ["the stubborn was cancelled, and does not end"] == caplog.messages
    end.set()
    await task


async def test_a_long_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks have their turn while a long list is made."""
    monkeypatch.setattr("unilect.runtime.tasks.SLICE_S", 0)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    assert list(range(9)) == await list_in_slices(iter(range(9)))
    assert turns > 2
    task.cancel()


async def test_what_runs_aside() -> None:
    """What work in a thread returns or raises comes to who waits, and nobody need wait."""
    held = threading.Event()
    waiting = asyncio.ensure_future(run_aside(held.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    held.set()

    assert 3 == await run_aside(lambda: 3)
    with pytest.raises(ZeroDivisionError):
        await run_aside(lambda: 1 // 0)
