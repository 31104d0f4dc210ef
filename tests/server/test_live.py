"""Tests of unilect.server._live, by real streams of the admin API and of the page."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from server.test_admin import Operated, operated, running

#: A model whose answer lasts until it is ended.
SLOW = """
[models.a]
source = "echo:a"
[models.slow]
source = "echo:"
options = { text = "word word word word word", tokens_per_s = 0.5 }
"""


async def key_of(server: Operated) -> str:
    """The key of the page."""
    _, told = await server.ask("GET", "/page")
    return str(told["url"].partition("#key=")[2])


async def events(
    server: Operated, key: str, last_id: str = ""
) -> AsyncIterator[tuple[str, str, Any]]:
    """The events of a stream: id, name, data."""
    headers = {"Authorization": f"Bearer {key}"} | ({"Last-Event-ID": last_id} if last_id else {})
    async with server.client.get(f"{server.url}/admin/events", headers=headers) as response:
        assert 200 == response.status, await response.text()
        while block := await response.content.readuntil(b"\n\n"):  # empty at the end
            fields = dict(line.split(": ", 1) for line in block.decode().strip().split("\n"))
            yield fields["id"], fields["event"], json.loads(fields["data"])


async def test_a_stream(tmp_path: Path) -> None:
    """A stream begins with all that runs, and each later event has what has changed."""
    async with operated(tmp_path, SLOW) as server, asyncio.timeout(60):
        stream = events(server, await key_of(server))
        _, name, whole = await anext(stream)
        chat = asyncio.create_task(server.chat("slow"))
        request = await running(server)
        seen = [data async for _, _, data in _until(stream, request["id"])]
        await server.ask("POST", f"/requests/{request['id']}/cancel")
        gone = [data async for _, _, data in _until_gone(stream, request["id"])]
        await chat
        await stream.aclose()

    assert "whole" == name
    assert ["a", "slow"] == sorted(one["name"] for one in whole["models"])
    assert request["id"] in [one["id"] for one in seen[-1]["requests"]]
    assert request["id"] in gone[-1]["gone_requests"]


async def _until(stream: AsyncIterator[Any], request: str) -> AsyncIterator[Any]:
    async for one in stream:
        yield one
        if any(request == found["id"] for found in one[2].get("requests", ())):
            return


async def _until_gone(stream: AsyncIterator[Any], request: str) -> AsyncIterator[Any]:
    async for one in stream:
        yield one
        if request in one[2].get("gone_requests", ()):
            return


async def test_who_comes_back(tmp_path: Path) -> None:
    """Who names the last event that was read gets the next one, and who names one of another server all."""
    async with operated(tmp_path) as server, asyncio.timeout(30):
        key = await key_of(server)
        stream = events(server, key)
        await anext(stream)
        first, _, _ = await anext(stream)
        await stream.aclose()
        back = events(server, key, first)
        again, name, _ = await anext(back)
        await back.aclose()
        other = events(server, key, "00000000-7")
        _, stranger, _ = await anext(other)
        await other.aclose()

    boot, _, number = first.partition("-")
    assert (f"{boot}-{int(number) + 1}", "change") == (again, name)
    assert "whole" == stranger


async def test_a_stream_keeps_no_server(tmp_path: Path) -> None:
    """A server that stops ends the streams of its page, and waits for none of them."""
    async with operated(tmp_path) as server, asyncio.timeout(30):
        stream = events(server, await key_of(server))
        await anext(stream)
        draining = asyncio.create_task(server.listener.drain(asyncio.Event()))
        async for _ in stream:
            pass
        await draining


async def test_clients_see_nothing(tmp_path: Path) -> None:
    """Neither nobody nor a client's key gets a stream; with `steer = false` there is none at all."""
    async with operated(tmp_path, options="api_keys = ['sk-client']\n") as server:
        for headers in ({}, {"Authorization": "Bearer sk-client"}):
            async with server.client.get(f"{server.url}/admin/events", headers=headers) as response:
                assert 401 == response.status
    async with operated(tmp_path, options="[page]\nsteer = false\n") as server:
        async with server.client.get(f"{server.url}/admin/events") as response:
            assert 404 == response.status
        assert 404 == (await server.ask("GET", "/page"))[0]
        async with server._admin.get("http://localhost/events") as response, asyncio.timeout(30):
            assert b"whole" in await response.content.readuntil(b"\n\n")
