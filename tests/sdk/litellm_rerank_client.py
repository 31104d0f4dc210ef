"""LiteLLM's `rerank` in the forms of four servers, against a running server with a reranker `r`."""

import importlib.metadata
from typing import Any

import litellm
from checks import check, equal, main

litellm.suppress_debug_info = True  # it prints to stdout
QUERY = "capital of france"
DOCUMENTS = ["Berlin", "Paris is the capital of France", "the cat sleeps"]


def ranked(base: str, key: str, provider: str) -> list[Any]:
    """The best two results, from a server of this kind."""
    answer = litellm.rerank(
        model=f"{provider}/r",
        query=QUERY,
        documents=DOCUMENTS,
        top_n=2,
        return_documents=True,
        api_base=base.removesuffix("/v1"),
        api_key=key,
    )
    return [dict(result) for result in answer.results]


def sound(results: list[Any], count: int = 2) -> None:
    """Fail unless there are so many results, falling, with their documents."""
    scores = [result["relevance_score"] for result in results]
    equal(count, len(results))
    equal(sorted(scores, reverse=True), scores)
    for result in results:
        equal({"text": DOCUMENTS[result["index"]]}, dict(result["document"]))


@check
def as_vllm(base: str, key: str) -> None:
    """It ranks as with vLLM, which it asks at /rerank."""
    sound(ranked(base, key, "hosted_vllm"))


@check
def as_jina(base: str, key: str) -> None:
    """It ranks as with Jina."""
    sound(ranked(base, key, "jina_ai"))


@check
def as_cohere(base: str, key: str) -> None:
    """It ranks as with Cohere."""
    sound(ranked(base, key, "cohere"))


@check
def as_tei(base: str, key: str) -> None:
    """It ranks as with TEI, and in the same order."""
    results = ranked(base, key, "huggingface")

    sound(results)
    equal([one["index"] for one in ranked(base, key, "cohere")], [one["index"] for one in results])


if __name__ == "__main__":
    main(importlib.metadata.version("litellm"))
