"""Tests of unilect.server._state: what /metrics tells beside the requests."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.backends.loopback import free_port
from support.backends.scripted import HELLO, answer, says, scripted, stream_of
from support.servers.appserver import serving
from support.servers.deployed import checked
from unilect.api.backend import Witness
from unilect.config.server import Config, ModelConfig
from unilect.config.store import StoreConfig
from unilect.core.errors import StoreUnavailable
from unilect.http.client import HttpServer
from unilect.models import sources
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.server._connections import Connections, Limits
from unilect.server._state import metrics_of
from unilect.server.listener import Listener
from unilect.store.database import Database
from unilect.testing.echo import Echo
from unilect.upstreams.openai.backend import OpenAIUpstream

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


class Exposed:
    """What a server exposes, read by Prometheus' own parser."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))
        samples = [sample for family in self.families for sample in family.samples]
        self.values = {(one.name, *sorted(one.labels.items())): one.value for one in samples}
        assert len(samples) == len(self.values), "two samples have the same labels"

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.values.get((f"unilect_{name}", *sorted(labels.items())))


@asynccontextmanager
async def listening(**models: str) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """A server of models with these sources, and a client."""
    config = Config(
        port=0,
        api_keys=["sk-right"],
        metrics_keys=["sk-metrics"],
        models={name: ModelConfig(source=source) for name, source in models.items()},
        metrics_per_key=True,
        store=StoreConfig(url="sqlite://"),
    )
    registry = sources.registry(config)
    listener = Listener(config, registry)
    try:
        (url,) = await listener.listen()
        headers = {"Authorization": "Bearer sk-right"}
        async with aiohttp.ClientSession(headers=headers) as client:
            yield url, client
    finally:
        await listener.aclose()
        await registry.aclose()


async def exposed(url: str, client: aiohttp.ClientSession) -> Exposed:
    """What a server exposes now."""
    headers = {"Authorization": "Bearer sk-metrics"}
    async with client.get(f"{url}/metrics", headers=headers) as response:
        assert 200 == response.status
        return Exposed(await response.text())


async def test_a_server(tmp_path: Path) -> None:
    """A server tells its version, connections, requests, store, models and keys, in a form that promtool accepts."""
    async with listening(m="echo:hello") as (url, client):
        async with client.post(f"{url}/v1/chat/completions", json=CHAT) as response:
            assert 200 == response.status
        told = await exposed(url, client)

    (build,) = [key for key in told.values if key[0] == "unilect_build_info"]
    assert ("version", version("unilect")) in build
    assert 1 == told("connections", state="answering")
    assert 1 == told("requests_in_flight", state="reading")
    assert 1 == told("connections_accepted_total")
    assert 0 == told("connections_closed_total", reason="slow")
    assert 1 == told("store_up")
    assert 0 == told("store_failures_total")
    assert 1 == told("backends", model="m", backend="echo:hello", state="up")
    assert 0 == told("backends", model="m", backend="echo:hello", state="open")
    assert 1 == told("backend_requests_total", model="m", backend="echo:hello")
    (key,) = [key for key in told.values if key[0] == "unilect_key_requests_total"]
    assert dict(key[1:])["key"].startswith("key-")  # type: ignore[arg-type]
    assert 0 < told.values["process_resident_memory_bytes",]
    assert all(family.documentation for family in told.families)
    checked("promtool", "check", "metrics", cwd=tmp_path, text=told.text)


async def test_backends_that_fail() -> None:
    """A backend that is out, or rests, is told so; what was sent elsewhere instead is counted, and so are fallbacks."""
    busy = answer(b"{}", "429 Busy", retry_after="30")
    async with scripted(says(busy)) as resting, scripted(says(stream_of(HELLO))) as good:
        gone = f"http://127.0.0.1:{free_port()}/v1"
        backends = [
            PooledBackend(OpenAIUpstream(HttpServer(url), "theirs"), url)
            for url in (gone, resting.url)
        ]
        spare = [PooledBackend(OpenAIUpstream(HttpServer(good.url), "theirs"), good.url)]
        async with serving(backends, fallback=spare) as app:
            async with app.chat() as response:
                assert 200 == response.status
                await response.read()
            told = Exposed((await app.get("/metrics"))[1].decode())

    def state(url: str, state: str, model: str = "m") -> float | None:
        return told("backends", model=model, backend=url.removesuffix("/v1"), state=state)

    assert (1, 0) == (state(gone, "open"), state(gone, "up"))
    assert (1, 0) == (state(resting.url, "resting"), state(resting.url, "up"))
    assert 1 == state(good.url, "up", "other")
    assert 1 == told("fallbacks_total", model="m", fallback="other")
    assert 1 == told("retries_total", model="other")
    assert 1 == told("backend_failures_total", model="m", backend=gone.removesuffix("/v1"))
    assert None is told("refused_requests_total", reason="engine_overloaded")


async def test_refused_requests() -> None:
    """What is refused before a backend is asked is counted by the error's code, whatever names and paths a client makes up."""
    async with listening(m="echo:") as (url, client):
        chat, wrong = f"{url}/v1/chat/completions", {"Authorization": "Bearer sk-wrong"}
        asked: list[Any] = [
            client.post(chat, json=CHAT, headers=wrong),
            client.post(chat, json=CHAT, headers={"Host": "evil.example"}),
            client.post(chat, json=CHAT, headers={"Origin": "https://evil.example"}),
            client.post(chat, json=CHAT | {"temperature": "hot"}),
            *(client.post(chat, json=CHAT | {"model": f"made-up-{n}"}) for n in range(50)),
            *(client.get(f"{url}/v1/made-up-{n}") for n in range(50)),
        ]
        for request in asked:
            async with request as response:
                await response.read()
        told = await exposed(url, client)

    reasons = {
        dict(key[1:])["reason"]: value  # type: ignore[arg-type]
        for key, value in told.values.items()
        if key[0] == "unilect_refused_requests_total"
    }
    assert {
        "invalid_api_key": 1,
        "misdirected_request": 1,
        "permission_denied": 1,
        "invalid_value": 1,
        "model_not_found": 50,
        "unknown_url": 50,
    } == reasons
    assert "made-up" not in told.text


@dataclass(eq=False)
class Life:
    """What a process says of itself."""

    starts: int
    deaths: int
    hangs: int
    processes: int
    resident_memory_bytes: int
    proportional_memory_bytes: int
    witnesses: set[Witness] = field(default_factory=set)


class Engine(Echo):
    """A backend that says what has become of its processes."""

    children = (
        Life(3, 2, 1, 1, 1000, 700),
        Life(1, 0, 0, 1, 500, 400),
    )


async def test_engines() -> None:
    """The processes of an engine are added up, and so are backends that are called the same; a backend without processes tells none."""
    members = [PooledBackend(Engine(), "gguf:/a/x.gguf"), PooledBackend(Engine(), "gguf:/b/x.gguf")]
    registry = Registry([Model("m", members), Model("e", [PooledBackend(Echo(), "echo:")])])
    metrics = metrics_of(registry)
    await metrics.measure()
    told = Exposed("".join(metrics.exposition()))

    labels = {"model": "m", "backend": "x.gguf"}
    names = ("starts_total", "deaths_total", "hangs_total", "processes", "resident_memory_bytes", "proportional_memory_bytes")  # fmt: skip
    assert [8, 4, 2, 4, 3000, 2200] == [told(f"engine_{name}", **labels) for name in names]
    assert 2 == told("backends", **labels, state="up")
    assert None is told("engine_processes", model="e", backend="echo:")
    assert 0 == told("model_loaded", model="m")


@pytest.mark.parametrize(
    "name", ['"quoted"', "back\\slash\\n", "new\nline", "\x1b[2J", "\u2028", "名前"]
)
def test_names_of_others(name: str) -> None:
    """Whatever a discovered model is called, its metrics can be read, under its name."""
    registry = Registry([Model(name, [PooledBackend(Echo(), "echo:")])])
    told = Exposed("".join(metrics_of(registry).exposition()))
    assert 1 == told("backends", model=name, backend="echo:", state="up")


async def test_a_store_that_fails() -> None:
    """A use of the store that fails is counted, and tells that the store is down until one succeeds."""
    database = Database("sqlite://")
    metrics = metrics_of(Registry([]), database=database)

    def fails(connection: object) -> None:
        raise StoreUnavailable("full")

    try:
        with pytest.raises(StoreUnavailable):
            await database.write(fails)
        down = Exposed("".join(metrics.exposition()))
        await database.write(lambda connection: None)
        up = Exposed("".join(metrics.exposition()))
    finally:
        await database.aclose()
    assert (0, 1) == (down("store_up"), down("store_failures_total"))
    assert (1, 1) == (up("store_up"), up("store_failures_total"))


async def test_connections() -> None:
    """A connection that sends nothing is counted where it stands, and by the reason for which it is closed."""
    async with serving(Echo(), limits=Limits(head_s=0.05, sweep_s=0.01)) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        connections = app.connections
        metrics = metrics_of(Registry([]), connections)
        assert b"" == await reader.read()
        told = Exposed("".join(metrics.exposition()))
        writer.close()

    assert 1 == told("connections_closed_total", reason="head_timeout")
    assert 0 == told("connections", state="silent")
    assert connections.limits.connections == told("connections_limit")


def test_every_reason_has_a_word() -> None:
    """Each reason for which a connection is closed is exposed from the start, with 0."""
    told = Exposed("".join(metrics_of(Registry([]), Connections(Limits())).exposition()))
    reasons = {dict(key[1:]).get("reason") for key in told.values if "closed" in str(key[0])}  # type: ignore[arg-type]
    assert 10 == len(reasons)


def test_rests_end_with_time() -> None:
    """A backend that rested is up again when its time is over."""
    member = PooledBackend(Echo(), "echo:")
    metrics = metrics_of(Registry([Model("m", [member])]))
    labels = {"model": "m", "backend": "echo:"}
    member.breaker._rests_until = time.monotonic() + 60
    assert 1 == Exposed("".join(metrics.exposition()))("backends", **labels, state="resting")
    member.breaker._rests_until = time.monotonic() - 1
    assert 1 == Exposed("".join(metrics.exposition()))("backends", **labels, state="up")
