"""The ledger with each of: a month's sum, a reload, a clock that jumps."""

import asyncio
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from support.common.ledger_rows import DIFFERENCES
from support.common.waiting import until
from support.servers.metered import WHOLE, metered
from unilect.config.limits import LimitsConfig
from unilect.runtime import clock as clocks
from unilect.server import _usage, listener
from unilect.store.sql import ledger as statements

DAY_S = 86_400


class Slow:
    """
    Sums of a ledger that last as long as a test wants, in the middle of their transactions.

    Attributes:
        begun: How many have read.
        goes_on: Lets them end.
    """

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        self.begun, self.goes_on = 0, threading.Event()
        read = getattr(statements, name)

        def slowly(*args: Any) -> Any:
            found = read(*args)
            self.begun += 1
            assert self.goes_on.wait(20)
            return found

        patch.setattr(statements, name, slowly)


def ledger_of(file: Path) -> list[tuple[Any, ...]]:
    """The days and the tokens of a file's rows; its totals are their sums."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as opened:
        assert [] == opened.execute(DIFFERENCES).fetchall()
        return opened.execute("SELECT day, prompt + completion FROM ledger ORDER BY at").fetchall()


async def test_a_months_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a month is summed up rows are written, and keys looked up; a key that asks for more sums than it may is told so, another one waits."""
    url = f"sqlite:///{tmp_path / 'x.db'}"
    async with metered(url) as server:
        ann, bob = [await server.create(name, tokens_per_day=10_000.0) for name in ("ann", "bob")]
        assert 200 == await server.status(ann)
        slow = Slow(monkeypatch, "sums")
        sums = [asyncio.create_task(server.used(ann)) for _ in range(_usage.MOST_AT_ONCE)]
        await until(lambda: slow.begun == len(sums))
        assert 200 == await server.status(ann)
        assert 200 == await server.status(bob)
        status, body = await server.usage(ann)
        assert (429, "rate_limit_exceeded") == (status, body["error"]["code"])
        sums.append(asyncio.create_task(server.used(bob)))
        assert 3 == len(ledger_of(tmp_path / "x.db"))
        assert not any(one.done() for one in sums)
        slow.goes_on.set()
        assert [[WHOLE]] * 3 == await asyncio.gather(*sums)
        assert [2 * WHOLE] == await server.used(ann)


async def test_a_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a reload's new budget reads what was used, requests without one are answered and recorded, and one with it waits, and counts all."""
    url = f"sqlite:///{tmp_path / 'x.db'}"
    async with metered(url) as server:
        ann = await server.create("ann")
        bob = await server.create("bob", tokens_per_day=2.0 * WHOLE)
        assert [200, 200] == [await server.status(one) for one in (ann, bob)]
        slow = Slow(monkeypatch, "usage_since")
        config = server.listener._config
        limits = LimitsConfig(requests_per_minute=1000)
        server.listener.change(structs.replace(config, limits=limits), None)
        waits = asyncio.create_task(server.status(bob))
        await until(lambda: slow.begun)
        assert 200 == await server.status(ann)
        assert 3 == len(ledger_of(tmp_path / "x.db"))
        assert not waits.done()
        slow.goes_on.set()
        assert 200 == await waits
        assert 429 == await server.status(bob)


async def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go on in their day where the system's clock jumps, and in another one once that is believed; the totals are theirs, and so are budgets."""
    now = [1_800_000_000.0, 0.0]  # the system's, and the even one's

    def steady() -> clocks.SteadyClock:
        return clocks.SteadyClock(lambda: now[0], lambda: now[1])

    monkeypatch.setattr(listener, "SteadyClock", steady)
    first = int(now[0] // DAY_S)
    async with metered(f"sqlite:///{tmp_path / 'x.db'}") as server:
        ann = await server.create("ann", tokens_per_day=2.0 * WHOLE)
        statuses: list[Sequence[int]] = []

        async def ask(jump_s: float, even_s: float) -> None:
            now[:] = now[0] + jump_s + even_s, now[1] + even_s
            statuses.append((await server.status(ann), sum(await server.used(ann))))

        await ask(0, 0)
        await ask(40 * DAY_S, 1)
        await ask(0, 1)
        await ask(0, clocks.BELIEVED_S)
        await ask(-40 * DAY_S, 1)
        await ask(0, clocks.BELIEVED_S)
        assert [(200, 100), (200, 200), (429, 200), (200, 100), (200, 200), (429, 400)] == statuses
    assert [first, first, first + 40, first + 40] == [
        day for day, _ in ledger_of(tmp_path / "x.db")
    ]
