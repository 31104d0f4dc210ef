"""
Reranking on servers that have `/rerank` beside OpenAI's API: vLLM, SGLang, llama-server, Jina, Cohere, LiteLLM, another unilect.

All scores are wanted, whatever `top_n` says: the order is made where the answer is written. llama-server gives a model's logits where
the model itself makes no probabilities of them; no answer says which they are. A number outside of 0 to 1 says it.

Source: https://docs.cohere.com/reference/rerank; https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html;
https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from typing import Any

import msgspec
from msgspec import Struct

from unilect.api.parameters.rules import refusal
from unilect.core.errors import BackendError
from unilect.core.events import clamp_tokens
from unilect.core.ranking import Ranking, RerankRequest, cut_name, sigmoid
from unilect.wire.errors import invalid

#: Documents that no model finds equally good, and hardly any all between a logit of 0 and one of 1.
PROBE = RerankRequest(
    query="What is the capital of France?",
    documents=[
        "Paris is the capital of France.",
        "France, capital, what",
        "Bread is baked from flour, water and salt.",
        "x",
        "The cat sleeps. " * 8,
        "What is the capital of France?",
    ],
)
_OWN = ("truncate", "raw_scores")


class _Result(Struct):
    index: int
    relevance_score: float | None = None
    score: float | None = None


class _Usage(Struct, frozen=True):
    prompt_tokens: int = 0
    total_tokens: int = 0


class _Own(Struct, frozen=True):
    ignored: list[str] = []


class _Results(Struct):
    results: list[_Result]
    usage: _Usage | None = None
    unilect: _Own = _Own()


def wire_body(request: RerankRequest, model: str, server: str) -> bytes:
    """
    Return the body for a server of a kind, by its name.

    Raises:
        UnsupportedParameter: It would drop a parameter silently.
    """
    fields: dict[str, Any] = {
        name: raw for name, raw in request.raw_fields.items() if name not in request.gateway_fields
    }
    is_ours, limit = server == "unilect", request.max_tokens_per_doc
    if request.raw_scores and not is_ours:
        raise refusal("raw_scores", "the model's server does not say what its scores were made of")
    if limit is not None and not is_ours and server != "unknown":
        raise refusal("max_tokens_per_doc", f"{server} drops it")
    if limit is not None:
        fields["max_tokens_per_doc"] = limit
    for name in _OWN:
        if is_ours and getattr(request, name) is not None:
            fields[name] = getattr(request, name)
    return msgspec.json.encode(
        fields | {"model": model, "query": request.query, "documents": request.texts}
    )


def decode_ranking(body: bytes, count: int) -> Ranking:
    """
    Return the scores of a rerank answer, as the server gives them.

    Args:
        count: How many documents were sent.

    Raises:
        BackendError: The body is not such an answer, or does not have one score for each document.
    """
    try:
        answer = msgspec.json.decode(body, type=_Results)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid("an answer without scores") from error
    found = {
        one.index: one.score if one.relevance_score is None else one.relevance_score
        for one in answer.results
    }
    scores = [score for place in range(count) if (score := found.get(place)) is not None]
    if len(scores) != count or len(answer.results) != count:
        raise BackendError(
            f"The model's server ranked {len(answer.results)} documents, and {count} were sent. Try again, or ask its operator."
        )
    usage, ignored = answer.usage or _Usage(), frozenset(answer.unilect.ignored)
    cut = [place for place in range(count) if cut_name(place) in ignored] if ignored else []
    return Ranking(scores, clamp_tokens(usage.prompt_tokens or usage.total_tokens), cut)


def are_logits(ranking: Ranking) -> bool:
    """Return True for scores that cannot be probabilities."""
    return not all(0 <= score <= 1 for score in ranking.scores)


def from_logits(ranking: Ranking) -> Ranking:
    """Return a ranking whose scores are from 0 to 1."""
    scores = [sigmoid(score) for score in ranking.scores]
    return msgspec.structs.replace(ranking, scores=scores)
