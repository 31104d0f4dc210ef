"""Stopping, with what else a server does: several addresses, work in the background, streams of any backend, a queue, held answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.backends.scripted import Exchange, Scripted, delta, frames, scripted, stream_of
from support.common.waiting import until
from support.servers.appserver import upstream
from support.servers.reloading import Reloadable
from unilect.api.backend import Backend
from unilect.models.model import Model
from unilect.server.app import SITE
from unilect.testing.echo import Echo, Options
from unilect.web import streaming
from unilect.web.site import Site

SLOW = "options = { tokens_per_s = 0.01 }"
STOPPED = "The server was stopped before the answer was complete."
KEY = {"Authorization": "Bearer sk-test"}


@asynccontextmanager
async def serving(
    tmp_path: Path, text: str = "", *models: Model
) -> AsyncIterator[tuple[Reloadable, aiohttp.ClientSession]]:
    """A server with a configuration, and perhaps other models, and a client that keeps its connections."""
    file = tmp_path / "unilect.toml"
    file.write_text(f"port = 0\nshutdown_grace_s = 60.0\n{text}")
    server = Reloadable(file, models)
    timeout = aiohttp.ClientTimeout(60)
    async with server.running(), aiohttp.ClientSession(timeout=timeout) as client:
        yield server, client


def sites(server: Reloadable) -> list[Site]:
    """What is behind each address."""
    return [door._app[SITE] for door in server.listener._doors]


async def chat(client: aiohttp.ClientSession, url: str, model: str, **more: Any) -> tuple[int, str]:
    """The status and the text of an answer."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]} | more
    async with client.post(f"{url}/v1/chat/completions", json=body, headers=KEY) as response:
        return response.status, await response.text()


async def test_draining_and_several_addresses(tmp_path: Path) -> None:
    """While the background work of one address still ends, no address is ready, takes a request or accepts a connection."""
    cancelled, release = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Future()
        finally:
            cancelled.set()
            await release.wait()

    config = "[[listeners]]\nport = 0\n[models.m]\nsource = 'echo:hi'\n"
    async with serving(tmp_path, config) as (server, client):
        sites(server)[0].background.start("stubborn work", stubborn())
        for url in server.urls:  # the connection is kept
            assert "ready\n" == await (await client.get(f"{url}/readyz")).text()
        draining = asyncio.create_task(server.listener.drain(asyncio.Event()))
        await cancelled.wait()
        for url in server.urls:
            assert 503 == (await client.get(f"{url}/readyz")).status
            assert 503 == (await chat(client, url, "m"))[0]
            async with aiohttp.ClientSession() as stranger:
                with pytest.raises(aiohttp.ClientConnectorError):
                    await stranger.get(f"{url}/readyz")
        assert not draining.done()
        release.set()
        await draining


async def test_draining_and_background_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The background work of all addresses is ended at the same time, so that each may wait for another's."""
    both = asyncio.Barrier(2)

    async def work() -> None:
        try:
            await asyncio.Future()
        finally:
            await both.wait()

    config = "[[listeners]]\nport = 0\n[models.m]\nsource = 'echo:hi'\n"
    async with serving(tmp_path, config) as (server, _):
        tasks = [site.background.start("work", work()) for site in sites(server)]
        await asyncio.sleep(0)  # they have begun
        await server.listener.drain(asyncio.Event())
        assert all(task.done() for task in tasks)

    assert "does not end" not in caplog.text


def says_no_end() -> AbstractAsyncContextManager[Scripted]:
    """An upstream that says one word and no end."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(role="assistant", content="word"))))
        await exchange.client_gone()

    return scripted(script)


async def cut(
    server: Reloadable, client: aiohttp.ClientSession, state: str, stream: bool, has_head: bool
) -> tuple[int, str]:
    """What a request gets that is in a state, and has its head or not, when the server is told to stop, and again at once."""
    hurry, body = asyncio.Event(), {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    url = f"{server.url}/v1/chat/completions"
    asked = asyncio.ensure_future(client.post(url, json=body | {"stream": stream}))
    requests = server.listener._requests
    await until(lambda: any(one.state == state for one in requests.values()))
    if has_head:
        await asyncio.wait([asked])
    draining = asyncio.create_task(server.listener.drain(hurry))
    hurry.set()
    async with await asked as response:
        told = await response.text()
    await draining
    return response.status, told


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("kind", ["echo", "upstream"])
async def test_a_second_signal_and_an_answer(tmp_path: Path, kind: str, stream: bool) -> None:
    """A second signal ends an answer of any backend, also of one that would go on: a stream with its error, any other with 503."""
    async with AsyncExitStack() as stack:
        backend: Backend = Echo(Options(text="word " * 999, tokens_per_s=20))
        if kind == "upstream":
            backend = upstream((await stack.enter_async_context(says_no_end())).url)
        model = Model("m", backend)
        server, client = await stack.enter_async_context(serving(tmp_path, "", model))
        status, told = await cut(server, client, "answering", stream, has_head=stream)

    assert STOPPED in told
    assert ((200, True) if stream else (503, False)) == (status, told.startswith("data: "))
    assert "[DONE]" not in told


@pytest.mark.parametrize("has_head", [True, False], ids=["with its head", "without"])
async def test_a_second_signal_and_a_queued_stream(
    tmp_path: Path, has_head: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second signal ends a stream that waits for its turn: with its error in the stream where the head was sent, else with 503."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.01 if has_head else 60.0)
    text = f"[models.m]\nsource = 'echo:word'\nmax_in_flight = 1\n{SLOW}\n"
    async with serving(tmp_path, text) as (server, client):
        requests = server.listener._requests
        first = asyncio.create_task(chat(client, server.url, "m", stream=True))
        await until(lambda: any(one.leased_at for one in requests.values()))
        status, told = await cut(server, client, "queued", True, has_head)
        assert STOPPED in (await first)[1]

    assert STOPPED in told
    assert ((200, True) if has_head else (503, False)) == (status, "data: " in told)


async def test_draining_and_held_answers(tmp_path: Path) -> None:
    """Draining ends an answer that is held for a client that has left, at once, and lets one finish that is being read."""
    text = "rejoin_s = 60.0\napi_keys = ['sk-test']\n[models.m]\nsource = 'echo:word'\noptions = { tokens_per_s = 0.01 }\n"
    text += "[models.quick]\nsource = 'echo:a long text'\noptions = { tokens_per_s = 100.0 }\n"
    async with serving(tmp_path, text) as (server, client):
        requests = server.listener._requests
        left = asyncio.create_task(chat(client, server.url, "m", stream=True))
        await until(lambda: any(one.leased_at for one in requests.values()))
        left.cancel()
        await until(lambda: any(one.held for one in requests.values()))
        read = asyncio.create_task(chat(client, server.url, "quick", stream=True))
        await until(lambda: any(one.state == "answering" for one in requests.values()))
        await server.listener.drain(asyncio.Event())  # and the grace is a minute
        assert (await read)[1].endswith("data: [DONE]\n\n")
        assert {} == requests
