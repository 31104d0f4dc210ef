"""admin.py and _admin_keys.py: what an operator sees and does, on a unix socket and on an address, by real requests."""

import asyncio
import json
import os
import re
import signal
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.backends.scripted import Exchange, answer, scripted
from unilect.config import load as config_load
from unilect.config.admin import AdminConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.core.errors import ConfigError, InvalidRequest
from unilect.demo import MODEL
from unilect.engines.process._restarts import MAX_DEATHS
from unilect.engines.process.child_process import ChildProcess
from unilect.models import sources
from unilect.models.discovery import Discovery
from unilect.models.registry import Registry
from unilect.server._admin_keys import NewKey, body_of
from unilect.server.listener import Listener
from unilect.server.reload import Reloader, Source

HI = [{"role": "user", "content": "Hi"}]
SLOW = 'source = "echo:"\noptions = { text = "word word word", tokens_per_s = 15.0 }\n'
MODELS = f'[models.a]\nsource = "echo:a"\naliases = ["x"]\n[models."org/slow"]\n{SLOW}'


class Operated:
    """
    A server, and its operator.

    Attributes:
        url: Its address for clients.
        client: Sends clients' requests.
        file: Its configuration.
        socket: Where its admin API is.
        listener: Its addresses.
        registry: Its models.
    """

    def __init__(
        self,
        file: Path,
        url: str,
        client: aiohttp.ClientSession,
        admin: Any,
        listener: Listener,
        registry: Registry,
    ) -> None:
        self.file, self.url, self.client, self._admin = file, url, client, admin
        self.listener = listener
        self.registry = registry
        self.socket = file.parent / "admin.sock"

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the JSON of what the admin API answers."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        async with self._admin.request(method, f"http://localhost{path}", data=data) as response:
            return response.status, await response.json()

    async def until_idle(self) -> None:
        """Wait until no request is answered."""
        async with asyncio.timeout(20):
            while (await self.ask("GET", "/requests"))[1]["requests"]:
                await asyncio.sleep(0.02)

    async def chat(self, model: str, **more: Any) -> tuple[int, Any]:
        """The status and the JSON of an answer to a client."""
        body = {"model": model, "messages": HI}
        async with self.client.post(f"{self.url}/v1/chat/completions", json=body, **more) as got:
            return got.status, await got.json()


@asynccontextmanager
async def operated(
    tmp_path: Path, text: str = MODELS, options: str = ""
) -> AsyncIterator[Operated]:
    """A server with an admin API at a unix socket; its file has some options before the tables."""
    file = tmp_path / "unilect.toml"
    store = "" if "[store]" in text else "[store]\nurl = 'sqlite:///keys.db'\n"
    file.write_text(f"port = 0\n{options}{store}[admin]\nlisten = './admin.sock'\n{text}")

    def read() -> Any:
        return config_load.load(file, environment={})

    config = read()
    registry = sources.registry(config)
    discovery, listener = Discovery(config, registry), Listener(config, registry)
    source = Source(config_load.origin_of(file), read)
    reloader = Reloader(source, config, registry, discovery, listener)
    try:
        await registry.start(registry.models)
        url, *_ = await listener.listen()
        where = await listener.listen_for_admin(reloader)
        connector = aiohttp.UnixConnector(where)
        async with (
            aiohttp.ClientSession() as client,
            aiohttp.ClientSession(connector=connector) as admin,
        ):
            yield Operated(file, url, client, admin, listener, registry)
    finally:
        await reloader.aclose()
        await listener.aclose()
        await discovery.aclose()
        await registry.aclose()


async def running(server: Operated) -> dict[str, Any]:
    """The only request that runs, once there is one that answers."""
    async with asyncio.timeout(20):
        while True:
            _, told = await server.ask("GET", "/requests")
            found = [one for one in told["requests"] if one["state"] == "answering"]
            if found:
                (request,) = found
                return dict(request)
            await asyncio.sleep(0.01)


async def test_the_socket_is_for_its_user(tmp_path: Path) -> None:
    """The unix socket has mode 0600 while the server runs, and is gone afterwards."""
    async with operated(tmp_path) as server:
        mode = server.socket.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert 0o600 == stat.S_IMODE(mode)

    assert not server.socket.exists()


async def test_a_socket_that_was_left_behind(tmp_path: Path) -> None:
    """A socket at which nobody listens is replaced; one of a running server, and a file of this name, are told and stay."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "admin.sock"))
    async with operated(tmp_path) as server:
        with pytest.raises(ConfigError, match="another server listens there"):
            async with operated(tmp_path):
                pass
        assert 200 == (await server.ask("GET", "/models"))[0]
    (tmp_path / "admin.sock").write_text("precious")
    with pytest.raises(ConfigError, match="a file has this name"):
        async with operated(tmp_path):
            pass
    assert "precious" == (tmp_path / "admin.sock").read_text()


async def test_keys(tmp_path: Path) -> None:
    """A key that is created lets its holder in until it is revoked, and only the answer that created it holds its secret."""
    async with operated(tmp_path) as server:
        made = await server.ask("POST", "/keys", {"name": "ann", "models": ["a"], "owner": "team", "require": True})  # fmt: skip
        again = await server.ask("POST", "/keys", {"name": "ann"})
        secret = made[1]["key"]
        turned = await server.ask("POST", "/keys/ann/rotate", {"overlap_s": 3600})
        header = {"headers": {"Authorization": f"Bearer {turned[1]['key']}"}}
        allowed = [(await server.chat(name, **header))[0] for name in ("a", "org/slow")]
        listed = await server.ask("GET", "/keys")
        ended = await server.ask("POST", f"/keys/{made[1]['id']}/revoke")
        gone = await server.ask("POST", "/keys/ann/revoke")

    assert (201, 400, 200) == (made[0], again[0], turned[0])
    assert "name" == again[1]["error"]["param"]
    assert [200, 403] == allowed
    assert ["ann"] == [key["name"] for key in listed[1]["keys"]]
    assert secret not in json.dumps(listed[1])
    assert (200, "revoked") == (ended[0], ended[1]["state"])
    assert 404 == gone[0]


async def test_looking_makes_no_store(tmp_path: Path) -> None:
    """Who looks at keys, usage and limits of a server without a database finds none, and makes none."""
    async with operated(tmp_path, f"{MODELS}[store]\nurl = 'sqlite:///keys.db'\n") as server:
        found = [(await server.ask("GET", path))[1] for path in ("/keys", "/usage?key=ann")]
        unknown, _ = await server.ask("GET", "/limits?key=ann")
        assert not (tmp_path / "keys.db").exists()

    assert {"keys": []} == found[0]
    assert "error" in found[1]
    assert 404 == unknown


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/keys", {}, "name"),
        ("/keys", {"name": "a b"}, "name"),
        ("/keys", {"name": 5}, "name"),
        ("/keys", {"name": "key_3GqS0bZx"}, "name"),
        ("/keys", {"name": "anonymous"}, "name"),
        ("/keys", {"name": "ANONYMOUS"}, "name"),
        ("/keys", {"name": "a\u202e"}, "name"),
        ("/keys", {"name": "a", "owner": "b\u00a0c"}, "owner"),
        ("/keys", {"name": "a", "owner": "b\U000e0041"}, "owner"),
        ("/keys", {"name": "a", "owner": "Anonymous"}, "owner"),
        ("/keys", b'{"name": "a", "name": "b"}', "name"),
        ("/keys", b'{"name": "a", "limits": {"parallel": 1, "parallel": 2}}', "parallel"),
        ("/keys", {"name": "n", "model": ["a"]}, "model"),
        ("/keys", {"name": "n", "models": []}, "models"),
        ("/keys", {"name": "n", "models": ["x"]}, "models"),
        ("/keys", {"name": "n", "expires_in_s": 0}, "expires_in_s"),
        ("/keys", {"name": "n", "expires_in_s": 1e300}, "expires_in_s"),
        ("/keys", {"name": "n", "limits": {"parallel": 0}}, "limits.parallel"),
        ("/keys", {"name": "n", "limits": {"tokens": 5}}, "limits.tokens"),
        ("/keys", {"name": "n", "limits": []}, "limits"),
        ("PATCH /keys/n", {}, "limits"),
        ("PATCH /keys/n", {"limits": {"money_per_day": -1}}, "limits.money_per_day"),
        ("PATCH /keys/n", {"limits": {"parallel": "2"}}, "limits.parallel"),
        ("PATCH /keys/n", {"limits": {"tokens": None}}, "limits.tokens"),
        ("PATCH /keys/n", {"limits": {}, "models": ["a"]}, "models"),
        ("GET /usage?since=never", None, "since"),
        ("GET /usage?by=owner", None, "by"),
        ("GET /usage?owner=x", None, "owner"),
        ("GET /usage?key=", None, "key"),
        ("GET /usage?key=a&key=b", None, "key"),
        ("GET /usage?since=9999-12-31", None, "since"),
        ("GET /limits?keys=x", None, "keys"),
        ("/keys", b"{", None),
        ("/keys", b"\xff", None),
        ("/keys", [], None),
        ("/keys/n/rotate", {"overlap_s": -1}, "overlap_s"),
        ("/keys/n/rotate", {"overlap": 1}, "overlap"),
        ("/keys/n/revoke", {"now": True}, None),
        ("DELETE /keys/n", {"now": True}, None),
        ("/models/a/stop", {"now": True}, None),
        ("/reload", {"file": "/etc/passwd"}, None),
    ],
)
async def test_wrong_bodies(tmp_path: Path, path: str, body: Any, param: str | None) -> None:
    """A body with a mistake is a 400 that names the field."""
    method, _, url = path.rpartition(" ")
    async with operated(tmp_path) as server:
        await server.ask("POST", "/keys", {"name": "key", "require": True})
        status, told = await server.ask(method or "POST", url, body)

    assert (400, param) == (status, told["error"]["param"])


@given(st.none() | st.floats() | st.text() | st.lists(st.text()) | st.binary())
def test_any_body(body: Any) -> None:
    """Whatever a body is, it is a key to be made, or an error for the client."""
    data = body if isinstance(body, bytes) else json.dumps({"name": body, "owner": body}).encode()
    try:
        made = body_of(NewKey, data)
    except InvalidRequest:
        return
    assert 1 <= len(made.name) <= 100


async def test_a_change_holds_at_once(tmp_path: Path) -> None:
    """When a key is revoked, deleted or rotated without overlap, the answer comes after the last request that it let in on this server, also in a stream."""
    async with operated(tmp_path) as server:
        for number, (method, path, body) in enumerate(
            [
                ("POST", "/keys/{}/revoke", None),
                ("DELETE", "/keys/{}", None),
                ("POST", "/keys/{}/rotate", {"overlap_s": 0}),
            ]
            * 3
        ):
            _, made = await server.ask("POST", "/keys", {"name": f"n{number}", "require": True})
            header = {"headers": {"Authorization": f"Bearer {made['key']}"}}
            assert 200 == (await server.chat("a", **header))[0]
            assert 200 == (await server.ask(method, path.format(made["id"]), body))[0]
            assert 401 == (await server.chat("a", **header))[0]


async def test_a_deleted_key(tmp_path: Path) -> None:
    """A key is deleted by its name or its id, also a revoked one, once; how many are left is told, and none stays listed."""
    async with operated(tmp_path) as server:
        ids = [
            (await server.ask("POST", "/keys", {"name": name}))[1]["id"] for name in ("ann", "bob")
        ]
        await server.ask("POST", "/keys/ann/revoke")
        first = await server.ask("DELETE", "/keys/ann")
        again = await server.ask("DELETE", "/keys/ann")
        last = await server.ask("DELETE", f"/keys/{ids[1]}")
        listed = await server.ask("GET", "/keys")

    assert (200, ids[0], "deleted", 1) == (first[0], *(first[1][n] for n in ("id", "state", "keys_left")))  # fmt: skip
    assert (404, 200, 0) == (again[0], last[0], last[1]["keys_left"])
    assert [] == listed[1]["keys"]


async def test_nobody_is_locked_out(tmp_path: Path) -> None:
    """The first key of a server that was started without any locks nobody out; one that is created to be required does, and the server says what it does."""
    async with operated(tmp_path) as server:
        seen = []
        for body in ({"name": "ann"}, {"name": "bob", "require": True}):
            await server.ask("POST", "/keys", body)
            seen.append(
                ((await server.chat("a"))[0], (await server.ask("GET", "/server"))[1]["keys"])
            )
    assert [(200, False), (401, True)] == seen


async def test_metrics(tmp_path: Path) -> None:
    """The metrics are told at the admin address, and to clients where no key is needed; a client's key is refused with what to do, and one for metrics opens nothing else."""
    options = 'metrics_per_key = true\nmetrics_keys = ["sk-m"]\n'
    async with operated(tmp_path, options=options) as server:
        _, made = await server.ask("POST", "/keys", {"name": "ann", "require": True})

        async def read(path: str, key: str | None) -> tuple[int, str]:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with server.client.get(f"{server.url}{path}", headers=headers) as answer:
                return answer.status, await answer.text()

        refused = await read("/metrics", made["key"])
        read_by = [await read("/metrics", key) for key in ("sk-m", None, "sk-x")]
        elsewhere = [await read(path, "sk-m") for path in ("/v1/models", "/openapi.json", "/docs")]
        async with server._admin.get("http://localhost/metrics") as answer:
            of_admin = await answer.text()
    assert 403 == refused[0]
    assert (
        "Send one of `metrics_keys` of the server's configuration, or ask the admin API."
        in refused[1]
    )
    assert [200, 401, 401] == [status for status, _ in read_by]
    assert "unilect_build_info" in read_by[0][1]
    assert "unilect_build_info" in of_admin
    assert [401] * 3 == [status for status, _ in elsewhere]


PRICED = """
[models.p]
source = "echo:"
price = { prompt = 100.0, completion = 200.0 }
limits = { parallel = 7 }
options = { text = "yyyyyyyyyy", tokens_per_s = 20.0, context = 4096 }
[owners.team]
money_per_month = 1.5
"""


@pytest.mark.parametrize(
    ("kind", "counts"), [("sqlite", "memory"), pytest.param("postgresql", "redis", marks=pytest.mark.heavy)]
)  # fmt: skip
async def test_limits_and_usage(
    kind: str,
    counts: str,
    new_url: Callable[[str], str],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """A key's limits are set and changed over the API, which tells what is left of them, of its owner's and of a model's, and what was used."""
    text = f"[store]\nurl = '{new_url(kind)}'\n{PRICED}"
    if counts == "redis":
        redis = request.getfixturevalue("server_of_redis")
        redis.flush()
        text += f"[limits]\nurl = '{redis.url}'\n"
    given = {"tokens_per_day": 1000, "requests_per_minute": 60, "parallel": 5}
    hi = {"json": {"model": "p", "messages": HI, "max_tokens": 10}}
    async with operated(tmp_path, text) as server:
        body = {"name": "ann", "owner": "team", "limits": given, "require": True}
        status, made = await server.ask("POST", "/keys", body)
        assert (201, given) == (status, made["limits"])
        header = {"headers": {"Authorization": f"Bearer {made['key']}"}}
        url = f"{server.url}/v1/chat/completions"
        async with server.client.post(url, **hi, **header) as answer:
            assert 200 == answer.status
        async with server.client.post(url, json=hi["json"] | {"stream": True}, **header) as stream:
            await stream.content.readline()
            _, during = await server.ask("GET", "/limits?key=ann&owner=team&model=p")
        await server.until_idle()
        changed = await server.ask("PATCH", "/keys/ann", {"limits": {"tokens_per_day": 2000, "parallel": None}})  # fmt: skip
        _, after = await server.ask("GET", f"/limits?key={made['id']}")
        _, every = await server.ask("GET", "/limits")
        _, used = await server.ask("GET", "/usage?by=key,model&key=ann")
        _, none = await server.ask("GET", "/usage?key=key-0000000000000000")
        unknown = [await server.ask("GET", f"/limits?{query}") for query in ("key=eve", "owner=x", "model=org", "key=%00")]  # fmt: skip
        gone = await server.ask("PATCH", "/keys/eve", {"limits": {}})

    left = {(one["of"], one["limit"]): one for one in during["limits"]}
    of_day = left["key", "tokens_per_day"]
    assert (1000, 12, 988 - of_day["reserved"]) == (of_day["most"], of_day["used"], of_day["left"])
    assert of_day["reserved"] >= 12
    assert of_day["name"] == made["id"]
    assert of_day["resets_at"].endswith("T00:00:00+00:00")
    assert (5, 1, 4) == tuple(left["key", "parallel"][n] for n in ("most", "reserved", "left"))
    assert 2 == left["key", "requests_per_minute"]["used"]
    assert (7, 1) == tuple(left["model", "parallel"][n] for n in ("most", "reserved"))
    money = left["owner", "money_per_month"]
    assert ("team", 1.5, 0.0022) == (money["name"], money["most"], money["used"])
    assert (200, {"tokens_per_day": 2000, "requests_per_minute": 60}) == (changed[0], changed[1]["limits"])  # fmt: skip
    assert {"tokens_per_day": 2000, "requests_per_minute": 60} == {one["limit"]: one["most"] for one in after["limits"]}  # fmt: skip
    assert [("owner", "money_per_month"), ("model", "parallel")] == [(one["of"], one["limit"]) for one in every["limits"]]  # fmt: skip
    (line,) = used["data"]
    assert ("ann", "p", None, 2) == tuple(line[n] for n in ("key", "model", "day", "requests"))
    assert [] == none["data"]
    assert [404] * 5 == [status for status, _ in (*unknown, gone)]


async def test_limits_of_models(tmp_path: Path) -> None:
    """The limits of models that a server was found to have are told beside those of the configuration, and a model is also named by an alias."""
    body = json.dumps({"data": [{"id": "m1"}, {"id": "m2"}]}).encode()

    async def list_models(exchange: Exchange) -> None:
        await exchange.send(answer(body))

    own = '[models.a]\nsource = "echo:a"\naliases = ["x"]\nlimits = { parallel = 2 }\n[models.b]\nsource = "echo:"\n'
    async with scripted(list_models) as far, operated(tmp_path, own) as server:
        star = f'[models.far]\nsource = "{far.url}"\nmodel = "*"\nlimits = {{ parallel = 1 }}\n'
        server.file.write_text(server.file.read_text() + star)
        await server.ask("POST", "/reload")
        found = [await server.ask("GET", f"/limits{query}") for query in ("", "?model=x", "?model=m2")]  # fmt: skip
        refused = [await server.ask("GET", f"/limits?model={name}") for name in ("b", "far", "none")]  # fmt: skip

    told = [[(one["name"], one["most"]) for one in body["limits"]] for _, body in found]
    assert [[("a", 2), ("m1", 1), ("m2", 1)], [("a", 2)], [("m2", 1)]] == told
    assert [404] * 3 == [status for status, _ in refused]


async def test_models(tmp_path: Path) -> None:
    """A drained model takes no requests while its running one ends, and takes them again once it is loaded."""
    async with operated(tmp_path) as server:
        _, before = await server.ask("GET", "/models")
        asked = asyncio.ensure_future(server.chat("org/slow"))
        await running(server)
        drained = await server.ask("POST", "/models/org/slow/drain")
        refused = await server.chat("org/slow")
        whole = await asked
        loaded = await server.ask("POST", "/models/org/slow/load")
        answered = asyncio.ensure_future(server.chat("org/slow"))
        await running(server)
        answered.cancel()

    assert [("a", "ready"), ("org/slow", "ready")] == [
        (one["name"], one["state"]) for one in before["models"]
    ]
    assert (200, "draining", 1) == (drained[0], drained[1]["state"], drained[1]["requests"])
    assert (503, 200, 200) == (refused[0], whole[0], loaded[0])
    assert "ready" == loaded[1]["state"]


async def test_a_stopped_model(tmp_path: Path) -> None:
    """A stopped model is started by the next request, or by an operator, who is told why it cannot be, now or ever."""
    fails = '[models.f]\nsource = "echo:"\nload = "demand"\noptions = { failing_starts = 99 }\n'
    fails += f'[models.large]\nsource = "{MODEL}"\nload = "demand"\n'
    async with operated(tmp_path, MODELS, 'memory = "1MB"\n') as server:
        await server.ask("POST", "/models/a/stop")
        async with asyncio.timeout(20):
            while (await server.ask("GET", "/models"))[1]["models"][0]["state"] != "stopped":
                await asyncio.sleep(0.01)
        answered = await server.chat("a")
        _, after = await server.ask("GET", "/models")
        server.file.write_text(server.file.read_text() + fails)
        await server.ask("POST", "/reload")
        told = await server.ask("POST", "/models/f/load")
        large = await server.ask("POST", "/models/large/load")
        unknown = await server.ask("POST", "/models/none/load")

    assert 200 == answered[0]
    assert "ready" == after["models"][0]["state"]
    assert (503, 404) == (told[0], unknown[0])
    assert "failing_starts" in told[1]["error"]["message"]
    assert (500, "model_too_large") == (large[0], large[1]["error"]["code"])
    assert re.search(
        r"needs \d+ MB, and `memory` is 1 MB.*Lower its `context`", large[1]["error"]["message"]
    )
    assert {"budget_bytes": 10**6, "promised_bytes": 0} == after["memory"]


@pytest.mark.heavy
async def test_an_engine_that_was_given_up(tmp_path: Path) -> None:
    """An operator brings back an engine that died too often, by loading its model; nobody else does."""
    async with operated(tmp_path, f"[models.gguf]\nsource = '{MODEL}'\n") as server:
        model = server.registry.get("gguf")
        (child, _) = model.pool.members[0].backend.children
        assert isinstance(child, ChildProcess)
        child.restarts.deaths.extend([time.monotonic()] * (MAX_DEATHS - 1))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while child.state != "failed":
                await asyncio.sleep(0.001)
        refused = await server.chat("gguf")
        await server.ask("POST", "/reload")
        still = await server.chat("gguf")
        loaded = await server.ask("POST", "/models/gguf/load")
        answered = await server.chat("gguf", timeout=aiohttp.ClientTimeout(60))

    assert (503, 503, 200, 200) == (refused[0], still[0], loaded[0], answered[0])


async def test_requests(tmp_path: Path) -> None:
    """A running request is listed with what it has used and not with what it says, and a cancelled one ends with an error for its client."""
    async with operated(tmp_path) as server:
        asked = asyncio.ensure_future(server.chat("org/slow"))
        request = await running(server)
        cancelled = await server.ask("POST", f"/requests/{request['id']}/cancel")
        status, told = await asked
        body = {"model": "org/slow", "messages": HI, "stream": True}
        async with server.client.post(f"{server.url}/v1/chat/completions", json=body) as stream:
            second = await running(server)
            await server.ask("POST", f"/requests/{second['id']}/cancel")
            end = await stream.read()
        gone = await server.ask("POST", f"/requests/{request['id']}/cancel")

    assert ("org/slow", "chat.completions") == (request["model"], request["endpoint"])
    assert request["completion_tokens"] >= 1
    assert "Hi" not in json.dumps(request)
    assert (200, "ending") == (cancelled[0], cancelled[1]["state"])
    assert (403, "request_cancelled") == (status, told["error"]["code"])
    assert b'"code":"request_cancelled"' in end
    assert b"[DONE]" not in end
    assert 404 == gone[0]


async def test_a_response_in_the_background(tmp_path: Path) -> None:
    """A response that is made in the background is a running request, and a cancelled one has failed with the reason."""
    async with operated(tmp_path) as server:
        body = {"model": "org/slow", "input": "Hi", "background": True}
        async with server.client.post(f"{server.url}/v1/responses", json=body) as answer:
            id = (await answer.json())["id"]
        request = await running(server)
        cancelled = await server.ask("POST", f"/requests/{request['id']}/cancel")
        await server.until_idle()
        async with asyncio.timeout(20):
            status = ""
            while status in ("", "queued", "in_progress"):
                async with server.client.get(f"{server.url}/v1/responses/{id}") as answer:
                    told = await answer.json()
                    status = told["status"]

    assert (id, "responses") == (request["id"], request["endpoint"])
    assert (200, "ending") == (cancelled[0], cancelled[1]["state"])
    assert "failed" == status
    assert "An operator of this server has ended the request." == told["error"]["message"]


async def test_a_reload(tmp_path: Path) -> None:
    """A reload answers with what it has changed, or with the reason and the place of the mistake."""
    async with operated(tmp_path) as server:
        text = server.file.read_text()
        server.file.write_text(text + '[models.new]\nsource = "echo:"\n')
        done = await server.ask("POST", "/reload")
        server.file.write_text(f"nothing = 1\n{text}")
        refused = await server.ask("POST", "/reload")
        state = await server.ask("GET", "/reload")

    assert (200, ["new"], str(server.file)) == (done[0], done[1]["added"], done[1]["file"])
    assert (400, "reload_refused") == (refused[0], refused[1]["error"]["code"])
    assert f"{server.file}:1: nothing" in refused[1]["error"]["message"]
    assert (200, {"state": "idle", "file": str(server.file)}) == state


async def test_a_reload_of_the_length_of_bodies(tmp_path: Path) -> None:
    """The length of bodies that the admin API takes changes with the file."""
    names = [f"m{number}" for number in range(900)]
    async with operated(tmp_path) as server:
        text, seen = server.file.read_text(), list[int]()
        for number, limit in enumerate((2048, 65536, 2048)):
            server.file.write_text(f"max_body_bytes = {limit}\n{text}")
            await server.ask("POST", "/reload")
            body = {"name": f"ann{number}", "models": names}
            seen.append((await server.ask("POST", "/keys", body))[0])

    assert [413, 201, 413] == seen


async def test_a_model_that_leaves(tmp_path: Path) -> None:
    """A model that a reload has taken out is listed until its last request has ended."""
    async with operated(tmp_path) as server:
        asked = asyncio.ensure_future(server.chat("org/slow"))
        await running(server)
        text = server.file.read_text()
        server.file.write_text(text[: text.index('[models."org/slow"]')])
        await server.ask("POST", "/reload")
        _, during = await server.ask("GET", "/models")
        status, _ = await asked
        async with asyncio.timeout(20):
            while len((await server.ask("GET", "/models"))[1]["models"]) > 1:
                await asyncio.sleep(0.01)

    assert [("a", "ready", 0), ("org/slow", "leaving", 1)] == [
        (one["name"], one["state"], one["requests"]) for one in during["models"]
    ]
    assert 200 == status


async def test_while_the_server_drains(tmp_path: Path) -> None:
    """While a server that stops waits for its last request, its operator sees that, and can end it."""
    async with operated(tmp_path) as server:
        asked = asyncio.ensure_future(server.chat("org/slow"))
        request = await running(server)
        draining = asyncio.ensure_future(server.listener.drain(asyncio.Event()))
        await asyncio.sleep(0)
        await server.ask("POST", f"/requests/{request['id']}/cancel")
        await draining
        status, _ = await asked

    assert 403 == status


async def test_an_address_that_is_taken(tmp_path: Path) -> None:
    """An address that something else listens on is told by the option's name."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        config = Config(
            port=0,
            store=StoreConfig(url="sqlite://"),
            admin=AdminConfig(listen=taken, api_keys=["k"]),
        )
        registry = Registry([])
        listener = Listener(config, registry)
        reloader = Reloader(None, config, registry, Discovery(config, registry))
        try:
            with pytest.raises(ConfigError, match=rf"admin\.listen: cannot listen on {taken}"):
                await listener.listen_for_admin(reloader)
        finally:
            await listener.aclose()
            await registry.aclose()


async def test_tasks(tmp_path: Path) -> None:
    """After its requests the server has as many tasks as before."""

    async def count(server: Operated) -> int:
        return int((await server.ask("GET", "/debug/tasks"))[1]["count"])

    async with operated(tmp_path) as server:
        await server.chat("a")
        before = await count(server)
        await asyncio.gather(*(server.chat("a") for _ in range(20)))
        await server.client.connector.close()  # type: ignore[union-attr]
        async with asyncio.timeout(20):
            while await count(server) > before:
                await asyncio.sleep(0.01)


async def test_its_own_page(tmp_path: Path) -> None:
    """The admin API describes its own routes, and no others, and so does docs/operation.md."""
    async with operated(tmp_path) as server:
        _, document = await server.ask("GET", "/openapi.json")

    assert {"/keys", "/reload", "/models/{model}/drain"} < set(document["paths"])
    assert "/v1/chat/completions" not in document["paths"]
    page = (Path(__file__).parents[2] / "docs" / "operation.md").read_text()
    every = [f"{method.upper()} {path}" for path, of in document["paths"].items() for method in of]
    assert [] == [route for route in every if f"`{route}`" not in page]
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(names) == len(set(names))
