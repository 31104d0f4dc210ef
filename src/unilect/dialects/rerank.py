"""
Reranking: POST /v1/rerank as Jina, vLLM, llama-server and TEI have it, and /v2/rerank as Cohere has it.

One answer serves Jina's and Cohere's clients: the results from the best on, `usage`, and `meta`. TEI's clients send `texts` instead of
`documents` and get the bare list. A document of which the end was not read is named like an ignored parameter.

Sources: https://docs.cohere.com/reference/rerank; https://jina.ai/reranker;
https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md;
https://huggingface.github.io/text-embeddings-inference/
"""

import asyncio
from codecs import BOM_UTF8
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from aiohttp import web
from msgspec import Meta, Raw

from unilect.answers.service import Service
from unilect.api.parameters.rules import parameters_of, refusal
from unilect.core.errors import InvalidRequest
from unilect.core.ranking import MAX_DOCUMENTS, Document, Ranking, RerankRequest, cut_name
from unilect.core.requests import Request, Text
from unilect.dialects.openai.chunks import encode_json, unilect_field
from unilect.web.decode import BodyDecoder, RawFields, decode_request, raw_fields_of
from unilect.web.param_locations import ParamLocations
from unilect.web.route import Route, both, call, json_answer
from unilect.web.site import Site

_MOST_NAMED = 32  # fields of documents; a header names no more
_OF_DOCUMENTS = frozenset(Document.__struct_fields__)
_documents = msgspec.json.Decoder(list[str | dict[str, Raw]])


class TextsRequest(Request, frozen=True, kw_only=True):
    """POST /rerank, as TEI has it."""

    query: Annotated[Text, Meta(min_length=1)]
    texts: Annotated[list[Text], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    top_n: Annotated[int, Meta(ge=1)] | None = None  # of llama-server
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None


_decoder = BodyDecoder(RerankRequest)
_texts_decoder = BodyDecoder(TextsRequest)


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect."""
    service = site.service

    async def answer(request: web.Request, version: str = "1") -> web.Response:
        asked = await decode_request(request, decode)
        if isinstance(asked, TextsRequest):
            return await _answer_texts(request, service, asked)
        model, ranking, ignored = await service.rerank(asked)
        names = (*left_out(asked), *ignored, *map(cut_name, ranking.cut))
        await asyncio.sleep(0)  # each pass over large documents takes its time
        return json_answer(request, encode(asked, ranking, model.name, version, names), names)

    async def create_rerank(request: web.Request) -> web.StreamResponse:
        """Rank documents for a query."""
        return await answer(request)

    async def create_reranking(request: web.Request) -> web.StreamResponse:
        """Rank documents for a query, under llama-server's other name for it."""
        return await answer(request)

    async def create_rerank_v2(request: web.Request) -> web.StreamResponse:
        """Rank documents for a query, as version 2 of Cohere's API."""
        return await answer(request, "2")

    summary = "Rank documents for a query"
    return [
        *both("/rerank", create_rerank, summary, RerankRequest, "rerank"),
        *both("/reranking", create_reranking, summary, RerankRequest, "rerank"),
        call("/v2/rerank", create_rerank_v2, summary, RerankRequest, "rerank"),
    ]


async def _answer_texts(
    request: web.Request, service: Service, asked: TextsRequest
) -> web.Response:
    """Answer in TEI's form."""
    with ParamLocations({"documents": "texts"}).in_errors():
        _, ranking, ignored = await service.rerank(as_documents(asked))
    names = (*ignored, *(cut_name(place, "texts") for place in ranking.cut))
    return json_answer(request, encode_texts(asked, ranking), names)


def decode(body: bytes, raw: RawFields | None = None) -> RerankRequest | TextsRequest:
    """
    Return a body as a typed request; TEI's has `texts`, and no `documents`.

    Args:
        raw: Its raw fields, where they are known.

    Raises:
        InvalidRequest: A field is missing or wrong; the message names it.
    """
    fields = raw_fields_of(body.removeprefix(BOM_UTF8)) if raw is None else raw
    if "documents" in fields or "texts" not in fields:
        return _check(_decoder.decode(body, fields))
    request = _texts_decoder.decode(body, fields)
    if (request.truncation_direction or "right").lower() != "right":
        raise refusal("truncation_direction", "a text is cut at its end")
    return request


def _check(request: RerankRequest) -> RerankRequest:
    """
    Raises:
        InvalidRequest: A document has no text, or what cannot be ranked.
    """
    if request.rank_fields not in (None, [], ["text"]):
        raise refusal(
            "rank_fields", "a document is ranked by its `text`; write all that counts there"
        )
    for place, document in enumerate(request.documents):
        if isinstance(document, str):
            continue
        where = f"documents[{place}]"
        if document.image is not None:
            raise InvalidRequest.at(
                f"{where}.image", f": images are not ranked, only texts. Send `{where}` as a text."
            )
        if document.text is None:
            raise InvalidRequest.at(
                f"{where}.text",
                "is missing; a document is a text, or an object with `text`. Send one of them.",
            )
    return request


def as_documents(asked: TextsRequest) -> RerankRequest:
    """TEI's request in our words; a text that is too long is refused there unless the client wants it cut."""
    own = parameters_of(TextsRequest) - {"user"}
    fields = {name: raw for name, raw in asked.raw_fields.items() if name not in own}
    return RerankRequest(
        model=asked.model,
        query=asked.query,
        documents=list(asked.texts),
        raw_scores=asked.raw_scores,
        truncate=bool(asked.truncate),
        user=asked.user,
        raw_fields=fields,
    )


def left_out(asked: RerankRequest) -> list[str]:
    """Return the names of what stands in documents beside their texts, and is not read."""
    if all(isinstance(document, str) for document in asked.documents):
        return []
    found = dict[str, None]()
    for document in _documents.decode(asked.raw_fields["documents"]):
        if isinstance(document, dict):
            found |= dict.fromkeys(document.keys() - _OF_DOCUMENTS)
        if len(found) >= _MOST_NAMED:
            break
    return [f"documents[].{name}" for name in list(found)[:_MOST_NAMED]]


def encode(
    asked: RerankRequest,
    ranking: Ranking,
    model: str,
    version: str = "1",
    ignored: tuple[str, ...] = (),
) -> bytes:
    """
    Return the body of an answer.

    Args:
        version: Of Cohere's API.
        ignored: Names of what was ignored, and of documents that were cut.
    """
    texts = asked.texts if asked.return_documents else []
    results = list[dict[str, Any]]()
    for place in best_first(ranking.scores)[: asked.top_n]:
        result: dict[str, Any] = {"index": place, "relevance_score": ranking.scores[place]}
        results.append(result | {"document": {"text": texts[place]}} if texts else result)
    tokens = ranking.prompt_tokens
    body = {
        "id": f"rerank-{uuid4().hex[:24]}",
        "object": "list",
        "model": model,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"api_version": {"version": version}, "billed_units": {"search_units": 1}},
    }
    return encode_json(body | unilect_field(ignored))


def encode_texts(asked: TextsRequest, ranking: Ranking) -> bytes:
    """Return the body of an answer as TEI has it."""
    results = list[dict[str, Any]]()
    for place in best_first(ranking.scores)[: asked.top_n]:
        result: dict[str, Any] = {"index": place, "score": ranking.scores[place]}
        results.append(result | {"text": asked.texts[place]} if asked.return_text else result)
    return encode_json(results)


def best_first(scores: list[float]) -> list[int]:
    """Return the places of scores, from the largest on; equal ones in their order."""
    return sorted(range(len(scores)), key=lambda place: -scores[place])
