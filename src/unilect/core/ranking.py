"""
Ranking: a query and documents in, a score for each document out.

Sources: https://docs.cohere.com/reference/rerank and https://jina.ai/reranker for the names of the fields;
`raw_scores` and `truncate` are those of https://huggingface.github.io/text-embeddings-inference/
"""

import math
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from unilect.core.requests import MAX_TOKENS_FIELD, Request, Text

MAX_DOCUMENTS = 2048  # of one request, as Jina has it


class Document(Struct, frozen=True):
    """A text to be ranked, as an object; an image is read by no model here, and refused by its name."""

    text: Text | None = None
    image: Any = None


class RerankRequest(Request, frozen=True, kw_only=True):
    """POST /v1/rerank. `truncate` is whether a document that is too long is cut; false refuses it."""

    query: Annotated[Text, Meta(min_length=1)]
    documents: Annotated[list[Text | Document], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    top_n: Annotated[int, Meta(ge=1, le=MAX_TOKENS_FIELD)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Meta(ge=1, le=MAX_TOKENS_FIELD)] | None = None
    rank_fields: list[str] | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None

    #: A backend that lacks one of these refuses it by itself.
    gateway_fields: ClassVar[frozenset[str]] = frozenset(
        {"model", "query", "documents", "top_n", "return_documents", "max_tokens_per_doc"}
        | {"rank_fields", "raw_scores", "truncate"}
    )

    @property
    def texts(self) -> list[str]:
        """The documents one by one, each its text."""
        return [one if isinstance(one, str) else one.text or "" for one in self.documents]


class Ranking(Struct, frozen=True):
    """
    The answer to a RerankRequest.

    Attributes:
        scores: (n_documents,), in the order of the documents; from 0 to 1, or the model's logits where raw ones were asked for.
        prompt_tokens: Tokens of all pairs of query and document together.
        cut: The documents of which the end was not read, by their places.
    """

    scores: list[float]
    prompt_tokens: int
    cut: list[int] = []


def sigmoid(logit: float) -> float:
    """A logit as a number from 0 to 1."""
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    grown = math.exp(max(logit, -700.0))  # less is 0 anyway
    return grown / (1 + grown)


def cut_name(place: int, field: str = "documents") -> str:
    """Return the name of a document of which the end was not read, as an answer has it."""
    return f"{field}[{place}]:cut"
