"""Servers that are attacked, who sends bodies to them, and whether they may answer so."""

import asyncio
import io
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
import psutil
import pytest
import yarl

from support.backends.engine import SOURCES
from support.models import tiny_gguf
from support.servers.serving import KEY, Server, serve
from unilect.demo import FOLDER

AT_ONCE = 8
#: Marks a test that sends many bodies; on demand it takes hours.
many = pytest.mark.timeout(0 if {"UNILECT_FUZZ", "UNILECT_HOSTILE"} & {*os.environ} else 900)
TIMEOUT_S = 60.0  # an answer that fills the context takes seconds on a busy machine; one that hangs never comes
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
# A short context bounds every answer, whatever a request asks for.
FLAGS = ("--context", "256", "--parallel", "4", "--log-level", "warning", "--api-key", KEY)
EMBED = b'{"input": "a"}'
#: What may answer 501: slots are nobody's own, not every model ranks documents or has adapters, and usage may not be recorded.
NOWHERE = ("/slots", "/v1/usage", "/lora-adapters", "/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking")  # fmt: skip


@dataclass(frozen=True)
class Request:
    """A body, and the path that it is sent to, by the method that it needs there."""

    path: str
    body: bytes
    method: str = "POST"

    def __repr__(self) -> str:
        """Bounded: bodies of megabytes are among them."""
        cut = f"... {len(self.body)} bytes" if len(self.body) > 4000 else ""
        return f"Request({self.method} {self.path!r}, {self.body[:4000]!r}{cut})"


@dataclass(frozen=True)
class Reply:
    """A server's answer, which took so many seconds."""

    status: int
    headers: dict[str, str]
    body: bytes
    took_s: float = 0.0

    @property
    def error(self) -> dict[str, Any]:
        """The error in the one envelope; an assertion fails where it is not in it."""
        assert self.headers.get("Content-Type", "").startswith("application/json"), self
        document = json.loads(self.body)
        error = document["error"]
        if isinstance(error, str):  # of Ollama's API
            error = {"message": error, "type": "", "param": None, "code": None}
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
        begun = time.monotonic()
        asked = {"data": io.BytesIO(request.body)} if request.method == "POST" else {}
        url = yarl.URL(request.path, encoded=True)
        async with self._session.request(request.method, url, headers=HEADERS, **asked) as answer:
            body = await answer.read()
            return Reply(answer.status, dict(answer.headers), body, time.monotonic() - begun)


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
        self._ids: dict[str, str] = {}

    def filled(self, request: Request) -> Request:
        """A request whose `{response}`, `{background}`, `{conversation}` and `{item}` are ids of what is stored."""
        if "{" not in request.path and b"{" not in request.body[1:]:
            return request
        path, body = request.path, request.body
        for name, id in self._stored().items():
            path, body = path.replace(name, id), body.replace(name.encode(), id.encode())
        return Request(path, body, request.method)

    def _stored(self) -> dict[str, str]:
        """The ids of a response, of one that was made in the background, of a conversation, and of an item in it."""
        if not self._ids:
            items = b'{"items": [{"role": "user", "content": "Hi"}]}'
            said = b'{"input": "Hi", "max_output_tokens": 2}'
            behind = said[:-1] + b', "background": true}'
            [talk] = self.attacker.send([Request("/v1/conversations", items)])
            id = json.loads(talk.body)["id"]
            asked = [Request("/v1/responses", said), Request("/v1/responses", behind)]
            asked.append(Request(f"/v1/conversations/{id}/items", b"", "GET"))
            one, other, listed = map(json.loads, (r.body for r in self.attacker.send(asked)))
            self._ids = {
                "{response}": one["id"],
                "{background}": other["id"],
                "{conversation}": id,
                "{item}": listed["data"][0]["id"],
            }
        return self._ids

    def look(self) -> None:
        """Fail unless the server and its engines are the processes that they were, and have failed at nothing."""
        log = self.server.log.read_text()[self._logged :]
        before, self._processes = self._processes, _processes(self.server)
        self._logged += len(log)
        assert before == self._processes, log[-4000:]
        assert "Traceback" not in log, log[-4000:]


@contextmanager
def attacked(engine: str, folder: Path) -> Iterator[Target]:
    """A server on an engine, and who attacks it."""
    with attackable(engine, folder) as server, Attacker(server) as attacker:
        yield Target(server, attacker)


@contextmanager
def attackable(engine: str, folder: Path) -> Iterator[Server]:
    """
    A server of the bundled model on an engine, and of others for what that one cannot do: `filler` fills gaps in, `ranker` ranks
    documents, `adapted` has two LoRA adapters. All of its processes run from the beginning, so that a new one is a dead one.
    """
    filler = tiny_gguf.make(folder / "f.gguf", marks=tiny_gguf.FILL_IN, begins=False)
    ranker = tiny_gguf.make_bert_reranker(folder / "r.gguf")
    adapters = [f"{FOLDER / 'lora-pirate.gguf'}=0", f"{FOLDER / 'lora-robot.gguf'}=0"]
    config = (
        f'[models.demo]\nsource = "{SOURCES[engine]}"\n'
        f'[models.filler]\nsource = "{filler}"\n'
        f'[models.ranker]\nsource = "{ranker}"\n'
        f'[models.adapted]\nsource = "demo:"\nlora = {json.dumps(adapters)}\n'
    )
    with serve(*FLAGS, config=config) as server:
        with Attacker(server) as attacker:
            begun = attacker.send(
                [
                    Request("/v1/embeddings", EMBED),
                    Request("/infill", b'{"model": "filler", "n_predict": 1}'),
                    Request("/rerank", b'{"model": "ranker", "query": "a", "documents": ["b"]}'),
                    Request("/completion", b'{"model": "adapted", "n_predict": 1}'),
                ]
            )
            assert [200] * len(begun) == [reply.status for reply in begun], begun
        yield server


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

    503 is allowed where it says when to come again, and 501 of what is done nowhere here.
    """
    if reply.status == 501:
        assert request.path.startswith(NOWHERE), (request, reply)
    elif reply.status == 503:
        assert "Retry-After" in reply.headers, (request, reply)
    else:
        assert reply.status < 500, (request, reply)
    if reply.status >= 400:
        assert reply.error, (request, reply)
    elif reply.headers["Content-Type"].startswith("text/event-stream"):
        _assert_sound_stream(reply, request)
    elif reply.headers["Content-Type"] == "application/x-ndjson":
        *rows, last = map(json.loads, reply.body.splitlines())
        assert last.get("done") or last.get("status") or "error" in last, (request, reply)
        assert not any(row["done"] for row in rows), (request, reply)
    else:
        assert isinstance(json.loads(reply.body), dict | list), (request, reply)


def _assert_sound_stream(reply: Reply, request: Request) -> None:
    """A stream ends with [DONE], a native one with `stop`, those of other APIs with their ends; or with one error that is the client's fault."""
    frames = [frame for frame in reply.body.decode().split("\n\n") if frame]
    if not frames and "starting_after" in request.path:
        return
    if frames[-1] == "data: [DONE]":
        return
    last = json.loads(frames[-1].rpartition("data: ")[2])
    if last.get("stop") is True or last.get("type") == "message_stop":
        return
    if last.get("type") in ("response.completed", "response.incomplete"):
        return
    if last.get("type") == "response.failed":
        assert last["response"]["error"]["code"] != "server_error", (request, reply)
        return
    if "error" not in last and b'"response_fields"' in request.body:
        return  # the last frame holds those fields and no other, as llama.cpp's does
    error = last["error"]
    assert error["type"] == "invalid_request_error", (request, reply)
