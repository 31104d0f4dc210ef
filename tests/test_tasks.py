"""Tests of unilect.tasks."""

import asyncio

import pytest

from unilect.context import IN_HAND, Record
from unilect.errors import BackendUnavailable
from unilect.tasks import apart, shared


async def caller() -> Record | None:
    """Whose request this is."""
    return IN_HAND.get()


async def test_work_that_outlives_a_request() -> None:
    """What a request has caused, and does not belong to it, knows nothing of it; a task of its own does."""
    mine = Record("req-1", "me")
    token = IN_HAND.set(mine)
    try:
        assert [mine, None] == [await asyncio.create_task(caller()), await apart(caller())]
    finally:
        IN_HAND.reset(token)


async def test_work_that_is_stopped() -> None:
    """All who wait for work that is cancelled are told so, and who leaves is cancelled and stops nothing."""
    gate = asyncio.Event()
    work = apart(gate.wait())
    left, *others = (asyncio.create_task(shared(work)) for _ in range(3))
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

    flaw, told = apart(fail(KeyError("oops"))), apart(fail(BackendUnavailable("told")))
    await asyncio.wait({flaw, told})
    await asyncio.sleep(0)

    assert ["KeyError: 'oops'"] == [
        (record.exc_text or "").splitlines()[-1] for record in caplog.records
    ]
