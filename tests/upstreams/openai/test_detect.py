"""Tests of unilect.upstreams.openai.detect: what servers say of themselves, byte for byte, and what is learnt of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from support.backends.scripted import Exchange, Scripted, answer, scripted
from unilect.core.errors import BackendError, BackendUnavailable
from unilect.http.client import HttpServer
from unilect.upstreams.openai import detect as _openai_probe
from unilect.upstreams.openai.detect import Detected, learn


def card(id: str = "m", **fields: Any) -> dict[str, Any]:
    """A model as servers list it."""
    return {"id": id, "object": "model", "created": 1} | fields


def models(*cards: dict[str, Any]) -> dict[str, Any]:
    """A list of models."""
    return {"object": "list", "data": list(cards)}


def described(**fields: Any) -> dict[str, Any]:
    """What a server says of the bodies of its chats."""
    schema = {"$ref": "#/components/schemas/Chat"}
    post = {"requestBody": {"content": {"application/json": {"schema": schema}}}}
    return {
        "paths": {"/v1/chat/completions": {"post": post}},
        "components": {"schemas": {"Chat": {"type": "object", "properties": fields}}},
    }


@asynccontextmanager
async def site(pages: dict[str, Any]) -> AsyncIterator[Scripted]:
    """A server of pages: values become JSON, bytes are sent as they are, and anything else is 404."""

    async def script(exchange: Exchange) -> None:
        path = exchange.head.split(b" ")[1].decode()
        page = pages.get(path, answer(b'{"detail":"Not Found"}', "404 Not Found"))
        await exchange.send(page if isinstance(page, bytes) else answer(msgspec.json.encode(page)))
        exchange.close()

    async with scripted(script) as server:
        yield server


async def detected(
    pages: dict[str, Any], model: str | None = "m", asked: int = 3
) -> Detected | None:
    """What is learnt of a server of pages with at most so many questions."""
    async with site(pages) as server:
        root = HttpServer(server.url.removesuffix("/v1"))
        found = await learn(HttpServer(server.url), root, model, "")
        assert len(server.requests) <= asked
        return found


CHATGLM = card("gpt-3.5-turbo", owned_by="owner", permission=[])
LLAMA = card(
    owned_by="llamacpp",
    architecture={"input_modalities": ["text"]},
    meta={"n_ctx": 512, "n_ctx_train": 2048},
)


@pytest.mark.parametrize(
    ("kind", "pages", "context"),
    [
        ("vLLM", {"/v1/models": models(card(owned_by="vllm", max_model_len=4096, root="x"))}, 4096),
        ("SGLang", {"/v1/models": models(card(owned_by="sglang", max_model_len=8))}, 8),
        ("llama-server", {"/v1/models": models(LLAMA)}, 512),
        ("FastChat", {"/v1/models": models(card(owned_by="fastchat", root="m", permission=[]))}, None),
        ("chatglm.cpp", {"/v1/models": models(CHATGLM)}, None),
        ("llama-cpp-python", {"/v1/models": models(card(owned_by="me", permissions=[]))}, None),
        ("Ollama", {"/v1/models": models(card(owned_by="library"))}, None),
        ("Ollama", {"/v1/models": models(card(owned_by="someone")), "/": answer(b"Ollama is running", kind="text/plain")}, None),
        ("transformers serve", {"/v1/models": answer(b"no", "500 Offline", "text/plain"), "/openapi.json": {"paths": {"/load_model": {}, "/v1/chat/completions": {}, "/v1/completions": {}}}}, None),
        ("unknown", {"/v1/models": models(card(owned_by="openai"))}, None),
        ("unknown", {"/v1/models": models(card(context_length=7))}, 7),
        ("unknown", {"/v1/models": models(card(owned_by=["x"], max_model_len="long", meta=3))}, None),
        ("unknown", {"/v1/models": models(card("gpt-4", owned_by="owner"))}, None),
        ("unknown", {"/v1/models": models(card(owned_by="me"))}, None),
        ("unknown", {"/v1/models": models(card("x", owned_by="vllm"), card("y", owned_by="sglang"))}, None),
        ("unknown", {"/v1/models": answer(b"<html>", kind="text/html")}, None),
        ("unknown", {"/v1/models": b"HTTP/1.1 200 OK\r\n\r\n\xff"}, None),
        ("unknown", {"/v1/models": answer(b"", "401 Unauthorized")}, None),
        ("the server", {"/openapi.json": described(messages={}, stream={})}, None),
        ("unknown", {"/openapi.json": described(messages={}, tools={})}, None),
        ("unknown", {"/openapi.json": described(prompt={})}, None),
        ("unknown", {"/openapi.json": {"paths": {"/v1/chat/completions": {"post": []}}}}, None),
        ("unknown", {"/openapi.json": {"paths": 1}}, None),
        ("unknown", {"/openapi.json": answer(b"[" * 9000)}, None),
        ("unknown", {}, None),
    ],
)  # fmt: skip
async def test_kinds(kind: str, pages: dict[str, Any], context: int | None) -> None:
    """A server is known by what it says of its models, in two questions, or three where it has no list; what says nothing is unknown."""
    model = "gpt-3.5-turbo" if kind == "chatglm.cpp" else "m"
    found = await detected(pages, model, asked=2 if "/v1/models" in pages else 3)

    assert found is not None
    assert (kind, context) == (found.kind.name, found.capabilities.context)


async def test_the_only_model() -> None:
    """Without a configured model the only one is taken, and what is said of it."""
    found = await detected({"/v1/models": models(card("theirs", owned_by="vllm", max_model_len=9))}, None)  # fmt: skip

    assert found is not None
    assert ("theirs", "vLLM", 9) == (found.model, found.kind.name, found.capabilities.context)


@pytest.mark.parametrize("pages", [{}, {"/v1/models": models(card("a"), card("b"))}])
async def test_no_model(pages: dict[str, Any]) -> None:
    """Without a configured model, a server without just one is an error."""
    with pytest.raises(Exception, match="server"):
        await detected(pages, None)


async def test_another_unilect() -> None:
    """Another unilect says itself what its model can do; what it emulates is native to us."""
    own = {
        "context": 512,
        "vision": False,
        "embeddings": False,
        "unknown_parameters": "ignored and reported",
        "parameters": {"n": "emulated", "suffix": "refused", "stop": "native"},
    }
    pages = {
        "/v1/models": models(card("a/m", owned_by="unilect")),
        "/v1/models/a/m": card(unilect=own),
    }
    found = await detected(pages, "a/m", asked=2)

    assert found is not None
    can = found.capabilities
    assert {"n": "native", "suffix": "refused", "stop": "native"} == can.parameters
    assert (512, False, False, True, False) == (
        can.context,
        can.vision,
        can.embeddings,
        can.chat,
        can.passes_unknown,
    )


async def test_a_server_that_is_not_there() -> None:
    """A server that cannot be reached teaches nothing where its model is configured, and is an error where it is not."""
    server = HttpServer("http://127.0.0.1:1/v1")

    assert await learn(server, server, "m", "") is None
    with pytest.raises(BackendUnavailable):
        await learn(server, server, None, "")


async def test_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts and is silent is not waited for."""
    monkeypatch.setattr(_openai_probe, "PROBE_TIMEOUT_S", 0.02)

    async def silent(exchange: Exchange) -> None:
        await exchange.client_gone()

    async with scripted(silent) as server, asyncio.timeout(60):
        http = HttpServer(server.url)
        assert await learn(http, http, "m", "") is None


async def test_a_root_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that lists its models and is silent otherwise is taken as it is."""
    monkeypatch.setattr(_openai_probe, "PROBE_TIMEOUT_S", 5.0)

    async def script(exchange: Exchange) -> None:
        if exchange.head.startswith(b"GET /v1/models "):
            monkeypatch.setattr(_openai_probe, "PROBE_TIMEOUT_S", 0.02)  # from here on
            await exchange.send(answer(msgspec.json.encode(models(card(owned_by="x")))))
        else:
            await exchange.client_gone()

    async with scripted(script) as server, asyncio.timeout(60):
        root = HttpServer(server.url.removesuffix("/v1"))
        found = await learn(HttpServer(server.url), root, "m", "")

    assert found is not None
    assert "unknown" == found.kind.name


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"data":[1]}', b'{"data":[{"id":7}]}', b"\xff"])
async def test_no_list(body: bytes) -> None:
    """What is no list of models is an error where a model is looked for."""
    with pytest.raises(BackendError):
        await detected({"/v1/models": answer(body)}, None)
