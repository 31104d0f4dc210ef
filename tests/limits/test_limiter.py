"""Tests of unilect.limits.limiter, through the whole server: what a caller may use, and what it is told."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest

from support.common.clock import Clock
from support.common.entries import closed, entry_of
from support.servers.redis_server import RedisServer, redis_server
from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.calls import TokenEstimator
from unilect.config.limits import Limits as Table
from unilect.config.limits import LimitsConfig
from unilect.config.model import ModelConfig, Price
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.core.errors import LimitsUnavailable, QuotaExceeded, RateLimited, StoreUnavailable
from unilect.core.events import Usage
from unilect.core.requests import ChatRequest, Message
from unilect.limits import redis as _redis
from unilect.limits.limiter import Limiter
from unilect.models import sources
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.clock import BELIEVED_S, SteadyClock
from unilect.runtime.context import Context
from unilect.server import listener
from unilect.server.listener import Listener
from unilect.testing.echo import Echo, Options

PROMPT = "x" * 20  # an echo's token is a character
CHAT = {"messages": [{"role": "user", "content": PROMPT}]}
ONE, TWO = "sk-of-one", "sk-of-another"


@pytest.fixture
def redis(server_of_redis: RedisServer) -> RedisServer:
    """An empty Redis server."""
    server_of_redis.flush()
    return server_of_redis


#: Makes the limits of every key.
Limits = Callable[..., LimitsConfig]


@pytest.fixture(params=["memory", "redis"])
def limits(request: pytest.FixtureRequest) -> Limits:
    """Limits that are counted in memory, and on an empty Redis server."""
    if request.param == "memory":
        return LimitsConfig
    return partial(LimitsConfig, url=request.getfixturevalue("redis").url)


class Served:
    """A server, and a client with a key."""

    def __init__(self, url: str, client: aiohttp.ClientSession) -> None:
        self.url, self.client = url, client

    async def ask(self, key: str = ONE, path: str = "chat/completions", **body: Any) -> Any:
        """The status, the headers and the body of an answer."""
        if path == "chat/completions":
            body = CHAT | body
        headers = {"Authorization": f"Bearer {key}"}
        async with self.client.post(f"{self.url}/v1/{path}", json=body, headers=headers) as answer:
            text = await answer.text()
            told = msgspec.json.decode(text) if text.startswith("{") else text
            return SimpleNamespace(status=answer.status, headers=answer.headers, body=told)


async def readiness(server: Served) -> tuple[int, str]:
    """The status and the text of /readyz."""
    async with server.client.get(f"{server.url}/readyz") as answer:
        return answer.status, await answer.text()


def echo(**options: Any) -> ModelConfig:
    """A model that says 80 characters, unless the options say otherwise."""
    return ModelConfig(source="echo:", options={"text": "y" * 80, "context": 4096} | options)


@asynccontextmanager
async def served(
    limits: LimitsConfig, model: ModelConfig | None = None, **given: Any
) -> AsyncIterator[Served]:
    """A server with one model, `m`, and two keys."""
    config = Config(
        port=0,
        api_keys=[ONE, TWO],
        limits=limits,
        models={"m": model or echo()},
        store=StoreConfig(url="sqlite://", keys=False),
        **given,
    )
    registry = sources.registry(config)
    listener = Listener(config, registry)
    try:
        (url,) = await listener.listen()
        async with aiohttp.ClientSession() as client:
            yield Served(url, client)
    finally:
        await listener.aclose()
        await registry.aclose()


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_a_budget_and_fifty_requests(kind: str, request: pytest.FixtureRequest) -> None:
    """Of fifty requests of 100 tokens at once a budget of 1,000 lets exactly ten through, and after them none."""
    url = request.getfixturevalue("redis").url if kind == "redis" else None
    slow = echo(tokens_per_s=400.0)
    async with served(LimitsConfig(tokens_per_day=1000, url=url), slow) as server:
        answers = await asyncio.gather(*(server.ask(max_tokens=80) for _ in range(50)))
        statuses = [answer.status for answer in answers]
        late = await server.ask(max_tokens=1)
        other = await server.ask(TWO, max_tokens=80)

    assert (10, 40) == (statuses.count(200), statuses.count(429))
    assert 1000 == sum(a.body["usage"]["total_tokens"] for a in answers if a.status == 200)
    refused = [answer for answer in answers if answer.status == 429]
    assert {"insufficient_quota"} == {answer.body["error"]["code"] for answer in refused}
    assert all(answer.headers["Retry-After"] == "1" for answer in refused)  # some may be left
    assert (429, "insufficient_quota") == (late.status, late.body["error"]["code"])
    assert "false" == late.headers["x-should-retry"]
    assert "Retry-After" not in late.headers
    assert "tokens_per_day of this API key is 1000: 1000 are used" in late.body["error"]["message"]
    assert 200 == other.status


async def test_a_stream(limits: Limits) -> None:
    """A stream is counted, too, also one whose client leaves in the middle, with what was made of it."""
    slow = echo(tokens_per_s=20.0)
    async with served(limits(tokens_per_day=200, parallel=1), slow) as server:
        headers = {"Authorization": f"Bearer {ONE}"}
        body = CHAT | {"stream": True, "max_tokens": 80}
        async with server.client.post(
            f"{server.url}/v1/chat/completions", json=body, headers=headers
        ) as answer:
            assert ("200", "100") == (
                answer.headers["x-ratelimit-limit-tokens"],
                answer.headers["x-ratelimit-remaining-tokens"],
            )
            busy = await server.ask(max_tokens=1)
            for _ in range(3):
                await answer.content.readline()
        assert (429, "rate_limit_exceeded") == (busy.status, busy.body["error"]["code"])
        assert "`parallel`" in busy.body["error"]["message"]
        async with asyncio.timeout(10):
            while (again := await server.ask(max_tokens=4)).status == 429:
                await asyncio.sleep(0.01)
    left = int(again.headers["x-ratelimit-remaining-tokens"])
    assert 200 - 20 - 40 - 24 <= left < 200 - 20 - 24


async def test_without_max_tokens(limits: Limits) -> None:
    """A request that does not say how long its answer may be gets what is left of the budget, is told so, and ends with `length`."""
    async with served(limits(tokens_per_day=160), echo()) as server:
        first, second, third = [await server.ask() for _ in range(3)]
    assert (80, "stop") == (first.body["usage"]["completion_tokens"], first.body["choices"][0]["finish_reason"])  # fmt: skip
    assert (40, "length") == (second.body["usage"]["completion_tokens"], second.body["choices"][0]["finish_reason"])  # fmt: skip
    assert ["max_tokens"] * 2 == [one.headers["X-Unilect-Ignored"] for one in (first, second)]
    assert (429, "false") == (third.status, third.headers["x-should-retry"])


async def test_without_max_tokens_while_others_run(limits: Limits) -> None:
    """A request that does not say how long its answer may be comes again where running requests hold what it could have."""
    slow = echo(tokens_per_s=100.0)
    async with served(limits(tokens_per_day=200), slow) as server:
        headers, body = (
            {"Authorization": f"Bearer {ONE}"},
            CHAT | {"stream": True, "max_tokens": 80},
        )
        url = f"{server.url}/v1/chat/completions"
        async with server.client.post(url, json=body, headers=headers) as stream:
            await stream.content.readline()
            reserved = await server.ask()
            await stream.read()
        answered = await server.ask()
        over = await server.ask()
    assert (429, "1") == (reserved.status, reserved.headers["Retry-After"])
    assert "x-should-retry" not in reserved.headers
    assert 200 == answered.status
    assert (429, "false") == (over.status, over.headers["x-should-retry"])


async def test_choices(limits: Limits) -> None:
    """Every choice of an answer is counted, before it and after it."""
    async with served(limits(tokens_per_day=300)) as server:
        refused = await server.ask(max_tokens=80, n=4)
        answered = await server.ask(max_tokens=80, n=3)
    assert (429, 200) == (refused.status, answered.status)
    assert 20 + 3 * 80 == answered.body["usage"]["total_tokens"]
    assert str(300 - 260) == answered.headers["x-ratelimit-remaining-tokens"]


async def test_requests_per_minute(limits: Limits) -> None:
    """The request after a minute's last is told when to come again, and every answer tells what is left."""
    async with served(limits(requests_per_minute=3)) as server:
        answers = [await server.ask(max_tokens=1) for _ in range(4)]
        anthropic = await server.ask(TWO, "messages", max_tokens=1, model="m", **CHAT)
    assert [200, 200, 200, 429] == [answer.status for answer in answers]
    told = [answer.headers["x-ratelimit-remaining-requests"] for answer in answers]
    assert ["2", "1", "0", "0"] == told
    assert {"3"} == {answer.headers["x-ratelimit-limit-requests"] for answer in answers}
    assert "20s" == answers[0].headers["x-ratelimit-reset-requests"]
    assert "rate_limit_exceeded" == answers[3].body["error"]["code"]
    assert 18 <= int(answers[3].headers["Retry-After"]) <= 20
    assert 200 == anthropic.status
    assert "2" == anthropic.headers["anthropic-ratelimit-requests-remaining"]
    assert "x-ratelimit-limit-requests" not in anthropic.headers
    reset = anthropic.headers["anthropic-ratelimit-requests-reset"]
    assert 0 <= (datetime.fromisoformat(reset) - datetime.now(UTC)).total_seconds() <= 21


async def test_too_large_for_a_minute(limits: Limits) -> None:
    """A request that may use more than a minute has can never succeed, and is told to be smaller."""
    async with served(limits(tokens_per_minute=90)) as server:
        large = await server.ask(max_tokens=80)
        fitting = await server.ask(max_tokens=70)
        late = await server.ask(max_tokens=70)
        unsaid = await server.ask(TWO)
    assert (429, "false") == (large.status, large.headers["x-should-retry"])
    assert "may use 100 tokens" in large.body["error"]["message"]
    assert (200, 429) == (fitting.status, late.status)
    assert 58 <= int(late.headers["Retry-After"]) <= 60
    assert (200, 70) == (unsaid.status, unsaid.body["usage"]["completion_tokens"])


async def test_owners_models_and_money(limits: Limits) -> None:
    """Limits of a model hold for all keys together, and money is what the model's price makes of tokens."""
    priced = echo()
    priced = msgspec.structs.replace(
        priced, price=Price(prompt=1000.0, completion=10_000.0), limits=Table(money_per_month=1.7)
    )
    async with served(limits(), priced) as server:
        first = await server.ask(max_tokens=80)  # 20 * 0.001 + 80 * 0.01 = 0.82
        second = await server.ask(TWO, max_tokens=80)
        third = await server.ask(max_tokens=80)
        bare = await server.ask(max_tokens=5)  # 0.06 are left
    assert [200, 200, 429, 429] == [one.status for one in (first, second, third, bare)]
    assert "money_per_month of this model is 1.7: 1.64 are used" in third.body["error"]["message"]


async def test_in_the_background(limits: Limits) -> None:
    """A response that is made in the background has the limits of its key, too."""
    async with served(limits(tokens_per_day=130)) as server:
        headers = {"Authorization": f"Bearer {ONE}"}
        found = []
        for _ in range(2):
            made = await server.ask(path="responses", input=PROMPT, max_output_tokens=80, background=True)  # fmt: skip
            assert (200, "queued") == (made.status, made.body["status"])
            told = made.body
            async with asyncio.timeout(20):
                while told["status"] in ("queued", "in_progress"):
                    url = f"{server.url}/v1/responses/{told['id']}"
                    async with server.client.get(url, headers=headers) as answer:
                        told = await answer.json()
            found.append(told)
    assert ["completed", "failed"] == [one["status"] for one in found]
    assert "tokens_per_day of this API key" in found[1]["error"]["message"]


async def test_an_answer_that_fails(limits: Limits) -> None:
    """What a failed answer has not made is free again."""
    broken = echo(failing_answers=1, breaks_after=10)
    async with served(limits(tokens_per_day=130), broken) as server:
        failed = await server.ask(max_tokens=80)
        answered = await server.ask(max_tokens=80)
    assert (502, 200) == (failed.status, answered.status)
    assert "0" == answered.headers["x-ratelimit-remaining-tokens"]


async def test_without_limits() -> None:
    """A key without limits is told none."""
    async with served(LimitsConfig()) as server:
        answer = await server.ask()
    assert 200 == answer.status
    assert not [name for name in answer.headers if "ratelimit" in name.lower()]
    assert "X-Unilect-Ignored" not in answer.headers


async def test_two_servers(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers on one Redis have one budget, one minute and one number of running requests between them."""
    monkeypatch.setattr(_redis, "ANSWER_TIMEOUT_S", 60.0)  # a busy machine is no Redis that is away
    limits = LimitsConfig(tokens_per_month=1000, requests_per_minute=100, parallel=30, url=redis.url)  # fmt: skip
    slow = echo(tokens_per_s=800.0)
    given = {"owners": {"nobody": Table(parallel=1)}}
    async with served(limits, slow, **given) as first, served(limits, slow, **given) as second:
        servers = [first, second] * 14
        answers = await asyncio.gather(*(one.ask(TWO, max_tokens=80) for one in servers))
        left = await second.ask(TWO, max_tokens=80)
    statuses = [answer.status for answer in answers]
    assert (10, 18) == (statuses.count(200), statuses.count(429))
    assert (429, "1000") == (left.status, left.headers["x-ratelimit-limit-tokens"])
    assert "0" == left.headers["x-ratelimit-remaining-tokens"]


class FakeLedger:
    """A ledger with sums that a test sets, which may be away."""

    def __init__(self, **sums: int) -> None:
        self.sums, self.away, self.asked = sums, False, list[float]()

    async def read_usage(self, since: float, key: str | None = None) -> list[Any]:
        """See `Ledger`."""
        self.asked.append(since)
        if self.away:
            raise StoreUnavailable("away")
        return [
            SimpleNamespace(key=key, owner="", model="m", tokens=tokens, cost=0.0)
            for key, tokens in self.sums.items()
        ]


def book(ledger: FakeLedger, clock: Clock, **limits: int) -> Limiter:
    """A book of limits of every key, on a ledger, for models that are not known."""
    config = Config(models={"m": echo()}, limits=LimitsConfig(**limits))
    return Limiter(config, TokenEstimator(sources.registry(config)), ledger, clock)


def chat(tokens: int) -> ChatRequest:
    """A request for so many tokens."""
    return ChatRequest(messages=[Message("user", PROMPT)], max_tokens=tokens)


async def test_from_the_ledger() -> None:
    """After a start a budget has what the ledger says of this day and this month, and no request is let through before it is known."""
    ledger, clock = FakeLedger(one=900), Clock()
    limits = book(ledger, clock, tokens_per_day=1000)
    ledger.away = True
    await limits.start()
    with pytest.raises(LimitsUnavailable):
        await entry_of(limits, Context(caller="one", model="m"), chat(80))
    ledger.away = False
    context = Context(caller="one", model="m")
    entry = await entry_of(limits, context, chat(80))
    assert entry is not None
    assert "0" == context.headers["x-ratelimit-remaining-tokens"]
    days = {datetime.fromtimestamp(at, UTC).strftime("%d %H:%M") for at in ledger.asked}
    assert {datetime.fromtimestamp(clock.now, UTC).strftime("%d 00:00"), "01 00:00"} == days
    await closed(entry, Usage(20, 80))
    with pytest.raises(QuotaExceeded):
        await entry_of(limits, Context(caller="one", model="m"), chat(80))
    assert await entry_of(limits, Context(caller="two", model="m"), chat(80)) is not None
    await limits.aclose()


async def test_owners_from_the_ledger() -> None:
    """What an owner and a model have used is the sum of all keys, of tokens and of money."""

    class Sums(FakeLedger):
        async def read_usage(self, since: float, key: str | None = None) -> list[Any]:
            """Two keys of an owner, and one of nobody."""
            rows = [("a", "team", 100, 400_000), ("b", "team", 200, 300_000), ("c", "", 300, 0)]
            return [
                SimpleNamespace(key=key, owner=owner, model="m", tokens=tokens, cost=cost)
                for key, owner, tokens, cost in rows
            ]

    priced = msgspec.structs.replace(echo(), price=Price(completion=1000.0))
    config = Config(
        models={"m": msgspec.structs.replace(priced, limits=Table(tokens_per_month=780))},
        owners={"team": Table(money_per_day=0.8)},
    )
    limits = Limiter(config, TokenEstimator(sources.registry(config)), Sums())
    team = Context(caller="a", model="m", owner="team", price=priced.price)
    with pytest.raises(QuotaExceeded, match=r"money_per_day of this owner is 0.8: 0.7 are used"):
        await entry_of(limits, team, chat(101))
    assert await entry_of(limits, team, chat(100)) is not None
    with pytest.raises(
        QuotaExceeded, match="tokens_per_month of this model is 780: 600 are used, 120"
    ):
        await entry_of(limits, Context(caller="z", model="m"), chat(170))
    assert await entry_of(limits, Context(caller="z", model="m"), chat(40)) is not None
    await limits.aclose()


async def test_models_that_were_found() -> None:
    """A model that its server was found to have has the price and, by itself, the limits of its table."""
    table = msgspec.structs.replace(echo(), model="*", price=Price(completion=10_000.0), limits=Table(parallel=1))  # fmt: skip
    config = Config(models={"router": table}, limits=LimitsConfig(money_per_day=1.0))
    found = Registry([Model(name, Echo(Options(context=4096)), price=table.price, limits=table.limits) for name in "ab"])  # fmt: skip
    limits = Limiter(config, TokenEstimator(found), FakeLedger(), Clock())
    with pytest.raises(QuotaExceeded, match="money_per_day of this API key is 1: 0 are used"):
        await entry_of(limits, Context(caller="one", model="a", price=table.price), chat(101))
    entry = await entry_of(limits, Context(caller="one", model="a", price=table.price), chat(60))
    assert entry is not None
    with pytest.raises(RateLimited, match="of this model are running"):
        await entry_of(limits, Context(caller="two", model="a", price=table.price), chat(1))
    assert (
        await entry_of(limits, Context(caller="two", model="b", price=table.price), chat(1))
        is not None
    )
    await closed(entry, Usage(20, 60))
    with pytest.raises(QuotaExceeded, match=r"0\.6 are used"):
        await entry_of(limits, Context(caller="one", model="a", price=table.price), chat(41))
    await limits.aclose()


async def test_models_that_are_found_late() -> None:
    """A model that its server is found to have after the ledger was read has what it had used, too."""
    table = msgspec.structs.replace(echo(), model="*", limits=Table(tokens_per_day=1000))
    config = Config(models={"router": table}, limits=LimitsConfig(tokens_per_day=2000))
    models = [Model(name, Echo(Options(context=4096)), limits=table.limits) for name in "am"]
    registry = Registry(models[:1])
    limits = Limiter(config, TokenEstimator(registry), FakeLedger(one=950), Clock())
    assert await entry_of(limits, Context(caller="two", model="a"), chat(80)) is not None
    registry.add(models[1])
    with pytest.raises(QuotaExceeded, match="of this model is 1000: 950 are used"):
        await entry_of(limits, Context(caller="two", model="m"), chat(80))
    await limits.aclose()
    await registry.aclose()


async def test_another_day() -> None:
    """A budget is new at midnight (UTC), and a rate does not ask what the system's time is."""
    clock = Clock()
    limits = book(FakeLedger(), clock, tokens_per_day=100, requests_per_minute=2)
    context = Context(caller="one", model="m")
    for _ in range(2):
        entry = await entry_of(limits, context, chat(80))
        assert entry is not None
        await closed(entry, Usage(20, 80))
        clock.now += 86_400
    with pytest.raises(RateLimited) as raised:
        await entry_of(limits, context, chat(80))
    assert 29 < (raised.value.retry_after_s or 0) <= 30
    await limits.aclose()


class Rows(FakeLedger):
    """A ledger that has the rows of one key, each with its time."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[float, int]] = []

    async def read_usage(self, since: float, key: str | None = None) -> list[Any]:
        """See `Ledger`."""
        tokens = sum(tokens for at, tokens in self.rows if at >= since)
        return [SimpleNamespace(key="one", owner="", model="m", tokens=tokens, cost=0)]


class Jumping:
    """
    A book with a budget of 1,000 tokens, on a system whose clock can be set.

    Args:
        rows: The ledger; None where there is none.
        url: Of a Redis server that counts.
    """

    def __init__(
        self, budget: str, rows: Rows | None, system: Clock, even: Clock, url: str | None
    ) -> None:
        config = Config(models={"m": echo()}, limits=LimitsConfig(url=url, **{budget: 1000}))
        self.system, self.even, self.rows = system, even, rows
        self.clock = SteadyClock(system, even)
        measures = TokenEstimator(sources.registry(config))
        self.book = Limiter(config, measures, rows, self.clock)
        self.clock.followers.append(self.book.correct_periods)

    def passes(self, seconds: float) -> None:
        """Time goes by."""
        self.system.now += seconds
        self.even.now += seconds

    async def spend(self) -> bool:
        """Use 100 tokens; False where there is nothing left for them."""
        at = self.clock()
        try:
            entry = await self.book.open(Context(caller="one", model="m"), chat(80))
        except QuotaExceeded:
            return False
        assert entry is not None
        await entry.close(Usage(20, 80), 200)
        if self.rows is not None:
            self.rows.rows.append((at, 100))
        return True

    async def spend_all(self) -> int:
        """How many times 100 tokens can be used."""
        count = 0
        while count < 30 and await self.spend():
            count += 1
        return count


NOON = 1_800_014_400.0  # 2027-01-15 12:00


@pytest.fixture(params=["memory", "memory and ledger", "redis"])
async def jumping(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Jumping]]:
    """Makes a book at noon, of each kind."""
    made: list[Jumping] = []
    url = request.getfixturevalue("redis").url if request.param == "redis" else None
    rows = None if request.param == "memory" else Rows()

    def make(budget: str, now: float = NOON) -> Jumping:
        made.append(Jumping(budget, rows, Clock(now), Clock(100.0), url))
        return made[-1]

    yield make
    for one in made:
        await one.book.aclose()


@pytest.mark.parametrize("jump_s", [-40 * 86_400, -86_400, 86_400, 40 * 86_400])
@pytest.mark.parametrize("budget", ["tokens_per_day", "tokens_per_month"])
async def test_a_clock_that_jumps(
    jumping: Callable[..., Jumping], budget: str, jump_s: float
) -> None:
    """While the system's clock is a day or forty off, and after it is right again, a budget is what it was: not more, and not less."""
    rig = jumping(budget)
    used = [await rig.spend() for _ in range(4)]
    rig.system.now += jump_s
    rig.passes(300)
    used += [await rig.spend() for _ in range(3)]
    rig.system.now -= jump_s
    rig.passes(300)

    assert [True] * 7 == used
    assert 3 == await rig.spend_all()
    rig.passes(31 * 86_400)
    assert 10 == await rig.spend_all()


async def test_a_clock_that_is_put_back_for_good(jumping: Callable[..., Jumping]) -> None:
    """What was used on a day that has not come counts on the day that it was, and the clock is followed."""
    rig = jumping("tokens_per_day")
    assert [True] * 6 == [await rig.spend() for _ in range(6)]
    rig.system.now -= 86_400
    rig.clock()
    rig.passes(BELIEVED_S)

    assert rig.system.now == rig.clock()
    assert 4 == await rig.spend_all()
    if rig.rows is None:
        rig.passes(86_400)
        assert 10 == await rig.spend_all()


async def test_a_clock_that_was_wrong_for_long(jumping: Callable[..., Jumping]) -> None:
    """Of a clock that was a day ahead for so long that it was believed nothing is lost: when it is right again both days' use counts."""
    rig = jumping("tokens_per_day")
    assert [True] * 4 == [await rig.spend() for _ in range(4)]
    for jump_s, expected in ((86_400, [True] * 3), (-86_400, [True] * 3 + [False])):
        rig.system.now += jump_s
        rig.clock()
        rig.passes(BELIEVED_S)
        assert expected == [await rig.spend() for _ in expected]


@pytest.mark.heavy(but=1)
async def test_a_server_whose_system_clock_jumps(
    limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole server gives no second budget while the system's clock is a day ahead or behind, and refuses nobody who has some left."""
    system, even = Clock(time.time()), Clock()
    monkeypatch.setattr(listener, "SteadyClock", lambda: SteadyClock(system, even))
    async with served(limits(tokens_per_day=500)) as server:
        statuses = []
        for jump_s in (0, 86_400, -2 * 86_400, 86_400, 0, 30 * 86_400):
            system.now += jump_s
            statuses.append((await server.ask(max_tokens=80)).status)

    assert [200] * 5 + [429] == statuses


async def test_a_server_whose_clock_is_behind(redis: RedisServer) -> None:
    """A Redis server counts the budget of a day that is over by its own clock, for a server whose clock is a year behind."""
    rig = Jumping("tokens_per_day", None, Clock(time.time() - 365 * 86_400), Clock(), redis.url)
    assert 10 == await rig.spend_all()
    await rig.book.aclose()


async def test_a_backend_that_does_not_stop() -> None:
    """An answer far beyond what is held for it ends."""
    limits = book(FakeLedger(), Clock(), tokens_per_day=1000)
    account = Accounts(Metrics(), (limits,)).open(Context(caller="one"), "m", chat(80))
    with pytest.raises(QuotaExceeded, match="did not keep to"):
        async with account:
            account.see([Usage(20, 160)])
            account.see([Usage(20, 300)])
    assert 300 == account.completion_tokens
    await limits.aclose()


async def test_other_limits() -> None:
    """Limits can be changed while a server runs: what was used stays, and what was not counted before comes from the ledger."""
    ledger = FakeLedger()
    limits = book(ledger, Clock(), tokens_per_day=1000)
    context = Context(caller="one", model="m", owner="team")
    entry = await entry_of(limits, context, chat(80))
    assert entry is not None
    await closed(entry, Usage(20, 80))

    ledger.sums = {"one": 100}
    limits.configure(Config(limits=LimitsConfig(tokens_per_day=150), owners={"team": Table(parallel=1)}))  # fmt: skip
    with pytest.raises(QuotaExceeded, match="is 150: 100 are used"):
        await entry_of(limits, context, chat(80))
    assert await entry_of(limits, context, chat(30)) is not None
    with pytest.raises(RateLimited, match="of this owner are running"):
        await entry_of(limits, context, chat(1))
    limits.configure(Config())
    assert await entry_of(limits, context, chat(80)) is None
    await limits.aclose()


async def test_a_budget_that_is_new_on_redis(redis: RedisServer) -> None:
    """A budget that a reload brings has what the ledger says of this day also where several servers count together."""
    ledger = FakeLedger()
    before = LimitsConfig(url=redis.url, requests_per_minute=60)
    config = Config(models={"m": echo()}, limits=before)
    limits = Limiter(config, TokenEstimator(sources.registry(config)), ledger, Clock(time.time()))
    await limits.start()
    ledger.sums = {"one": 100}
    limits.configure(Config(limits=LimitsConfig(url=redis.url, tokens_per_day=150)))
    with pytest.raises(QuotaExceeded, match="is 150: 100 are used"):
        await entry_of(limits, Context(caller="one", model="m"), chat(80))
    await limits.aclose()


async def test_a_key_that_changes_has_no_plan() -> None:
    """What follows from the limits of a key is forgotten when the key changes, as where it is revoked; other keys keep theirs."""
    config = Config(models={"m": echo()})
    limits = Limiter(config, TokenEstimator(sources.registry(config)), None, Clock())
    for name in "ab":
        limits.plan(Context(caller=name, limits={"parallel": 1.0}))
    limits.note_change(["a"])
    assert ["b"] == [name for name, *_ in limits._plans]
    await limits.aclose()


async def test_a_key_with_other_limits() -> None:
    """A key's limits hold as they are when a request comes, of each owner and each model their own, however many keys there are."""
    config = Config(
        models={"m": echo(), "small": msgspec.structs.replace(echo(), limits=Table(tokens_per_day=90))},
        owners={"team": Table(tokens_per_day=95)},
    )  # fmt: skip
    limits = Limiter(config, TokenEstimator(sources.registry(config)), None, Clock())

    async def told(most: int, owner: str = "", model: str = "m", caller: str = "one") -> str:
        """The limit that the headers tell of, or that refuses a request for 100 tokens."""
        given = {"tokens_per_day": float(most)}
        context = Context(caller=caller, owner=owner, model=model, limits=given)
        with suppress(QuotaExceeded):
            entry = await entry_of(limits, context, chat(80))
            assert entry is not None
            await closed(entry, Usage(0, 0))
        return context.headers["x-ratelimit-limit-tokens"]

    assert ["1000", "50", "1000"] == [await told(most) for most in (1000, 50, 1000)]
    assert ["95", "90"] == [await told(1000, "team"), await told(1000, model="small")]
    assert "1000" == await told(1000)
    for number in range(5000):
        limits.plan(Context(caller=f"{number}", limits={"parallel": 1.0}))
    assert len(limits._plans) <= 4096
    assert "1000" == await told(1000)
    await limits.aclose()


class Opening:
    """A ledger that asks for budgets first, and is opened when a test says so."""

    is_on = True

    def __init__(self, limits: Limiter) -> None:
        self._limits = limits
        self.asked, self.is_open = asyncio.Event(), asyncio.Event()

    async def open(self, context: Context, request: Any) -> None:
        """It keeps nothing."""
        self._limits.plan(context)
        self.asked.set()
        await self.is_open.wait()


@pytest.mark.parametrize("by", ["a reload", "the key"])
async def test_limits_that_change_while_the_ledger_opens(by: str) -> None:
    """A request that waits for the ledger has the limits as they are once it is open."""

    def config(most: int) -> Config:
        return Config(models={"m": echo()}, limits=LimitsConfig(tokens_per_day=most))

    limits = Limiter(config(1000), TokenEstimator(sources.registry(config(1000))), None, Clock())
    ledger = Opening(limits)
    context = Context(caller="one", limits={"tokens_per_day": 900.0} if by == "the key" else {})
    account = Accounts(Metrics(), (ledger, limits)).open(context, "m", chat(80))

    async def asked() -> None:
        async with account:
            pass

    asking = asyncio.create_task(asked())
    await ledger.asked.wait()
    if by == "the key":
        context.limits = {"tokens_per_day": 50.0}
    else:
        limits.configure(config(50))
    ledger.is_open.set()
    with pytest.raises(QuotaExceeded, match="is 50"):
        await asking
    await limits.aclose()


def test_what_is_a_budget() -> None:
    """A request counts against a budget where one of its key, its owner or its model is of tokens or money of a day or a month."""
    limits = Limiter(
        Config(
            owners={"team": Table(money_per_month=1)},
            models={"m": msgspec.structs.replace(echo(), limits=Table(tokens_per_minute=5))},
        ),
        TokenEstimator(sources.registry(Config())),
    )
    assert limits.plan(Context(owner="team")).has_budget
    assert limits.plan(Context(limits={"tokens_per_day": 5})).has_budget
    assert not limits.plan(Context(limits={"parallel": 5}, model="m", owner="other")).has_budget


async def test_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """While Redis is away a request that has limits is a 503 within a second, and a server whose requests all have some is not ready, until Redis is back."""
    monkeypatch.setattr(_redis, "ALIVE_S", 0.05)
    with redis_server() as redis:
        limits = LimitsConfig(url=redis.url)
        model = msgspec.structs.replace(echo(), limits=Table(tokens_per_day=10_000))
        async with served(limits, model) as server:
            before = await server.ask(max_tokens=5)
            ready = [await readiness(server)]
            redis.freeze()
            began = asyncio.get_running_loop().time()
            away = await server.ask(max_tokens=5)
            assert asyncio.get_running_loop().time() - began < 1
            redis.freeze(False)
            redis.stop()
            gone = await server.ask(max_tokens=5)
            ready.append(await readiness(server))
            redis.start()
            async with asyncio.timeout(20):
                while (after := await server.ask(max_tokens=5)).status == 503:
                    await asyncio.sleep(0.05)
                while (back := await readiness(server))[0] == 503:
                    await asyncio.sleep(0.05)
            ready.append(back)
    well, ill = (200, "ready\n"), (503, "not ready: The limits, which each request has, cannot be counted. The log says why.\n")  # fmt: skip
    assert [well, ill, well] == ready
    assert [200, 503, 503, 200] == [one.status for one in (before, away, gone, after)]
    assert {"limits_unavailable"} == {one.body["error"]["code"] for one in (away, gone)}
    assert "2" == away.headers["Retry-After"]
    assert "redis" not in str(away.body).lower()
