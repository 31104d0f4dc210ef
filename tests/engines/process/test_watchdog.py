"""Tests of unilect.engines.process._watchdog."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from support.common.waiting import until
from unilect.core.errors import BackendUnavailable
from unilect.engines.process import _watchdog
from unilect.engines.process._watchdog import Watchdog


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks often."""
    monkeypatch.setattr(_watchdog, "PAUSE_S", 0.01)


class Kept:
    """
    What a watchdog says.

    Attributes:
        hung, well: When it had asked.
        watchdog: It.
    """

    def __init__(self, ask: Callable[[], Awaitable[bool]]) -> None:
        self.hung: list[float] = []
        self.well: list[float] = []
        self.watchdog = Watchdog(ask, self.hung.append, self.well.append, patience_s=0.1)


async def test_a_request_that_comes_during_the_last_look() -> None:
    """A request that comes while the last answer is waited for is watched, and its hang is seen."""
    asked, gate, hangs = asyncio.Event(), asyncio.Event(), False

    async def ask() -> bool:
        asked.set()
        await (asyncio.sleep(60) if hangs else gate.wait())
        return True

    kept = Kept(ask)
    kept.watchdog.enter()
    kept.watchdog.leave()
    await asked.wait()
    kept.watchdog.enter()
    hangs = True
    gate.set()
    await until(lambda: kept.hung)
    kept.watchdog.leave()
    kept.watchdog.stop()


async def test_an_error_does_not_end_the_watch() -> None:
    """An engine that cannot be asked once, because it is being started again, is watched all the same."""
    answers = [BackendUnavailable("gone")]

    async def ask() -> bool:
        if answers:
            raise answers.pop()
        await asyncio.sleep(60)
        return True

    kept = Kept(ask)
    kept.watchdog.enter()
    await until(lambda: kept.hung)
    kept.watchdog.stop()


async def test_it_goes_home() -> None:
    """After the last request it looks once more, says when it asked, and rests until the next."""

    async def ask() -> bool:
        return True

    kept = Kept(ask)
    began = time.monotonic()
    kept.watchdog.enter()
    kept.watchdog.leave()
    task = kept.watchdog._task
    assert task is not None
    await task
    assert 1 == len(kept.well)
    assert kept.well[0] > began
    kept.watchdog.enter()
    assert kept.watchdog._task is not task
    kept.watchdog.stop()
