"""Tests of unilect.server._model_events: what has happened to models outlives their server, as far as a store keeps it."""

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from support.backends.rooms import kinds, model, room, use
from support.backends.tiny_child import Tiny
from support.common.commands import Commands
from support.common.waiting import until
from support.servers.serving import serve
from unilect.cli import _admin
from unilect.config.store import StoreConfig
from unilect.demo import MODEL
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.server import _model_events
from unilect.server._model_events import ModelEvents
from unilect.server._state import metrics_of
from unilect.store.store import Store
from unilect.testing.echo import Echo


@asynccontextmanager
async def server(
    url: str | None, *, name: str, home: str = ""
) -> AsyncIterator[tuple[ModelEvents, Model, Store]]:
    """The events of a server, whose model `a` was loaded; and its store."""
    a = model("a")
    store = Store(StoreConfig(url=url), {"HOME": home})
    async with room(a) as registry:
        events = ModelEvents(registry.feed, store.events)
        events.server = name
        events.start()
        try:
            await use(a)
            yield events, a, store
        finally:
            await registry.aclose()
            await events.aclose()
            await store.aclose()


async def told(events: ModelEvents, of: Model) -> list[tuple[str, str]]:
    """What has happened, and where."""
    found, missing = await events.read(of)
    assert missing is None
    assert found == sorted(found, key=lambda one: one.at)
    return [(one.server, one.kind) for one in found]


async def test_a_restart(url: str) -> None:
    """A server tells what has happened before it was started, to its end, once each."""
    for _ in range(2):
        async with server(url, name="one/1") as (events, a, _store):
            pass
    async with server(url, name="one/2") as (events, a, _store):
        before = [("one/1", "loaded"), ("one/1", "stopped")]
        assert [*before, *before, ("one/2", "loaded")] == await told(events, a)


async def test_two_servers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that share a store and a model's name tell of each other, while both run."""
    monkeypatch.setattr(_model_events, "_GATHER_S", 0.0)
    async with server(url, name="one/1") as (one, a, _), server(url, name="two/1") as (two, b, _):
        both = [("one/1", "loaded"), ("two/1", "loaded")]

        async def both_tell() -> bool:
            return both == await told(one, a) == await told(two, b)

        while not await both_tell():
            pass


async def test_a_store_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the store cannot be used, events are told from memory, with what is missing; they are written once it can."""
    monkeypatch.setattr(_model_events, "_GATHER_S", 0.0)
    monkeypatch.setattr(_model_events, "_AGAIN_S", 0.01)
    folder = tmp_path / "x.db"  # no file
    folder.mkdir()
    async with server(f"sqlite:///{folder}", name="one/1") as (events, a, store):
        found, missing = await events.read(a)
        assert ["loaded"] == [one.kind for one in found]
        assert missing is not None
        assert "cannot be read" in missing
        await until(lambda: store.database.failures > 2)
        folder.rmdir()
        await until(lambda: store.database.works)
        assert [("one/1", "loaded")] == [
            (one.server, one.kind) for one in await store.events.read("a")
        ]


async def test_a_store_of_nobody(tmp_path: Path) -> None:
    """The default store is not made for events; once it is there, those that were before are in it, too."""
    async with server(None, name="one/1", home=str(tmp_path)) as (events, a, store):
        assert [("one/1", "loaded")] == await told(events, a)
        assert [] == [*tmp_path.iterdir()]
        assert store.keys is not None
        await store.keys.create("k", "abcdefgh", bytes(32))
    async with server(None, name="one/2", home=str(tmp_path)) as (events, a, store):
        before = [("one/1", "loaded"), ("one/1", "stopped")]
        assert [*before, ("one/2", "loaded")] == await told(events, a)


class Sharing(Echo):
    """A backend that asks the child of a tiny one, as others do."""

    def __init__(self, tiny: Tiny) -> None:
        super().__init__()
        self.children = (tiny.process,)


async def test_a_process_that_is_killed() -> None:
    """A death, the restart and one that fails are events of each model that asks the process, until that is stopped."""
    tiny = Tiny()
    await tiny.process.start()
    a, b = models = [Model(name, [PooledBackend(Sharing(tiny))]) for name in "ab"]
    registry = Registry(models)
    events = ModelEvents(registry.feed)
    for one in models:
        await use(one)
    tiny.kill()
    await until(lambda: kinds(b) == ["died", "restarted"])
    await a.pool.aclose()
    tiny.settings["load"] = "fail"
    tiny.kill()
    await until(lambda: kinds(b)[2:] == ["died", "failed"])
    told, _ = await events.read(b)
    exposed = "".join(metrics_of(registry).exposition())
    await registry.aclose()
    await tiny.aclose()

    assert ["died", "restarted"] == kinds(a)
    assert [True, False] == [one.reason.endswith("it is started again at once") for one in told if one.kind == "died"]  # fmt: skip
    assert told[0].reason.startswith("b: died after 0 s: killed (SIGKILL)")
    assert (-9, 0.0) == (told[0].numbers["status"], told[0].numbers["restart_s"])
    assert "b: not restarted: the file is broken" == told[-1].reason
    assert 'unilect_model_events_total{event="died",model="b"} 2' in exposed


def count_rows(file: Path) -> int:
    """How many events a store has."""
    with closing(sqlite3.connect(file)) as store:
        tables = store.execute(
            "SELECT name FROM sqlite_master WHERE name = 'model_events'"
        ).fetchall()
        return (
            int(store.execute("SELECT count(*) FROM model_events").fetchone()[0]) if tables else 0
        )


@pytest.mark.heavy
def test_a_server_that_is_killed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`unilect why` tells of a process that was killed, and says which it was."""
    text = f"""
    [admin]
    listen = "{tmp_path}/admin.sock"
    [store]
    url = "sqlite:///{tmp_path}/x.db"
    [models.a]
    source = "{MODEL}"
    """
    file = tmp_path / "a.toml"
    file.write_text(text)
    admin = Commands(_admin)

    def why() -> list[dict[str, str]]:
        admin.explain(file, "a", True, None)
        return list(json.loads(capsys.readouterr().out)["events"])

    with serve(config=text, killed=True) as first:
        assert ["loaded"] == [one["kind"] for one in why()]
        asyncio.run(until(lambda: count_rows(tmp_path / "x.db")))
        os.kill(first.pid, signal.SIGKILL)
    with serve(config=text) as second:
        servers = [one["server"].rpartition("/")[2] for one in why()]
        assert [str(first.pid), str(second.pid)] == servers
        admin.explain(file, "a", False, None)
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].endswith(f"/{first.pid})")
        assert "loaded in" in lines[2]
        assert not lines[2].endswith(")")
