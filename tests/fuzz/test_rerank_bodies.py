"""Random and mutated bodies for a reranker: whatever a client sends, the answer is a ranking or says what is wrong with the request."""

import copy
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from attack import Attacker, Reply, Request, assert_sound

from support.backends.engine import THOROUGH
from support.models import tiny_gguf
from support.servers.serving import KEY, Server, serve

BODIES = int(os.environ.get("UNILECT_FUZZ", "1600" if THOROUGH else "400"))
BATCH = 8  # bodies that are under way at the same time
CONTEXT = 256
PATHS = ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"]
VALID: list[dict[str, Any]] = [
    {
        "model": "r",
        "query": "capital of france",
        "documents": ["Berlin", "Paris is the capital of France", {"text": "x", "title": "y"}],
        "top_n": 2,
        "return_documents": True,
        "max_tokens_per_doc": 5,
        "rank_fields": ["text"],
        "user": "someone",
    },
    {"query": "a", "texts": ["b", "c"], "raw_scores": True, "return_text": True, "truncate": True},
    {"query": "the", "documents": ["the cat " * 500, "", "\u4e2d" * 300], "truncate": False},
]
ODD: list[Any] = [
    None, True, 0, -1, 1, 2**31, 2**63, 2**70, 1e308, 0.5, "", "x", "\x00", "\ud7ff", "{document}", "{query}", "<s>", "<|im_end|>",
    [], {}, [[]], [{}], [""], {"text": 1}, {"text": None}, {"image": "x"}, "the cat " * 3000, ["x"] * 2049, [{"text": "a"}] * 300,
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a tiny cross-encoder."""
    file = tiny_gguf.make_bert_reranker(tmp_path_factory.mktemp("reranker") / "r.gguf")
    with serve(f"r={file}", "--api-key", KEY, "--context", str(CONTEXT)) as running:
        yield running


def mutated(dice: random.Random) -> bytes:
    """A body that is sound but for a few changes, or for bytes that are missing or others."""
    body = copy.deepcopy(dice.choice(VALID))
    for _ in range(dice.randrange(4)):
        place: Any = body
        name: Any = dice.choice([*body, "documents", "texts", "temperature", "x"])
        while (
            isinstance(place.get(name) if isinstance(place, dict) else None, list) and place[name]
        ):
            place, name = place[name], dice.randrange(len(place[name]))
            if dice.random() < 0.5:
                break
        odd = copy.deepcopy(dice.choice(ODD))
        place[name] = odd if dice.random() < 0.7 else [odd] * 2
        if isinstance(place, list) and dice.random() < 0.3:
            place *= 2
    data = json.dumps(body).encode()
    if dice.random() < 0.1:
        data = data[: dice.randrange(len(data))]
    if dice.random() < 0.1:
        at = dice.randrange(len(data) + 1)
        data = data[:at] + dice.randbytes(2) + data[at + 1 :]
    return data


def assert_ranked(reply: Reply, request: Request) -> None:
    """An answer has scores that fall, from 0 to 1 unless raw ones were asked for, and no place twice."""
    told = json.loads(reply.body)
    results = told["results"] if isinstance(told, dict) else told
    name = "relevance_score" if isinstance(told, dict) else "score"
    scores = [one[name] for one in results]
    places = [one["index"] for one in results]
    assert sorted(scores, reverse=True) == scores, (request, reply)
    assert len(set(places)) == len(places), (request, reply)
    if b"raw_scores" not in request.body:
        assert all(0 <= score <= 1 for score in scores), (request, reply)


@pytest.mark.heavy
def test_bodies(server: Server) -> None:
    """Any body is answered by a ranking, or refused as the client's mistake; the server and its engine live on."""
    dice = random.Random(11)
    ranked = refused = 0
    with Attacker(server) as attacker:
        for _ in range(BODIES // BATCH):
            requests = [Request(dice.choice(PATHS), mutated(dice)) for _ in range(BATCH)]
            for request, reply in zip(requests, attacker.send(requests), strict=True):
                assert_sound(reply, request)
                if reply.status == 200:
                    assert_ranked(reply, request)
                ranked += reply.status == 200
                refused += reply.status >= 400
        [last] = attacker.send([Request("/v1/rerank", json.dumps(VALID[0]).encode())])

    assert 200 == last.status
    assert min(ranked, refused) > BODIES // 10
    assert "Traceback" not in server.log.read_text()
