"""Tests of unilect.upstreams.openai.tei, with a server that speaks as text-embeddings-inference documents it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from support.backends.loopback import served
from support.backends.scripted import answer, says, scripted
from support.servers.appserver import App, serving_models
from unilect.config.server import Config, ModelConfig
from unilect.core.errors import BackendError
from unilect.core.ranking import RerankRequest
from unilect.core.requests import EmbeddingRequest
from unilect.http.client import HttpServer
from unilect.models import sources
from unilect.models.registry import Registry
from unilect.upstreams.openai.tei import Info, TextEmbeddings

LONGEST, MOST = 12, 4


class Tei:
    """
    A server of text-embeddings-inference: a text has a token for each letter, and its vector is that number beside 1.

    Attributes:
        calls: The path and the body of each call.
    """

    def __init__(self, kind: str) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._kind = kind

    @property
    def routes(self) -> list[web.RouteDef]:
        """Its URLs."""
        calls = [web.post("/embed", self.embed), web.post("/rerank", self.rerank)]
        return [web.get("/info", self.info), *calls]

    async def info(self, request: web.Request) -> web.Response:
        """What it serves."""
        label = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        return web.json_response(
            {
                "model_id": "BAAI/bge",
                "model_sha": None,
                "model_dtype": "float16",
                "model_type": {
                    self._kind: {"pooling": "cls"} if self._kind == "embedding" else label
                },
                "max_concurrent_requests": 512,
                "max_input_length": LONGEST,
                "max_batch_tokens": 16384,
                "max_client_batch_size": MOST,
                "auto_truncate": False,
                "tokenization_workers": 4,
                "version": "1.7.0",
            }
        )

    async def embed(self, request: web.Request) -> web.Response:
        """Vectors."""
        body = await request.json()
        texts = [text[:LONGEST] if body.get("truncate") else text for text in body["inputs"]]
        return self._answer("/embed", body, texts, [[float(len(text)), 1.0] for text in texts])

    async def rerank(self, request: web.Request) -> web.Response:
        """Scores, the best first."""
        body = await request.json()
        found = [
            {"index": place, "score": len(text) / LONGEST}
            for place, text in enumerate(body["texts"])
        ]
        found.sort(key=lambda one: -one["score"])
        texts = [text[:LONGEST] if body["truncate"] else text for text in body["texts"]]
        return self._answer("/rerank", body, texts, found)

    def _answer(
        self, path: str, body: dict[str, Any], texts: list[str], found: list[Any]
    ) -> web.Response:
        self.calls.append((path, body))
        longest = max(map(len, texts))
        if len(texts) > MOST:
            error = f"batch size {len(texts)} > maximum allowed batch size {MOST}"
            return web.json_response({"error": error, "error_type": "Validation"}, status=413)
        if longest > LONGEST:
            error = f"`inputs` must have less than {LONGEST} tokens. Given: {longest}"
            return web.json_response({"error": error, "error_type": "Validation"}, status=413)
        return web.json_response(found, headers={"x-compute-tokens": str(sum(map(len, texts)))})


@asynccontextmanager
async def fronted(kind: str, path: str = "", **config: Any) -> AsyncIterator[tuple[App, Tei]]:
    """An application in front of such a server."""
    tei = Tei(kind)
    with served(*tei.routes) as port:
        source = f"http://127.0.0.1:{port}{path}"
        model = sources.model("m", ModelConfig(source=source, **config))
        async with serving_models(Config(), Registry([model])) as app:
            yield app, tei


async def post(app: App, path: str, **body: Any) -> tuple[int, Any, str]:
    """The status, the answer, and what was ignored."""
    async with app.post(path, **body) as response:
        return response.status, await response.json(), response.headers.get("X-Unilect-Ignored", "")


@pytest.mark.parametrize("path", ["", "/v1"])
@pytest.mark.parametrize("model", [None, "bge"])
async def test_embeddings(path: str, model: str | None) -> None:
    """It is told by /info, with and without a model's name; more texts than it takes at a time are several calls, and their tokens are counted."""
    texts = ["a" * size for size in range(1, 11)]
    async with fronted("embedding", path, model=model) as (app, tei):
        status, body, _ = await post(app, "/v1/embeddings", input=texts)
        short = await post(app, "/v1/embeddings", input="abc", dimensions=1, normalize=False)
        _, told, _ = await post(app, "/api/show", model="m")

    assert 200 == status
    assert [[size, 1.0] for size in range(1, 11)] == [one["embedding"] for one in body["data"]]
    assert 55 == body["usage"]["prompt_tokens"]
    assert [4, 4, 2, 1] == sorted((len(call["inputs"]) for _, call in tei.calls), reverse=True)
    assert ([1.0], "") == (short[1]["data"][0]["embedding"], short[2])
    assert {"inputs": ["abc"], "normalize": False} == tei.calls[-1][1]
    assert LONGEST == told["model_info"]["unknown.context_length"]


async def test_reranking() -> None:
    """Documents are ranked in each API's form, and raw scores are asked for."""
    documents = ["a" * size for size in (3, 9, 1, 6, 12, 2)]
    async with fronted("reranker") as (app, tei):
        status, body, _ = await post(app, "/v1/rerank", query="q", documents=documents, top_n=2)
        _, bare, _ = await post(app, "/rerank", query="q", texts=documents, raw_scores=True)

    assert 200 == status, body
    assert [(4, 1.0), (1, 0.75)] == [(one["index"], one["relevance_score"]) for one in body["results"]]  # fmt: skip
    assert [4, 1, 3, 0, 5, 2] == [one["index"] for one in bare]
    assert [False, False, True, True] == [call["raw_scores"] for _, call in tei.calls]


@pytest.mark.parametrize(
    ("kind", "path", "body", "field"),
    [
        ("embedding", "/v1/embeddings", {"input": ["ok", "x" * 20]}, "data"),
        ("reranker", "/v1/rerank", {"query": "q", "documents": ["ok", "x" * 20]}, "results"),
    ],
)
async def test_a_text_that_is_too_long(
    kind: str, path: str, body: dict[str, Any], field: str
) -> None:
    """It is refused with both numbers, since the server would not say that it cuts it; it is cut where the client wants that."""
    async with fronted(kind) as (app, _):
        refused, told, _ = await post(app, path, **body)
        status, cut, _ = await post(app, path, **body, truncate=True)

    assert (400, "context_length_exceeded") == (refused, told["error"]["code"])
    assert f"at most {LONGEST} tokens" in told["error"]["message"]
    assert (200, 2) == (status, len(cut[field]))


@pytest.mark.parametrize(
    ("kind", "path", "body", "status", "words"),
    [
        ("embedding", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}, 400, "embeds texts"),
        ("embedding", "/v1/rerank", {"query": "q", "documents": ["a"]}, 501, "rank"),
        ("reranker", "/v1/embeddings", {"input": "a"}, 400, "ranks documents"),
        ("classifier", "/v1/embeddings", {"input": "a"}, 400, "classifies texts"),
        ("reranker", "/v1/rerank", {"query": "q", "documents": ["a"], "max_tokens_per_doc": 9}, 400, "max_tokens_per_doc"),
    ],
)  # fmt: skip
async def test_what_it_does_not_do(
    kind: str, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    """What a server does not do is refused without asking it."""
    async with fronted(kind) as (app, tei):
        found, told, _ = await post(app, path, **body)

    assert (status, []) == (found, tei.calls)
    assert words in told["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [b"{}", b"[]", b"[[1],[2]]", b'[["x"]]', b"[" * 9000, b'[{"index":1,"score":1}]', b"\xff"],
)
async def test_answers_that_are_none(body: bytes) -> None:
    """An answer of another form, or of another number of texts, is the server's error."""
    async with scripted(says(answer(body))) as server:
        texts = TextEmbeddings(HttpServer(server.url), Info("m", {"embedding": {}}))
        with pytest.raises(BackendError):
            await texts.embed(EmbeddingRequest(input="a"))
        with pytest.raises(BackendError):
            await texts.rerank(RerankRequest(query="q", documents=["a"]))
