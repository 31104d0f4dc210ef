"""Servers that are attacked, who sends bodies to them, and whether they may answer so."""

import asyncio
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import psutil
import pytest

from engine import SOURCES
from serving import KEY, Server, serve

AT_ONCE = 8
#: Marks a test that sends many bodies; on demand it takes hours.
many = pytest.mark.timeout(0 if {"UNILECT_FUZZ", "UNILECT_HOSTILE"} & {*os.environ} else 900)
TIMEOUT_S = 60.0  # an answer that fills the context takes seconds on a busy machine; one that hangs never comes
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
# A short context bounds every answer, whatever a request asks for.
FLAGS = ("--context", "256", "--parallel", "4", "--log-level", "warning")


@dataclass(frozen=True)
class Request:
    """A body, and the path that it is sent to."""

    path: str
    body: bytes

    def __repr__(self) -> str:
        """Bounded: bodies of megabytes are among them."""
        cut = f"... {len(self.body)} bytes" if len(self.body) > 4000 else ""
        return f"Request({self.path!r}, {self.body[:4000]!r}{cut})"


@dataclass(frozen=True)
class Reply:
    """A server's answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error in the one envelope; an assertion fails where it is not in it."""
        assert self.headers.get("Content-Type", "").startswith("application/json"), self
        document = json.loads(self.body)
        error = document["error"]
        assert {"message", "type", "param", "code"} <= set(error), self
        assert isinstance(error["message"], str), self
        assert error["message"], self
        assert isinstance(error["type"], str), self
        assert error["param"] is None or isinstance(error["param"], str), self
        assert error["code"] is None or isinstance(error["code"], str), self
        assert len(self.body) < 4096, "an error that echoes its request"
        return dict(error)


class Attacker:
    """
    Sends bodies, several at a time. A context manager.

    Args:
        server: The target.
        timeout_s: The longest time for an answer.
    """

    def __init__(self, server: Server, timeout_s: float = TIMEOUT_S) -> None:
        self._runner = asyncio.Runner()
        self._session = self._runner.run(_session(server, timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._session.close())
        self._runner.close()

    def send(self, requests: Sequence[Request]) -> list[Reply]:
        """POST bodies to their paths, all at once, and give the answers in their order."""
        return self._runner.run(self._send(requests))

    async def _send(self, requests: Sequence[Request]) -> list[Reply]:
        return await asyncio.gather(*map(self._one, requests))

    async def _one(self, request: Request) -> Reply:
        body = io.BytesIO(request.body)
        async with self._session.post(request.path, data=body, headers=HEADERS) as answer:
            return Reply(answer.status, dict(answer.headers), await answer.read())


async def _session(server: Server, timeout_s: float) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        server.root,
        connector=aiohttp.TCPConnector(limit=AT_ONCE),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
    )


class Target:
    """
    A server that is attacked.

    Attributes:
        server: It.
        attacker: Sends requests to it.
    """

    def __init__(self, server: Server, attacker: Attacker) -> None:
        self.server = server
        self.attacker = attacker
        self._processes = _processes(server)
        self._logged = 0

    def look(self) -> None:
        """Fail unless the server and its engines are the processes that they were, and have failed at nothing."""
        log = self.server.log.read_text()[self._logged :]
        before, self._processes = self._processes, _processes(self.server)
        self._logged += len(log)
        assert before == self._processes, log[-4000:]
        assert "Traceback" not in log, log[-4000:]


@contextmanager
def attacked(engine: str) -> Iterator[Target]:
    """A server on an engine. All of its processes run from the beginning, so that a new one is a dead one."""
    with serve(f"demo={SOURCES[engine]}", "--api-key", KEY, *FLAGS) as server:
        with Attacker(server) as attacker:
            [reply] = attacker.send([Request("/v1/embeddings", b'{"input": "a"}')])
            assert reply.status == 200, reply
            yield Target(server, attacker)


def _processes(server: Server) -> set[int]:
    """The server and its engines; what compiles grammars comes with the first of them, and ends when one is too hard."""
    found = {server.pid}
    for child in psutil.Process(server.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if not any("unilect.constraints" in part for part in child.cmdline()):
                found.add(child.pid)
    return found


def assert_sound(reply: Reply, request: Request) -> None:
    """
    Fail unless a server may answer a client's request so: an answer, or an error that is the client's and in the envelope.

    503 is allowed where it says when to come again.
    """
    if reply.status == 503:
        assert "Retry-After" in reply.headers, (request, reply)
    else:
        assert reply.status < 500, (request, reply)
    if reply.status >= 400:
        assert reply.error, (request, reply)
    elif reply.headers["Content-Type"].startswith("text/event-stream"):
        _assert_sound_stream(reply, request)
    else:
        assert isinstance(json.loads(reply.body), dict | list), (request, reply)


def _assert_sound_stream(reply: Reply, request: Request) -> None:
    """A stream ends with [DONE], a native one with `stop`; or with one error that is the client's fault."""
    frames = [frame for frame in reply.body.decode().split("\n\n") if frame]
    if frames[-1] == "data: [DONE]":
        return
    last = json.loads(frames[-1].removeprefix("data: "))
    if last.get("stop") is True:
        return
    if "error" not in last and b'"response_fields"' in request.body:
        return  # the last frame holds those fields and no other, as llama.cpp's does
    error = last["error"]
    assert error["type"] == "invalid_request_error", (request, reply)
