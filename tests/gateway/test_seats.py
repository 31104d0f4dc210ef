"""Tests of unilect.gateway._seats: the short way through limits against the long one, which makes a claim of each counter."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clock import Clock
from entries import closed, entry_of
from unilect.config.limits import Limits as Table
from unilect.config.limits import LimitsConfig
from unilect.config.model import ModelConfig, Price
from unilect.config.server import Config
from unilect.context import Context
from unilect.errors import RateLimited, UnilectError
from unilect.events import Usage
from unilect.gateway._counters import MemoryCounters
from unilect.gateway.claims import Size
from unilect.gateway.limits import LimitBook
from unilect.requests import ChatRequest, Message, Request

PRICE = Price(prompt=2.0, cached=1.0, completion=8.0)
OF_MODEL = Table(requests_per_minute=30, tokens_per_minute=4000)
OF_KEY = {
    "few": LimitsConfig(requests_per_minute=3, tokens_per_day=900, parallel=2),
    "many": LimitsConfig(requests_per_minute=50, tokens_per_minute=3000, tokens_per_day=20_000, tokens_per_month=50_000, parallel=8),
    "money": LimitsConfig(money_per_day=0.02, money_per_month=0.03, requests_per_minute=12),
}  # fmt: skip


class Slow(MemoryCounters):
    """Counters that are asked by claims only."""


class Sizes:
    """Requests whose prompts have at most as many tokens as letters, and half of them when they are counted."""

    def size(self, model: str, request: Request) -> Size:
        """A bound."""
        assert isinstance(request, ChatRequest)
        prompt = len(str(request.messages[0].content))
        return Size(prompt=prompt, choices=1, limit=request.token_limit, room=2048, knows_room=model == "m")  # fmt: skip

    async def counted(self, model: str, request: Request, size: Size) -> Size:
        """The half."""
        return msgspec.structs.replace(size, prompt=size.prompt // 2, exact=True)

    def limits(self, model: str) -> Table | None:
        """One model has some."""
        return OF_MODEL if model == "m" else None


class Side:
    """One of the two ways."""

    def __init__(self, config: Config, clock: Clock, even: Clock, slow: bool) -> None:
        kind = Slow if slow else MemoryCounters
        self.counters = kind(lambda: int(even() * 1e6), clock)
        self.book = LimitBook(config, Sizes(), clock=clock, counters=self.counters)
        self.running: list[Any] = []

    async def begin(self, context: Context, request: ChatRequest) -> tuple[Any, ...]:
        """What a request is told."""
        try:
            self.running.append(await entry_of(self.book, context, request))
        except UnilectError as error:
            told = (type(error).__name__, error.message, error.retry_after_s)
        else:
            told = ("let in", "", None)
        return (*told, context.allowed, dict(context.headers))

    async def end(self, place: int, usage: Usage) -> None:
        """A request has used so much."""
        await closed(self.running.pop(place % len(self.running)), usage)

    async def left(self, callers: list[str]) -> list[Any]:
        """How all counters are."""
        contexts = [Context(caller=caller, owner="lab", model="m") for caller in callers]
        return [await self.book.look(context) for context in contexts]


BEGIN = st.tuples(
    st.just("begin"),
    st.sampled_from(["ann", "ben"]),
    st.sampled_from(["m", "other"]),
    st.integers(0, 600),
    st.none() | st.integers(1, 500),
)
END = st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 300), st.integers(0, 3000))
PASS = st.tuples(st.just("pass"), st.sampled_from([0.0, 0.3, 5.0, 61.0, 90_000.0, -40.0]))
FORGET = st.tuples(st.just("forget"))


ASKED = ("begin", "ann", "m", 100, 300)


@example("many", [ASKED, ("end", 0, 100, 300), ("pass", 90_000.0), ASKED, ("end", 0, 100, 300)])
@example("many", [ASKED, ("end", 0, 100, 300), ("pass", 61.0), ("forget",), ASKED])
@example("many", [ASKED, ("pass", 130.0), ("forget",), ("end", 0, 100, 3000), ASKED])
@given(st.sampled_from(sorted(OF_KEY)), st.lists(BEGIN | END | PASS | FORGET, max_size=25))
def test_both_ways(of_key: str, steps: list[tuple[Any, ...]]) -> None:
    """Whatever comes, ends, passes and is forgotten: who is let in, what is told and what is counted are the same on both ways."""

    async def compare() -> None:
        clock, even = Clock(), Clock(1000.0)  # the latter never goes back
        config = Config(
            limits=OF_KEY[of_key],
            owners={"lab": Table(tokens_per_day=40_000, parallel=3)},
            models={"m": ModelConfig(source="echo:", limits=OF_MODEL), "other": ModelConfig(source="echo:")},
        )  # fmt: skip
        sides = Side(config, clock, even, False), Side(config, clock, even, True)
        for step in steps:
            match step:
                case ("begin", caller, model, letters, limit):
                    request = ChatRequest(model=model, messages=[Message(role="user", content="x" * letters)], max_tokens=limit)  # fmt: skip
                    contexts = [Context(caller=caller, owner="lab", model=model, price=PRICE) for _ in sides]  # fmt: skip
                    told = [await side.begin(context, request) for side, context in zip(sides, contexts, strict=True)]  # fmt: skip
                    assert told[0] == told[1]
                case ("end", place, prompt, made) if sides[0].running:
                    for side in sides:
                        await side.end(place, Usage(prompt, made, prompt // 2))
                case ("pass", seconds):
                    clock.now += seconds
                    even.now += max(0.0, seconds)
                case ("forget",):
                    for side in sides:
                        side.counters._forget()
            for told_of in zip(*[await side.left(["ann", "ben"]) for side in sides], strict=True):
                states = [[(claim, state) for _, claim, state in one] for one in told_of]
                assert states[0] == states[1]

    asyncio.run(compare())


async def test_the_usual_request_makes_no_claim() -> None:
    """A request for which there is room everywhere goes the short way, and one that is refused the long one."""
    clock = Clock()
    quick = Side(Config(limits=OF_KEY["few"]), clock, clock, False)
    taken: list[str] = []
    take = quick.counters.take

    async def noted(request: str, claims: Any) -> Any:
        taken.append(request)
        return await take(request, claims)

    quick.counters.take = noted  # type: ignore[method-assign]
    request = ChatRequest(model="m", messages=[Message(role="user", content="x")], max_tokens=5)
    told = [(await quick.begin(Context(caller="ann", model="m"), request))[0] for _ in range(3)]
    assert ["let in", "let in", "RateLimited"] == told
    assert 1 == len(taken)


async def test_a_limit_that_is_lowered_while_requests_run() -> None:
    """What requests of before and after have used together is paid for two minutes at most."""
    even = Clock(1000.0)
    counters = MemoryCounters(lambda: int(even() * 1e6))
    book = LimitBook(Config(), Sizes(), counters=counters)
    request = ChatRequest(model="m", messages=[Message(role="user", content="x")], max_tokens=50)

    async def begun(most: int) -> Any:
        return await entry_of(book, Context(caller="ann", limits={"tokens_per_minute": most}), request)  # fmt: skip

    before, after = await begun(10_000), await begun(200)
    await closed(before, Usage(9000, 50))
    await closed(after, Usage(5, 5))
    with pytest.raises(RateLimited):
        await begun(200)
    even.now += 120
    await begun(200)
