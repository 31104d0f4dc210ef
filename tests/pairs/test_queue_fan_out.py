"""Queues and requests of several answers (`n`, `best_of`, several prompts)."""

import asyncio
from typing import Any

import pytest

from support.backends.gated import Gated
from support.common.waiting import until
from support.servers.appserver import App, serving
from unilect.adapt.emulation import PARTS_AT_ONCE
from unilect.config.server import Config
from unilect.scheduling import parts
from unilect.scheduling.fair_queue import QueueSettings
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import Echo

KEYS = {"a": "sk-a-0123456789", "b": "sk-b-0123456789"}
CONFIG = Config(api_keys=list(KEYS.values()))


def places(backend: Echo, count: int, max_queue: int) -> list[PooledBackend]:
    """A backend with so many places, and so many requests that wait."""
    return [PooledBackend(backend, queue=QueueSettings(max_in_flight=count, max_queue=max_queue))]


async def ask(app: App, who: str, text: str, **fields: Any) -> tuple[int, Any]:
    """The status and the body of a chat's answer."""
    url = f"http://127.0.0.1:{app.port}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": text}]} | fields
    headers = {"Authorization": f"Bearer {KEYS[who]}"}
    async with app.session.post(url, json=body, headers=headers) as response:
        return response.status, await response.json()


def said(backend: Gated) -> list[str]:
    """The texts that a backend was asked, in order."""
    return [str(one.messages[-1].content) for one in backend.asked]  # type: ignore[union-attr]


@pytest.mark.parametrize("max_queue", [0, 1, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_more_choices_than_the_queue_has_room(max_queue: int, stream: bool) -> None:
    """A lone chat with more choices than places and queue together is answered."""
    async with serving(places(Echo(), 2, max_queue)) as app:
        async with app.chat(n=16, stream=stream) as response:
            told = await response.read()
        assert 200 == response.status
    assert 16 == told.count(b'"finish_reason":"stop"')


async def test_more_prompts_than_the_queue_has_room() -> None:
    """A lone completion of more prompts than places and queue together is answered, in the order of its prompts."""
    prompts = [f"prompt {number}" for number in range(40)]
    async with (
        serving(places(Echo(), 2, 1)) as app,
        app.post("/v1/completions", prompt=prompts) as response,
    ):
        told = await response.json()
    texts = sorted((one["index"], one["text"]) for one in told["choices"])
    assert list(enumerate(prompts)) == texts


@pytest.mark.parametrize("max_queue", [0, 1])
async def test_no_more_than_the_places(max_queue: int) -> None:
    """The choices of one request are made as many at a time as there are places, and one of them waits."""
    backend = Gated()
    async with serving(places(backend, 3, max_queue)) as app:
        asking = asyncio.create_task(ask(app, "a", "x", n=8))
        await backend.has(3)
        (queue,) = app.service.registry.models["m"].pool.queues
        await until(lambda: len(queue) == 1)
        backend.open()
        status, _ = await asking
    assert (200, 8, 3) == (status, len(backend.asked), backend.most)


async def test_nobody_is_pushed_out() -> None:
    """A request of many choices pushes no waiting request of another caller out, and is answered beside it."""
    backend = Gated()
    async with serving(places(backend, 1, 2), CONFIG) as app:
        first = asyncio.create_task(ask(app, "b", "running"))
        await backend.has(1)
        (queue,) = app.service.registry.models["m"].pool.queues
        waiting = asyncio.create_task(ask(app, "b", "waiting"))
        await until(lambda: len(queue) == 1)
        many = asyncio.create_task(ask(app, "a", "many", n=16))
        await until(lambda: len(queue) == 2)
        backend.open()
        statuses = [(await one)[0] for one in (first, waiting, many)]
    assert [200, 200, 200] == statuses


async def test_another_caller_goes_between() -> None:
    """Between two choices of one caller's request another caller's request has the place."""
    backend = Gated()
    async with serving(places(backend, 1, 2), CONFIG) as app:
        many = asyncio.create_task(ask(app, "a", "many", n=4))
        await backend.has(1)
        (queue,) = app.service.registry.models["m"].pool.queues
        await until(lambda: len(queue) == 1)
        other = asyncio.create_task(ask(app, "b", "other"))
        await until(lambda: len(queue) == 2)
        backend.open()
        statuses = [(await one)[0] for one in (many, other)]
    assert [200, 200] == statuses
    assert ["many", "other", "many", "many", "many"] == said(backend)


async def test_choices_go_before_later_requests() -> None:
    """The choices of a request go before the later requests of its caller, as they did before there were several."""
    backend = Gated()
    async with serving(places(backend, 1, 2), CONFIG) as app:
        many = asyncio.create_task(ask(app, "a", "many", n=3))
        await backend.has(1)
        (queue,) = app.service.registry.models["m"].pool.queues
        later = asyncio.create_task(ask(app, "a", "later"))
        await until(lambda: len(queue) == 2)
        backend.open()
        await asyncio.gather(many, later)
    assert ["many", "many", "many", "later"] == said(backend)


async def test_a_client_that_leaves_between_choices() -> None:
    """A client that leaves while one of its choices waits leaves no place taken, and the next request is answered."""
    backend = Gated()
    async with serving(places(backend, 1, 1)) as app:
        many = asyncio.create_task(ask(app, "a", "many", n=4))
        await backend.has(1)
        (queue,) = app.service.registry.models["m"].pool.queues
        await until(lambda: len(queue) == 1)
        many.cancel()
        await until(lambda: not len(queue) and not backend.running)
        backend.open()
        assert 200 == (await ask(app, "a", "next"))[0]


async def test_a_further_attempt_is_not_refused() -> None:
    """An answer that is made again, since it had not the form that was asked for, is not refused by a queue that has filled meanwhile."""
    backend = Gated()
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    async with serving(places(backend, 1, 1)) as app:
        asking = asyncio.create_task(ask(app, "a", "no number", response_format=form))
        await backend.has(1)
        (queue,) = app.service.registry.models["m"].pool.queues
        waiting = asyncio.create_task(ask(app, "a", "waiting"))
        await until(lambda: len(queue) == 1)
        backend.open()
        (_, told), (status, _) = await asking, await waiting
    assert ("constraint_violated", 200) == (told["error"]["code"], status)
    assert 4 == len(backend.asked)


async def test_connections_without_places() -> None:
    """Of a backend without places one request has a few answers made at a time, however many it wants."""
    backend = Gated()
    async with serving(backend) as app:
        asking = asyncio.create_task(ask(app, "a", "x", n=16))
        await backend.has(PARTS_AT_ONCE)
        backend.open()
        assert 200 == (await asking)[0]
    assert (16, PARTS_AT_ONCE) == (len(backend.asked), backend.most)


async def test_many_requests_of_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of several choices have no more further ones at a time than there is room for among all, and all are answered."""
    monkeypatch.setattr(parts, "most_further_parts", lambda: 5)
    backend = Gated()
    async with serving(backend) as app:
        room = app.service.registry.room
        asking = [asyncio.create_task(ask(app, "a", "x", n=8)) for _ in range(3)]
        await backend.has(3 + 5)
        taken = room.taken
        backend.open()
        answers = await asyncio.gather(*asking)

    assert [(200, 8)] * 3 == [(status, len(body["choices"])) for status, body in answers]
    assert (5, 0, 8) == (taken, room.taken, backend.most)


async def test_a_client_that_leaves_frees_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The room of a request whose client has left is another one's."""
    monkeypatch.setattr(parts, "most_further_parts", lambda: 5)
    backend = Gated()
    async with serving(backend) as app:
        room = app.service.registry.room
        left = asyncio.create_task(ask(app, "a", "x", n=8))
        await backend.has(6)
        left.cancel()
        await until(lambda: not room.taken)
        backend.open()
        status, body = await ask(app, "b", "x", n=8)

    assert (200, 8, 0) == (status, len(body["choices"]), room.taken)
