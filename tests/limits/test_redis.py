"""Tests of unilect.limits.redis: a Redis server that is away, slow or empty, and servers that die."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest

from support.servers.redis_server import RedisServer, redis_server
from unilect.core.errors import LedgerUnavailable, LimitsUnavailable
from unilect.limits import redis
from unilect.limits.counters import Claim
from unilect.limits.redis import RedisCounters

LATER = 4_000_000_000.0


def budget(need: int) -> list[Claim]:
    """A claim of a budget of 1,000."""
    return [Claim(name="b", most=1000, need=need, room=need, ends_at=LATER)]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis server of the test's own, which it may end."""
    with redis_server() as running:
        yield running


#: What the ledger has, by the counters' names.
Ledger = dict[str, tuple[int, float]]


@pytest.fixture
def ledger() -> Ledger:
    """A ledger with 100 tokens."""
    return {"b": (100, LATER)}


@pytest.fixture
async def new(server: RedisServer, ledger: Ledger) -> AsyncIterator[Callable[[], RedisCounters]]:
    """New counters on the server, with the ledger."""
    made: list[RedisCounters] = []

    def make() -> RedisCounters:
        async def seed() -> None:
            await counters.raise_to(ledger)

        counters = RedisCounters(server.url, seed)
        made.append(counters)
        return counters

    yield make
    for counters in made:
        await counters.aclose()


async def until(check: Callable[[], object]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(20):
        while not check():
            await asyncio.sleep(0.01)


async def taken(counters: RedisCounters, claims: list[Claim]) -> str:
    """The id of a request that is let through, empty where it is not; the server may have to be asked again, by a new request each time."""
    async with asyncio.timeout(20):
        for number in count():
            try:
                return f"{number}" if (await counters.take(f"{number}", claims)).ok else ""
            except LimitsUnavailable:
                await asyncio.sleep(0.01)
    raise AssertionError


async def becomes(expected: tuple[int, int], counters: RedisCounters) -> None:
    """Wait until so much is used and held, on a server whose connections may have ended."""
    async with asyncio.timeout(20):
        while True:
            with suppress(LimitsUnavailable):
                (found,) = await counters.look(budget(1))
                if found[:2] == expected:
                    return
            await asyncio.sleep(0.01)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers say soon that they are alive."""
    monkeypatch.setattr(redis, "ALIVE_S", 0.05)


async def state(counters: RedisCounters) -> tuple[int, int]:
    """What is used and held of the budget."""
    found = await counters.take("look", [Claim(name="b", most=1, need=1, room=1, ends_at=LATER)])
    assert not found.ok
    return found.states[0][:2]


@pytest.mark.usefixtures("quick")
async def test_away_and_back(
    server: RedisServer,
    new: Callable[[], RedisCounters],
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While the server is away, requests are refused at once; back without its data, it gets the ledger's and what was used meanwhile."""
    counters = new()
    assert (await counters.take("a", budget(100))).ok
    server.stop()
    began = time.monotonic()
    with pytest.raises(LimitsUnavailable) as raised:
        await counters.take("b", budget(1))
    assert time.monotonic() - began < 1
    assert "does not answer" in raised.value.for_operator
    await counters.settle("a", budget(100), [70])
    assert 1 == len([r for r in caplog.records if "does not answer" in r.getMessage()])

    ledger["b"] = (170, LATER)  # the ledger had the request all the same
    server.start()
    await until(lambda: not counters._unsettled)
    assert not await taken(counters, budget(900))
    await becomes((170, 0), counters)


@pytest.mark.usefixtures("quick")
async def test_back_with_old_data(
    server: RedisServer, new: Callable[[], RedisCounters], ledger: Ledger
) -> None:
    """A server that is back with an old copy of its data gets what the ledger has, once, and holds nothing for requests that have ended meanwhile."""
    first, second = new(), new()
    assert (await first.take("a", budget(10))).ok
    assert (await second.take("b", budget(20))).ok
    server.save()
    await first.settle("a", budget(10), [10])
    await second.settle("b", budget(20), [20])
    assert (await second.take("c", budget(600))).ok
    await second.settle("c", budget(600), [600])
    ledger["b"] = (730, LATER)
    server.stop()
    server.start()

    assert not await taken(first, budget(300))
    await becomes((730, 0), first)
    ledger["b"] = (0, LATER)
    let_through = await taken(first, budget(200))
    assert let_through
    assert not await taken(second, budget(100))
    await becomes((730, 200), second)
    await first.settle(let_through, budget(200), [200])


async def test_a_cancellation_that_is_lost(new: Callable[[], RedisCounters]) -> None:
    """A server ends also where its sign of life takes a cancellation for an answer that does not come."""
    counters, begun = new(), asyncio.Event()

    async def sign() -> list[str]:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise LimitsUnavailable("It does not answer.") from None
        raise AssertionError

    counters._sign = sign  # type: ignore[method-assign]
    await counters.open()
    await begun.wait()
    async with asyncio.timeout(20):
        await counters.aclose()
    assert counters._alive is not None
    assert counters._alive.done()


@pytest.mark.parametrize("lost", ["an old copy", "nothing is left", "flushed"])
@pytest.mark.usefixtures("quick")
async def test_what_ran_is_counted_from_the_ledger(
    server: RedisServer, new: Callable[[], RedisCounters], ledger: Ledger, lost: str
) -> None:
    """What a request has used that was let through before the server lost its data is counted once its row is in the ledger."""
    first, second = new(), new()
    if lost == "an old copy":
        assert (await second.take("before", budget(5))).ok
        await second.settle("before", budget(5), [0])
        server.save()
    assert (await first.take("a", budget(600))).ok
    if lost == "flushed":
        server.flush()
    else:
        server.stop()
        server.start()

    assert not await taken(second, budget(950))
    await becomes((100, 0), second)
    ledger["b"] = (170, LATER)
    await first.settle("a", budget(600), [70])
    await until(lambda: first._missed_at is not None)
    await until(lambda: first._missed_at is None)
    assert not await taken(second, budget(950))
    await becomes((170, 0), second)


@pytest.mark.usefixtures("quick")
async def test_new_servers_wait_for_nobody(
    server: RedisServer, new: Callable[[], RedisCounters]
) -> None:
    """The first request on a new Redis server is answered at once, whoever else is new."""
    first, second = new(), new()
    await second.open()
    async with asyncio.timeout(20):
        while not await second._redis.exists(redis._alive(second.id)):
            await asyncio.sleep(0.01)
    assert (await first.take("a", budget(10))).ok
    assert (await second.take("b", budget(10))).ok


async def test_many_are_refused_while_it_is_away(
    server: RedisServer, new: Callable[[], RedisCounters], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a request has used is counted when the server is back, however many others were refused meanwhile."""
    monkeypatch.setattr(redis, "ALIVE_S", 0.05)
    monkeypatch.setattr(redis, "_MOST_UNSETTLED", 3)
    counters = new()
    assert (await counters.take("a", budget(100))).ok
    server.freeze()
    try:
        refused = [counters.take(f"{number}", budget(1)) for number in range(6)]
        answers = await asyncio.gather(*refused, return_exceptions=True)
        assert {LimitsUnavailable} == set(map(type, answers))
        await until(lambda: not counters._settling)
        await counters.settle("a", budget(100), [70])
        await until(lambda: not counters._settling)
    finally:
        server.freeze(False)
    await until(lambda: counters._late is not None and counters._late.done())
    assert (170, 0) == await state(counters)


async def test_alive_while_it_settles(
    server: RedisServer, new: Callable[[], RedisCounters], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has much to settle still says that it is alive."""
    monkeypatch.setattr(redis, "ALIVE_S", 0.01)
    counters = new()
    assert (await counters.take("a", budget(100))).ok
    send, may_send, signs = counters._send, asyncio.Event(), 0

    async def slow(one: redis._Settlement) -> None:
        await may_send.wait()
        await send(one)

    async def sign() -> list[str]:
        nonlocal signs
        signs += 1
        return None, []

    monkeypatch.setattr(counters, "_send", slow)
    monkeypatch.setattr(counters, "_sign", sign)
    counters._unsettled.append(redis._Settlement("a", budget(100), [70]))
    await until(lambda: signs > 3)
    may_send.set()
    assert counters._late is not None
    await asyncio.wait([counters._late])
    assert (170, 0) == await state(counters)


async def test_silent(server: RedisServer, new: Callable[[], RedisCounters]) -> None:
    """A server that answers nothing delays a request for less than a second, and what it takes too late is given back."""
    counters = new()
    assert (await counters.take("a", budget(100))).ok
    server.freeze()
    began = time.monotonic()
    try:
        with pytest.raises(LimitsUnavailable):
            await counters.take("late", budget(500))
        assert time.monotonic() - began < 1
        before = time.monotonic()
        await counters.settle("a", budget(100), [100])
        assert time.monotonic() - before < 1
    finally:
        server.freeze(False)
    async with asyncio.timeout(20):
        while await state(counters) != (200, 0):
            await asyncio.sleep(0.05)


async def test_a_dead_server(
    server: RedisServer,
    new: Callable[[], RedisCounters],
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a server has reserved that died is free again, and what it had settled is not."""
    monkeypatch.setattr(redis, "ALIVE_S", 0.05)
    monkeypatch.setattr(redis, "DEAD_S", 0.3)
    dying, other = new(), new()
    assert (await dying.take("a", budget(300))).ok
    assert (await dying.take("b", budget(600))).ok
    await dying.settle("a", budget(300), [250])
    await other.open()
    assert (350, 600) == await state(other)
    assert dying._alive is not None
    dying._alive.cancel()
    async with asyncio.timeout(20):
        while await state(other) != (350, 0):
            await asyncio.sleep(0.02)
    # it was only slow: what it has used counts all the same, as the ledger has it
    dying._alive = None
    await dying.open()
    await dying.settle("b", budget(600), [600])
    ledger["b"] = (950, LATER)
    async with asyncio.timeout(20):
        while await state(other) != (950, 0):
            await asyncio.sleep(0.02)


async def test_a_dead_server_and_its_ledger(
    server: RedisServer, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a dead server held is free once the ledger has been read, and not before: what it had used is counted then."""
    monkeypatch.setattr(redis, "ALIVE_S", 0.05)
    monkeypatch.setattr(redis, "DEAD_S", 0.3)
    asked = away = 0

    async def seed() -> None:
        await dying.raise_to({})

    async def seed_after_death() -> None:
        nonlocal asked
        asked += 1
        if away:
            raise LedgerUnavailable("away") if asked % 2 else LimitsUnavailable("away")
        await other.raise_to(ledger)

    dying, other = RedisCounters(server.url, seed), RedisCounters(server.url, seed, seed_after_death)  # fmt: skip
    assert (await dying.take("a", budget(300))).ok
    assert dying._alive is not None
    dying._alive.cancel()
    away, ledger["b"] = 1, (250, LATER)
    await other.open()
    await until(lambda: asked > 2)
    assert (0, 300) == await state(other)
    away = 0
    async with asyncio.timeout(20):
        while await state(other) != (250, 0):
            await asyncio.sleep(0.02)
    await other.aclose()
    await dying._redis.aclose()


async def test_a_reply_that_is_lost(
    server: RedisServer, new: Callable[[], RedisCounters], ledger: Ledger
) -> None:
    """A settlement whose reply is lost is counted once, however long after it is sent again: its mark may be gone, or the ledger have it."""
    counters = new()
    assert (await counters.take("before", budget(1))).ok
    await counters.settle("before", budget(1), [0])
    assert (await counters.take("a", budget(100))).ok
    assert counters._alive is not None
    counters._alive.cancel()  # it is settled late when the test says so
    server.freeze()
    await counters.settle("a", budget(100), [70])
    await until(lambda: counters._unsettled)
    server.freeze(False)
    await becomes((170, 0), counters)
    assert await counters._redis.delete(redis._mark("a"))
    await counters._settle_late()
    assert (170, 0) == await state(counters)

    assert (await counters.take("b", budget(100))).ok
    counters._unsettled.append(redis._Settlement("b", budget(100), [50]))
    ledger["b"] = (220, LATER)  # its row was written
    await counters.raise_to(ledger)
    await counters._settle_late()
    assert (220, 0) == await state(counters)


async def test_an_orderly_end(new: Callable[[], RedisCounters]) -> None:
    """A server that ends leaves nothing that is held, and says that it is gone."""
    ending, other = new(), new()
    assert (await ending.take("a", budget(300))).ok
    await ending.aclose()
    assert (100, 0) == await state(other)
    assert ending.id.encode() not in await other._redis.smembers("{unilect}:servers")


async def test_a_large_ledger(ledger: Ledger, new: Callable[[], RedisCounters]) -> None:
    """A ledger of many keys is brought to the server in parts, and no budget is held before all of it is there."""
    ledger.update({f"b{number}": (number, LATER) for number in range(1200)})
    counters = new()
    claim = Claim(name="b1199", most=1200, need=1, room=1, ends_at=LATER)
    assert (1199, 1) == (await counters.take("a", [claim])).states[0][:2]
    assert (100, 0) == await state(counters)


async def test_settled_twice(new: Callable[[], RedisCounters]) -> None:
    """A request is settled once, and taken once, however often that is asked for."""
    counters = new()
    for _ in range(2):
        assert (await counters.take("a", budget(300))).ok
    assert (100, 300) == await state(counters)
    for _ in range(2):
        await counters.settle("a", budget(300), [10])
    assert (110, 0) == await state(counters)
    with pytest.raises(LimitsUnavailable):
        await counters.take("a", budget(300))
