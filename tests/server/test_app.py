"""Tests of unilect.server.app: every route on the bundled model, behind the guard."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from support.backends.engine import Spy
from support.servers.appserver import App, chunks, serving
from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Service
from unilect.config.server import Config, ModelConfig
from unilect.demo import MODEL
from unilect.engines.gguf.engine import GgufEngine
from unilect.models.registry import Registry
from unilect.server.app import all_routes
from unilect.web.site import Site

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROUTES = all_routes(Site(Service(Registry([]), Accounts(Metrics()))))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app() -> AsyncIterator[App]:
    """The bundled model, started, without keys."""
    backend = GgufEngine("demo", MODEL, ModelConfig())
    await backend.start()
    async with serving(backend, aliases=["gpt-4o"], defaults={"temperature": 0}) as running:
        yield running


async def answer_of(response_of: Any) -> tuple[int, Any]:
    """The status and the body of an answer."""
    async with response_of as response:
        return response.status, await response.json()


async def test_health(app: App) -> None:
    """The server says that it lives, and whether it takes requests, and nothing else."""
    assert (200, b"ok\n") == await app.get("/healthz")
    assert (200, b"ready\n") == await app.get("/readyz")


async def test_not_ready(app: App) -> None:
    """A server that is stopping says so to whoever asks, and refuses requests."""
    app.service.ready = False
    try:
        assert 503 == (await app.get("/readyz"))[0]
        assert 200 == (await app.get("/healthz"))[0]
        async with app.chat() as response:
            assert (503, "5") == (response.status, response.headers["Retry-After"])
    finally:
        app.service.ready = True


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_chat_completions(app: App, prefix: str) -> None:
    """A chat is answered, whole and streamed the same, with and without the version in its path."""
    path = f"{prefix}/chat/completions"
    status, body = await answer_of(app.post(path, max_tokens=8))
    async with app.post(path, max_tokens=8, stream=True) as response:
        told = await chunks(response)

    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in told[:-1])
    assert (200, streamed) == (status, body["choices"][0]["message"]["content"])
    assert ("m", "[DONE]") == (body["model"], told[-1])


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_completions(app: App, prefix: str) -> None:
    """A text is continued, whole and streamed the same."""
    path, fields = f"{prefix}/completions", {"prompt": "The capital of", "max_tokens": 8}
    status, body = await answer_of(app.post(path, **fields))
    async with app.post(path, **fields, stream=True) as response:
        told = await chunks(response)

    streamed = "".join(chunk["choices"][0]["text"] for chunk in told[:-1])
    assert (200, streamed) == (status, body["choices"][0]["text"])


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_embeddings(app: App, prefix: str) -> None:
    """Texts are embedded, and shortened where that is asked for."""
    path = f"{prefix}/embeddings"
    status, body = await answer_of(app.post(path, input=["Hello", "Bye"]))
    _, short = await answer_of(app.post(path, input="Hello", dimensions=8))

    assert (200, [0, 1]) == (status, [item["index"] for item in body["data"]])
    assert 8 == len(short["data"][0]["embedding"])


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_models(app: App, prefix: str) -> None:
    """The models are listed, and each tells what it can do, under its aliases too."""
    _, listed = await app.get(f"{prefix}/models")
    _, told = await app.get(f"{prefix}/models/m")
    _, alias = await app.get(f"{prefix}/models/gpt-4o")
    status, missing = await app.get(f"{prefix}/models/some/other")

    assert ["m"] == [item["id"] for item in msgspec.json.decode(listed)["data"]]
    assert told == alias
    assert "native" == msgspec.json.decode(told)["unilect"]["parameters"]["temperature"]
    assert (404, "model_not_found") == (status, msgspec.json.decode(missing)["error"]["code"])


async def test_metrics(app: App) -> None:
    """The metrics tell of the requests that were answered."""
    await answer_of(app.chat(stream=False, max_tokens=2))
    status, text = await app.get("/metrics")

    assert 200 == status
    assert b'unilect_requests_total{endpoint="chat.completions",model="m",status="200"}' in text


async def test_documents(app: App) -> None:
    """The OpenAPI document and the page for people are served."""
    _, document = await app.get("/openapi.json")
    status, page = await app.get("/docs")

    assert "3.1.0" == msgspec.json.decode(document)["openapi"]
    assert (200, True) == (status, page.startswith(b"<!doctype html>"))


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("/v1/chat/completions", {"messages": []}, (400, "messages")),
        ("/v1/chat/completions", {"model": "x"}, (404, "model")),
        ("/v1/chat/completions", {"verbosity": "low"}, (400, "verbosity")),
        ("/v1/chat/completions", {"n": 99}, (400, "n")),
        ("/v1/completions", {}, (400, "prompt")),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, (400, "suffix")),
        ("/v1/embeddings", {"input": ""}, (400, "input")),
        ("/v1/embeddings", {"input": "a", "dimensions": 60000}, (400, "dimensions")),
    ],
)
async def test_requests_that_are_refused(
    app: App, path: str, fields: dict[str, Any], expected: tuple[int, str]
) -> None:
    """A request that is wrong is refused with the parameter at fault."""
    status, body = await answer_of(app.post(path, **fields))

    assert expected == (status, body["error"]["param"])


async def test_many_at_a_time(app: App) -> None:
    """Many requests at a time, more than are answered at once, get the answer of one."""
    _, one = await answer_of(app.chat(stream=False, max_tokens=8))
    many = await asyncio.gather(
        *(answer_of(app.chat(stream=False, max_tokens=8)) for _ in range(20))
    )

    texts = {body["choices"][0]["message"]["content"] for _, body in many}
    assert {one["choices"][0]["message"]["content"]} == texts


@pytest.mark.parametrize(
    ("method", "path"), [(route.method, route.path) for route in ROUTES if not route.public]
)
async def test_every_route_needs_a_key(app: App, method: str, path: str) -> None:
    """Where keys are set, no route but the public ones answers without one."""
    url = path.replace("{model:.+}", "m").replace("{digest:.+}", "sha256:0")
    url = re.sub(r"{\w+_id}", "none", url)
    refused = {"/api/blobs/sha256:0": 501, "/v1/usage": 501, "/metrics": 403, "/page/clients": 400}
    with_key = refused.get(url, 200 if method == "GET" else 400)
    if "_id}" in path and (method != "POST" or path.endswith("/cancel")):
        with_key = 404  # nothing of that id is stored
    async with serving(_backend(app), Config(api_keys=["sk-test-test"])) as guarded:
        address = f"http://127.0.0.1:{guarded.port}{url}"
        for headers, expected in (
            ({}, 401),
            ({"Authorization": "Bearer x"}, 401),
            ({"api-key": "sk-test-test"}, with_key),
        ):
            async with guarded.session.request(method, address, headers=headers) as response:
                assert expected == response.status


def _backend(app: App) -> Any:
    """The backend of the module's application, which others may use but not stop."""

    class Borrowed(Spy):
        async def aclose(self) -> None:
            """Leave it to its owner."""

    return Borrowed(app.service.registry.get(None).pool.members[0].backend)


async def test_cleaning_up_stops_the_backends(app: App) -> None:
    """An application that ends stops its models."""
    spy = _backend(app)
    stopped: list[bool] = []

    async def aclose() -> None:
        stopped.append(True)

    spy.aclose = aclose
    async with serving(spy):
        assert [] == stopped

    assert [True] == stopped
