"""
llama.cpp's native protocol, for any backend: /completion, /tokenize, /detokenize, /embedding, /infill, /props, /health.

A body is put into OpenAI's words and then is a completion like any other; what has none there goes on as it was written, to a server
that knows it, and is named as ignored elsewhere. `/completions` and `/chat/completions` stay OpenAI's.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, ClassVar

import msgspec
from aiohttp import web
from msgspec import Meta, Raw

from unilect.backend import Backend, tokenizes
from unilect.bounds import LARGE_BYTES, check_body
from unilect.dialects.llamacpp._answer import NativeEncoder
from unilect.dialects.openai import (
    completions as openai_completions,
)
from unilect.dialects.openai import (
    embeddings as openai_embeddings,
)
from unilect.dialects.openai.chunks import encode_json
from unilect.errors import InvalidRequest, UnilectError
from unilect.parameters.rules import refusal
from unilect.requests import MAX_LOGPROBS, MAX_PROBS, EmbeddingRequest, Request, Text, TokenId
from unilect.routing.registry import Model
from unilect.routing.service import Service
from unilect.web.decode import BodyDecoder, check_short, decoded
from unilect.web.route import Handler, Route, call, json_answer
from unilect.web.site import Site
from unilect.web.streaming import respond

MAX_PIECES = 64  # texts of one mixed prompt; each is a call to the backend
_LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
_Pieces = Annotated[list[Text | TokenId | list[TokenId]], Meta(max_length=65536)]
#: Our names -> theirs, for errors.
_NAMES = {"max_tokens": "n_predict", "logprobs": "n_probs"}
_INFILL_NAMES = _NAMES | {"suffix": "input_suffix", "prompt": "input_prefix"}
_ANY_SEED = 2**32 - 1  # as they write -1
#: The values at which a field of theirs asks for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "id_slot": (-1,),
    "slot_id": (-1,),
    "n_keep": (0,),
    "tfs_z": (1,),
    "image_data": ([],),
    "grammar": ("",),
}


class NativeCompletionRequest(Request, frozen=True, kw_only=True):
    """POST /completion. Every other parameter of a completion, and of llama.cpp's, may stand beside these."""

    prompt: Text | _Pieces = ""
    n_predict: Annotated[int, Meta(ge=-2, le=2**31 - 1)] | None = None
    n_probs: Annotated[int, Meta(ge=0, le=MAX_PROBS)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Meta(le=2)] | None = None
    stop: Text | list[Text] | None = None
    logit_bias: list[tuple[TokenId, float | bool]] | dict[str, float | bool] | None = None
    stream: bool | None = None
    response_fields: Annotated[list[Text], Meta(max_length=64)] | None = None
    return_progress: bool | None = None


class InfillRequest(NativeCompletionRequest, frozen=True, kw_only=True):
    """POST /infill: what stands before and after a gap."""

    input_prefix: Text = ""
    input_suffix: Text = ""


class TokenizeRequest(Request, frozen=True, kw_only=True):
    """POST /tokenize."""

    content: Text = ""
    add_special: bool | None = None
    with_pieces: bool | None = None

    gateway_fields: ClassVar = frozenset({"model", "content", "add_special", "with_pieces"})


class DetokenizeRequest(Request, frozen=True, kw_only=True):
    """POST /detokenize."""

    tokens: Annotated[list[TokenId], Meta(max_length=1_000_000)] = []

    gateway_fields: ClassVar[frozenset[str]] = frozenset({"model", "tokens"})


class NativeEmbeddingRequest(Request, frozen=True, kw_only=True):
    """POST /embedding."""

    content: Text | _Pieces

    gateway_fields: ClassVar[frozenset[str]] = frozenset({"model", "content"})


_NATIVE_FIELDS = frozenset(InfillRequest.__struct_fields__) - {"raw_fields"}
_completion = BodyDecoder(NativeCompletionRequest)
_infill = BodyDecoder(InfillRequest)
_tokenize = BodyDecoder(TokenizeRequest)
_detokenize = BodyDecoder(DetokenizeRequest)
_embedding = BodyDecoder(NativeEmbeddingRequest)


def routes(site: Site) -> list[Route]:
    """The URLs of this dialect."""
    service = site.service
    return _answers(service) + _calls(service) + _states(service)


def _answers(service: Service) -> list[Route]:
    """What a model writes."""

    async def native_completion(request: web.Request) -> web.StreamResponse:
        """Continue a text, in llama.cpp's words."""
        return await generate(request, await decoded(request, _completion.decode))

    async def native_infill(request: web.Request) -> web.StreamResponse:
        """Fill in the middle of a text."""
        return await generate(request, await decoded(request, _infill.decode))

    async def generate(request: web.Request, native: NativeCompletionRequest) -> web.StreamResponse:
        with native_names(_INFILL_NAMES if isinstance(native, InfillRequest) else _NAMES):
            if isinstance(native.prompt, list) and is_mixed(native.prompt):
                native = await joined(service, native)
            written = as_body(native)
            if len(written) > LARGE_BYTES:
                check_short(await check_body(written), openai_completions.decode)
            completion = openai_completions.decode(written)
            if len(written) > LARGE_BYTES:
                await asyncio.sleep(0)
            run = service.run(completion)
            encoder = NativeEncoder(
                completion,
                run.model.name,
                native.response_fields or (),
                progress=bool(native.return_progress),
            )
            return await respond(request, run, encoder)

    return [
        _route("/completion", native_completion, "Continue a text", NativeCompletionRequest),
        _route("/infill", native_infill, "Fill in the middle of a text", InfillRequest),
    ]


def _calls(service: Service) -> list[Route]:
    """What a model says at once."""

    async def native_tokenize(request: web.Request) -> web.StreamResponse:
        """Tokenize a text."""
        body = _tokenize.decode(await request.read())
        if body.with_pieces:
            raise refusal("with_pieces", "ids are told, and no pieces")
        special = bool(body.add_special)
        with native_names({"prompt": "content"}):
            tokens = await service.call(body.model, partial(_ids, body.content, special))
        return _json(request, {"tokens": tokens}, body)

    async def native_detokenize(request: web.Request) -> web.StreamResponse:
        """Detokenize token ids."""
        body = _detokenize.decode(await request.read())
        with native_names({"prompt": "tokens"}):
            content = await service.call(body.model, partial(_text, body.tokens))
        return _json(request, {"content": content}, body)

    async def native_embedding(request: web.Request) -> web.StreamResponse:
        """Embed a text, or several."""
        body = _embedding.decode(await request.read())
        with native_names({"input": "content"}):
            _, embeddings, _ = await service.embed(embedding_request(body))
        answer: Any = [
            {"index": index, "embedding": vector} for index, vector in enumerate(embeddings.vectors)
        ]
        return _json(request, answer[0] if isinstance(body.content, str) else answer, body)

    return [
        _route("/tokenize", native_tokenize, "Tokenize a text", TokenizeRequest),
        _route("/detokenize", native_detokenize, "Detokenize token ids", DetokenizeRequest),
        _route("/embedding", native_embedding, "Embed texts", NativeEmbeddingRequest),
    ]


def _states(service: Service) -> list[Route]:
    """What the server is, and whether it is well."""

    async def native_props(request: web.Request) -> web.StreamResponse:
        """Describe the server."""
        model = await service.described(request.query.get("model"))
        return _json(request, props(model.name, model.capabilities))

    async def native_health(request: web.Request) -> web.StreamResponse:
        """Report the server's health."""
        if service.ready:
            return web.json_response({"status": "ok"})
        return web.json_response(_LOADING, status=503)

    health = _route("/health", native_health, "Report the server's health")
    return [
        _route("/props", native_props, "Describe the server"),
        msgspec.structs.replace(health, public=True),
    ]


def _route(path: str, handler: Handler, summary: str, body: Any = None) -> Route:
    endpoint = {"/embedding": "embeddings", "/infill": "completion"}.get(path, path[1:])
    return call(path, handler, f"{summary} (llama.cpp)", body, endpoint)


def as_body(native: NativeCompletionRequest) -> bytes:
    """
    The body of a plain completion that asks the same as a native request.

    Raises:
        InvalidRequest: Two fields cannot stand together.
    """
    raw_fields = {
        name: raw
        for name, raw in native.raw_fields.items()
        if name not in _NATIVE_FIELDS and not _is_neutral(name, raw)
    }
    fields: dict[str, Any] = {
        "prompt": native.prompt,
        "stream": native.stream,
        "max_tokens": native.n_predict if (native.n_predict or 0) >= 0 else None,
        "logprobs": min(native.n_probs or 0, MAX_LOGPROBS) or None,
        "n_probs": native.n_probs if (native.n_probs or 0) > MAX_LOGPROBS else None,
        "seed": -1 if native.seed == _ANY_SEED else native.seed,
        "temperature": None if native.temperature is None else max(native.temperature, 0.0),
        "stop": openai_completions.stop_words(native.stop) or None,
        "logit_bias": _logit_bias(native.logit_bias),
        "model": native.model,
        "user": native.user,
    }
    if isinstance(native, InfillRequest):
        if native.prompt:
            raise InvalidRequest(
                "`prompt` cannot be combined with `input_prefix` and `input_suffix`; put it there."
            )
        fields |= {"prompt": native.input_prefix, "suffix": native.input_suffix}
    given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    raw_fields.pop("api_key", None)  # of the older web page, which sends null
    return encode_json(raw_fields | given)


def is_mixed(prompt: list[Any]) -> bool:
    """True for a prompt in which texts and token ids follow each other."""
    return len({type(item) for item in prompt}) > 1 and list not in map(type, prompt)


async def joined(service: Service, native: NativeCompletionRequest) -> NativeCompletionRequest:
    """
    A request whose mixed prompt has become token ids.

    Raises:
        UnilectError: There are too many texts in it, or the backend has no such call.
    """
    pieces = [native.prompt] if isinstance(native.prompt, str) else native.prompt
    if sum(isinstance(piece, str) for piece in pieces) > MAX_PIECES:
        raise InvalidRequest(
            f"`prompt` has more than {MAX_PIECES} texts between token ids; join them.",
            param="prompt",
        )

    async def ask(model: Model, backend: Backend) -> list[int]:
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            if isinstance(piece, str):
                # a text at the beginning has what every prompt begins with
                ids += await _ids(piece, number == 0, model, backend)
            elif isinstance(piece, int):
                ids.append(piece)
        return ids

    return msgspec.structs.replace(native, prompt=await service.call(native.model, ask))


async def _ids(text: str, special: bool, model: Model, backend: Backend) -> list[int]:
    return await tokenizes(backend).tokenize(text, special) if text or special else []


async def _text(ids: list[int], model: Model, backend: Backend) -> str:
    return await tokenizes(backend).detokenize(ids) if ids else ""


def embedding_request(native: NativeEmbeddingRequest) -> EmbeddingRequest:
    """
    A native request in OpenAI's words.

    Raises:
        InvalidRequest: It holds nothing to embed, or too much.
    """
    body: dict[str, Any] = {"input": native.content}
    if native.model is not None:
        body["model"] = native.model
    return openai_embeddings.decode(encode_json(body))


def props(model: str, can: Any) -> dict[str, Any]:
    """What /props says, as far as a client can use it; templates and paths stay here."""
    return {
        "default_generation_settings": {"n_ctx": can.context or 0, "model": model},
        "total_slots": can.slots or can.max_in_flight or 1,
        "model_alias": model,
        "chat_template": "",
        "modalities": {"vision": can.vision, "audio": False},
        "user_name": "",
        "assistant_name": "",
        "build_info": f"unilect {version('unilect')}",
    }


@contextmanager
def native_names(names: dict[str, str]) -> Iterator[None]:
    """Errors name the parameters as the client does."""
    try:
        yield
    except UnilectError as error:
        if error.param in names:
            ours, theirs = error.param, names[error.param]
            error.message = error.message.replace(f"`{ours}`", f"`{theirs}`")
            error.param = theirs
        raise


def _logit_bias(given: Any) -> dict[str, float | bool] | None:
    if isinstance(given, list):
        return {str(token): value for token, value in given} or None
    return given or None


def _is_neutral(name: str, raw: Raw) -> bool:
    if name not in _NEUTRAL:
        return bytes(raw) == b"null"
    try:
        return msgspec.json.decode(raw) in (None, *_NEUTRAL[name])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False  # such as 1e999, which is told where it matters


def _json(request: web.Request, body: Any, asked: Request | None = None) -> web.Response:
    """A whole answer, with the names of what was not understood."""
    fields = asked.raw_fields.keys() - asked.gateway_fields if asked is not None else ()
    return json_answer(request, encode_json(body), sorted(fields))
