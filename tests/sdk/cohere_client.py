"""Cohere's own client, versions 1 and 2 of its API, against a running server with a reranker `r`."""

import cohere
from checks import check, equal, main, of_none, raises
from cohere.core.api_error import ApiError

QUERY = "capital of france"
DOCUMENTS = ["Berlin", "Paris is the capital of France", "the cat sleeps"]


def root(base: str) -> str:
    """The URL before the versions."""
    return base.removesuffix("/v1")


def v2(base: str, key: str) -> cohere.ClientV2:
    """The client of version 2."""
    return cohere.ClientV2(api_key=key, base_url=root(base))


@check
def reranks(base: str, key: str) -> None:
    """Version 2 gives `top_n` results, falling, from 0 to 1."""
    answer = v2(base, key).rerank(model="r", query=QUERY, documents=DOCUMENTS, top_n=2)
    scores = [result.relevance_score for result in answer.results]

    equal(2, len(scores))
    equal(sorted(scores, reverse=True), scores)
    assert all(0 <= score <= 1 for score in scores)
    assert answer.id
    equal("2", answer.meta.api_version.version)
    equal(1, answer.meta.billed_units.search_units)


@check
def both_versions(base: str, key: str) -> None:
    """Version 1 ranks texts and objects in the order of version 2, and gives the documents back."""
    older = cohere.Client(api_key=key, base_url=root(base))
    objects = [{"text": document} for document in DOCUMENTS]
    one = older.rerank(model="r", query=QUERY, documents=objects, return_documents=True)
    two = v2(base, key).rerank(model="r", query=QUERY, documents=DOCUMENTS)

    equal([result.index for result in one.results], [result.index for result in two.results])
    equal(
        [DOCUMENTS[result.index] for result in one.results],
        [result.document.text for result in one.results],
    )


@check
def limits_documents(base: str, key: str) -> None:
    """`max_tokens_per_doc` is honoured: documents that begin alike are equally good."""
    answer = v2(base, key).rerank(
        model="r", query=QUERY, documents=["Paris is", "Paris is bread"], max_tokens_per_doc=2
    )

    equal(*(round(result.relevance_score, 3) for result in answer.results))


@check
def tells_errors(base: str, key: str) -> None:
    """No documents, an unknown model, a chat model and a wrong key are errors of their own."""
    client = v2(base, key)
    for status, fields in (
        (400, {"model": "r", "documents": []}),
        (404, {"model": "none", "documents": ["a"]}),
        (501, {"model": "chat", "documents": ["a"]}),
    ):
        options = {"max_retries": 0}
        error = raises(
            ApiError,
            lambda fields=fields, options=options: client.rerank(
                query="a", request_options=options, **fields
            ),
        )
        equal(status, getattr(error, "status_code", None))
    raises(ApiError, lambda: v2(base, "wrong").rerank(model="r", query="a", documents=["a"]), "key")


if __name__ == "__main__":
    main(cohere.__version__, of_none)
