"""reload.py on real addresses: models and options that change under load, and reloads that fail, meet or are given up."""

import asyncio
import json
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.backends.engine import chat, process
from support.backends.scripted import Exchange, answer, scripted
from support.common.certificates import certificate, needs_openssl
from support.common.waiting import until
from support.servers.reloading import Reloadable
from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Service
from unilect.config import load as config_load
from unilect.config.server import Config
from unilect.core.errors import BackendUnavailable, ModelNotFound, ReloadRefused
from unilect.core.events import TextDelta
from unilect.models import sources
from unilect.models.discovery import Discovery
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.server.reload import Reloader, Source
from unilect.testing.echo import Echo

HI = [{"role": "user", "content": "Hi"}]
TOP = "port = 0\n[store]\nurl = 'sqlite://'\n"


class Server(Reloadable):
    """A server in this process, whose models are echoes."""

    def echo(self, name: str) -> Echo:
        """The first backend of a model."""
        backend = self.registry.models[name].pool.members[0].backend
        assert isinstance(backend, Echo)
        return backend


def table(name: str, **options: Any) -> str:
    """The table of a model that says what its options say."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
    return "\n".join(
        [f"[models.{name}]", 'source = "echo:"', f"[models.{name}.options]", *lines, ""]
    )


@asynccontextmanager
async def serving(
    tmp_path: Path, text: str, look_s: float = 0.01, starts: list[str] | None = None
) -> AsyncIterator[Server]:
    """A server of a configuration, which has started all models, or some."""
    file = tmp_path / "unilect.toml"
    file.write_text(text)
    server = Server(file, look_s=look_s)
    async with server.running(starts):
        yield server


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """A client."""
    async with aiohttp.ClientSession() as session:
        yield session


async def said(client: aiohttp.ClientSession, server: Server, model: str, **more: Any) -> str:
    """What a model says; or the status of its error."""
    body = {"model": model, "messages": HI} | more.pop("body", {})
    async with client.post(f"{server.url}/v1/chat/completions", json=body, **more) as response:
        answer = await response.json()
        return answer["choices"][0]["message"]["content"] if response.ok else str(response.status)


@asynccontextmanager
async def stream(
    client: aiohttp.ClientSession, server: Server, model: str
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream whose first bytes have come."""
    body = {"model": model, "messages": HI, "stream": True}
    async with client.post(f"{server.url}/v1/chat/completions", json=body) as response:
        assert response.ok
        await response.content.readany()
        yield response


# What changes


async def test_models_come_go_and_stay(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    """A reload adds, removes and restarts models and leaves the others alone, in the order of the new file."""
    before = TOP + table("a", text="a") + table("b", text="b") + table("c", text="old")
    after = TOP + table("d", text="d") + table("c", text="new") + table("a", text="a")
    async with serving(tmp_path, before) as server:
        kept = server.echo("a")
        server.write(after)
        done = await server.reloader.reload("a test")
        answers = [await said(client, server, name) for name in ("a", "b", "c", "d")]

        assert kept is server.echo("a")
        assert 1 == kept.starts
        assert ["d", "c", "a"] == list(server.registry.models)
    assert ["a", "404", "new", "d"] == answers
    assert (("d",), ("b",), ("c",), ()) == (done.added, done.removed, done.restarted, done.adjusted)
    assert "added d; removed b; restarted c" == str(done)


async def test_settings_need_no_new_backend(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    """Aliases, defaults and the fallback of a model change while its backends go on."""
    echo = '[models.a]\nsource = "echo:0123456789"\n'
    async with serving(tmp_path, TOP + echo + 'aliases = ["x"]\n') as server:
        kept = server.echo("a")
        more = 'aliases = ["y"]\nfallback = "b"\ndefaults = { max_tokens = 3 }\n'
        server.write(TOP + echo + more + table("b", text="b"))
        done = await server.reloader.reload("a test")
        answers = [await said(client, server, name) for name in ("x", "y")]

        assert kept is server.echo("a")
        assert "b" == server.registry.models["a"].fallback
    assert ["404", "012"] == answers
    assert (("a",), ()) == (done.adjusted, done.restarted)


async def test_a_model_that_is_on_demand_no_more(tmp_path: Path) -> None:
    """A model that is to be loaded at the start now is started by the reload; one that an operator has drained stays so."""
    lazy = '[models.{0}]\nsource = "echo:"\nload = "demand"\n'
    both = lazy.format("a") + lazy.format("b")
    async with serving(tmp_path, TOP + table("c") + both, starts=["c"]) as server:
        (kept, drained) = (server.registry.models[name] for name in "ab")
        drained.drain()
        server.write(TOP + table("c") + both.replace("demand", "start"))
        done = await server.reloader.reload("a test")
        starts = [server.echo(name).starts for name in "abc"]

        assert (kept, "ready") == (server.registry.models["a"], kept.state)
        assert "draining" == drained.state
    assert [1, 0, 1] == starts
    assert ("a", "b") == done.adjusted


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize("fails", ["a", "b"])
async def test_a_model_that_stays_on_demand(
    tmp_path: Path, client: aiohttp.ClientSession, fails: str
) -> None:
    """Where a model that is on demand no more, or a new one beside it, cannot be started, the reload is refused, and the next request starts the model."""
    lazy = table("a", text="a", failing_starts=int(fails == "a"))
    new = table("b", text="b", failing_starts=int(fails == "b"), load_s=0.01)
    demand = lazy.replace('source = "echo:"', 'source = "echo:"\nload = "demand"')
    async with serving(tmp_path, TOP + demand, starts=[]) as server:
        model = server.registry.models["a"]
        server.write(TOP + lazy + new)
        with pytest.raises(ReloadRefused, match="failing_starts"):
            await server.reloader.reload("a test")
        await until(lambda: model.stopping is None)

        assert ["a"] == list(server.registry.models)
        assert "stopped" == model.state
        assert "a" == await said(client, server, "a")
        assert "ready" == model.state


async def test_keys_and_origins(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    """Keys and origins of the new file count from the reload on, and the old ones no more."""
    models = table("a", text="a")
    async with serving(tmp_path, f"api_keys = ['old-key']\n{TOP}{models}") as server:
        server.write(f"api_keys = ['new-key']\nallowed_origins = ['http://page']\n{TOP}{models}")
        done = await server.reloader.reload("a test")
        answers = [
            await said(client, server, "a", headers={"Authorization": f"Bearer {key}"} | more)
            for key in ("old-key", "new-key")
            for more in ({}, {"Origin": "http://page"})
        ]

    assert ["401", "401", "a", "a"] == answers
    assert ("api_keys", "allowed_origins") == done.options


async def test_limits(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    """The length of bodies changes with the file, for bodies that aiohttp's own limit would refuse, too."""
    models, long = table("a", text="a"), {"body": {"user": "x" * 100_000}}
    statuses = []
    async with serving(tmp_path, f"max_body_bytes = 2048\n{TOP}{models}") as server:
        for limit in (2048, 200_000, 4096):
            server.write(f"max_body_bytes = {limit}\n{TOP}{models}")
            await server.reloader.reload("a test")
            statuses.append(await said(client, server, "a", **dict(long)))

    assert ["413", "a", "413"] == statuses


async def test_limits_of_callers(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    """Limits of callers and of models change with the file, and the models keep their backends."""
    a, statuses = table("a", text="a"), []
    limited = a.replace("\n", "\nlimits = { requests_per_minute = 1 }\n", 1)
    texts = [f"[limits]\nrequests_per_minute = 1\n{a}", a, limited, a]
    async with serving(tmp_path, TOP + texts[0]) as server:
        (member,) = server.registry.get("a").pool.members
        for text in texts:
            server.write(TOP + text)
            await server.reloader.reload("a test")
            statuses += [await said(client, server, "a"), await said(client, server, "a")]
        assert (member,) == server.registry.get("a").pool.members

    assert ["a", "429", "a", "a", "a", "429", "a", "a"] == statuses


async def test_what_callers_have_said(tmp_path: Path) -> None:
    """A reload does not end a drain, nor what a caller has said about the stay of a model, unless it changes that very setting."""
    echo = '[models.a]\nsource = "echo:"\n'
    async with serving(tmp_path, TOP + echo) as server:
        model = server.registry.models["a"]
        model.set_keep_alive(3600)
        server.write(TOP + echo + 'aliases = ["x"]\n')
        await server.reloader.reload("a test")
        stays = model.idle_stop_at
        server.write(TOP + echo + "idle_stop_s = 7200\n")
        await server.reloader.reload("a test")
        longer = model.idle_stop_at
        model.drain()
        server.write(TOP + echo)
        await server.reloader.reload("a test")

        assert "draining" == model.state
    assert stays is not None
    assert longer is not None
    assert longer > stays + 3000


@needs_openssl
async def test_a_new_certificate(tmp_path: Path) -> None:
    """A certificate that was replaced under the same name is used for connections from the reload on; one that is broken is refused."""
    cert, key = certificate(tmp_path)
    text = f"tls_cert = '{cert}'\ntls_key = '{key}'\n{TOP}{table('a', text='a')}"
    async with serving(tmp_path, text) as server:
        port = int(server.url.rpartition(":")[2])

        def shown() -> str:
            return ssl.get_server_certificate(("127.0.0.1", port))

        first = await asyncio.to_thread(shown)
        certificate(tmp_path)
        await server.reloader.reload("a test")
        second = await asyncio.to_thread(shown)
        Path(cert).write_text("broken")
        with pytest.raises(ReloadRefused, match="tls_cert"):
            await server.reloader.reload("a test")
        third = await asyncio.to_thread(shown)

    assert first != second
    assert second == third


async def test_nothing_new(tmp_path: Path) -> None:
    """A reload of the same file changes nothing, and says so."""
    async with serving(tmp_path, TOP + table("a", text="a")) as server:
        kept = server.registry.models["a"]
        told = str(await server.reloader.reload("a test"))

        assert kept is server.registry.models["a"]
    assert "nothing has changed" == told


async def test_a_server_of_many_models(tmp_path: Path) -> None:
    """A table of all models of a server comes and goes with its models, and gives way to a table of the same name."""

    async def list_models(exchange: Exchange) -> None:
        body = json.dumps({"object": "list", "data": [{"id": "x"}, {"id": "y"}]}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        await exchange.send(head.encode() + body)

    own = table("a", text="a")
    async with scripted(list_models) as upstream, serving(tmp_path, TOP + own) as server:
        far = f'[models.far]\nsource = "{upstream.url}"\nmodel = "*"\n'
        seen = []
        for text in (far, far + table("x", text="mine"), far, ""):
            server.write(TOP + own + text)
            await server.reloader.reload("a test")
            seen.append(list(server.registry.models))
            await server.discovery.look()

    assert [["a", "x", "y"], ["a", "x", "y"], ["a", "y"], ["a"]] == seen


async def test_a_server_of_many_models_that_is_down(tmp_path: Path) -> None:
    """Models that a server listed stay while it cannot be asked, with the new settings of its table; one with another URL has none of them."""
    body = json.dumps({"data": [{"id": "x"}, {"id": "y"}]}).encode()
    answers = [answer(body), *[answer(b"{}", "503 Busy")] * 9]

    async def list_models(exchange: Exchange) -> None:
        await exchange.send(answers.pop(0))

    async with scripted(list_models) as upstream, serving(tmp_path, TOP) as server:
        far = f'[models.far]\nsource = "{upstream.url}"\nmodel = "*"\n'
        seen = []
        for text in (
            far,
            far + "price = { prompt = 2.0 }\n",
            far + "price = { prompt = 3.0 }\n" + table("x", text="mine"),
            far.replace(upstream.url, f"{upstream.url}/other"),
        ):
            server.write(TOP + text)
            await server.reloader.reload("a test")
            prices = {name: model.price for name, model in server.registry.models.items()}
            seen.append({name: price and price.prompt for name, price in prices.items()})

    assert [{"x": None, "y": None}, {"x": 2.0, "y": 2.0}, {"x": None, "y": 3.0}, {}] == seen


# Under load


async def test_streams_of_a_changed_model_end_whole(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    """Streams that run on a model when it is changed end whole, with its old answer; then its old backend is closed."""
    slow = {"text": "old " * 10, "tokens_per_s": 100.0}
    async with serving(tmp_path, TOP + table("a", **slow)) as server, AsyncExitStack() as stack:
        old = server.registry.models["a"]
        streams = [await stack.enter_async_context(stream(client, server, "a")) for _ in range(8)]
        server.write(TOP + table("a", text="new"))
        await server.reloader.reload("a test")
        assert not old.closed
        assert "new" == await said(client, server, "a")
        ends = [(await each.read())[-200:] for each in streams]
        await until(lambda: old.gone)

    assert all(b'"finish_reason":"stop"' in end for end in ends)
    assert all(end.endswith(b"data: [DONE]\n\n") for end in ends)


async def test_no_request_fails_at_a_swap(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    """While a model is changed again and again each request is answered whole, by the old one or by the new one."""
    texts = ["one", "two"]
    async with serving(tmp_path, TOP + table("a", text="one")) as server:
        answers, stop = list[str](), asyncio.Event()

        async def ask() -> None:
            while not stop.is_set():
                answers.append(await said(client, server, "a"))

        clients = [asyncio.ensure_future(ask()) for _ in range(6)]
        for number in range(1, 11):
            server.write(TOP + table("a", text=texts[number % 2]))
            await server.reloader.reload("a test")
        stop.set()
        await asyncio.gather(*clients)

    assert set(texts) == set(answers)


@pytest.mark.heavy
async def test_an_engine_is_changed_under_load(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    """While the engine of a model is replaced again and again every stream ends whole with the same text, and at the end one engine runs."""
    body = {"model": "a", "messages": HI, "stream": True, "max_tokens": 48, "temperature": 0}
    async with serving(tmp_path, TOP + "[models.a]\n") as server:
        ends, stop = list[bytes](), asyncio.Event()

        async def ask() -> None:
            url = f"{server.url}/v1/completions"
            plain = {"prompt": "Hi"} | {k: v for k, v in body.items() if k != "messages"}
            while not stop.is_set():
                async with client.post(url, json=plain) as response:
                    ends.append(await response.read())

        clients = [asyncio.ensure_future(ask()) for _ in range(4)]
        pids, models = set[int](), list[Model]()
        for context in (512, 1024, 512):
            count = len(ends)
            await until(lambda count=count: len(ends) > count + 4)
            models.append(server.registry.models["a"])
            pids.add(process(models[-1].pool.members[0].backend).pid)
            server.write(TOP + f"[models.a]\ncontext = {context}\n")
            await server.reloader.reload("a test")
        stop.set()
        await asyncio.gather(*clients)
        await until(lambda: all(model.gone for model in models))
        await until(lambda: not any(map(psutil.pid_exists, pids)))

    texts = {
        "".join(
            json.loads(line[6:])["choices"][0]["text"]
            for line in end.decode().splitlines()
            if line.startswith("data: {") and json.loads(line[6:])["choices"]
        )
        for end in ends
    }
    assert all(end.endswith(b"data: [DONE]\n\n") for end in ends)
    assert 3 == len(pids)
    assert 1 == len(texts)


async def test_a_request_that_has_not_come_to_its_model(tmp_path: Path) -> None:
    """A request that was taken in before a swap, and begins after it, is answered by the new model."""
    async with serving(tmp_path, TOP + table("a", text="old")) as server:
        run = Service(server.registry, Accounts(Metrics())).run(chat("Hi", model="a", stream=True))
        server.write(TOP + table("a", text="new"))
        await server.reloader.reload("a test")
        text = ""
        async for batch in run.batches():
            text += "".join(event.text for event in batch if isinstance(event, TextDelta))

    assert "new" == text


async def test_a_removed_model_finishes(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    """Streams of a removed model end whole while it is served to nobody else, and then its backend is closed."""
    slow = table("b", text="word " * 10, tokens_per_s=100.0)
    async with serving(tmp_path, TOP + table("a", text="a") + slow) as server:
        old = server.registry.models["b"]
        async with stream(client, server, "b") as running:
            server.write(TOP + table("a", text="a"))
            await server.reloader.reload("a test")
            assert "404" == await said(client, server, "b")
            assert not old.closed
            end = await running.read()
        await until(lambda: old.gone)

    assert end.endswith(b"data: [DONE]\n\n")


async def test_a_fallback_that_was_removed(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    """A request that is in a model when its fallback is removed gets the model's own error."""
    breaks = {"text": "word", "tokens_per_s": 20.0, "failing_answers": 99, "breaks_after": 3}
    a = table("a", **breaks).replace("[models.a.options]", 'fallback = "b"\n[models.a.options]')
    async with serving(tmp_path, TOP + a + table("b", text="b")) as server:
        asked = asyncio.ensure_future(said(client, server, "a"))
        await until(lambda: server.registry.models["a"].in_use)
        server.write(TOP + table("c", text="c"))
        await server.reloader.reload("a test")

        assert "502" == await asked


# Any two configurations

NAMES = st.sampled_from(["a", "b", "c", "d"])
TABLES = st.dictionaries(NAMES, st.tuples(st.sampled_from(["1", "2"]), NAMES), max_size=4)


def as_text(tables: dict[str, tuple[str, str]]) -> str:
    """Models with what they say, and with aliases that contradict nothing."""
    lines, taken = [TOP], set(tables)
    for name, (text, alias) in tables.items():
        aliases = [] if alias in taken else [alias]
        taken.add(alias)
        lines.append(f'[models.{name}]\nsource = "echo:{text}"\naliases = {aliases}\n')
    return "".join(lines)


@pytest.mark.heavy
@settings(max_examples=40, deadline=None)
@given(TABLES.filter(bool), st.lists(TABLES.filter(bool), min_size=1, max_size=4))
def test_any_two_configurations(first: Any, later: list[Any]) -> None:
    """Whatever was served before, after a reload every name means what it means to a server that has started with the file."""

    def meanings(registry: Registry) -> dict[str, Any]:
        found = {None: registry.get(None)} | {
            name: registry.get(name) for name in registry._by_name
        }
        return {
            str(name): (model.name, model.aliases, model.pool.members[0].source)
            for name, model in found.items()
        }

    async def run(folder: Path) -> None:
        file = folder / "unilect.toml"
        file.write_text(as_text(first))

        def read() -> Config:
            return config_load.load(file, environment={})

        config = read()
        registry = sources.registry(config)
        source = Source(config_load.origin_of(file), read)
        reloader = Reloader(source, config, registry, Discovery(config, registry))
        for tables in later:
            file.write_text(as_text(tables))
            await reloader.reload("a test")
            fresh = sources.registry(read())
            assert meanings(fresh) == meanings(registry)
            assert list(fresh.models) == list(registry.models)
            assert not any(model._retired for model in registry.models.values())
            await fresh.aclose()
        await reloader.aclose()
        await registry.aclose()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


# Reloads that fail


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TOP + table("a", text="new") + "[models.b]\nsource = 'nonsense'\n", "models.b"),
        (TOP + table("a", text="new") + table("b", failing_starts=9), "failing_starts"),
        (TOP.replace("port = 0", "port = 1") + table("a", text="new"), "port: cannot be changed"),
        (TOP + "keys = false\n" + table("a", text="new"), "store: cannot be changed"),
        ("dialect = 'alpaca'\n" + TOP + table("a", text="new"), "dialect: cannot be changed"),
        ("nothing = 1\n" + TOP + table("a", text="new"), "unilect.toml:1: nothing: unknown option"),
        ("port = [", "not valid TOML"),
    ],
)
async def test_a_reload_that_fails_changes_nothing(
    tmp_path: Path, client: aiohttp.ClientSession, text: str, told: str
) -> None:
    """A file with a mistake, a model that cannot be started or an option that needs a restart is refused by name, as a whole."""
    async with serving(tmp_path, TOP + table("a", text="old")) as server:
        kept = server.registry.models["a"]
        server.write(text)
        with pytest.raises(ReloadRefused, match=told):
            await server.reloader.reload("a test")

        assert kept is server.registry.models["a"]
        assert ["a"] == list(server.registry.models)
        assert "old" == await said(client, server, "a")
        assert "idle" == server.reloader.state
        server.write(TOP + table("a", text="new"))
        await server.reloader.reload("a test")
        assert "new" == await said(client, server, "a")


async def test_what_a_failed_reload_has_started_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two new models of which one cannot be started the other one is closed again."""
    closed = list[Echo]()
    aclose = Echo.aclose

    async def note(self: Echo) -> None:
        closed.append(self)
        await aclose(self)

    monkeypatch.setattr(Echo, "aclose", note)
    async with serving(tmp_path, TOP + table("a", text="a")) as server:
        server.write(TOP + table("a", text="a") + table("b") + table("c", failing_starts=9))
        with pytest.raises(ReloadRefused):
            await server.reloader.reload("a test")

        assert 2 == len(closed)
        assert server.echo("a") not in closed


async def test_engines_that_a_failed_reload_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where engines go by a name, those that a refused reload has given new settings get the old ones again before it is told, and what fails is logged."""
    restored = list[Echo]()

    async def restore(self: Echo) -> None:
        restored.append(self)
        if self is server.echo("b"):
            raise BackendUnavailable("The cluster is away.")

    monkeypatch.setattr(Echo, "restore", restore, raising=False)
    kept = table("kept")
    async with serving(tmp_path, TOP + kept + table("a") + table("b")) as server:
        server.write(TOP + kept + table("a", text="a") + table("b", text="b") + table("c", failing_starts=9))  # fmt: skip
        with pytest.raises(ReloadRefused):
            await server.reloader.reload("a test")

        assert [server.echo("a"), server.echo("b")] == restored
        assert "settings before the reload: The cluster is away." in caplog.text


async def test_a_name_that_a_worker_has(tmp_path: Path) -> None:
    """A new model cannot take the name of one that has registered itself, and no model takes it as an alias; that one stays."""
    async with serving(tmp_path, TOP + table("a", text="a")) as server:
        theirs = Model("w", [PooledBackend(Echo())], runs_locally=False)
        server.registry.add(theirs)
        server.write(TOP + table("a", text="a") + table("w"))
        with pytest.raises(ReloadRefused, match=r"models\.w: a FastChat worker"):
            await server.reloader.reload("a test")
        server.write(TOP + "[models.a]\nsource = 'echo:a'\naliases = ['x', 'w']\n")
        with pytest.raises(ReloadRefused, match=r"models\.a\.aliases: a FastChat worker .* `w`"):
            await server.reloader.reload("a test")
        server.write(TOP + table("b", text="b"))
        await server.reloader.reload("a test")

        assert ["b", "w"] == list(server.registry.models)
        assert theirs is server.registry.models["w"]


async def test_a_server_without_a_file(tmp_path: Path) -> None:
    """A server that was started without a file says that there is nothing to reload."""
    config = Config()
    registry = sources.registry(config)
    reloader = Reloader(None, config, registry, Discovery(config, registry))
    with pytest.raises(ReloadRefused, match="without a configuration file"):
        await reloader.reload("a test")
    await reloader.aclose()
    await registry.aclose()


# Reloads that meet, and reloads that are given up


async def test_reloads_at_the_same_time(tmp_path: Path, client: aiohttp.ClientSession) -> None:
    """Who asks while a reload runs gets the next one, which all share and which reads the file as it is by then."""
    async with serving(tmp_path, TOP + table("a", text="old")) as server:
        server.write(TOP + table("a", text="first", load_s=0.2))
        first = asyncio.ensure_future(server.reloader.reload("a test"))
        await until(lambda: server.reloader.state == "starting")
        server.write(TOP + table("a", text="second"))
        later = [asyncio.ensure_future(server.reloader.reload("a test")) for _ in range(5)]
        await first
        await asyncio.gather(*later)
        answer = await said(client, server, "a")

        assert 3 == server.reads
    assert "second" == answer


async def test_a_reload_goes_on_when_its_caller_leaves(tmp_path: Path) -> None:
    """A caller that is cancelled does not take the reload with it."""
    async with serving(tmp_path, TOP + table("a", text="old")) as server:
        server.write(TOP + table("b", load_s=0.1))
        asked = asyncio.ensure_future(server.reloader.reload("a test"))
        await until(lambda: server.reloader.state == "starting")
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
        await until(lambda: "b" in server.registry.models)


async def test_the_end_of_a_server_ends_a_reload(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    """A server that stops gives up a reload that has changed nothing yet, tells who waits for it, and begins no other."""
    async with serving(tmp_path, TOP + table("a", text="old")) as server:
        server.write(TOP + table("a", text="new", load_s=3600.0))
        asked = asyncio.ensure_future(server.reloader.reload("a test"))
        await until(lambda: server.reloader.state == "starting")
        await server.reloader.aclose()
        with pytest.raises(BackendUnavailable, match="stopping"):
            await asked
        with pytest.raises(BackendUnavailable, match="stopping"):
            await server.reloader.reload("a test")

        assert "closed" == server.reloader.state
        assert "old" == await said(client, server, "a")


# The watch


async def test_a_watched_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With `watch` a file that was put in the place of the old one is loaded, and a broken one is told once and changes nothing."""
    top = f"watch = true\n{TOP}"
    async with serving(tmp_path, top + table("a", text="a")) as server:
        server.reloader.begin()
        server.write(top + table("b", text="b"))
        await until(lambda: ["b"] == list(server.registry.models))
        server.write("port = [")
        await until(lambda: "not valid TOML" in caplog.text)
        server.file.unlink()
        await until(lambda: "is gone or cannot be read" in caplog.text)
        server.write(top + table("c", text="c"))
        await until(lambda: ["c"] == list(server.registry.models))

    assert 1 == caplog.text.count("not valid TOML")
    assert 1 == caplog.text.count("is gone or cannot be read")


async def test_a_hang_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each SIGHUP is a reload, also one that came before the server was ready, and a failed one is only told."""
    hang_up = asyncio.Event()
    async with serving(tmp_path, TOP + table("a", text="a")) as server:
        hang_up.set()
        server.write(TOP + table("b", text="b"))
        server.reloader.begin(hang_up)
        await until(lambda: ["b"] == list(server.registry.models))
        server.write("port = [")
        hang_up.set()
        await until(lambda: "not valid TOML" in caplog.text)
        with pytest.raises(ModelNotFound):
            server.registry.get("a")
