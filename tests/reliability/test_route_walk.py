"""Every route, with every method and every kind of key, on both listeners: a route that is not in the tables here fails the walk."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Service
from unilect.config.admin import AdminConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.models import sources
from unilect.models.discovery import Discovery
from unilect.models.registry import Registry
from unilect.runtime.redact import basic
from unilect.server.admin import create_admin
from unilect.server.app import GUARD, Shared, all_routes
from unilect.server.listener import Listener
from unilect.server.reload import Reloader
from unilect.server.steering import Steering
from unilect.web.site import Site

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
#: The answer is for everybody.
PUBLIC = {
    "GET": "/ /page/settings /page/{file} /healthz /readyz /health /v1/health",
}
#: FastChat's protocol has no keys; tests/dialects/fastchat/test_admission.py shows who is let in. They are there where it is configured.
FASTCHAT = {
    "GET": "/test_connection",
    "POST": "/register_worker /receive_heart_beat /refresh_all_workers /list_models /list_multimodal_models /list_language_models "
    "/get_worker_address /worker_get_status /worker_generate_stream /worker_generate /worker_get_embeddings /count_token "
    "/worker_get_conv_template /model_details",
}
#: The answer is for who has a client's key.
KEY = {
    "GET": "/v1/usage /page/clients /openapi.json /docs /props /lora-adapters /slots /v1/models /models /v1/models/{model:.+} /models/{model:.+} "
    "/api /api/version /api/tags /api/ps /v1/responses/{response_id} /v1/responses/{response_id}/input_items "
    "/responses/{response_id} /responses/{response_id}/input_items /v1/conversations/{conversation_id} "
    "/v1/conversations/{conversation_id}/items /v1/conversations/{conversation_id}/items/{item_id}",
    "POST": "/ /api/v1/chat/completions /api/v1/token_check /v1/engines/{model:.+}/embeddings /completion /infill /tokenize /detokenize "
    "/apply-template /v1/chat/completions/input_tokens /chat/completions/input_tokens /embedding /lora-adapters /slots/{slot_id} "
    "/v1/messages /messages /v1/messages/count_tokens /messages/count_tokens /api/chat /api/generate /api/embed /api/embeddings "
    "/api/show /api/pull /api/copy /api/create /api/push /api/blobs/{digest:.+} /v1/chat/completions /chat/completions "
    "/v1/completions /completions /v1/embeddings /embeddings /v1/rerank /rerank /v1/reranking /reranking /v2/rerank "
    "/v1/responses /v1/responses/input_tokens /v1/responses/compact /v1/responses/{response_id}/cancel "
    "/responses /responses/input_tokens /responses/compact /responses/{response_id}/cancel "
    "/v1/conversations /v1/conversations/{conversation_id} /v1/conversations/{conversation_id}/items",
    "DELETE": "/api/delete /v1/responses/{response_id} /responses/{response_id} /v1/conversations/{conversation_id} "
    "/v1/conversations/{conversation_id}/items/{item_id}",
}
#: The answer is for who has a key for metrics or of the admin API; a client's key is refused.
OWN = {"GET": "/metrics"}
#: The answer is for who has a key of the admin API, on its own listener.
ADMIN = {
    "GET": "/ /keys /usage /limits /models /models/{model:.+}/events /logs /requests /failures /failures/{request} /events /server /page /reload /debug/tasks /metrics /openapi.json /docs",
    "POST": "/keys /keys/{key}/rotate /keys/{key}/revoke /models/{model:.+}/load /models/{model:.+}/stop /models/{model:.+}/drain "
    "/requests/{request}/cancel /reload",
    "PATCH": "/keys/{key}",
    "DELETE": "/keys/{key}",
}
#: Those of them that only its listener has; all others are below `/admin` on the addresses of clients, too, for the page.
APART = {
    "GET": "/ /server /page /reload /debug/tasks /metrics /openapi.json /docs",
    "POST": "/reload",
}
USER_KEY, ADMIN_KEY, METRICS_KEY = "sk-user-key", "sk-admin-key", "sk-metrics-key"
KEYS = {"": None, "user": USER_KEY, "admin": ADMIN_KEY, "metrics": METRICS_KEY}
#: What each of them gets from a route of `OWN`.
OF_OWN = {"": 401, "user": 403, "admin": 200, "metrics": 200}


def routes(table: dict[str, str]) -> set[tuple[str, str]]:
    """The routes of a table: method and path."""
    return {(method, path) for method, paths in table.items() for path in paths.split()}


def data_routes(config: Config) -> dict[tuple[str, str], str]:
    """The class of each route for clients."""
    found = all_routes(Site(Service(Registry([]), Accounts(Metrics())), config))
    return {(route.method, route.path): route.access for route in found}


def admin_routes(config: Config, registry: Registry, reloader: Reloader) -> dict[Any, str]:
    """The class of each route of the admin API."""

    async def describe() -> dict[str, Any]:
        return {}

    steering = Steering(config, Shared(registry, Metrics()))
    app = create_admin(config, steering, reloader, describe)
    return {(route.method, route.path): route.access for route in app[GUARD]._routes.values()}


@asynccontextmanager
async def both_listeners(**options: Any) -> AsyncIterator[tuple[str, str, dict[Any, str]]]:
    """A server with keys: the URL for clients, that of the admin API, and the routes of that."""
    config = Config(
        port=0,
        api_keys=[USER_KEY],
        metrics_keys=[METRICS_KEY],
        store=StoreConfig(url="sqlite://"),
        admin=AdminConfig(listen="127.0.0.1:0", api_keys=[ADMIN_KEY]),
        models=dict.fromkeys(["m"], sources.ModelConfig(source="echo:")),
        **options,
    )
    registry = sources.registry(config)
    listener = Listener(config, registry)
    reloader = Reloader(None, config, registry, Discovery(config, registry), listener)
    try:
        (data,) = await listener.listen()
        admin = await listener.listen_for_admin(reloader)
        yield data, admin, admin_routes(config, registry, reloader)
    finally:
        await reloader.aclose()
        await listener.aclose()
        await registry.aclose()


async def statuses(url: str, paths: set[str]) -> dict[tuple[str, str, str], int]:
    """What is answered, by method, path and kind of key."""
    found = {}
    async with aiohttp.ClientSession(url) as client:
        for path in sorted(paths):
            address = path
            while "{" in address:  # every parameter is `x`
                address = f"{address.partition('{')[0]}x{address.partition('}')[2]}"
            for method in METHODS:
                for kind, key in KEYS.items():
                    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
                    async with client.request(method, address, headers=headers) as response:
                        found[method, path, kind] = response.status
    return found


def test_every_route_has_a_class() -> None:
    """A route for clients is in one of the tables above, and has the class of that."""
    tables = {"public": PUBLIC, "key": KEY, "own": OWN}
    expected = {route: access for access, table in tables.items() for route in routes(table)}
    fastchat = Config(fastchat_controller=True, fastchat_register="http://127.0.0.1:1")

    assert expected == data_routes(Config())
    assert expected | dict.fromkeys(routes(FASTCHAT), "public") == data_routes(fastchat)


@pytest.mark.heavy
async def test_the_walk() -> None:
    """Each route answers those of its class alone, on its own listener; whatever is no route answers nobody without that listener's key."""
    public, key, admin = routes(PUBLIC), routes(KEY), routes(ADMIN)
    steer = {(method, f"/admin{path}") for method, path in admin - routes(APART)}
    paths = {path for _, path in public | key | routes(OWN) | admin | steer}
    wrong = []
    async with both_listeners() as (data_url, admin_url, of_admin):
        walks = {
            "data": (await statuses(data_url, paths), public, key, "user"),
            "admin": (await statuses(admin_url, paths), set(), admin, "admin"),
        }
    for listener, (found, open_routes, own, let_in) in walks.items():
        concrete = {(method, path) for method, path in own | open_routes}
        for (method, path, kind), status in found.items():
            route = ("GET" if method == "HEAD" else method, path)
            if listener == "data" and route in routes(OWN):
                fine = status == OF_OWN[kind]
            elif listener == "data" and route in steer:
                fine = (status == 401) is (kind != "admin") and status not in (403, 405)
            elif route in open_routes:
                fine = status == (404 if "{file}" in path else 200)
            elif kind != let_in:
                fine = status == 401
            elif route in concrete:
                fine = status not in (401, 403, 405)
            else:
                fine = status in (404, 405) or _is_below(route, own)
            if not fine:
                wrong.append((listener, method, path, kind, status))

    assert wrong == []
    assert {(m, p): "admin" for m, p in admin} == {
        (m, p.rstrip("/") or "/"): access for (m, p), access in of_admin.items()
    }
    assert 2 * len(paths) * len(METHODS) * len(KEYS) == sum(len(walk[0]) for walk in walks.values())


async def test_an_operator_with_a_browser() -> None:
    """Who opens the address of the admin API in a browser is asked for its key, and then sees what it has."""
    page = {"Accept": "text/html"}
    async with both_listeners() as (_, url, _), aiohttp.ClientSession(url) as browser:
        for path in ("/", "/docs"):
            async with browser.get(path, headers=page) as response:
                asked = response.status, response.headers["WWW-Authenticate"].split()[0]
                assert ((401, "Basic"), False) == (asked, "/keys" in await response.text())
            for key, status in ((USER_KEY, 401), (ADMIN_KEY, 200)):
                sent = page | {"Authorization": f"Basic {basic('me', key)}"}
                async with browser.get(path, headers=sent) as response:
                    told = await response.text()
                    assert (status, status == 200) == (response.status, "/keys" in told)


async def after_head(url: str, path: str, key: str, accept: str) -> tuple[bytes, bytes]:
    """The head of the answer to HEAD, and what comes behind it: the answer to a second request on the connection."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    headers = f"Host: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nAccept: {accept}\r\n"
    second = f"DELETE /docs HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"
    writer.write(f"HEAD {path} HTTP/1.1\r\n{headers}\r\n{second}".encode())
    head, _, behind = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
    writer.close()
    return head, behind


async def test_nothing_is_behind_the_answer_to_head() -> None:
    """HEAD to any GET route, known or not, is answered by a head alone: what follows on the connection is the next answer."""
    statuses, wrong = Counter[bytes](), []
    async with both_listeners(fastchat_controller=True) as (data_url, admin_url, _):
        headers = {"Authorization": f"Bearer {USER_KEY}"}
        async with aiohttp.ClientSession(data_url, headers=headers) as client:

            async def made(path: str, **body: Any) -> Any:
                async with client.post(path, json=body) as response:
                    return await response.json()

            item = {"type": "message", "role": "user", "content": "Hi"}
            talk = await made("/v1/conversations", items=[item])
            stored = await made("/v1/responses", model="m", input="Hi", background=True)
            async with client.get(f"/v1/conversations/{talk['id']}/items") as response:
                (item,) = (await response.json())["data"]
        names = {"response_id": stored["id"], "conversation_id": talk["id"], "model": "m"}
        names |= {"item_id": item["id"], "request": "req_0", "file": "view.js"}
        of_data = [*routes(PUBLIC), *routes(KEY), *routes(FASTCHAT)]
        for url, key, known in (
            (data_url, USER_KEY, of_data),
            (admin_url, ADMIN_KEY, routes(ADMIN)),
        ):
            for path in ["/nothing", *sorted(path for method, path in known if method == "GET")]:
                path = re.sub(r"\{(\w+)[^}]*\}", lambda name: names[name[1]], path)
                for query in ("", "?stream=true"):
                    for accept in ("*/*", "text/html"):
                        head, behind = await after_head(url, path + query, key, accept)
                        statuses[head[9:12]] += 1
                        if not behind.startswith(b"HTTP/1.1 405 "):
                            wrong.append((path + query, accept, behind[:60]))

    assert wrong == []
    assert {b"200", b"404"} <= statuses.keys()
    assert not statuses.keys() & {b"401", b"403", b"500"}


def _is_below(route: tuple[str, str], own: set[tuple[str, str]]) -> bool:
    """Whether a path of the other listener is one of this one's with a parameter, such as `/models/x/load` of `GET /models/{model}`."""
    method, path = route
    return any(
        method == other and "{" in pattern and path.startswith(pattern.partition("{")[0])
        for other, pattern in own
    )
