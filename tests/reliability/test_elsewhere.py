"""What an engine had in it when it was ended from outside goes to the model's other backend, where that has room."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from inprocess import Site, process, site, until

from support.backends.tiny_child import halted
from unilect.config.server import Config, ModelConfig
from unilect.engines.process.child_process import ChildProcess
from unilect.scheduling.pooled_backend import PooledBackend

PLACES = 3
LONG: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True, "temperature": 0}
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both_site() -> AsyncIterator[Site]:
    """A server of a model with two engines of three places each."""
    model = ModelConfig(source=["demo:", "demo:"], parallel=PLACES)
    async with site(Config(port=0, models={"demo": model}, log_level="critical")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def both(both_site: Site) -> Site:
    """The server when both engines are up and idle, and nothing is known of earlier deaths."""
    for member in members(both_site):
        child = child_of(member)
        await child.start()
        child.restarts.deaths.clear()
        suspects = member.backend._generator.supervisor.blame  # type: ignore[attr-defined]
        suspects._deaths, suspects._lingering = [], []
    return both_site


def members(running: Site) -> tuple[PooledBackend, ...]:
    """The backends of the model."""
    return running.registry.get(None).pool.members


def child_of(member: PooledBackend) -> ChildProcess:
    """The process of a backend."""
    return process(member.backend)


async def ask(running: Site, number: int, **body: Any) -> str:
    """The text of a whole answer; each number is another conversation."""
    messages = [{"role": "user", "content": f"{number}: tell me a story."}]
    async with running.post(messages=messages, **LONG | body) as response:
        assert 200 == response.status, await response.text()
        text: str = (await response.json())["choices"][0]["message"]["content"]
        return text


async def streamed(running: Site, number: int, begun: asyncio.Event | None = None) -> str:
    """The same as a stream, which tells when it has begun."""
    messages = [{"role": "user", "content": f"{number}: tell me a story."}]
    text, last = "", ""
    async with running.post(messages=messages, stream=True, **LONG) as response:
        assert 200 == response.status, await response.text()
        async for line in response.content:
            if line.startswith(b"data: ") and (last := line[6:].strip().decode()) != "[DONE]":
                text += "".join(
                    one["delta"].get("content") or "" for one in json.loads(last)["choices"]
                )
                if begun is not None and text:
                    begun.set()
    assert "[DONE]" == last
    return text


async def in_each(running: Site, *counts: int) -> None:
    """Wait until so many requests are in the engines."""

    async def asked() -> bool:
        return counts == tuple(member.outstanding for member in members(running))

    await until(asked)


@pytest.fixture
def away(both: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Event]:
    """The first engine comes back, once it has died, when this event is set."""
    may_start = asyncio.Event()
    monkeypatch.setattr(child_of(members(both)[0]), "_pause", may_start.wait)
    yield may_start
    may_start.set()


def end(child: ChildProcess, how: signal.Signals = signal.SIGKILL) -> None:
    """End an engine from outside."""
    assert child.pid is not None
    os.kill(child.pid, how)


async def test_a_request_that_had_not_begun(both: Site, away: asyncio.Event) -> None:
    """A request that an engine had not begun when it was killed is answered by the other engine, while the first one is away."""
    child = child_of(members(both)[0])
    end(child, signal.SIGSTOP)
    await until_halted(child)
    asked = [asyncio.ensure_future(ask(both, number)) for number in (1, 2)]
    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert (1, 1) == (len(done), members(both)[0].outstanding)
    end(child)

    texts = await asyncio.gather(*asked)
    assert "died" == child.state
    assert texts == [await ask(both, number) for number in (1, 2)]


async def test_a_stream_that_had_begun(both: Site, away: asyncio.Event) -> None:
    """A stream of an engine that is killed goes on in the other engine, while the first one is away, and is whole."""
    begun = [asyncio.Event(), asyncio.Event()]
    streams = [asyncio.ensure_future(streamed(both, 3 + one, begun[one])) for one in (0, 1)]
    for event in begun:
        await event.wait()
    assert [1, 1] == [member.outstanding for member in members(both)]
    end(child_of(members(both)[0]))

    texts = await asyncio.gather(*streams)
    assert "died" == child_of(members(both)[0]).state
    assert texts == [await ask(both, number) for number in (3, 4)]


@pytest.mark.heavy
async def test_no_room_elsewhere(both: Site, away: asyncio.Event) -> None:
    """Where the other engine's places are taken, what an engine had waits for it to come back, and is whole."""
    numbers = range(20, 20 + 2 * PLACES)
    first, second = map(child_of, members(both))
    for child in (first, second):
        end(child, signal.SIGSTOP)
        await until_halted(child)
    asked = [asyncio.ensure_future(ask(both, number)) for number in numbers]
    await in_each(both, PLACES, PLACES)
    end(first)
    await until_died(first)
    end(second, signal.SIGCONT)
    await in_each(both, PLACES, 0)
    away.set()

    texts = await asyncio.gather(*asked)
    assert texts == [await ask(both, number) for number in numbers]


@pytest.mark.heavy
async def test_an_engine_that_crashed(both: Site, away: asyncio.Event) -> None:
    """What was in an engine that crashed by itself is asked of no other one: it may be what it crashed of."""
    child = child_of(members(both)[0])
    streams, begun = list[asyncio.Future[str]](), [asyncio.Event() for _ in range(4)]
    for number, event in enumerate(begun):
        streams.append(asyncio.ensure_future(streamed(both, 10 + number, event)))
    for event in begun:
        await event.wait()
    served = members(both)[1].served
    end(child, signal.SIGSEGV)
    await until_died(child)  # its core may still be written when the other one has answered
    await in_each(both, 2, 0)
    assert ("died", served) == (child.state, members(both)[1].served)
    away.set()

    assert all(await asyncio.gather(*streams))


async def until_halted(child: ChildProcess) -> None:
    """Wait until an engine stands still."""

    async def asked() -> bool:
        return halted(child.pid)

    await until(asked)


async def until_died(child: ChildProcess) -> None:
    """Wait until it is known that an engine has died."""

    async def asked() -> bool:
        return child.state == "died"

    await until(asked)
