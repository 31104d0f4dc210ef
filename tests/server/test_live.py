"""Tests of unilect.server._live, by real streams of the admin API and of the page."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from server.test_admin import Operated, operated, running
from support.common.waiting import until
from unilect.demo import MODEL
from unilect.engines.process.child_process import ChildProcess
from unilect.server import _live

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


async def test_who_comes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was shown a while ago is not shown again: who comes back after it gets all as it is now."""
    monkeypatch.setattr(_live, "_QUIET_TICK_S", 0.05)
    async with operated(tmp_path) as server, asyncio.timeout(30):
        key, live = await key_of(server), server.listener._steering._live
        stream = events(server, key)
        first, _, _ = await anext(stream)
        await stream.aclose()
        await until(lambda: not live._shown)
        back = events(server, key, first)
        _, name, whole = await anext(back)
        await back.aclose()

    assert "whole" == name
    assert whole["models"]


@pytest.mark.parametrize(
    ("before", "now", "differs"),
    [
        ({"a": 1, "age_s": 1}, {"a": 1, "age_s": 2}, False),
        ({"backends": [{"out": True, "next_look_in_s": 3}]}, {"backends": [{"out": True, "next_look_in_s": 2}]}, False),
        ({"backends": [{"out": True, "next_look_in_s": 3}]}, {"backends": [{"out": False, "next_look_in_s": 2}]}, True),
        ({"backends": []}, {"backends": [{}]}, True),
        ({"fit": None}, {"fit": "now"}, True),
        (None, {"a": 1}, True),
    ],
)  # fmt: skip
def test_what_only_a_clock_changes(before: Any, now: Any, differs: bool) -> None:
    """A time that a reader can count is no news, wherever it stands."""
    assert differs == _live._differs(before, now)


def hold_loads(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Have the processes of engines stand still while they load; returns the event of the first one, and one that has them go on."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    report = ChildProcess._report_progress

    async def hold(self: ChildProcess, process: asyncio.subprocess.Process) -> None:
        process.send_signal(signal.SIGSTOP)
        async with asyncio.TaskGroup() as tasks:
            reporting = tasks.create_task(report(self, process))
            begun.set()
            await go_on.wait()
            process.send_signal(signal.SIGCONT)
            await reporting

    monkeypatch.setattr(ChildProcess, "_report_progress", hold)
    return begun, go_on


#: Two models of which the memory holds one.
ONE_OF_TWO = "".join(
    f'[models.{name}]\nsource = "{MODEL}"\ncontext = 256\nmemory = "80MiB"\n'
    for name in ("one", "two")
)


async def test_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real engine that loads is seen with its step, its part and the seconds that are left; it fitted before, and leaves for another one."""
    options = 'memory = "100MiB"\n'
    async with operated(tmp_path, ONE_OF_TWO, options) as server, asyncio.timeout(60):
        stream = events(server, await key_of(server))
        _, _, whole = await anext(stream)
        models = {one["name"]: one for one in whole["models"]}
        await server.ask("POST", "/models/one/stop")
        await _follow(stream, models, lambda: models["two"]["fit"] == "now")
        begun, go_on = hold_loads(monkeypatch)
        loading = asyncio.create_task(server.ask("POST", "/models/one/load"))
        await begun.wait()
        await _follow(stream, models, lambda: models["one"]["state"] == "loading")
        seen = models["one"]
        go_on.set()
        status, _ = await loading
        await _follow(stream, models, lambda: models["two"]["fit"] == "evicts")
        ready, other = models["one"], models["two"]
        await stream.aclose()

    assert 200 == status
    assert [(None, []), ("evicts", ["one"])] == [
        (one["fit"], one["evicts"]) for one in whole["models"]
    ]
    assert "loading" == seen["loading"]["step"]
    assert 0 <= seen["loading"]["part"] <= 1
    assert seen["load_left_s"] > 0
    assert ("ready", None, None, None) == tuple(
        ready[name] for name in ("state", "fit", "loading", "load_left_s")
    )
    assert ["one"] == other["evicts"]


async def _follow(
    stream: AsyncIterator[Any], models: dict[str, Any], until: Callable[[], bool]
) -> None:
    """Keep the models as a stream tells them, until they are so."""
    while not until():
        _, _, data = await anext(stream)
        models.update({one["name"]: one for one in data.get("models", ())})


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
