"""Tests of unilect.wire.rerank: bodies out, answers in, and scores that become 0 to 1; over real sockets."""

import math
from typing import Any

import msgspec
import pytest

from support.backends.scripted import Exchange, Script, answer, says, scripted
from support.servers.appserver import serving
from unilect.api.backend import Capabilities
from unilect.config.server import ModelConfig
from unilect.core.errors import (
    BackendError,
    InvalidRequest,
    UnsupportedOperation,
    UnsupportedParameter,
)
from unilect.core.ranking import Ranking, RerankRequest, sigmoid
from unilect.http.client import HttpServer
from unilect.models import sources
from unilect.testing.echo import Echo
from unilect.upstreams.openai._servers import KINDS, UNKNOWN, ServerKind
from unilect.upstreams.openai.backend import OpenAIUpstream
from unilect.wire.rerank import PROBE, are_logits, decode_ranking, wire_body

REQUEST = RerankRequest(query="q", documents=["a", "b", "c"], top_n=1)
KIND = {kind.name: kind for kind in KINDS}


def body(scores: list[Any], **more: Any) -> bytes:
    """An answer with these scores, the last document first."""
    results = [{"index": place, "relevance_score": score} for place, score in enumerate(scores)]
    return msgspec.json.encode({"results": results[::-1]} | more)


def in_turn(*answers: bytes) -> Script:
    """A script that gives these answers, one after the other."""
    left = list(answers)

    async def script(exchange: Exchange) -> None:
        await exchange.send(left.pop(0))
        exchange.close()

    return script


def upstream(url: str, kind: ServerKind = UNKNOWN) -> OpenAIUpstream:
    """The backend for a server of this kind."""
    made = OpenAIUpstream(HttpServer(url), "theirs")
    made.kind = kind
    return made


async def test_rerank() -> None:
    """Texts are sent with the server's model name and without `top_n`; scores come in the order of the documents."""
    async with scripted(says(answer(body([0.1, 0.9, 0.5], usage={"total_tokens": 7})))) as server:
        found = await upstream(server.url).rerank(REQUEST)

    assert Ranking([0.1, 0.9, 0.5], 7) == found
    assert b"POST /v1/rerank " in server.requests[0].head
    assert {"model": "theirs", "query": "q", "documents": ["a", "b", "c"]} == server.requests[0].json()  # fmt: skip


async def test_logits() -> None:
    """Scores that are no probabilities become those of their sigmoid, and so do all that come after them."""
    answers = [answer(body([0.2, 0.3, 0.4])), answer(body([-3.0, 0.5, 2.0])), answer(body([0.2, 0.3, 0.4]))]  # fmt: skip
    async with scripted(in_turn(*answers)) as server:
        backend = upstream(server.url)
        first, logits, after = [await backend.rerank(REQUEST) for _ in answers]

    assert [0.2, 0.3, 0.4] == first.scores
    assert [sigmoid(x) for x in (-3.0, 0.5, 2.0)] == logits.scores
    assert [sigmoid(x) for x in (0.2, 0.3, 0.4)] == after.scores


@pytest.mark.parametrize(
    ("probe", "expected"),
    [([-1.0, 2.0, 3.0, 0.1, 0.2, 0.3], sigmoid(0.5)), ([0.9, 0.1, 0.0, 0.1, 0.2, 1.0], 0.5)],
)
async def test_what_llama_server_gives(probe: list[float], expected: float) -> None:
    """A llama-server is asked once with documents of all kinds, to see whether it gives logits or probabilities."""
    answers = [answer(body(probe)), *[answer(body([0.5] * 3))] * 2]
    async with scripted(in_turn(*answers)) as server:
        backend = upstream(server.url, KIND["llama-server"])
        found = [await backend.rerank(REQUEST) for _ in range(2)]

    assert [[expected] * 3] * 2 == [one.scores for one in found]
    assert PROBE.texts == server.requests[0].json()["documents"]
    assert 3 == len(server.requests)


@pytest.mark.parametrize(
    "told",
    [
        b"[]",
        b"{}",
        b'{"results":[{"index":0}]}',
        b"\xff",
        body([0.1, 0.2]),
        body([0.1, 0.2, 0.3, 0.4]),
        body([0.1, None, 0.3]),
        b'{"results":[{"index":0,"score":1},{"index":0,"score":1},{"index":1,"score":1}]}',
    ],
)
async def test_no_ranking(told: bytes) -> None:
    """An answer without one score for each document is the backend's error."""
    async with scripted(says(answer(told))) as server:
        with pytest.raises(BackendError):
            await upstream(server.url).rerank(REQUEST)


def test_scores_of_another_name() -> None:
    """A score may be called `score`, as TEI has it."""
    found = decode_ranking(b'{"results":[{"index":0,"score":0.25}]}', 1)

    assert Ranking([0.25], 0) == found


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        ("vLLM", {"raw_scores": True}, "raw_scores"),
        ("llama-server", {"max_tokens_per_doc": 9}, "max_tokens_per_doc"),
        ("vLLM", {"max_tokens_per_doc": 9}, "max_tokens_per_doc"),
    ],
)
def test_what_a_server_would_drop(kind: str, fields: dict[str, Any], param: str) -> None:
    """A parameter that a known server drops silently is refused by name."""
    request = msgspec.structs.replace(REQUEST, **fields)
    with pytest.raises(UnsupportedParameter) as raised:
        wire_body(request, "m", KIND[kind].name)

    assert param == raised.value.param


def test_what_a_server_gets() -> None:
    """An unknown server gets `max_tokens_per_doc` and unknown fields; another unilect gets our own too."""
    raw = {"x": msgspec.Raw(b"[1]"), "top_n": msgspec.Raw(b"1"), "query": msgspec.Raw(b'"q"')}
    request = msgspec.structs.replace(REQUEST, raw_fields=raw, max_tokens_per_doc=9, truncate=False)
    bodies = [
        msgspec.json.decode(wire_body(request, "m", kind.name))
        for kind in (UNKNOWN, KIND["unilect"])
    ]

    sent = {"model": "m", "query": "q", "documents": ["a", "b", "c"], "x": [1], "max_tokens_per_doc": 9}  # fmt: skip
    assert [sent, sent | {"truncate": False}] == bodies


def test_only_numbers_beyond_are_logits() -> None:
    """Scores from 0 to 1, the ends included, may be probabilities."""
    assert not are_logits(Ranking([0.0, 0.3, 1.0], 0))
    assert are_logits(Ranking([0.0, 1.0001], 0))
    assert are_logits(Ranking([-0.0001], 0))


@pytest.mark.parametrize(("logit", "expected"), [(0, 0.5), (1e9, 1.0), (-1e9, 0.0), (2, 0.8808)])
def test_sigmoid(logit: float, expected: float) -> None:
    """Any logit, however large, becomes a number from 0 to 1."""
    assert expected == pytest.approx(sigmoid(logit), abs=1e-4)
    assert not math.isnan(sigmoid(logit))


class Ranks(Echo):
    """A backend that ranks documents by their length, and can read nine characters of each."""

    capabilities = Capabilities(rerank=True, parameters=Echo.capabilities.parameters)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """The part of nine characters that each document has."""
        sizes = list(map(len, request.texts))
        scores = [min(size, 9) / 9 for size in sizes]
        if request.raw_scores:
            scores = [float(size) for size in sizes]
        return Ranking(scores, sum(sizes), [place for place, size in enumerate(sizes) if size > 9])


async def test_another_unilect() -> None:
    """Behind another unilect a document that was cut there is named, raw scores are given, and what it cannot do is known."""
    request = RerankRequest(query="q", documents=["abc", "x" * 18])
    async with serving(Ranks()) as app, serving(Echo()) as chatty:
        backend, other = [
            sources.model("m", ModelConfig(source=f"http://127.0.0.1:{one.port}/v1")).pool.members[0].backend
            for one in (app, chatty)
        ]  # fmt: skip
        assert isinstance(backend, OpenAIUpstream)
        await backend.start()
        await other.start()
        found = await backend.rerank(request)
        raw = await backend.rerank(msgspec.structs.replace(request, raw_scores=True))
        await backend.aclose()
        await other.aclose()

    assert Ranking([1 / 3, 1.0], 21, [1]) == found
    assert [3.0, 18.0] == raw.scores
    assert (True, False) == (backend.capabilities.rerank, other.capabilities.rerank)


async def test_a_server_that_does_not_rank() -> None:
    """A server that has models, and nothing that ranks, is 501; so is one that says so itself."""
    listed = answer(b'{"data":[{"id":"theirs"}]}')
    missing = answer(b'{"error":{"message":"Not Found"}}', status="404 Not Found")

    async def script(exchange: Exchange) -> None:
        await exchange.send(listed if exchange.head.startswith(b"GET /v1/models ") else missing)
        exchange.close()

    async with scripted(script) as server:
        backend = sources.model("m", ModelConfig(source=server.url, model="theirs")).pool.members[0].backend  # fmt: skip
        assert isinstance(backend, OpenAIUpstream)
        await backend.start()
        with pytest.raises(UnsupportedOperation, match="does not support reranking"):
            await backend.rerank(REQUEST)
        await backend.aclose()


async def test_a_refusal() -> None:
    """What a server says is wrong with a request is told as it says it."""
    refused = answer(b'{"error":{"message":"too many documents"}}', status="400 Bad Request")
    async with scripted(says(refused)) as server:
        with pytest.raises(InvalidRequest, match="too many documents"):
            await upstream(server.url).rerank(REQUEST)
