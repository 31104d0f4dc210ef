"""
OpenAI's embeddings: POST /v1/embeddings, and /embeddings for older clients.

The official clients ask for base64 unless told otherwise: little-endian float32, which is a quarter of the JSON.

Source: https://platform.openai.com/docs/api-reference/embeddings
"""

import base64
import math
import struct
from typing import Any, TypeGuard

from aiohttp import web

from unilect.answers.service import Service
from unilect.api.backend import Backend
from unilect.core.errors import InvalidRequest, UnsupportedParameter, WrongType
from unilect.core.requests import EmbeddingRequest, Embeddings
from unilect.dialects.openai.chunks import encode_json, unilect_field
from unilect.dialects.prompts import check_pieces, ids_of
from unilect.models.model import Model
from unilect.web.decode import BodyDecoder, RawFields, decode_request
from unilect.web.route import Route, both, json_answer
from unilect.web.site import Site

_decoder = BodyDecoder(EmbeddingRequest)
MAX_INPUTS = 2048  # OpenAI's own limit


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect."""
    service = site.service

    async def create_embedding(request: web.Request) -> web.StreamResponse:
        """Embed texts."""
        return await answer(request, service, await decode_request(request, decode))

    return both("/embeddings", create_embedding, "Embed texts", EmbeddingRequest, "embeddings")


async def answer(
    request: web.Request, service: Service, asked: EmbeddingRequest
) -> web.StreamResponse:
    """Answer a request that has been read."""
    model, embeddings, ignored = await service.embed(await of_one_kind(service, asked))
    return json_answer(request, encode(asked, embeddings, model.name, ignored), ignored)


def decode(body: bytes, raw: RawFields | None = None) -> EmbeddingRequest:
    """
    Return a body as a typed request.

    Args:
        raw: Its raw fields, where they are known.

    Raises:
        InvalidRequest: A field is missing or wrong; the message names it.
    """
    try:
        request = _decoder.decode(body, raw)
    except WrongType as error:
        if not error.message.endswith("got an object."):
            raise
        raise UnsupportedParameter.at(
            error.param or "input",
            "is an object: only texts and token ids are embedded here, and no images. Send a text.",
        ) from error
    inputs = request.inputs
    if _is_mixed(request.input):
        check_pieces([request.input], "input")
        return request
    if len(inputs) > MAX_INPUTS:
        raise InvalidRequest.at(
            "input", f"has {len(inputs)} inputs; the maximum is {MAX_INPUTS} per request."
        )
    if not all(inputs):
        raise InvalidRequest.at("input", "has an empty input; remove it.")
    return request


async def of_one_kind(service: Service, asked: EmbeddingRequest) -> EmbeddingRequest:
    """
    Return a request whose one input is texts and token ids in turn, with the ids of the texts, as llama.cpp's server takes it.

    Raises:
        UnilectError: The backend tells no tokens.
    """
    given: Any = asked.input
    if not _is_mixed(given):
        return asked

    async def ask(model: Model, backend: Backend) -> list[int]:
        return await ids_of(given, True, backend)

    return asked.changed(input=await service.call(asked.model, ask, counts=False))


def _is_mixed(given: Any) -> TypeGuard[list[str | int]]:
    """
    Return True for texts and token ids of one input.

    Raises:
        InvalidRequest: Token ids stand beside whole inputs.
    """
    kinds = {type(item) for item in given} if isinstance(given, list) else set()
    if int in kinds and list in kinds:
        raise InvalidRequest.at(
            "input",
            "has token ids beside lists of token ids; put each input into a list of its own.",
        )
    return kinds == {int, str}


def encode(
    request: EmbeddingRequest, embeddings: Embeddings, model: str, ignored: tuple[str, ...] = ()
) -> bytes:
    """
    Return the body of an answer.

    Raises:
        InvalidRequest: `dimensions` is larger than the model's vectors.
    """
    data = [
        {"object": "embedding", "index": index, "embedding": _form(request, vector)}
        for index, vector in enumerate(embeddings.vectors)
    ]
    usage = {"prompt_tokens": embeddings.prompt_tokens, "total_tokens": embeddings.prompt_tokens}
    body = {"object": "list", "data": data, "model": model, "usage": usage}
    return encode_json(body | unilect_field(ignored))


def _form(request: EmbeddingRequest, vector: list[float]) -> list[float] | str:
    if request.dimensions is not None:
        vector = shorten(vector, request.dimensions)
    return base64_of(vector) if request.encoding_format == "base64" else vector


def base64_of(vector: list[float]) -> str:
    """Return a vector as little-endian float32 in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def unit(vector: list[float]) -> list[float]:
    """Return a vector made unit length."""
    length = math.sqrt(sum(x * x for x in vector)) or 1.0
    return [x / length for x in vector]


def shorten(vector: list[float], dimensions: int) -> list[float]:
    """
    Return the first `dimensions` numbers of a vector, made unit length again.

    Raises:
        InvalidRequest: The vector has fewer.
    """
    if dimensions > len(vector):
        raise InvalidRequest.at(
            "dimensions",
            f"is {dimensions}; this model's embeddings have {len(vector)}. Leave it out.",
        )
    if dimensions == len(vector):
        return vector
    return unit(vector[:dimensions])
