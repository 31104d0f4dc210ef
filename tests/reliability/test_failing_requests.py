"""Tests of requests that fail, over HTTP: how often upstreams are asked for them, and what other callers notice."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from support.backends.scripted import (
    HELLO,
    Exchange,
    Script,
    Scripted,
    answer,
    delta,
    frames,
    scripted,
    stream_of,
)
from support.servers.appserver import App, serving, upstream
from unilect.config.server import Config
from unilect.scheduling.pooled_backend import PooledBackend

KEYS = {"bad": "sk-bad-0123456789abcdef", "good": "sk-good-0123456789abcdef"}


async def refuses(exchange: Exchange) -> None:
    """A 500 at once."""
    await exchange.send(answer(b'{"error":{"message":"CUDA error"}}', "500 Oops"))
    exchange.close()


async def resets(exchange: Exchange) -> None:
    """The connection ends before an answer."""
    exchange.reset()


async def breaks(exchange: Exchange) -> None:
    """The connection ends in the middle of an answer."""
    await exchange.send(stream_of(frames(delta(role="assistant", content="Hel"))))
    exchange.close()


def poisoned(fails: Script) -> Script:
    """A worker that fails so on one kind of content, and is well otherwise."""

    async def script(exchange: Exchange) -> None:
        if exchange.head.startswith(b"GET"):
            await exchange.send(answer(b'{"data":[]}'))
        elif b"poison" in exchange.body:
            return await fails(exchange)
        else:
            await exchange.send(stream_of(HELLO))
        exchange.close()

    return script


class Pair:
    """A server in front of two workers."""

    def __init__(self, app: App, workers: list[Scripted]) -> None:
        self.app, self.workers = app, workers

    async def ask(self, who: str, text: str) -> tuple[int, str, bool]:
        """The status of a stream, the model that answered where it is another, and whether it was whole."""
        url = f"http://127.0.0.1:{self.app.port}/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": text}], "stream": True}
        headers = {"Authorization": f"Bearer {KEYS[who]}"} if who else {}
        async with self.app.session.post(url, json=body, headers=headers) as response:
            whole = (await response.read()).endswith(b"data: [DONE]\n\n")
            return response.status, response.headers.get("X-Unilect-Fallback", ""), whole

    def asked(self) -> list[str]:
        """The texts that the workers were asked, each as often as it was sent."""
        bodies = [
            one.json()
            for worker in self.workers
            for one in worker.requests
            if b"/chat/" in one.head
        ]
        return [body["messages"][0]["content"] for body in bodies]

    @property
    def members(self) -> tuple[PooledBackend, ...]:
        """The workers, as the pool has them."""
        return self.app.service.registry.get("m").pool.members


@asynccontextmanager
async def pair(
    script: Script, keys: bool = True, fallback: Script | None = None
) -> AsyncIterator[Pair]:
    """Two workers behind the model `m`, and one behind its fallback."""
    async with AsyncExitStack() as stack:
        scripts = [script, script] + ([] if fallback is None else [fallback])
        workers = [await stack.enter_async_context(scripted(one)) for one in scripts]
        members = [PooledBackend(upstream(worker.url), worker.url) for worker in workers]
        config = Config(api_keys=list(KEYS.values())) if keys else Config()
        others: Any = {} if fallback is None else {"fallback": members[2:]}
        app = await stack.enter_async_context(serving(members[:2], config, **others))
        yield Pair(app, workers[:2])


async def many(
    site: Pair, who: str, texts: list[str], at_once: int = 20
) -> list[tuple[int, str, bool]]:
    """Answers to many texts, some at a time."""
    places = asyncio.Semaphore(at_once)

    async def one(text: str) -> tuple[int, str, bool]:
        async with places:
            return await site.ask(who, text)

    return await asyncio.gather(*map(one, texts))


@pytest.mark.heavy
@pytest.mark.parametrize("at_once", [1, 50, 200])
@pytest.mark.parametrize("keys", [True, False], ids=["one key", "no keys"])
async def test_how_often_failing_upstreams_are_asked(keys: bool, at_once: int) -> None:
    """200 requests to upstreams that answer 500 cause at most 1.1 times as many attempts, however many come at a time."""
    async with pair(refuses, keys) as site:
        found = await many(site, "bad" if keys else "", [f"{n}" for n in range(200)], at_once)
        asked = site.asked()

    assert {503} == {status for status, _, _ in found}
    assert 200 < len(asked) <= 220


@pytest.mark.heavy
async def test_how_often_closing_upstreams_are_asked() -> None:
    """Requests on whose connections no byte of an answer came are sent once more, to the other upstream, and no more often."""
    async with pair(resets) as site:
        await many(site, "bad", [f"{n}" for n in range(100)])
        asked = Counter(site.asked())

    assert {2} == set(asked.values())


async def test_what_has_begun_is_sent_once() -> None:
    """Of 200 answers that break off after their first word each was asked for once, and each is told to be broken."""
    async with pair(breaks) as site:
        found = await many(site, "bad", [f"{n}" for n in range(200)])
        asked = Counter(site.asked())

    assert (200, {1}) == (len(asked), set(asked.values()))
    assert {(200, "", False)} == set(found)


@pytest.mark.heavy(but=3)
@pytest.mark.parametrize("fallback", [None, poisoned(refuses)], ids=["alone", "with a fallback"])
@pytest.mark.parametrize("fails", [refuses, resets, breaks])
async def test_one_keys_failing_requests(fails: Script, fallback: Script | None) -> None:
    """While 100 requests of one key fail on every upstream, all of another key are answered, by the model itself, and none is out."""
    async with pair(poisoned(fails), fallback=fallback) as site:
        await site.ask("good", "before")
        bad = asyncio.create_task(many(site, "bad", [f"poison {n}" for n in range(100)]))
        good = []
        while not bad.done() or len(good) < 60:
            good.append(await site.ask("good", f"good {len(good)}"))
        failed = await bad
        is_out = [member.breaker.open for member in site.members]

    assert {(200, "", True)} == set(good)
    assert not any(whole for _, _, whole in failed)
    assert [False, False] == is_out


async def test_a_broken_upstream_beside_a_failing_key() -> None:
    """An upstream that fails for everybody is out soon, and nobody else notices, also while one key has used up its own retries."""
    broken = asyncio.Event()

    async def one(exchange: Exchange) -> None:
        if broken.is_set() and not exchange.head.startswith(b"GET"):
            return await refuses(exchange)
        await poisoned(refuses)(exchange)

    async with pair(poisoned(refuses)) as site:
        site.workers[0]._script = one
        await many(site, "bad", [f"poison {n}" for n in range(100)])
        broken.set()
        good = [await site.ask("good", f"good {n}") for n in range(40)]
        asked = len(site.asked())

    assert {(200, "", True)} == set(good)
    assert asked <= 110 + 40 + 20
