"""Queues and large bodies: what waits is bounded in bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.backends.gated import Gated
from support.backends.scripted import answer, says, scripted
from support.common.waiting import until
from support.servers.appserver import App, serving_models
from unilect.config.server import Config
from unilect.core.bounds import SMALL_BYTES
from unilect.http.client import HttpServer
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.scheduling.fair_queue import QueueSettings
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import Echo, Options
from unilect.upstreams.openai.backend import OpenAIUpstream

KEYS = {name: f"sk-{name}-0123456789" for name in "abc"}
TEXT = "x" * (2 * SMALL_BYTES)
OK = Options(text="ok")
#: Four bodies with the text, of which one caller has two.
CONFIG = Config(
    api_keys=list(KEYS.values()),
    max_body_bytes=3 * SMALL_BYTES,
    max_total_body_bytes=6 * SMALL_BYTES,
)


@asynccontextmanager
async def served(*backends: Echo, config: Config = CONFIG) -> AsyncIterator[App]:
    """A server of a model for each backend, `m0` and so on, with one place each."""
    queue = QueueSettings(max_in_flight=1)
    models = [Model(f"m{at}", [PooledBackend(one, queue=queue)]) for at, one in enumerate(backends)]
    async with serving_models(config, Registry(models)) as app:
        yield app


async def ask(app: App, who: str, text: str = TEXT, **fields: Any) -> tuple[int, Any, str | None]:
    """The status of a chat, its text or its error's code, and `Retry-After`."""
    url = f"http://127.0.0.1:{app.port}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": text}]} | fields
    headers = {"Authorization": f"Bearer {KEYS[who]}"}
    async with app.session.post(url, json=body, headers=headers) as response:
        told = await response.json()
        said = (
            told["error"]["code"] if "error" in told else told["choices"][0]["message"]["content"]
        )
        return response.status, said, response.headers.get("Retry-After")


def held(app: App) -> int:
    """The bytes that large bodies have now."""
    return app.guard._bodies.held.total()


async def test_what_waits_is_bounded_in_bytes() -> None:
    """Large requests for a busy model wait as far as there is room, and are refused beyond that with a time; small ones go on waiting."""
    backend = Gated(OK)
    async with served(backend) as app:
        waiting = [asyncio.create_task(ask(app, "a")) for _ in range(3)]
        refused, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (told,) = [one.result() for one in refused]
        assert (429, "too_many_waiting", "10") == told
        small = asyncio.create_task(ask(app, "a", "small"))
        backend.open()
        assert (200, "ok", None) == await small
        assert [200, 200, 429] == sorted([(await one)[0] for one in waiting])
        assert not held(app)
        assert 200 == (await ask(app, "a"))[0]


async def test_one_bound_for_all_models() -> None:
    """The bound is one for all models together, a caller that has its share gets no more of it at another one, and other callers do."""
    first, second = Gated(OK), Gated(OK)
    async with served(first, second) as app:
        waiting = [asyncio.create_task(ask(app, "a", model="m0")) for _ in range(2)]
        await until(lambda: held(app) > 2 * SMALL_BYTES)
        assert 429 == (await ask(app, "a", model="m1"))[0]
        waiting.append(asyncio.create_task(ask(app, "b", model="m1")))
        await second.has(1)
        larger = "x" * (SMALL_BYTES * 11 // 4)
        assert (503, "backend_unavailable", "10") == await ask(app, "c", larger, model="m1")
        first.open()
        second.open()
        assert [200] * 3 == [(await one)[0] for one in waiting]


async def test_a_client_that_leaves_a_queue() -> None:
    """A client that leaves while its large request waits, or is answered, gives its share back."""
    backend = Gated(OK)
    async with served(backend) as app:
        running = asyncio.create_task(ask(app, "a"))
        await backend.has(1)
        waiting = asyncio.create_task(ask(app, "a"))
        await until(lambda: held(app) > 2 * SMALL_BYTES)
        for left, rest in ((waiting, 2 * SMALL_BYTES), (running, 0)):
            left.cancel()
            await until(lambda rest=rest: held(app) <= rest)  # type: ignore[misc]
        assert not held(app)


@pytest.mark.parametrize("fields", [{"n": 17}, {"model": "nosuch"}, {"temperature": "hot"}])
async def test_a_large_request_that_is_refused(fields: dict[str, Any]) -> None:
    """A large request that is refused for what it asks gives its share back."""
    async with served(Echo(OK)) as app:
        for _ in range(4):
            assert (await ask(app, "a", **fields))[0] in (400, 404)
        assert not held(app)


async def test_a_large_request_that_fails_midway() -> None:
    """A large request whose answer breaks off gives its share back."""
    async with served(Echo(Options(breaks_after=3, failing_answers=9))) as app:
        for _ in range(4):
            assert 502 == (await ask(app, "a"))[0]
        assert not held(app)


async def test_failover_with_a_large_body() -> None:
    """A large request whose first backend fails goes whole to the next one, counts once while it waits there, and gives its share back."""
    backend = Gated(OK)
    async with scripted(says(answer(b"{}", "503 Service Unavailable"))) as server:
        failing = PooledBackend(OpenAIUpstream(HttpServer(server.url), "theirs"), "failing")
        model = Model("m", [failing, PooledBackend(backend, queue=QueueSettings(max_in_flight=1))])
        async with serving_models(CONFIG, Registry([model])) as app:
            waiting = [asyncio.create_task(ask(app, "a")) for _ in range(2)]
            await backend.has(1)
            await until(lambda: len(server.requests) == 2 and len(model.pool.queues[0]) == 1)
            assert 2 * SMALL_BYTES <= held(app) <= 3 * SMALL_BYTES
            backend.open()
            assert [200, 200] == [(await one)[0] for one in waiting]
            assert [TEXT, TEXT] == [one.messages[-1].content for one in backend.asked]  # type: ignore[union-attr]
            assert not held(app)


async def test_several_choices_of_a_large_body() -> None:
    """A large request of several choices counts once, until the last of them is made."""
    backend = Gated(OK)
    async with served(backend) as app:
        asking = asyncio.create_task(ask(app, "a", n=3))
        for made in range(3):
            await backend.has(made + 1)
            assert SMALL_BYTES <= held(app) <= 2 * SMALL_BYTES
            backend.turns.release()
        assert 200 == (await asking)[0]
        assert not held(app)


async def test_a_large_response_in_the_background() -> None:
    """A large request that is answered in the background, without a connection, counts until its answer is made."""
    backend = Gated(OK)
    async with served(backend) as app:
        url, headers = (
            f"http://127.0.0.1:{app.port}/v1/responses",
            {"Authorization": f"Bearer {KEYS['a']}"},
        )
        body = {"model": "m0", "input": TEXT, "background": True}
        for number in range(3):
            async with app.session.post(url, json=body, headers=headers) as response:
                told = await response.json()
                assert (429 if number == 2 else 200) == response.status
        assert SMALL_BYTES <= held(app) <= 3 * SMALL_BYTES
        assert "too_many_waiting" == told["error"]["code"]
        backend.open()
        await until(lambda: not held(app))
        async with app.session.post(url, json=body, headers=headers) as response:
            assert 200 == response.status


async def test_many_slow_uploads() -> None:
    """Many uploads at a slow pace meet the bound on all of them long before their ends, and others are answered meanwhile."""
    async with served(Echo(OK)) as app:
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n"
            % (KEYS["a"].encode(), 2 * SMALL_BYTES)
        )
        opened = [await asyncio.open_connection("127.0.0.1", app.port) for _ in range(8)]
        for _, writer in opened:
            writer.write(head + b"x" * (2 * SMALL_BYTES - 1))
            await writer.drain()
        told = [asyncio.create_task(reader.readline()) for reader, _ in opened]
        while sum(one.done() for one in told) < 5:
            await asyncio.wait(
                [one for one in told if not one.done()], return_when=asyncio.FIRST_COMPLETED
            )
        assert {b"HTTP/1.1 429 Too Many Requests\r\n"} == {
            one.result() for one in told if one.done()
        }
        assert 200 == (await ask(app, "b", "small"))[0]
        for _, writer in opened:
            writer.close()
        await until(lambda: not held(app))
        for one in told:
            one.cancel()
        await asyncio.gather(*told, return_exceptions=True)
