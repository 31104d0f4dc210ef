"""_admin_logs.py: what an operator reads of engines, by requests to the admin API of a server with a real engine."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from server.test_admin import Operated, operated
from support.common.waiting import until
from unilect.demo import MODEL
from unilect.engines.process.child_process import ChildProcess
from unilect.runtime.line_log import MOST_BYTES, Line
from unilect.server._admin_logs import _Reader

ENGINE = f"[models.gguf]\nsource = '{MODEL}'\naliases = ['other']\n[models.a]\nsource = 'echo:'\n"


def child_of(server: Operated) -> ChildProcess:
    """The process that answers."""
    child = server.registry.get("gguf").pool.members[0].backend.children[0]
    assert isinstance(child, ChildProcess)
    return child


async def read(server: Operated, query: str = "") -> str:
    """The text of an answer."""
    async with server._admin.get(f"http://localhost/logs{query}") as answer:
        assert "text/plain; charset=utf-8" == answer.headers["Content-Type"]
        return str(await answer.text())


async def test_an_engine_that_is_killed(tmp_path: Path) -> None:
    """The end of a process is a line of its log, which outlives it; who follows gets it as it comes, also of the process that takes its place, until the server ends."""
    async with operated(tmp_path, ENGINE) as server:
        child = child_of(server)
        pid = child.pid
        assert pid is not None
        async with server._admin.get("http://localhost/logs?follow=true&model=other") as answer:
            os.kill(pid, signal.SIGKILL)
            first = await answer.content.readline()
            await until(lambda: child.starts == 2)
            again = child.pid
            ending = asyncio.create_task(server.listener.aclose())
            await server.registry.aclose()
            rest = await answer.content.read()
            await ending
    assert f" gguf[{pid}]: [ended: killed (SIGKILL)".encode() in first
    assert time.strftime("%Y-%m-%dT", time.gmtime()).encode() == first[:11]
    assert b"" == rest or f" gguf[{again}]: [ended: exit status 0]\n".encode() in rest
    assert not child.log.watchers


async def test_lines(tmp_path: Path) -> None:
    """The last lines are told, as many as are wanted, of one model or all; what a terminal would obey and passwords in addresses are not."""
    async with operated(tmp_path, ENGINE) as server:
        log = child_of(server).log
        for text in ("one", "two \u202e \x1b[2J", "http://me:secret@host/x?api_key=abcdefgh"):
            log.append(Line(time.time(), 7, text))
        texts = [await read(server, query) for query in ("", "?lines=1", "?model=a", "?follow=0")]
        async with server._admin.head("http://localhost/logs?follow=1") as head:
            assert 200 == head.status
    told = [line.partition(" ")[2] for line in texts[0].splitlines()]
    assert ["gguf[7]: one", "gguf[7]: two \\u202e \\x1b[2J", "gguf[7]: http://***@host/x?api_key=***"] == told  # fmt: skip
    assert [texts[0].splitlines()[-1:], "", texts[0]] == [texts[1].splitlines(), *texts[2:]]


async def test_a_reader_that_is_too_slow(tmp_path: Path) -> None:
    """Who follows, and reads slower than lines come, is told how many it has missed; nobody waits for it."""
    async with operated(tmp_path, ENGINE) as server:
        log = child_of(server).log
        log.append(Line(time.time(), 7, "first"))
        async with server._admin.get("http://localhost/logs?follow=true") as answer:
            await answer.content.readline()
            await until(lambda: bool(log.watchers))
            for number in range(10_000):
                log.append(Line(time.time(), 7, f"{number}"))
            missed = await answer.content.readline()
    assert b" lines came faster than they were read]" in missed
    assert 10_000 - MOST_BYTES // 200 <= int(missed.split(b"[")[1].split()[0]) < 10_000


@pytest.mark.parametrize(
    ("query", "status", "told"),
    [
        ("model=none", 404, "none"),
        ("model=far", 501, "runs on another server"),
        ("lines=0", 400, "from 1 to"),
        ("lines=x", 400, "from 1 to"),
        ("follow=maybe", 400, "true or false"),
    ],
)
async def test_refusals(tmp_path: Path, query: str, status: int, told: str) -> None:
    """What cannot be read is refused with the reason."""
    text = "[models.far]\nsource = 'http://127.0.0.1:9/v1'\nmodel = 'x'\n"
    async with operated(tmp_path, text) as server:
        answer: tuple[int, Any] = await server.ask("GET", f"/logs?{query}")
    assert status == answer[0]
    assert told in answer[1]["error"]["message"]


async def test_a_reader_of_engines_that_are_replaced(tmp_path: Path) -> None:
    """Who follows while a reload replaces engines keeps no log of those that are gone."""
    async with operated(tmp_path, ENGINE) as server:
        reader = _Reader(server.registry, None)
        reader.read()
        first = child_of(server).log
        server.file.write_text(server.file.read_text().replace("aliases", "context = 128\naliases"))
        await server.ask("POST", "/reload")
        await until(lambda: not server.registry.leaving and child_of(server).log is not first)
        reader.read()

        assert first not in reader._counts
        assert child_of(server).log in reader._counts
