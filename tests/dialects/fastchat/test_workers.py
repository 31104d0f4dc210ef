"""Tests of unilect.dialects.fastchat._workers: who has registered, and which models that makes."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from support.backends.fastchat import fake_fastchat
from support.backends.scripted import Exchange, scripted
from unilect.core.errors import BackendUnavailable, InvalidRequest
from unilect.dialects.fastchat._workers import Registration, Status, Workers
from unilect.http.client import HttpServer
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.upstreams.openai.backend import OpenAIUpstream

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"


def registration(url: str, *names: str, **fields: Any) -> Registration:
    """What a worker sends of itself."""
    status = {"speed": 1.0, "queue_length": 0.0} | {
        name: fields.pop(name) for name in ("speed", "queue_length") if name in fields
    }
    return Registration(url, worker_status=Status(list(names), **status), **fields)


async def test_models_come_and_go() -> None:
    """A model is served while a worker has it, and the configuration's own stays what it is."""
    own = Model("own", OpenAIUpstream(HttpServer("http://127.0.0.1:3"), "x"), aliases=["alias"])
    registry = Registry([own])
    workers = Workers(registry)

    await workers.register(registration(A, "m", "own", "alias"))
    await workers.register(registration(B, "m", "n", multimodal=True))
    assert ["own", "m", "n"] == sorted(registry.models, key=["own", "m", "n"].index)
    assert own is registry.get("own") is registry.get("alias")
    assert (["alias", "m", "n", "own"], ["m", "n"], ["alias", "m", "own"]) == (
        workers.names(),
        workers.names(multimodal=True),
        workers.names(multimodal=False),
    )

    await workers.register(registration(B))
    assert {"own", "m"} == set(registry.models)
    await workers.register(registration(A))
    assert ["own"] == list(registry.models)
    await workers.aclose()


async def test_a_name_that_another_model_has_taken() -> None:
    """A worker's model whose name is another one's by now, as an alias, is not taken out with the worker."""
    registry = Registry([])
    workers = Workers(registry)
    await workers.register(registration(A, "m"))
    own = Model("own", OpenAIUpstream(HttpServer("http://127.0.0.1:3"), "x"), aliases=["m"])
    registry.swap([own])

    await workers.register(registration(A))
    assert own is registry.get("m")
    await workers.aclose()


async def test_a_name_that_has_become_free() -> None:
    """A worker's model whose name the configuration had is served from the next heart beat on, once the configuration has it no more."""
    registry = Registry([Model("m", OpenAIUpstream(HttpServer("http://127.0.0.1:3"), "x"))])
    workers = Workers(registry)
    await workers.register(registration(A, "m"))
    registry.swap([])

    assert workers.beat(A, 0)
    assert ["m"] == list(registry.models)
    await workers.register(registration(A))
    assert [] == list(registry.models)
    await workers.aclose()


async def test_a_silent_worker_expires() -> None:
    """A worker whose heart beats stop is dropped; one that said it sends none is not."""
    registry = Registry([])
    workers = Workers(registry, expiration_s=0.02)
    await workers.register(registration(A, "a"))
    await workers.register(registration(B, "b", check_heart_beat=False))

    async with asyncio.timeout(60):
        while "a" in registry.models:
            await asyncio.sleep(0)

    assert (["b"], False, True) == (workers.names(), workers.beat(A, 0), workers.beat(B, 0))
    await workers.aclose()


async def test_a_heart_beat_keeps_a_worker() -> None:
    """A worker that was heard of in time stays when another expires."""
    workers = Workers(Registry([]))
    await workers.register(registration(A, "a"))
    await workers.register(registration(B, "b"))
    for worker in workers._workers.values():
        worker.heard_of -= 91

    assert workers.beat(B + "/", 1)
    workers._expire()

    assert ["b"] == workers.names()
    await workers.aclose()


async def test_refresh_drops_the_dead() -> None:
    """Every worker is asked how it is; those that answer are as they say, and the others are gone."""
    async with fake_fastchat() as fake:
        workers = Workers(Registry([]))
        await workers.register(Registration(fake.url))
        await workers.register(registration(A, "dead"))
        fake.answers["/worker_get_status"] = {"model_names": ["x"], "speed": 2, "queue_length": 3}

        await workers.refresh()

        assert Status(["x"], 2, 3) == workers.status()
        await workers.report_lost(fake.url)
        assert ["x"] == workers.names()
        await workers.aclose()
    await workers.report_lost(fake.url)
    assert [] == workers.names()


async def test_a_worker_is_asked_for_its_status() -> None:
    """A worker that registers without a status is asked, and is no worker where it does not answer."""
    workers = Workers(Registry([]))
    async with fake_fastchat() as fake:
        await workers.register(Registration(fake.url))
        assert ["m"] == workers.names()
    with pytest.raises(BackendUnavailable):
        await workers.register(Registration(A))
    assert ["m"] == workers.names()
    await workers.aclose()


@pytest.mark.parametrize(
    "url", ["", "worker", "ftp://x", "file:///etc/passwd", "http://", "http://ä"]
)
async def test_only_http(url: str) -> None:
    """A worker's name is its URL, and no other kind of URL is called."""
    with pytest.raises(InvalidRequest, match="worker_name"):
        await Workers(Registry([])).register(registration(url, "m"))


async def test_registrations_are_bounded() -> None:
    """Workers and their models are only so many, and all of them go when none answers."""
    registry = Registry([])
    workers, refused = Workers(registry), 0
    for number in range(300):
        names = [f"m{number}-{each}" for each in range(256)]
        try:
            await workers.register(registration(f"{A}/{number}", *names))
        except InvalidRequest:
            refused += 1
    assert (296, 1024, 1024) == (refused, len(workers.names()), len(registry.models))
    for number in range(300):
        with suppress(InvalidRequest):
            await workers.register(registration(f"{A}/{number}", "m0-0"))
    assert 256 == len(workers._workers)

    await workers.refresh()

    assert ([], {}) == (workers.names(), registry.models)
    await workers.aclose()


async def test_a_refresh_goes_on_without_whoever_wanted_it() -> None:
    """A caller that leaves while the workers are asked ends nothing, and a worker that registers meanwhile stays."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        asked.set()
        await go_on.wait()
        exchange.close()

    async with scripted(slow) as server:
        workers = Workers(Registry([]))
        url = server.url.removesuffix("/v1")
        await workers.register(registration(url, "old"))
        await workers.register(registration(A, "dead"))
        caller = asyncio.create_task(workers.refresh())
        await asked.wait()
        caller.cancel()
        await workers.register(registration(url, "new"))
        go_on.set()
        await workers.refresh()

        assert ["new"] == workers.names()
        await workers.aclose()


async def test_no_worker() -> None:
    """There is no address for a model that nobody has, nor from a worker of no speed."""
    workers = Workers(Registry([]))
    await workers.register(registration(A, "m", speed=0.0))

    assert ("", "") == (await workers.address("m"), await workers.address("x"))
    await workers.aclose()
