"""Tests of unilect.dialects.fastchat._admission: who registers with the controller, and what is called because of it."""

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout, TCPConnector

from support.backends.fastchat import fake_fastchat
from support.backends.scripted import Scripted, answer, says, scripted
from support.servers.appserver import App, serving, upstream
from unilect.config.server import Config, check
from unilect.core.errors import ConfigError, InvalidRequest, RateLimited
from unilect.dialects.fastchat._admission import Pace, worker_url
from unilect.dialects.fastchat._registration import FastChatRegistration
from unilect.dialects.fastchat._worker import WorkerState
from unilect.http.client import HttpServer

NETWORK = {"fastchat_workers_from": ["127.0.0.2"]}
TOKEN = "let-me-in-please"
NOT_HERE = "http://127.0.0.1:1/v1"


@asynccontextmanager
async def controller(**config: Any) -> AsyncIterator[App]:
    """A controller; its own model `m` is on a server that is not there."""
    async with serving(upstream(NOT_HERE), Config(fastchat_controller=True, **config)) as app:
        yield app


async def register(
    app: App, name: str, *models: str, peer: str = "127.0.0.1", **headers: str
) -> tuple[int, Any]:
    """The status and the body for a worker that registers from an address of this machine."""
    body = {"worker_name": name, "worker_status": {"model_names": models}}
    return await call(app, "/register_worker", body, peer, **headers)


async def call(
    app: App, path: str, body: Any, peer: str = "127.0.0.1", **headers: str
) -> tuple[int, Any]:
    """A call from an address of this machine."""
    connector = TCPConnector(local_addr=(peer, 0))
    async with ClientSession(connector=connector, timeout=ClientTimeout(20)) as session:
        url = f"http://127.0.0.1:{app.port}{path}"
        async with session.post(url, json=body, headers=headers) as response:
            return response.status, await response.json(content_type=None)


async def victim_is_asked(app: App, victim: Scripted) -> bool:
    """Whether a call for the model `w` reaches a server that is no worker."""
    await call(app, "/worker_get_embeddings", {"model": "w", "input": ["x"]})
    await call(app, "/refresh_all_workers", {})
    return bool(victim.requests)


@pytest.mark.parametrize("path", ["/admin?x=", "/admin#", "/admin?x=1#", "/a/../admin"])
async def test_a_worker_is_no_way_to_any_url(path: str) -> None:
    """A worker's name with a query, a fragment or a way up is refused, and nobody is called because of it."""
    async with scripted(says(answer(b'{"secret": 1}'))) as victim, controller() as app:
        status, body = await register(app, f"http://127.0.0.1:{victim.port}{path}", "w")

        assert (400, "worker_name") == (status, body["error"]["param"])
        assert not await victim_is_asked(app, victim)


async def test_a_worker_registers_itself() -> None:
    """A worker whose URL leads to another address than its own is refused, unless that is in an allowed network."""
    async with scripted(says(answer(b"{}"))) as victim, controller(**NETWORK) as app:
        status, body = await register(app, f"http://127.0.0.1:{victim.port}", "w", peer="127.0.0.2")
        assert (400, "worker_name") == (status, body["error"]["param"])
        assert not await victim_is_asked(app, victim)
    networks = ["127.0.0.2", "127.0.0.1/32"]
    async with controller(fastchat_workers_from=networks) as app:
        assert (200, None) == await register(app, "http://127.0.0.1:1", "w", peer="127.0.0.2")


@pytest.mark.parametrize("path", ["/register_worker", "/receive_heart_beat"])
async def test_who_may_not_register(path: str) -> None:
    """A worker from another network is refused before its body is looked at, and its heart beats too."""
    async with controller(**NETWORK) as app:
        status, body = await call(app, path, {"worker_name": "http://127.0.0.1:1"})

    assert (403, "permission_denied") == (status, body["error"]["code"])
    assert "fastchat_workers_from" in body["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": f"Basic {base64.b64encode(f'w:{TOKEN}'.encode()).decode()}"},
        {"X-API-Key": "sk-own"},
    ],
    ids=["bearer", "basic", "a key of the server"],
)
async def test_a_token_opens(headers: dict[str, str]) -> None:
    """A worker from anywhere registers itself with the token, and itself only."""
    config: Any = NETWORK | {"fastchat_token": TOKEN, "api_keys": ["sk-own"]}
    async with controller(**config) as app:
        assert (200, None) == await register(app, "http://127.0.0.1:1", "w", **headers)
        status, _ = await register(app, "http://127.0.0.3:1", "x", **headers)
        assert 400 == status


@pytest.mark.heavy
async def test_many_workers_of_many_models() -> None:
    """Workers that register more models than are taken are refused, and a refresh that drops them all is done with."""
    async with controller() as app:
        statuses = [
            (
                await register(
                    app,
                    f"http://127.0.0.1:1/{number}",
                    *(f"m{number}-{each}" for each in range(256)),
                    peer=f"127.0.0.{2 + number // 60}",
                )
            )[0]
            for number in range(300)
        ]
        _, before = await call(app, "/list_models", {})
        refreshed, _ = await call(app, "/refresh_all_workers", {})
        _, after = await call(app, "/list_models", {})

    assert {200: 4, 400: 296} == Counter(statuses)
    assert 1024 == len({*before["models"]} - {"m"})
    assert (200, set()) == (refreshed, {*after["models"]} - {"m"})


async def test_our_own_worker_brings_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of ours registers with the token that stands in its controller's URL."""
    async with controller(fastchat_token=TOKEN, **NETWORK) as app:
        work = WorkerState(app.service)
        monkeypatch.setattr(
            work, "status", lambda: {"model_names": ["w"], "speed": 1, "queue_length": 0}
        )
        worker = FastChatRegistration(f"http://worker:{TOKEN}@127.0.0.1:{app.port}", work)
        await worker.open("http://127.0.0.1:1")
        async with asyncio.timeout(60):
            while (await call(app, "/get_worker_address", {"model": "w"}))[1] == {"address": ""}:
                await asyncio.sleep(0)
        await worker.aclose()

        assert {"address": ""} == (await call(app, "/get_worker_address", {"model": "w"}))[1]


@pytest.mark.parametrize("value", ["Bearer wrong", "Basic !", "Basic AAAA", "Bearer ", "é", "x"])
async def test_a_wrong_token(value: str) -> None:
    """What is no token opens nothing."""
    async with controller(fastchat_token=TOKEN, **NETWORK) as app:
        status, _ = await register(app, "http://127.0.0.1:1", "w", Authorization=value)

    assert 403 == status


async def test_a_name_is_resolved_once() -> None:
    """The address that a worker's name had when it registered is connected to, with the name as its host."""
    async with fake_fastchat() as fake:
        url = f"http://gone.invalid:{fake.server.port}"
        await HttpServer(url, connect_to="127.0.0.1").post("/worker_get_status", b"{}")
        (exchange,) = fake.server.requests
    assert f"Host: gone.invalid:{fake.server.port}".encode() in exchange.head


async def test_what_cannot_be_resolved() -> None:
    """A worker whose name nobody knows is refused by name."""
    async with controller() as app:
        status, body = await register(app, "http://no-such-host.invalid:1", "w")

    assert (400, "worker_name") == (status, body["error"]["param"])
    assert "no-such-host.invalid" in body["error"]["message"]


@pytest.mark.parametrize(
    "name",
    [
        "http://user:pw@127.0.0.1:1",
        "http://127.0.0.1:1/?q",
        "http://127.0.0.1:0",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:1/a b",
        "http://127.0.0.1:1/%2e%2e/x",
        "http://127.0.0.1:1/./x",
        "http://[::1",
        "HTTP://127.0.0.1:1",
        "http://" + "a" * 300,
        "http://127.0.0.1:1\n",
        "ftp://127.0.0.1",
        "http:///x",
    ],
)
def test_no_worker(name: str) -> None:
    """A worker's name is a scheme, a host, perhaps a port and a path, and nothing else."""
    with pytest.raises(InvalidRequest, match="worker_name"):
        worker_url(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("http://10.0.0.5:21002", ("http://10.0.0.5:21002", "10.0.0.5", 21002)),
        ("https://gpu_1.local/a/b/", ("https://gpu_1.local/a/b", "gpu_1.local", 443)),
        ("http://[fe80::1]:80", ("http://[fe80::1]:80", "fe80::1", 80)),
    ],
)
def test_a_worker_url(name: str, expected: tuple[str, str, int]) -> None:
    """A worker's URL is taken as it stands, without a slash at its end."""
    assert expected == worker_url(name)


async def test_our_own_models_stay_behind_the_keys() -> None:
    """Where there are keys, our own models are listed, named and asked only for those who may register or have a key."""
    config: Any = NETWORK | {"api_keys": ["sk-own"]}
    key = {"Authorization": "Bearer sk-own"}
    async with controller(**config) as app:
        seen = [
            (await call(app, "/list_models", {}, peer, **headers))[1]["models"]
            for peer, headers in (("127.0.0.1", {}), ("127.0.0.2", {}), ("127.0.0.1", key))
        ]
        named = await call(app, "/get_worker_address", {"model": "m"})
        _, refused = await call(app, "/worker_generate", {"model": "m", "prompt": "a"})
        _, asked = await call(app, "/worker_generate", {"model": "m", "prompt": "a"}, "127.0.0.2")

    assert [[], ["m"], ["m"]] == seen
    assert (200, {"address": ""}) == named
    assert "No worker has this model now. Start one, or try again later." == refused["text"]
    assert "cannot be reached" in asked["text"]


async def test_a_controller_that_is_its_own_worker() -> None:
    """A call that would be handed on in a circle ends with an error."""
    async with controller() as app:
        assert (200, None) == await register(app, f"http://127.0.0.1:{app.port}", "w")
        async with asyncio.timeout(60):
            status, body = await call(app, "/worker_generate", {"model": "w", "prompt": "a"})

    assert (200, "in a circle" in body["text"]) == (status, True)


async def test_refreshing_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All who want the workers asked at the same time, or right after, have them asked once."""
    async with fake_fastchat() as fake, controller() as app:
        await register(app, fake.url, "w")
        await asyncio.gather(*(call(app, "/refresh_all_workers", {}) for _ in range(20)))

        assert 1 == len(fake.asked["/worker_get_status"])
        assert {"models": ["m"]} == (await call(app, "/list_models", {}))[1]


async def test_a_status_is_bounded() -> None:
    """A worker that says too much of itself is none."""
    async with fake_fastchat() as fake, controller() as app:
        fake.answers["/worker_get_status"] = {"model_names": ["w"], "more": "x" * 100_000}
        status, body = await call(app, "/register_worker", {"worker_name": fake.url})

    assert (502, "longer than" in body["message"]) == (status, True)


async def test_calls_are_counted_for_each_peer() -> None:
    """A peer that calls too often is told to wait, and others are not."""
    pace = Pace(burst=3, per_s=1e-9)
    for _ in range(3):
        pace.take("a")
    with pytest.raises(RateLimited):
        pace.take("a")
    pace.take("b")


@pytest.mark.parametrize(
    "fields",
    [
        {"fastchat_workers_from": ["10.0.0.0/99"]},
        {"fastchat_workers_from": ["gpu"]},
        {"fastchat_token": "short"},
        {"fastchat_token": "with:a:colon"},
    ],
)
def test_wrong_settings(fields: dict[str, Any]) -> None:
    """What is no network, or no token, is told at the start."""
    with pytest.raises(ConfigError, match=next(iter(fields))):
        check(Config(**fields))
