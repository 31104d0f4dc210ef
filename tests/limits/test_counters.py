"""Tests of unilect.limits.counters and, against the same, of redis: what is taken is taken at once, and held until it is settled."""

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from support.servers.redis_server import RedisServer, redis_server
from unilect.limits import redis
from unilect.limits.counters import MINUTE_US, Claim, Counters, MemoryCounters
from unilect.limits.redis import RedisCounters

LATER = 4_000_000_000.0
RUNS = min(10_000, int(os.environ.get("UNILECT_FUZZ", "200")))
_Value = TypeVar("_Value")


def budget(most: int, need: int, name: str = "b") -> Claim:
    """A claim of a budget."""
    return Claim(name=name, most=most, need=need, room=need, ends_at=LATER)


def minute(most: int, need: int, name: str = "m") -> Claim:
    """A claim of a minute."""
    return Claim(name=name, leaks=True, most=most, need=need, room=need)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A Redis server."""
    with redis_server() as running:
        yield running


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no Redis server that is away."""
    monkeypatch.setattr(redis, "ANSWER_TIMEOUT_S", 60.0)


@pytest.fixture(params=["memory", "redis"])
async def counters(request: pytest.FixtureRequest) -> AsyncIterator[Counters]:
    """New counters, of each kind."""
    made: Counters = MemoryCounters()
    if request.param == "redis":
        made = redis_counters(request.getfixturevalue("server"))
        await made._redis.flushall()
    await made.open()
    yield made
    await made.aclose()


def redis_counters(server: RedisServer) -> RedisCounters:
    """Counters on a server, without a ledger."""

    async def seed() -> None:
        await made.raise_to({})

    made = RedisCounters(server.url, seed)
    return made


async def test_a_budget(counters: Counters) -> None:
    """Of fifty requests for 100 at once ten get a budget of 1,000, and what they leave of it others get."""
    claims = [budget(1000, 100)]
    taken = await asyncio.gather(*(counters.take(f"r{n}", claims) for n in range(50)))
    assert 10 == sum(one.ok for one in taken)
    assert (0, 1000) == next(one for one in taken if not one.ok).states[0][:2]

    held = [f"r{n}" for n, one in enumerate(taken) if one.ok]
    for name in held[:9]:
        await counters.settle(name, claims, [100])
    await counters.settle(held[9], claims, [40])
    assert (940, 0) == (await counters.take("more", claims)).states[0][:2]
    assert (await counters.take("rest", [budget(1000, 60)])).ok
    assert not (await counters.take("one", [budget(1000, 1)])).ok


async def test_a_look(counters: Counters) -> None:
    """Counters are looked at as they are, also those that are not there, and nothing is held by that."""
    claims = [budget(1000, 1), minute(60, 1), minute(5, 1, "empty"), budget(9, 1, "none")]
    assert [(0, 0, 0)] * 4 == await counters.look(claims)
    assert (await counters.take("a", [budget(1000, 300), minute(60, 60)])).ok
    assert (await counters.take("b", [budget(1000, 100)])).ok
    await counters.settle("b", [budget(1000, 100)], [40])
    for _ in range(2):
        looked = await counters.look(claims)
        assert [(40, 300), (60, 0), (0, 0), (0, 0)] == [one[:2] for one in looked]
        assert 0 < looked[1].wait_us <= MINUTE_US // 60
    assert [] == await counters.look([])


async def test_all_or_nothing(counters: Counters) -> None:
    """A request that one of its limits refuses takes nothing of the others."""
    full, free = budget(10, 10, "full"), budget(10, 10, "free")
    assert (await counters.take("a", [full])).ok
    assert not (await counters.take("b", [free, full, minute(5, 5)])).ok
    assert (await counters.take("c", [free, minute(5, 5)])).ok


async def test_a_minute(counters: Counters) -> None:
    """A minute's requests may come at once, the next has to wait for one of them to leak, and what is not used is free at once."""
    taken = [await counters.take(f"r{n}", [minute(7, 1)]) for n in range(8)]
    assert [True] * 7 + [False] == [one.ok for one in taken]
    assert 0 < taken[-1].states[0].wait_us <= -(-MINUTE_US // 7)

    await counters.settle("r0", [minute(7, 1)], [0])
    assert (await counters.take("again", [minute(7, 1)])).ok


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
async def test_a_clock_that_jumps(jump_s: float) -> None:
    """A minute goes by a clock that does not jump: a day forwards or backwards refuses nobody, and gives nobody more."""
    now, clock = [0], [1_800_000_000.0]
    counters = MemoryCounters(lambda: now[0] * 1000, clock=lambda: clock[0])
    first = [(await counters.take(f"a{number}", [minute(2, 1)])).ok for number in range(3)]
    clock[0] += jump_s
    counters._forget()
    second = (await counters.take("b", [minute(2, 1)])).ok
    now[0] += MINUTE_US // 2
    clock[0] += jump_s
    third = [(await counters.take(f"c{number}", [minute(2, 1)])).ok for number in range(2)]

    assert ([True, True, False], False, [True, False]) == (first, second, third)


async def test_a_debt(counters: Counters) -> None:
    """What an answer had beyond what was held is paid by those that follow, for two minutes at most."""
    claims = [minute(100, 10)]
    assert (await counters.take("a", claims)).ok
    await counters.settle("a", claims, [120])
    (state,) = (await counters.take("b", claims)).states
    assert 29 * MINUTE_US // 100 < state.wait_us <= 30 * MINUTE_US // 100

    assert (await counters.take("c", [minute(100, 10, "other")])).ok
    await counters.settle("c", [minute(100, 10, "other")], [1_000_000])
    (state,) = (await counters.take("d", [minute(100, 100, "other")])).states
    assert state.wait_us <= 2 * MINUTE_US


async def test_a_limit_that_is_lowered(counters: Counters) -> None:
    """What a minute holds when its limit is lowered is paid for two minutes at most, and when it is raised as the higher one has it."""
    assert (await counters.take("a", [minute(1000, 1000)])).ok
    (state,) = (await counters.take("b", [minute(1, 1)])).states
    assert 119 * MINUTE_US // 60 < state.wait_us <= 2 * MINUTE_US

    assert (await counters.take("c", [minute(10, 10, "other")])).ok
    assert (await counters.take("d", [minute(1000, 990, "other")])).ok


async def test_a_request_of_a_lower_limit_ends(counters: Counters) -> None:
    """A limit that is raised while a request runs is not lowered again by the request's end."""
    old = [minute(5, 1)]
    await counters.take("first", old)
    for number in range(50):
        await counters.take(f"r{number}", [minute(1000, 1)])
    await counters.settle("first", old, [1])

    (state,) = await counters.look([minute(1000, 1)])
    assert 50 < state.used


async def test_from_a_ledger(counters: Counters) -> None:
    """What a ledger says was used is the least that a budget has used."""
    await counters.raise_to({"b": (900, LATER), "c": (5, LATER)})
    assert not (await counters.take("a", [budget(1000, 101)])).ok
    assert (await counters.take("b", [budget(1000, 100)])).ok
    await counters.settle("b", [budget(1000, 100)], [100])
    await counters.raise_to({"b": (10, LATER)})
    assert (1000, 0) == (await counters.take("c", [budget(1000, 1)])).states[0][:2]


async def test_many_names() -> None:
    """Counters of days that have passed, and minutes that have leaked, are forgotten."""
    now, now_us = 0.0, 0
    counters = MemoryCounters(lambda: now_us * 1000, lambda: now)
    for day in range(5000):
        now, now_us = day * 86_400.0, day * 86_400_000_000
        claims = [
            Claim(name=f"b{day}", most=9, need=2, room=2, ends_at=now + 86_400),
            minute(9, 2, f"m{day}"),
        ]
        assert (await counters.take(f"{day}", claims)).ok
        await counters.settle(f"{day}", claims, [1, 1])
    assert len(counters._all) < 2000


async def test_obeyed(counters: Counters) -> None:
    """Who waits as long as it is told is let through, every time."""
    limit = 60_000  # a token in a thousandth of a second
    assert (await counters.take("full", [minute(limit, limit)])).ok
    for number in range(1, 30):
        claims = [minute(limit, number)]
        refused = await counters.take("early", claims)
        if not refused.ok:
            assert refused.states[0].wait_us <= number * 1000
            await asyncio.sleep(refused.states[0].wait_us / 1e6)
            assert (await counters.take(f"r{number}", claims)).ok


@pytest.mark.parametrize("seed", range(4))
async def test_never_passed(counters: Counters, seed: int) -> None:
    """Whatever runs at once, and whatever of it is used, what is used and held never passes a budget, and in the end all of it is counted."""
    random = Random(seed)
    sums = {"used": 0, "ok": 0}

    async def request(number: int) -> None:
        claims = [budget(1000, random.randint(1, 300)), budget(5000, random.randint(1, 900), "big")]
        claims.append(Claim(name="at once", most=7, need=1, room=1))
        taken = await counters.take(f"r{number}", claims)
        for claim, state in zip(claims, taken.states, strict=True):
            assert 0 <= state.used + state.held <= claim.most
            assert state.held >= 0
        if taken.ok:
            await asyncio.sleep(0)
            used = [random.randint(0, claim.need) for claim in claims[:2]]
            sums["used"] += used[0]
            sums["ok"] += 1
            await counters.settle(f"r{number}", claims, [*used, 0])

    for at in range(0, 120, 40):
        await asyncio.gather(*(request(number) for number in range(at, at + 40)))
    (state,) = (await counters.take("look", [budget(1000, 1001)])).states
    assert (sums["used"], 0) == state[:2]
    assert 0 < sums["ok"] < 120
    assert sums["used"] <= 1000


def now(work: Coroutine[Any, Any, _Value]) -> _Value:
    """What comes of work that waits for nothing, without a loop: a loop takes longer than all else here."""
    try:
        work.send(None)
    except StopIteration as done:
        found: _Value = done.value
        return found
    raise AssertionError("it waits")


class Model:
    """A minute in fractions: what it holds, and when that was; it leaks `most` in sixty million ticks."""

    def __init__(self, most: int) -> None:
        self.most, self.held, self.at = most, 0, 0

    def take(self, units: int, now: int) -> bool:
        """Whether units fit in."""
        self.held = max(0, self.held - (now - self.at) * self.most)
        self.at = now
        fits = self.held + units * MINUTE_US <= self.most * MINUTE_US
        self.held += units * MINUTE_US if fits else 0
        return fits


class Minutes(RuleBasedStateMachine):
    """A minute's bucket does what its model does, and who waits as long as it is told is let through."""

    @initialize(most=st.integers(1, 5000) | st.sampled_from([7, 60, 61, 50_000_000]))
    def begin(self, most: int) -> None:
        """A limit."""
        self.now, self.most, self.model = 0, most, Model(most)
        self.counters = MemoryCounters(lambda: self.now * 1000)
        self.wait: tuple[int, int] | None = None

    def take(self, units: int) -> None:
        """Ask both."""
        taken = now(self.counters.take("r", [minute(self.most, units)]))
        assert self.model.take(units, self.now) == taken.ok
        self.wait = None if taken.ok else (units, taken.states[0].wait_us)

    @rule(part=st.floats(0, 1), micros=st.integers(0, 3 * MINUTE_US))
    def ask(self, part: float, micros: int) -> None:
        """A request after a while."""
        self.now += micros
        self.take(max(1, int(part * self.most)))

    @rule()
    def ask_at_once(self) -> None:
        """A request without a pause."""
        self.take(1)

    @precondition(lambda self: self.wait is not None)
    @rule(early=st.booleans())
    def obey(self, early: bool) -> None:
        """The request comes again as soon as it was told, or a tick before that."""
        units, micros = self.wait or (0, 0)
        self.now += micros - early
        self.take(units)
        assert early == (self.wait is not None)


TestMinutes = pytest.mark.timeout(900)(Minutes.TestCase)
TestMinutes.settings = settings(
    max_examples=RUNS, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
