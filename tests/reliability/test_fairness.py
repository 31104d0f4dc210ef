"""Tests of fair shares, over HTTP: many requests of one key, and those of another beside them."""

import asyncio
import os
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.servers.appserver import App, serving_models
from unilect.config.server import Config, ModelConfig
from unilect.models import sources
from unilect.models.registry import Registry
from unilect.scheduling.fair_order import FairOrder, QueuedRequest

KEYS = {"greedy": "sk-greedy-0123456789", "modest": "sk-modest-0123456789"}
MODEST = ("modest", "second", "third")
KEYS |= {name: f"sk-{name}-0123456789" for name in MODEST[1:]}
TEXT = "an answer of some tokens"
TIMED = "UNILECT_TEST_TIMED" in os.environ  # the machine is quiet


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[App]:
    """A server of `m`, an `echo:` with four places, and the keys above."""
    config = ModelConfig(**{"source": "echo:", "max_in_flight": 4} | settings)
    registry = Registry([sources.model("m", config)])
    async with serving_models(Config(api_keys=list(KEYS.values())), registry) as app:
        yield app


async def ask(app: App, who: str, text: str = TEXT, **fields: Any) -> tuple[int, float | None]:
    """The status of an answer, and its `Retry-After`."""
    url = f"http://127.0.0.1:{app.port}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": text}], "stream": True} | fields
    headers = {"Authorization": f"Bearer {KEYS[who]}"}
    async with app.session.post(url, json=body, headers=headers) as response:
        await response.read()
        after = response.headers.get("Retry-After")
        return response.status, after if after is None else float(after)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What happens in the order of those that wait: one `waits` or `begins`, and whose it is."""
    found: list[tuple[str, str]] = []

    def noted(name: str, what: str) -> None:
        before = getattr(FairOrder, name)

        def method(self: FairOrder, ticket: QueuedRequest) -> None:
            found.append((what, ticket.caller))
            before(self, ticket)

        monkeypatch.setattr(FairOrder, name, method)

    noted("add", "waits")
    noted("begin", "begins")
    return found


@pytest.mark.parametrize(
    ("settings", "asks"),
    [
        ({}, 20),
        pytest.param(
            {"source": "demo:", "max_in_flight": None, "parallel": 4}, 5, marks=pytest.mark.heavy
        ),
    ],
    ids=["echo", "GGUF"],
)
async def test_a_flood_beside_one_at_a_time(
    log: list[tuple[str, str]], settings: dict[str, Any], asks: int
) -> None:
    """While one key keeps 32 streams open, each request of a key that asks one at a time has the next place that becomes free."""
    enough = asyncio.Event()
    async with served(**settings) as app:

        async def flood() -> set[int]:
            statuses = set()
            while not enough.is_set():
                statuses.add((await ask(app, "greedy", max_tokens=24))[0])
            return statuses

        floods = [asyncio.create_task(flood()) for _ in range(32)]
        while log.count(("waits", log[0][1] if log else "")) < 28:
            await asyncio.sleep(0)
        greedy = log[0][1]
        modest = [(await ask(app, "modest", max_tokens=24))[0] for _ in range(asks)]
        whole = list(log)
        length = await app.get("/v1/models")
        enough.set()
        statuses = await asyncio.gather(*floods)

    (other,) = {caller for _, caller in whole} - {greedy}
    overtaken = [
        whole[at : whole.index(("begins", other), at)].count(("begins", greedy))
        for at, event in enumerate(whole)
        if event == ("waits", other)
    ]
    assert ([200] * asks, [{200}] * 32) == (modest, statuses)
    assert [0] * asks == overtaken
    assert whole.count(("begins", greedy)) >= 3 * (asks - 1)
    assert 401 == length[0]  # the figures are for those with a key


class Tally:
    """
    What was answered from some moment on.

    Attributes:
        answers: How many answers each key had.
        refused_s: The seconds after which each refusal came.
        statuses: All statuses of the modest.
    """

    def __init__(self, app: App, **fields: Any) -> None:
        self._app, self._fields = app, fields
        self.statuses: set[int] = set()
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self.answers, self.refused_s = Counter[str](), list[float]()
        self._began = time.perf_counter()

    def per_s(self) -> dict[str, float]:
        """Answers a second, by key."""
        return {name: n / (time.perf_counter() - self._began) for name, n in self.answers.items()}

    async def ask(self, who: str) -> None:
        """One request."""
        began = time.perf_counter()
        status, _ = await ask(self._app, who, **self._fields)
        if status == 200:
            self.answers[who] += 1
        else:
            self.refused_s.append(time.perf_counter() - began)
        if who in MODEST:
            self.statuses.add(status)

    async def on_and_on(self, who: str) -> None:
        """One request after the other."""
        while True:
            await self.ask(who)

    async def flood(self, who: str, per_s: float) -> None:
        """So many requests a second, whatever becomes of them."""
        async with asyncio.TaskGroup() as group:
            begin, count = time.perf_counter(), 0
            while True:
                due = int((time.perf_counter() - begin) * per_s)
                for _ in range(count, due):
                    group.create_task(self.ask(who))
                count = max(count, due)
                await asyncio.sleep(0.5 / per_s)


@asynccontextmanager
async def going(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Some work in the background, until the block ends."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def running(app: App) -> int:
    """How many requests the model answers now, beside those that wait."""
    model = app.service.registry.get("m")
    return sum(member.outstanding for member in model.pool.members) - model.queue.length


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("settings", "max_tokens"),
    [
        ({"max_in_flight": 4, "options": {"tokens_per_s": 100}}, 20),
        pytest.param(
            {"source": "demo:", "max_in_flight": None, "parallel": 4}, 200, marks=pytest.mark.heavy
        ),
    ],
    ids=["echo", "GGUF"],
)
async def test_ten_times_the_load(settings: dict[str, Any], max_tokens: int) -> None:
    """At ten times the load the model is as busy as ever, and three other keys have their shares of them."""
    async with served(max_queue=16, **settings) as app:
        tally = Tally(app, max_tokens=max_tokens, ignore_eos=True)
        await tally.ask("greedy")
        async with going(*(tally.on_and_on("greedy") for _ in range(4))):
            await asyncio.sleep(0.5)
            tally.begin()
            await asyncio.sleep(3)
            peak = tally.per_s()["greedy"]
        modest = [tally.on_and_on(name) for name in MODEST for _ in range(2)]
        async with going(tally.flood("greedy", 10 * peak), *modest):
            await asyncio.sleep(1)
            tally.begin()
            busy = []
            for _ in range(100):
                await asyncio.sleep(0.05)
                busy.append(running(app))
            under, whole = tally.per_s(), tally.answers.copy()

    print(
        f"peak {peak:.1f} a second, at ten times the load {under}, {len(tally.refused_s)} refused"
    )
    assert {200} == tally.statuses
    assert statistics.mean(busy) >= 0.9 * 4
    assert all(under[name] >= 0.9 * sum(under.values()) / 4 - 1 / 5 for name in MODEST), whole
    assert len(tally.refused_s) > whole.total()
    if TIMED:  # else how fast anything is depends on what the machine does besides
        assert sum(under.values()) >= 0.9 * peak
        assert len(tally.refused_s) > 5 * 5 * peak
        assert statistics.median(tally.refused_s) <= 0.05


async def test_who_fills_the_queue_is_told_when_to_come_again() -> None:
    """Over HTTP the key that fills the queue gets 429 with `Retry-After`, and another key is answered at the same time."""
    async with served(max_in_flight=1, max_queue=4, options={"tokens_per_s": 10}) as app:
        model = app.service.registry.get("m")
        greedy = [asyncio.create_task(ask(app, "greedy"))]
        while not model.pool.members[0].served:
            await asyncio.sleep(0)
        greedy += [asyncio.create_task(ask(app, "greedy", max_tokens=1)) for _ in range(11)]
        refused = 0
        while refused < 7:
            await asyncio.sleep(0)
            refused = sum(task.done() for task in greedy)
        status, _ = await ask(app, "modest", max_tokens=1)
        answers = await asyncio.gather(*greedy)

    told = [after for code, after in answers if code == 429]
    assert (200, {200, 429}) == (status, {code for code, _ in answers})
    assert 8 == len(told)  # the newest gave its place to the other key
    assert all(after is not None and after >= 1 for after in told)


async def test_flex_gives_way() -> None:
    """Requests with `service_tier: "flex"` wait for those without, though they came first, in every API that has the field."""
    order: list[str] = []

    async def asked(app: App, name: str, path: str, body: dict[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {KEYS['modest']}"}
        async with app.session.post(
            f"http://127.0.0.1:{app.port}/v1/{path}", json=body, headers=headers
        ) as response:
            assert 200 == response.status, await response.text()
        order.append(name)

    async with served(max_in_flight=1, options={"tokens_per_s": 200}) as app:
        chat = {"messages": [{"role": "user", "content": "a b c d e f"}]}
        flex = {"service_tier": "flex"}
        each = [
            ("first", "chat/completions", chat),
            ("batch", "chat/completions", chat | flex),
            ("batch", "completions", {"prompt": "a b c d e f"} | flex),
            ("batch", "responses", {"input": "a b c d e f", "store": False} | flex),
            ("other", "chat/completions", chat),
            ("other", "responses", {"input": "a b c d e f", "store": False}),
        ]
        model = app.service.registry.get("m")
        tasks = []
        for number, one in enumerate(each):
            tasks.append(asyncio.create_task(asked(app, *one)))
            while sum(member.outstanding for member in model.pool.members) <= number:
                await asyncio.sleep(0)
            while number and model.queue.length < number:
                await asyncio.sleep(0)
        figures = "".join(app.service.accounts.metrics.exposition())
        await asyncio.gather(*tasks)

    assert ["first", "other", "other", "batch", "batch", "batch"] == order
    assert 'unilect_queue_length{model="m"} 5.0' in figures


@pytest.mark.heavy
async def test_the_queue_is_told(log: list[tuple[str, str]]) -> None:
    """`GET /v1/models/{model}` and `/metrics` say how many wait, and how long all of them will, once an answer has shown it."""
    async with served(max_in_flight=1, options={"tokens_per_s": 50}) as app:
        headers = {"Authorization": f"Bearer {KEYS['modest']}"}
        url = f"http://127.0.0.1:{app.port}/v1/models/m"

        async def told() -> Any:
            async with app.session.get(url, headers=headers) as response:
                return (await response.json())["unilect"]["queue"]

        before = await told()
        await ask(app, "modest")
        tasks = [asyncio.create_task(ask(app, "greedy")) for _ in range(3)]
        while len(log) < 2:
            await asyncio.sleep(0)
        during = await told()
        states = [context.state for context in app.guard.requests.values()]
        lines = "".join(app.service.accounts.metrics.exposition()).splitlines()
        await asyncio.gather(*tasks)
        after = await told()

    assert {"length": 0, "wait_s": None} == before
    assert 2 == states.count("queued")
    assert (2, 0) == (during["length"], after["length"])
    assert during["wait_s"] > 2 * len(TEXT) / 50 - 0.01
    assert 'unilect_queue_length{model="m"} 2.0' in lines
    assert any(line.startswith('unilect_queue_wait_seconds{model="m"} ') for line in lines)


async def test_more_choices_than_places() -> None:
    """A request for more choices than there are places takes one after the other, and has them all."""
    async with served(max_in_flight=1) as app:
        url = f"http://127.0.0.1:{app.port}/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": TEXT * 100}], "n": 4}
        headers = {"Authorization": f"Bearer {KEYS['modest']}"}
        async with app.session.post(url, json=body, headers=headers) as response:
            whole = await response.json()
        status, _ = await ask(app, "modest", TEXT * 100, n=4)

    assert (200, [TEXT * 100] * 4) == (
        status,
        [one["message"]["content"] for one in whole["choices"]],
    )
