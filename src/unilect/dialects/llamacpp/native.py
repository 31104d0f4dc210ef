"""
llama.cpp's native protocol, for any backend: /completion, /embedding, /infill, /props, /health; `tokens` has what tells tokens.

A body is put into OpenAI's words and then is a completion like any other; what has none there goes on as it was written, to a server
that knows it, and is named as ignored elsewhere. `/completions` and `/chat/completions` stay OpenAI's.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta, Raw

from unilect.answers.service import Service
from unilect.api.parameters.rules import parameters_of
from unilect.core.errors import InvalidRequest
from unilect.core.requests import (
    MAX_LOGPROBS,
    MAX_PROBS,
    MAX_SNIPPETS,
    Request,
    Snippet,
    Text,
    TokenId,
)
from unilect.dialects.llamacpp import tokens
from unilect.dialects.llamacpp._answer import NativeEncoder
from unilect.dialects.llamacpp._names import list_ignored
from unilect.dialects.llamacpp._props import props
from unilect.dialects.openai import completions as openai_completions
from unilect.dialects.openai import embeddings as openai_embeddings
from unilect.dialects.prompts import Written, as_openai_prompt
from unilect.web.decode import BodyDecoder, decode_request, decode_translation
from unilect.web.param_locations import ParamLocations
from unilect.web.route import Handler, Route, both, call, json_answer
from unilect.web.site import Site
from unilect.web.streaming import respond

_LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
_Pieces = Annotated[list[Text | TokenId | list[TokenId]], Meta(max_length=65536)]
#: Our names -> theirs, for errors.
_NAMES = ParamLocations({"max_tokens": "n_predict", "logprobs": "n_probs"})
_INFILL_NAMES = ParamLocations({**_NAMES.names, "suffix": "input_suffix", "prompt": "input_prefix"})
_ANY_SEED = 2**32 - 1  # as they write -1
_NULL = Raw(b"null")
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

    prompt: Written = ""
    n_predict: Annotated[int, Meta(ge=-2, le=2**31 - 1)] | None = None
    n_probs: Annotated[int, Meta(ge=0, le=MAX_PROBS)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Meta(le=2)] | None = None
    stop: Text | list[Text] | None = None
    logit_bias: list[tuple[TokenId | Text, float | bool]] | dict[str, float | bool] | None = None
    stream: bool | None = None
    response_fields: Annotated[list[Text], Meta(max_length=64)] | None = None
    return_progress: bool | None = None


class InfillRequest(NativeCompletionRequest, frozen=True, kw_only=True):
    """POST /infill: what stands before and after a gap, and in other files; `prompt` is the rest of what stands before."""

    prompt: Text = ""
    input_prefix: Text = ""
    input_suffix: Text = ""
    input_extra: Annotated[list[Snippet], Meta(max_length=MAX_SNIPPETS)] = []


class NativeEmbeddingRequest(Request, frozen=True, kw_only=True):
    """POST /embedding."""

    content: Text | _Pieces


_completion = BodyDecoder(NativeCompletionRequest)
_infill = BodyDecoder(InfillRequest)
_embedding = BodyDecoder(NativeEmbeddingRequest)


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect."""
    service = site.service
    return [*_answers(service), *tokens.routes(service), *_embeddings(service), *_states(service)]


def _answers(service: Service) -> list[Route]:
    """Make the routes that generate text."""

    async def native_completion(request: web.Request) -> web.StreamResponse:
        """Continue a text, in llama.cpp's words."""
        return await generate(request, await decode_request(request, _completion.decode))

    async def native_infill(request: web.Request) -> web.StreamResponse:
        """Fill in the middle of a text."""
        return await generate(request, await decode_request(request, _infill.decode))

    async def generate(request: web.Request, native: NativeCompletionRequest) -> web.StreamResponse:
        with (_INFILL_NAMES if isinstance(native, InfillRequest) else _NAMES).in_errors():
            if not isinstance(native.prompt, str):
                prompt: Any = await as_openai_prompt(service, native.model, native.prompt)
                native = msgspec.structs.replace(native, prompt=prompt)
            completion = await decode_translation(
                completion_fields(native), openai_completions.decode
            )
            if completion.stream and completion.return_tokens is None:
                completion = completion.changed(return_tokens=True)  # as llama.cpp's server has it
            run = service.run(completion)
            run.optional = {"return_tokens": ""} if native.stream else {}
            if not _is_neutral("api_key", native.raw_fields.get("api_key", _NULL)):
                run.left_out = ("api_key",)  # a server's key, which goes to no other server
            run.limit_name = "n_predict"
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


def _embeddings(service: Service) -> list[Route]:
    """Make the route that embeds texts."""

    async def native_embedding(request: web.Request) -> web.StreamResponse:
        """Embed a text, or several."""
        body = await decode_request(request, _embedding.decode)
        with ParamLocations({"input": "content"}).in_errors():
            fields = {"input": body.content, "model": body.model}
            asked = await decode_translation(fields, openai_embeddings.decode)
            asked = await openai_embeddings.of_one_kind(service, asked)
            _, embeddings, _ = await service.embed(asked)
        answer: Any = [
            {"index": index, "embedding": vector} for index, vector in enumerate(embeddings.vectors)
        ]
        told = answer[0] if isinstance(body.content, str) else answer
        return json_answer(request, told, list_ignored(body))

    return [_route("/embedding", native_embedding, "Embed texts", NativeEmbeddingRequest)]


def _states(service: Service) -> list[Route]:
    """Make the routes for the server's properties and its health."""

    async def native_props(request: web.Request) -> web.StreamResponse:
        """Describe the server."""
        model = await service.inspect_model(request.query.get("model"))
        return json_answer(request, props(model))

    async def native_health(request: web.Request) -> web.StreamResponse:
        """Report the server's health."""
        if service.ready:
            return web.json_response({"status": "ok"})
        return web.json_response(_LOADING, status=503)

    health = [
        msgspec.structs.replace(route, public=True)
        for route in both(
            "/health", native_health, "Report the server's health (llama.cpp)", endpoint="health"
        )
    ]
    return [_route("/props", native_props, "Describe the server"), *health]


def _route(path: str, handler: Handler, summary: str, body: Any = None) -> Route:
    endpoint = {"/embedding": "embeddings", "/infill": "completion"}.get(path, path[1:])
    return call(path, handler, f"{summary} (llama.cpp)", body, endpoint)


def completion_fields(native: NativeCompletionRequest) -> dict[str, Any]:
    """
    Return the fields of a plain completion that asks the same as a native request; None for one that is not given.

    Raises:
        InvalidRequest: Two fields cannot stand together.
    """
    known = parameters_of(type(native)) | {"api_key"}
    raw_fields = {
        name: raw
        for name, raw in native.raw_fields.items()
        if name not in known and not _is_neutral(name, raw)
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
        fields |= {
            "prompt": native.input_prefix + native.prompt,
            "suffix": native.input_suffix,
            "input_extra": native.input_extra,  # even an empty one says that there is a gap
        }
    return raw_fields | {name: value for name, value in fields.items() if value is not None}


def _logit_bias(given: Any) -> dict[str, float | bool] | None:
    """
    Raises:
        InvalidRequest: A text is one that OpenAI's words have for a token id.
    """
    if not isinstance(given, list):
        return given or None
    for token, _ in given:
        if isinstance(token, str) and token.isdecimal():
            raise InvalidRequest.at(
                "logit_bias",
                f"has the text {token[:30]!r}, which would be read as a token id. Send the ids that /tokenize says.",
            )
    return {str(token): value for token, value in given} or None


def _is_neutral(name: str, raw: Raw) -> bool:
    if name not in _NEUTRAL:
        return bytes(raw) == b"null"
    try:
        return msgspec.json.decode(raw) in (None, *_NEUTRAL[name])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False  # such as 1e999, which is told where it matters
