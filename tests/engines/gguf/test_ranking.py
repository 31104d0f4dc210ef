"""Tests of reranking with GGUF files: llama.cpp's own scores made 0 to 1, documents that are too long, and what a reranker does not answer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from support.backends.llama_server import llama_server
from support.models import tiny_gguf
from support.servers.appserver import serving
from unilect.config.server import ModelConfig
from unilect.core.errors import ConfigError, ContextLengthExceeded, InvalidRequest
from unilect.core.ranking import RerankRequest, sigmoid
from unilect.engines.gguf.engine import GgufEngine
from unilect.http.client import HttpServer
from unilect.models import sources
from unilect.testing import check_backend

in_one_loop = pytest.mark.asyncio(loop_scope="module")
QUERY = "the capital"
DOCUMENTS = ["Berlin", "the cat is on it", "", "中文", "one sun " * 40, *map(str, range(20))]
CONTEXT = 512


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny cross-encoder."""
    return tiny_gguf.make_bert_reranker(tmp_path_factory.mktemp("reranker") / "r.gguf")


@pytest.fixture(scope="module")
def qwen3_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny reranker of the form of Qwen3-Reranker: two outputs, and a template for a query and a document."""
    return tiny_gguf.make_qwen3_reranker(tmp_path_factory.mktemp("reranker") / "q.gguf")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(file: Path) -> AsyncIterator[GgufEngine]:
    """The tiny reranker, started."""
    backend = GgufEngine("r", file, ModelConfig(context=CONTEXT))
    await backend.start()
    yield backend
    await backend.aclose()


def request(*documents: str, query: str = QUERY, **fields: Any) -> RerankRequest:
    """A request to rank these."""
    return RerankRequest(query=query, documents=list(documents), **fields)


async def direct(url: str, query: str, documents: list[str]) -> list[float]:
    """What llama.cpp's own endpoint says of documents, in their order."""
    server = HttpServer(url)
    body = msgspec.json.encode({"query": query, "documents": documents})
    results = msgspec.json.decode(await server.post("/v1/rerank", body))["results"]
    await server.aclose()
    return [one["relevance_score"] for one in sorted(results, key=lambda one: one["index"])]


@in_one_loop
async def test_scores(engine: GgufEngine, file: Path) -> None:
    """Scores are the sigmoids of what llama-server itself says, and raw ones are the same numbers."""
    with llama_server(file, ranks=True) as url:
        logits = await direct(url, QUERY, DOCUMENTS)
    found = await engine.rerank(request(*DOCUMENTS))
    raw = await engine.rerank(request(*DOCUMENTS, raw_scores=True))

    assert [sigmoid(logit) for logit in logits] == pytest.approx(found.scores, abs=1e-3)
    assert logits == pytest.approx(raw.scores, abs=1e-3)
    assert len(set(found.scores)) > len(DOCUMENTS) // 2
    assert found.prompt_tokens > len(DOCUMENTS)


@in_one_loop
async def test_a_file_that_does_not_say_so(engine: GgufEngine, tmp_path: Path) -> None:
    """`pooling = "rank"` has a classifier rank whose file names no pooling; a file without a classifier is refused at the start."""
    silent = tiny_gguf.make_bert_reranker(tmp_path / "silent.gguf", says_so=False)
    embeds = GgufEngine("r", silent, ModelConfig(context=CONTEXT))
    backend = GgufEngine("r", silent, ModelConfig(context=CONTEXT, pooling="rank"))
    await backend.start()
    found = await backend.rerank(request(*DOCUMENTS))
    await backend.aclose()

    assert (False, True) == (embeds.capabilities.rerank, embeds.capabilities.embeddings)
    assert (True, False) == (backend.capabilities.rerank, backend.capabilities.embeddings)
    assert (await engine.rerank(request(*DOCUMENTS))).scores == found.scores
    with pytest.raises(ConfigError, match=r"pooling: `rank` needs a model with a classifier"):
        GgufEngine("m", tiny_gguf.make(tmp_path / "m.gguf"), ModelConfig(pooling="rank"))


async def test_qwen3(qwen3_file: Path) -> None:
    """Of Qwen3-Reranker llama.cpp gives a probability, which stays as it is; raw ones are its logits."""
    backend = GgufEngine("q", qwen3_file, ModelConfig(context=CONTEXT))
    await backend.start()
    found = await backend.rerank(request(*DOCUMENTS))
    raw = await backend.rerank(request(*DOCUMENTS, raw_scores=True))
    with pytest.raises(InvalidRequest) as raised:
        await backend.rerank(request("a", query="x {document} y"))
    long = await backend.rerank(request("cat " * 3000, "cat"))
    await backend.aclose()
    with llama_server(qwen3_file, ranks=True) as url:
        probabilities = await direct(url, QUERY, DOCUMENTS)

    assert probabilities == pytest.approx(found.scores, abs=1e-3)
    assert all(0 < score < 1 for score in found.scores)
    assert [sigmoid(logit) for logit in raw.scores] == pytest.approx(found.scores)
    assert "query" == raised.value.param
    assert [0] == long.cut


@in_one_loop
async def test_a_document_that_is_too_long(engine: GgufEngine) -> None:
    """Of a document beyond the context the end is left out, and it is named; what is left fills the context."""
    long = ["the cat sun " * 2000, "short", "中文é" * 900, "x" * 300_000, "\x00\x7f" * 9000]
    found = await engine.rerank(request(*long))
    beginning = await engine.rerank(request("the cat sun " * 400))

    assert [0, 2, 3, 4] == found.cut
    assert found.scores[0] == pytest.approx(beginning.scores[0], abs=1e-3)
    assert CONTEXT * 4 * 0.8 < found.prompt_tokens <= CONTEXT * 5


@in_one_loop
async def test_a_document_that_is_not_to_be_cut(engine: GgufEngine) -> None:
    """With `truncate` false a document beyond the context is refused by its place."""
    with pytest.raises(ContextLengthExceeded) as raised:
        await engine.rerank(request("a", "the cat " * 3000, truncate=False))

    assert "documents[1]" == raised.value.param


@in_one_loop
async def test_a_limit_for_documents(engine: GgufEngine) -> None:
    """`max_tokens_per_doc` leaves the rest of documents out, which is what was asked for and is not named."""
    documents = ["the cat " * 10, "the cat " * 20, "the"]
    found = await engine.rerank(request(*documents, max_tokens_per_doc=12))

    assert found.scores[0] == pytest.approx(found.scores[1], abs=1e-3)
    assert abs(found.scores[0] - found.scores[2]) > 2e-3
    assert [] == found.cut


@in_one_loop
@pytest.mark.parametrize("query", ["the cat " * 3000, "x" * 500_000])
async def test_a_query_that_is_too_long(engine: GgufEngine, query: str) -> None:
    """A query that fills the context is refused by name."""
    with pytest.raises(ContextLengthExceeded) as raised:
        await engine.rerank(request("a", query=query))

    assert "query" == raised.value.param


@in_one_loop
async def test_who_leaves(engine: GgufEngine) -> None:
    """A client that leaves stops its ranking; who comes after it is answered."""
    task = asyncio.ensure_future(engine.rerank(request(*["the cat " * 100] * 2000)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    found = await engine.rerank(request("a"))

    assert task.cancelled()
    assert 1 == len(found.scores)


def test_what_it_answers(tmp_path: Path) -> None:
    """A reranker ranks and does nothing else, unless a pooling is set: then it embeds and does what it did."""
    file = tiny_gguf.make(tmp_path / "r.gguf", pooling=4)
    can = GgufEngine("r", file, ModelConfig()).capabilities
    pooled = GgufEngine("r", file, ModelConfig(pooling="mean")).capabilities

    assert (True, False, False, False) == (can.rerank, can.chat, can.completions, can.embeddings)
    assert (False, True, True) == (pooled.rerank, pooled.chat, pooled.embeddings)


async def test_over_http(file: Path) -> None:
    """A reranker is asked at /v1/rerank and refuses chats; it has one process."""
    backend = GgufEngine("r", file, ModelConfig(context=CONTEXT))
    async with serving(backend) as app:
        async with app.post("/v1/rerank", query=QUERY, documents=DOCUMENTS) as response:
            ranked = await response.json()
        async with app.post("/v1/chat/completions") as response:
            refused = await response.json()
        async with app.post("/v1/embeddings", input="a") as response:
            also = await response.json()

    assert len(DOCUMENTS) == len(ranked["results"])
    for error in (refused["error"], also["error"]):
        assert "model" == error["param"]
        assert "it is a reranker, for /v1/rerank" in error["message"]


async def test_the_contract(file: Path) -> None:
    """A reranker keeps the contract of backends."""
    await check_backend(lambda: GgufEngine("r", file, ModelConfig(context=CONTEXT)))


async def test_a_llama_server_as_upstream(file: Path, qwen3_file: Path) -> None:
    """Behind llama-server logits become 0 to 1, and probabilities stay what they are."""
    for path, form in ((file, sigmoid), (qwen3_file, float)):
        with llama_server(path, ranks=True) as url:
            given = await direct(url, QUERY, DOCUMENTS)
            model = sources.model("m", ModelConfig(source=f"{url}/v1"))
            backend: Any = model.pool.members[0].backend
            await backend.start()
            found = await backend.rerank(request(*DOCUMENTS))
            await backend.aclose()

        assert "llama-server" == backend.kind.name
        assert [form(score) for score in given] == pytest.approx(found.scores, abs=1e-3)
