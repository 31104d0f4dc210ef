"""One run of a server with a secret of every kind, through successes, failures and a crash, with all that it writes: none is in it."""

import asyncio
import base64
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import ClientSession, ClientTimeout, web

from support.backends.loopback import free_port, served
from support.models import tiny_gguf
from support.servers.postgresql import POSTGRESQL
from support.servers.redis_server import RedisServer, redis_server
from support.servers.serving import Server, serve

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel")
#: What nobody but who sent it may see again; the base64 of the image is such a text, too.
KEYS = {
    name: f"canary-{name}-5f1d0c9e7b3a"
    for name in (
        "caller",
        "metrics",
        "admin",
        "upstream",
        "redis",
        "hub",
        "collector",
        "header",
        "wrong",
    )
}
WORDS = {name: f"canary-{name}-8a2e4b6d1f07" for name in ("prompt", "system", "tool", "answer")}
IMAGE = base64.b64encode(b"canary-image-0b5c7d9e1a3f").decode()
BEARER = {"Authorization": f"Bearer {KEYS['caller']}"}
TIMEOUT = ClientTimeout(total=60)
#: A template that refuses a prompt with the prompt's own words.
STRICT = "{% for one in messages %}{% if 'canary' in one.content %}{{ raise_exception(one.content) }}{% endif %}{{ one.content }}{% endfor %}"


class Told:
    """What has left the server, by where it was seen."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, bytes]] = []
        self.statuses: set[int] = set()

    def add(self, where: str, data: bytes | str) -> None:
        """Something was seen."""
        self._seen.append((where, data if isinstance(data, bytes) else data.encode()))

    def found(self, secrets: dict[str, str]) -> list[str]:
        """Where which secret was seen, also as another form of text has it."""
        forms = {
            name: {
                secret.encode(),
                secret.encode().hex().encode(),
                secret.replace("-", "%2D").encode(),
            }
            for name, secret in secrets.items()
        }
        return [
            f"{name} in {where}: {_around(data, form)!r}"
            for where, data in self._seen
            for name, every in forms.items()
            for form in every
            if form in data
        ]


def _around(data: bytes, form: bytes) -> bytes:
    at = data.index(form)
    return data[max(0, at - 120) : at + len(form) + 40]


class Upstream:
    """
    A server that repeats its key, and all that it was asked, in every way in which one can fail.
    """

    def __init__(self) -> None:
        self.told: list[bytes] = []

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """An answer as the last word of the last message wants it."""
        body = await request.json()
        how = str(body["messages"][-1]["content"]).split()[-1]
        repeated = f"{WORDS['prompt']} {request.headers['Authorization']} {json.dumps(body)}"
        if how.isdigit():
            error = {
                "error": {"message": repeated, "type": "x", "code": repeated, "param": repeated}
            }
            return web.json_response(error, status=int(how), headers={"X-A": KEYS["upstream"]})
        if how == "html":
            return web.Response(text=f"<html>{repeated}", content_type="text/html")
        if how == "gone":
            assert request.transport is not None
            request.transport.abort()
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        chunk = {"choices": [{"index": 0, "delta": {"content": WORDS["answer"]}}]}
        await stream.write(f"data: {json.dumps(chunk)}\n\n".encode())
        ends = {
            "broken": f"data: {repeated}\n\n",
            "error": f"data: {json.dumps({'error': {'message': repeated}})}\n\n",
            "cut": "",
        }
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        await stream.write(ends.get(how, f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n").encode())
        return stream

    async def models(self, request: web.Request) -> web.Response:
        """One model."""
        return web.json_response({"object": "list", "data": [{"id": "far", "object": "model"}]})

    async def traces(self, request: web.Request) -> web.Response:
        """Spans, as a collector takes them."""
        self.told.append(await request.read())
        return web.Response(body=b"", content_type="application/x-protobuf")


@contextmanager
def running(form: str, store: str, redis: RedisServer, folder: Path, far: int) -> Iterator[tuple[Server, int]]:  # fmt: skip
    """A server with all secrets, none of which is in its configuration; and the port of its admin API."""
    model, projector = (
        tiny_gguf.make(folder / "m.gguf"),
        tiny_gguf.make_projector(folder / "p.gguf"),
    )
    strict = tiny_gguf.make(folder / "s.gguf", template=STRICT)
    admin = free_port()
    config = f"""
        api_keys = ["$CALLER"]
        metrics_keys = ["$METRICS"]
        log_format = "{form}"
        log_level = "debug"
        metrics_per_key = true
        [store]
        url = "$STORE"
        ledger = "required"
        [admin]
        listen = "127.0.0.1:{admin}"
        api_keys = ["$ADMIN"]
        [limits]
        url = "$COUNTED"
        requests_per_minute = 100000
        tokens_per_day = 1000000000
        [otel]
        endpoint = "http://127.0.0.1:{far}"
        [models.near]
        source = "{model}"
        mmproj = "{projector}"
        [models.strict]
        source = "{strict}"
        [models.far]
        source = "http://127.0.0.1:{far}/v1"
        api_key = "$FAR"
        [models.away]
        source = "http://user:{KEYS["wrong"]}@127.0.0.1:{free_port()}/v1"
    """
    env = {
        "CALLER": KEYS["caller"],
        "METRICS": KEYS["metrics"],
        "ADMIN": KEYS["admin"],
        "FAR": KEYS["upstream"],
        "STORE": store,
        "COUNTED": f"redis://:{KEYS['redis']}@127.0.0.1:{redis.port}/0",
        "HF_TOKEN": KEYS["hub"],
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={KEYS['collector']}",
    }
    with serve(config=config, env=env) as server:
        yield server, admin


def asked() -> list[tuple[str, Any]]:
    """Requests, of which some are sound and the others wrong in their own ways: path and body."""
    system = {"role": "system", "content": WORDS["system"]}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": WORDS["tool"]})}}  # fmt: skip
    wrong_call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": WORDS["tool"]}}  # fmt: skip
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}
    talks = {
        "sound": [system, {"role": "user", "content": WORDS["prompt"]}],
        "a tool's result": [system, {"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": WORDS["tool"]}],
        "a wrong call": [system, {"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [wrong_call]}],
        "a broken image": [{"role": "user", "content": [{"type": "text", "text": WORDS["prompt"]}, image]}],
        "a long prompt": [{"role": "user", "content": WORDS["prompt"] * 5000}],
        "a wrong role": [{"role": "user", "content": WORDS["prompt"]}, {"role": "nobody", "content": WORDS["prompt"]}],
        "a wrong content": [{"role": "user", "content": {"a": WORDS["prompt"]}}],
        "a number": [{"role": "user", "content": WORDS["prompt"]}, 7],
    }  # fmt: skip
    found: list[tuple[str, Any]] = []
    for talk in talks.values():
        for model in ("near", "far", "away"):
            for stream in (False, True):
                body = {"model": model, "messages": talk, "stream": stream, "max_tokens": 2}
                found.append(("/v1/chat/completions", body))
    for how in ("400", "401", "403", "404", "429", "500", "502", "503", "html", "gone", "broken", "error", "cut", "fine"):  # fmt: skip
        talk = [system, {"role": "user", "content": f"{WORDS['prompt']} {how}"}]
        found += [("/v1/chat/completions", {"model": "far", "messages": talk, "stream": stream}) for stream in (False, True)]  # fmt: skip
    refused = {"model": "strict", "messages": talks["sound"][1:], "max_tokens": 2}
    found += [("/v1/chat/completions", {**refused, "stream": stream}) for stream in (False, True)]
    sound = {"model": "near", "max_tokens": 2}
    found += [
        ("/v1/responses", {**sound, "input": WORDS["prompt"], "store": False, "max_tokens": None}),
        ("/v1/messages", {**sound, "messages": talks["sound"][1:], "system": WORDS["system"]}),
        ("/v1/completions", {**sound, "prompt": WORDS["prompt"]}),
        ("/v1/completions", {**sound, "prompt": [WORDS["prompt"], 1]}),
        ("/v1/embeddings", {"model": "near", "input": {"a": WORDS["prompt"]}}),
        ("/v1/chat/completions", {**sound, "messages": talks["sound"], "temperature": WORDS["prompt"]}),
        ("/v1/chat/completions", {**sound, "messages": talks["sound"], "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": WORDS["prompt"]}}}}),
        ("/v1/chat/completions", {**sound, "messages": talks["sound"], "grammar": f"root ::= ({WORDS['prompt']}"}),
        ("/v1/chat/completions", {**sound, "messages": talks["sound"], "chat_template_kwargs": {"messages": WORDS["prompt"]}}),
        ("/v1/chat/completions", f'{{"messages": [{{"role": "user", "content": "{WORDS["prompt"]}'.encode()),
        ("/v1/chat/completions", f'"{WORDS["prompt"]}"'.encode()),
    ]  # fmt: skip
    return found


async def attack(server: Server, admin: int, told: Told) -> None:
    """Ask everything, in every wrong way, and kill the engine in between."""
    async with ClientSession(timeout=TIMEOUT) as session:

        async def ask(method: str, url: str, headers: dict[str, str], body: Any = None) -> None:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            more = {"Content-Type": "application/json", "X-Custom": KEYS["header"]}
            async with session.request(method, url, headers=more | headers, data=data) as answer:
                said = await answer.read()
            told.statuses.add(answer.status)
            if method == "POST":  # who has sent a text may be told what is wrong with it
                for word in (*WORDS.values(), IMAGE):
                    said = said.replace(word.encode(), b"")
            told.add(f"the head of {method} {url}", str(answer.headers))
            if answer.status >= 400 or method == "GET":
                told.add(f"{answer.status} of {method} {url}", said)
            else:  # an answer has what the model wrote; errors in a stream stand behind it
                told.add(f"the end of {method} {url}", b"".join(said.partition(b'"error"')[1:]))

        for path, body in asked():
            await ask("POST", server.root + path, BEARER, body)
        wrong = {"Authorization": f"Bearer {KEYS['wrong']}", "X-API-Key": KEYS["caller"]}
        for headers in (
            wrong,
            {"api-key": KEYS["wrong"]},
            {"Authorization": f"Basic {KEYS['wrong']}"},
        ):
            await ask("POST", f"{server.url}/chat/completions", headers, asked()[0][1])
        for engine in psutil.Process(server.pid).children():
            if any("gguf" in part for part in engine.cmdline()):
                engine.send_signal(signal.SIGKILL)
        await ask("POST", f"{server.url}/chat/completions", BEARER, asked()[0][1])
        for path in ("/metrics", "/healthz", "/readyz", "/health", "/v1/models", "/openapi.json", "/docs", "/nothing"):  # fmt: skip
            await ask("GET", server.root + path, BEARER)
        await ask("GET", f"{server.root}/metrics", {"Authorization": f"Bearer {KEYS['metrics']}"})
        base, key = f"http://127.0.0.1:{admin}/admin", {"Authorization": f"Bearer {KEYS['admin']}"}
        for path in ("models", "requests", "keys", "usage", "limits", "reload", "debug/tasks"):
            for headers in (key, BEARER, wrong):
                await ask("GET", f"{base}/{path}", headers)
        await ask("POST", f"{base}/reload", key)


def speak_wrongly(server: Server, told: Told) -> None:
    """Send a key where a server would show it: in what is no HTTP."""
    key = KEYS["caller"]
    for data in (f"{key}\r\n\r\n", f"G\x01{key} / HTTP/1.1\r\n\r\n", f"GET / HTTP/1.1\r\n{key}\r\n\r\n", f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: {key}\0\r\n\r\n", f"GET / HTTP/{key}\r\n\r\n"):  # fmt: skip
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            client.sendall(data.encode())
            with suppress(ConnectionError):
                while client.recv(65536):  # its own bytes may be told to who sent them
                    pass


def look_around(server: Server, told: Told) -> None:
    """What others on the machine may see of the server's processes, and what lies in its folder."""
    process = psutil.Process(server.pid)
    told.add("the server's command line", " ".join(process.cmdline()))
    for child in process.children(recursive=True):
        told.add("a child's command line", " ".join(child.cmdline()))
        told.add("a child's environment", Path(f"/proc/{child.pid}/environ").read_bytes())
    for path in server.log.parent.rglob("*"):
        if path.is_file() and path.name != "unilect.toml":
            told.add(f"the file {path.name}", path.read_bytes())


@pytest.mark.parametrize(
    ("form", "kind"),
    [("console", "sqlite"), pytest.param("json", "sqlite", marks=pytest.mark.heavy), pytest.param("json", *POSTGRESQL.values, marks=POSTGRESQL.marks)],
)  # fmt: skip
def test_no_secret_is_told(form: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:  # fmt: skip
    """Of eight keys and passwords, four texts and an image none is in the log, errors, metrics, spans, files, other answers or a child's environment."""
    upstream, told = Upstream(), Told()
    secrets = {**KEYS, **WORDS, "image": IMAGE}
    store = f"sqlite:///{tmp_path / 'store' / 'unilect.db'}"
    (tmp_path / "store").mkdir()
    if kind == "postgresql":
        postgresql = request.getfixturevalue("server_of_postgresql")
        store, secrets["database"] = postgresql.new_database(), postgresql.password
    routes = [web.post("/v1/chat/completions", upstream.chat), web.get("/v1/models", upstream.models), web.post("/v1/traces", upstream.traces)]  # fmt: skip
    with redis_server() as redis, served(*routes) as far:
        redis.protect(KEYS["redis"])
        with running(form, store, redis, tmp_path, far) as (server, admin):
            asyncio.run(attack(server, admin, told))
            speak_wrongly(server, told)
            look_around(server, told)
            os.kill(server.pid, signal.SIGTERM)
            psutil.wait_procs([psutil.Process(server.pid)], timeout=60)
            told.add("the log", server.log.read_bytes())
    for path in (tmp_path / "store").iterdir():
        told.add(f"the store's file {path.name}", path.read_bytes())
    for spans in upstream.told:
        told.add("spans", spans)

    assert {200, 400, 401} <= told.statuses
    assert upstream.told, "nothing was traced"
    found = told.found(secrets)
    assert not found, "\n".join(found)
