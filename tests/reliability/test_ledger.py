"""The ledger of a real server: what its clients have seen is in it, whatever kills the server or fills its disk."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from ledger_clients import Seen, client, rows_of, stream, whole

from support.servers.postgresql import postgresql
from support.servers.serving import Server, serve
from unilect.auth.keys import digest
from unilect.auth.secret import id_of, new_secret
from unilect.store.database import Database
from unilect.store.keys import KeyStore

KEY = "sk-of-the-file"
KEY_ID = f"key-{digest(KEY).hex()[:16]}"
STREAMS = 20
CONFIG = """
api_keys = ["{key}"]
[store]
url = "{url}"
ledger = "{rule}"
[models.e]
source = "echo:"
price = {{ prompt = 1, completion = 2 }}
[models.e.options]
tokens_per_s = 300.0
"""


async def streams(server: Server, number: int, kill_after: int) -> list[Seen]:
    """Answers of several lengths at once, most of them streams, and another where one ends; the server is killed once so many frames were seen."""
    frames, killed = 0, False
    found: list[Seen] = []

    def progress() -> None:
        nonlocal frames, killed
        frames += 1
        if frames == kill_after:
            os.kill(server.pid, signal.SIGKILL)
            killed = True

    async with client(KEY) as session:

        async def one(length: int) -> None:
            while not killed:
                if length % 4:
                    found.append(await stream(session, server, "x" * length, progress))
                else:
                    found.append(await whole(session, server, "x" * length))

        await asyncio.gather(*(one(10 + 15 * n) for n in range(number)))
    return found


def check(seen: list[Seen], rows: list[dict[str, Any]]) -> tuple[int, int]:
    """Every answer and its row are the same; how many were whole, and how many were cut."""
    by_id = {row["id"].partition(".")[2]: row for row in rows}
    assert len(rows) == len(by_id)
    whole, cut = 0, 0
    for one in seen:
        if not one.id:
            continue
        row = by_id.pop(one.id)
        assert ("e", KEY_ID) == (row["model"], row["key"])
        if one.whole:
            whole += 1
            assert one.usage is not None
            told = one.usage["prompt_tokens"], one.usage["completion_tokens"]
            assert (200, "stop", one.prompt, one.delivered) == (row["status"], row["finish"], *told)
            assert told == (row["prompt"], row["completion"])
        else:
            cut += 1
            assert (row["status"], row["finish"]) in [(499, "lost"), (499, ""), (200, "stop")]
            assert one.delivered <= row["completion"] <= one.delivered + 32
        assert row["cost"] == row["prompt"] + 2 * row["completion"]
    # one that is not streamed may have its row when the server dies, and not yet be sent
    unseen = [row for row in by_id.values() if row["completion"] > 32 and not _is_unsent(row)]
    assert [] == unseen
    return whole, cut


def _is_unsent(row: dict[str, Any]) -> bool:
    """An answer of those that are not streamed (`streams`), recorded whole: the row comes before the answer is sent."""
    return (200, "stop", 0) == (row["status"], row["finish"], row["prompt"] % 4)


async def killed_again_and_again(url: str, times: int, folder: Path) -> None:
    """Kill servers of one store under streams; each has to find the ledger whole that the one before has left."""
    config = CONFIG.format(key=KEY, url=url, rule="required")
    seen: list[Seen] = []
    whole = cut = 0
    for number in range(times + 1):
        began = time.monotonic()
        with serve(
            config=config, env={"XDG_DATA_HOME": str(folder)}, killed=number < times
        ) as server:
            assert time.monotonic() - began < 60
            whole, cut = check(seen, rows_of(url))
            if number < times:
                seen += await streams(server, STREAMS, kill_after=700 + 97 * number)
    assert whole > times
    assert cut >= STREAMS * times // 3
    assert [] == list(folder.rglob("*.running-*"))


async def test_killed(tmp_path: Path) -> None:
    """A server is killed under 20 streams: whole answers have rows with the same numbers, cut ones cost what was delivered, up to 32 tokens more."""
    await killed_again_and_again(f"sqlite:///{tmp_path / 'unilect.db'}", 2, tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_killed_often(kind: str, tmp_path: Path) -> None:
    """The same ten times in a row, on SQLite and on PostgreSQL."""
    if kind == "sqlite":
        await killed_again_and_again(f"sqlite:///{tmp_path / 'unilect.db'}", 10, tmp_path)
        return
    with postgresql() as database:
        await killed_again_and_again(database.new_database(), 10, tmp_path)


async def test_every_api(tmp_path: Path) -> None:
    """An answer of every API has its row when its client has it, with the key, its owner, the API and the tokens."""
    url, key = f"sqlite:///{tmp_path / 'unilect.db'}", new_secret()
    database = Database(url)
    await KeyStore(database).create("ann", id_of(key) or "", digest(key), owner="lab")
    await database.aclose()
    said = [{"role": "user", "content": "Hello"}]
    bodies: list[tuple[str, str, dict[str, Any]]] = [
        ("openai", "/v1/chat/completions", {"messages": said}),
        ("openai", "/v1/chat/completions", {"messages": said, "n": 2}),
        ("openai", "/v1/completions", {"prompt": ["Hello", "Hel"], "max_tokens": 9}),
        ("responses", "/v1/responses", {"input": "Hello"}),
        ("responses", "/v1/responses", {"input": "Hello", "background": True, "stream": True}),
        ("messages", "/v1/messages", {"messages": said, "max_tokens": 9}),
        ("ollama", "/api/chat", {"messages": said}),
        ("llamacpp", "/completion", {"prompt": "Hello", "n_predict": 9}),
    ]
    config = CONFIG.format(key=KEY, url=url, rule="required")
    with serve(config=config) as server:
        async with client(key) as session:
            for number, (dialect, path, body) in enumerate(bodies):
                for stream in (False, True):
                    sent = {"model": "e", "stream": stream} | body
                    async with session.post(f"{server.root}{path}", json=sent) as response:
                        assert response.status == 200, await response.read()
                        await response.read()
                    rows = rows_of(url)
                    assert len(rows) == 2 * number + stream + 1, path
                    row = max(rows, key=lambda row: row["at"])
                    assert (dialect, "e", "lab", 200) == (
                        row["dialect"],
                        row["model"],
                        row["owner"],
                        row["status"],
                    )
                    assert (f"key_{id_of(key)}", "stop") == (row["key"], row["finish"])
                    assert "" != row["endpoint"]
                    expected = {1: (5, 10), 2: (8, 8)}.get(number, (5, 5))
                    assert expected == (row["prompt"], row["completion"]), path


async def test_a_server_that_stops(tmp_path: Path) -> None:
    """Answers that a stopping server cuts are in the ledger with what was delivered, and no journal is left."""
    file = tmp_path / "unilect.db"
    config = "shutdown_grace_s = 0.1\n" + CONFIG.format(
        key=KEY, url=f"sqlite:///{file}", rule="required"
    )
    with serve(config=config) as server:
        frames = 0

        def progress() -> None:
            nonlocal frames
            frames += 1
            if frames == 20:
                os.kill(server.pid, signal.SIGTERM)

        async with client(KEY) as session:
            seen = await asyncio.gather(
                *(stream(session, server, "x" * 2000, progress) for _ in range(5))
            )
    rows = {row["id"].partition(".")[2]: row for row in rows_of(f"sqlite:///{file}")}
    assert 5 == len(rows)
    for one in seen:
        assert not one.whole
        row = rows[one.id]
        assert row["status"] != 200
        assert one.delivered <= row["completion"] <= one.delivered + 32
    assert [] == list(tmp_path.glob("*.running-*"))


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of a size, until the block ends; the test is skipped where none can be mounted, and fails so in continuous integration."""
    disk = folder / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        message = f"no file system can be mounted here, which takes root: {error}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


async def get(session: aiohttp.ClientSession, url: str) -> int:
    """The status of a GET."""
    async with session.get(url) as response:
        return response.status


async def test_a_full_disk(tmp_path: Path) -> None:
    """While the disk is full no answer is called whole, requests are refused at once with 503, and all is well soon after there is room."""
    with small_disk(tmp_path, "3m") as disk:
        config = CONFIG.format(key=KEY, url=f"sqlite:///{disk / 'unilect.db'}", rule="required")
        with serve(config=config) as server:
            async with client(KEY) as session:
                first = await stream(session, server, "Hello", lambda: None)
                assert (200, True) == (first.status, first.whole)
                filler = disk / "filler"
                running = asyncio.create_task(
                    stream(session, server, "x" * 150, lambda: fill(filler))
                )
                cut = await running
                assert (200, False, "ledger_unavailable") == (cut.status, cut.whole, cut.error)

                began = time.monotonic()
                refused = [await stream(session, server, "Hello", lambda: None) for _ in range(10)]
                assert [(503, "ledger_unavailable")] * 10 == [
                    (one.status, one.error) for one in refused
                ]
                assert time.monotonic() - began < 10
                async with session.post(
                    f"{server.url}/chat/completions",
                    json={"model": "e", "messages": [{"role": "user", "content": "Hi"}]},
                ) as response:
                    assert ("5", 503) == (response.headers["Retry-After"], response.status)
                assert (503, 200) == (
                    await get(session, f"{server.root}/readyz"),
                    await get(session, f"{server.root}/healthz"),
                )

                filler.unlink()
                await until_ready(session, server)
                last = await stream(session, server, "Hello again", lambda: None)
                assert (200, True) == (last.status, last.whole)
        rows = {
            row["id"].partition(".")[2]: row for row in rows_of(f"sqlite:///{disk / 'unilect.db'}")
        }
        statuses = {id: (row["status"], row["completion"]) for id, row in rows.items()}
        assert {first.id: (200, 5), cut.id: (503, 150), last.id: (200, 11)} == statuses


async def until_ready(session: aiohttp.ClientSession, server: Server) -> None:
    """Wait until the server takes requests, five seconds at most."""
    async with asyncio.timeout(5):
        while await get(session, f"{server.root}/readyz") != 200:
            await asyncio.sleep(0.05)


async def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    """A server starts where its ledger cannot be written, refuses requests, and takes them soon after it can."""
    with small_disk(tmp_path, "8m") as disk:
        url = f"sqlite:///{disk / 'unilect.db'}"
        config = CONFIG.format(key=KEY, url=url, rule="required")
        with serve(config=config):
            pass  # it makes the file
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with serve(config=config) as server:
            async with client(KEY) as session:
                assert 503 == await get(session, f"{server.root}/readyz")
                refused = await stream(session, server, "Hello", lambda: None)
                assert (503, "ledger_unavailable") == (refused.status, refused.error)
                subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
                await until_ready(session, server)
                assert (await stream(session, server, "Hello", lambda: None)).whole
        assert [200] == [row["status"] for row in rows_of(url)]


@pytest.mark.heavy
async def test_a_database_that_is_locked(tmp_path: Path) -> None:
    """A commit that hangs, since another program has locked the file, ends an answer with an error in bounded time."""
    file = tmp_path / "unilect.db"
    config = CONFIG.format(key=KEY, url=f"sqlite:///{file}", rule="required")
    with serve(config=config) as server:
        async with client(KEY) as session:
            assert (await stream(session, server, "Hello", lambda: None)).whole
            with closing(sqlite3.connect(file, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                began = time.monotonic()
                cut = await stream(session, server, "Hello", lambda: None)
                assert 2.5 < time.monotonic() - began < 10
                assert (False, "ledger_unavailable") == (cut.whole, cut.error)
                refused = await stream(session, server, "Hello", lambda: None)
                assert (503, "ledger_unavailable") == (refused.status, refused.error)
                other.execute("ROLLBACK")
            await until_ready(session, server)
            assert (await stream(session, server, "Hello", lambda: None)).whole
    assert [200, 200, 503] == sorted(row["status"] for row in rows_of(f"sqlite:///{file}"))


def fill(file: Path) -> None:
    """Fill the disk to the last byte."""
    if file.exists():
        return
    with file.open("wb", buffering=0) as filler:
        for size in (4096, 1):
            try:
                while filler.write(b"x" * size):
                    pass
            except OSError:
                continue
