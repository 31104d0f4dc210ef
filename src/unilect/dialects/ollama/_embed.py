"""
Ollama's embeddings: POST /api/embed, and /api/embeddings for older clients.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

import time
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

from unilect.answers.service import Service
from unilect.api.backend import Backend
from unilect.core.errors import ContextLengthExceeded, InvalidRequest
from unilect.core.requests import Embeddings, Text
from unilect.dialects.ollama._answer import durations
from unilect.dialects.ollama._errors import ollama_error
from unilect.dialects.ollama._names import find_model, load_model, set_keep_alive
from unilect.dialects.ollama._options import OllamaRequest, option_fields
from unilect.dialects.openai import embeddings as openai_embeddings
from unilect.models.model import Model
from unilect.web.decode import BodyDecoder, decode_request, decode_translation
from unilect.web.route import Route, json_answer
from unilect.web.site import Site

_SPARE = 16  # tokens that a cut text leaves free: cut text may have other tokens at its end, and a model adds some
_MOST_CHARACTERS = 8  # for each token of the context, of a text that is looked at at all


class OllamaEmbedRequest(OllamaRequest, frozen=True, kw_only=True):
    """POST /api/embed."""

    input: Any = None
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65536)] | None = None


class OllamaEmbeddingsRequest(OllamaRequest, frozen=True, kw_only=True):
    """POST /api/embeddings."""

    prompt: Text | None = None


_embed = BodyDecoder(OllamaEmbedRequest)
_embeddings = BodyDecoder(OllamaEmbeddingsRequest)


def routes(site: Site) -> list[Route]:
    """Return the URLs of this part."""
    service = site.service

    async def ollama_embed(request: web.Request) -> web.StreamResponse:
        """Embed a text, or several, in Ollama's words."""
        asked = await decode_request(request, _embed.decode)
        model, began = find_model(service, asked.model), time.perf_counter()
        texts = _texts(asked.input)
        found, left_out = await _embed_texts(service, model, asked, texts)
        vectors = [_fit_vector(vector, asked.dimensions) for vector in found.vectors]
        body = {"model": asked.model, "embeddings": vectors, **durations(began)}
        body["prompt_eval_count"] = found.prompt_tokens
        return json_answer(request, body, left_out)

    async def ollama_embeddings(request: web.Request) -> web.StreamResponse:
        """Embed a text, in the words of older clients of Ollama's."""
        asked = await decode_request(request, _embeddings.decode)
        model = find_model(service, asked.model)
        texts = [asked.prompt] if asked.prompt else []
        found, left_out = await _embed_texts(service, model, asked, texts)
        vector = found.vectors[0] if texts else []
        return json_answer(request, {"embedding": vector}, left_out)

    return [
        Route("POST", "/api/embed", ollama_embed, "embeddings", request=OllamaEmbedRequest, summary="Embed texts (Ollama)", error=ollama_error),
        Route("POST", "/api/embeddings", ollama_embeddings, "embeddings", request=OllamaEmbeddingsRequest, summary="Embed a text (Ollama, older)", error=ollama_error),
    ]  # fmt: skip


def _texts(given: Any) -> list[str]:
    """
    Return the texts of an `input`; an empty one is none.

    Raises:
        InvalidRequest: It is neither a text nor a list of texts.
    """
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(
            "invalid input type: expected a text or a list of texts in `input`.", param="input"
        )
    return [] if texts == [""] else texts


async def _embed_texts(
    service: Service, model: Model, asked: OllamaRequest, texts: list[str]
) -> tuple[Embeddings, tuple[str, ...]]:
    """
    Return the embeddings of texts, and what was left out; no text loads the model.

    Raises:
        UnilectError: As `Service.embed`.
    """
    _, ignored = option_fields(asked.options or {}, model.capabilities.context)
    more: tuple[str, ...] = ()
    seconds, found = asked.keep_alive_s, Embeddings([], 0)
    if texts:
        found, more = await _cut_or_whole(service, model, asked, texts)
    else:
        await load_model(service, model)
    set_keep_alive(model, seconds)
    return found, (*ignored, *asked.unknown, *more)


async def _cut_or_whole(
    service: Service, model: Model, asked: OllamaRequest, texts: list[str]
) -> tuple[Embeddings, tuple[str, ...]]:
    """Return the embeddings of texts; texts beyond the context are cut at their ends, unless that is not wanted, and that is told."""

    async def embed(texts: list[str]) -> tuple[Embeddings, tuple[str, ...]]:
        dimensions = getattr(asked, "dimensions", None)
        fields = {"model": model.name, "input": texts, "dimensions": dimensions}
        request = await decode_translation(fields, openai_embeddings.decode)
        _, found, ignored = await service.embed(request)
        return found, ignored

    try:
        return await embed(texts)
    except ContextLengthExceeded:
        if getattr(asked, "truncate", None) is False or model.capabilities.context is None:
            raise
    found, ignored = await embed(await _cut(service, model, texts, model.capabilities.context))
    return found, (*ignored, "truncated")


async def _cut(service: Service, model: Model, texts: list[str], context: int) -> list[str]:
    """Return texts that the context can hold."""

    async def ask(model: Model, backend: Backend) -> list[str]:
        cut = []
        for text in texts:
            ids = await backend.tokenize(text[: _MOST_CHARACTERS * context])
            room = max(1, context - _SPARE)
            fits = len(ids) <= room and len(text) <= _MOST_CHARACTERS * context
            cut.append(text if fits else await backend.detokenize(ids[:room]))
        return cut

    return await service.call(model.name, ask, counts=False)


def _fit_vector(vector: list[float], dimensions: int | None) -> list[float]:
    """Return a vector of unit length, with its first numbers only where that is asked for."""
    if dimensions is not None:
        vector = openai_embeddings.shorten(vector, dimensions)
    return openai_embeddings.unit(vector)
