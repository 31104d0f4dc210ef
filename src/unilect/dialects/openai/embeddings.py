"""
OpenAI's embeddings: POST /v1/embeddings, and /embeddings for older clients.

The official clients ask for base64 unless told otherwise: little-endian float32, which is a quarter of the JSON.

Source: https://platform.openai.com/docs/api-reference/embeddings
"""

import base64
import math
import struct

from aiohttp import web

from unilect.dialects.openai.chunks import encode_json, ignored_object
from unilect.errors import InvalidRequest
from unilect.requests import EmbeddingRequest, Embeddings
from unilect.routing.service import Service
from unilect.web.decode import BodyDecoder, RawFields, check_one_kind, decoded
from unilect.web.route import Route, both, json_answer
from unilect.web.site import Site

_decoder = BodyDecoder(EmbeddingRequest)
MAX_INPUTS = 2048  # OpenAI's own limit


def routes(site: Site) -> list[Route]:
    """The URLs of this dialect."""
    service = site.service

    async def create_embedding(request: web.Request) -> web.StreamResponse:
        """Embed texts."""
        return await answered(request, service, await decoded(request, decode))

    return both("/embeddings", create_embedding, "Embed texts", EmbeddingRequest, "embeddings")


async def answered(
    request: web.Request, service: Service, asked: EmbeddingRequest
) -> web.StreamResponse:
    """The answer to a request that has been read."""
    model, embeddings, ignored = await service.embed(asked)
    return json_answer(request, encode(asked, embeddings, model.name, ignored), ignored)


def decode(body: bytes, raw: RawFields | None = None) -> EmbeddingRequest:
    """
    A body as a typed request.

    Args:
        raw: Its raw fields, where they are known.

    Raises:
        InvalidRequest: A field is missing or wrong; the message names it.
    """
    request = _decoder.decode(body, raw)
    check_one_kind("input", request.input)
    inputs = request.inputs
    if len(inputs) > MAX_INPUTS:
        raise InvalidRequest(
            f"`input` has {len(inputs)} inputs; the maximum is {MAX_INPUTS} per request.",
            param="input",
        )
    if not all(inputs):
        raise InvalidRequest("`input` has an empty input; remove it.", param="input")
    return request


def encode(
    request: EmbeddingRequest, embeddings: Embeddings, model: str, ignored: tuple[str, ...] = ()
) -> bytes:
    """
    The body of an answer.

    Raises:
        InvalidRequest: `dimensions` is larger than the model's vectors.
    """
    data = [
        {"object": "embedding", "index": index, "embedding": _form(request, vector)}
        for index, vector in enumerate(embeddings.vectors)
    ]
    usage = {
        "prompt_tokens": embeddings.prompt_tokens,
        "total_tokens": embeddings.prompt_tokens,
    }
    body = {"object": "list", "data": data, "model": model, "usage": usage}
    return encode_json(body | ignored_object(ignored))


def _form(request: EmbeddingRequest, vector: list[float]) -> list[float] | str:
    if request.dimensions is not None:
        vector = shortened(vector, request.dimensions)
    return base64_of(vector) if request.encoding_format == "base64" else vector


def base64_of(vector: list[float]) -> str:
    """A vector as little-endian float32 in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def unit(vector: list[float]) -> list[float]:
    """A vector made unit length."""
    length = math.sqrt(sum(x * x for x in vector)) or 1.0
    return [x / length for x in vector]


def shortened(vector: list[float], dimensions: int) -> list[float]:
    """
    The first `dimensions` numbers of a vector, made unit length again.

    Raises:
        InvalidRequest: The vector has fewer.
    """
    if dimensions > len(vector):
        raise InvalidRequest(
            f"`dimensions` is {dimensions}; this model's embeddings have {len(vector)}. Leave it out.",
            param="dimensions",
        )
    if dimensions == len(vector):
        return vector
    return unit(vector[:dimensions])
