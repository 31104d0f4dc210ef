"""
llama.cpp's calls that tell tokens and prompts: /tokenize, /detokenize, /apply-template, /v1/chat/completions/input_tokens.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from functools import partial
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

from unilect.answers.service import Service
from unilect.api.backend import Backend
from unilect.core.errors import InvalidRequest
from unilect.core.requests import ChatRequest, Request, Text, TokenId
from unilect.dialects.llamacpp._names import list_ignored
from unilect.dialects.openai import chat as openai_chat
from unilect.dialects.prompts import Mixed, check_pieces, ids_of
from unilect.models.model import Model
from unilect.web.decode import BodyDecoder, decode_request
from unilect.web.param_locations import ParamLocations
from unilect.web.route import Route, both, call, json_answer


class TokenizeRequest(Request, frozen=True, kw_only=True):
    """POST /tokenize."""

    content: Text | Mixed = ""
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(Request, frozen=True, kw_only=True):
    """POST /detokenize."""

    tokens: Annotated[list[TokenId], Meta(max_length=1_000_000)] = []


_tokenize = BodyDecoder(TokenizeRequest)
_detokenize = BodyDecoder(DetokenizeRequest)


def routes(service: Service) -> list[Route]:
    """Return the URLs of these calls."""
    return _of_tokens(service) + _of_chats(service)


def _of_tokens(service: Service) -> list[Route]:
    async def native_tokenize(request: web.Request) -> web.StreamResponse:
        """Tokenize a text."""
        body = await decode_request(request, _tokenize.decode)
        check_pieces([body.content] if body.content else [], "content")
        with ParamLocations({"prompt": "content"}).in_errors():
            tokens = await service.call(body.model, partial(_tokens, body))
        return json_answer(request, {"tokens": tokens}, list_ignored(body))

    async def native_detokenize(request: web.Request) -> web.StreamResponse:
        """Detokenize token ids."""
        body = await decode_request(request, _detokenize.decode)
        with ParamLocations({"prompt": "tokens"}).in_errors():
            content = await service.call(body.model, partial(_text, body.tokens))
        return json_answer(request, {"content": content}, list_ignored(body))

    return [
        call("/tokenize", native_tokenize, "Tokenize a text (llama.cpp)", TokenizeRequest, "tokenize"),
        call("/detokenize", native_detokenize, "Detokenize token ids (llama.cpp)", DetokenizeRequest, "detokenize"),
    ]  # fmt: skip


def _of_chats(service: Service) -> list[Route]:
    async def native_apply_template(request: web.Request) -> web.StreamResponse:
        """Tell the prompt of a conversation."""
        prompt, ignored = await service.render_prompt(await _chat(request))
        return json_answer(request, {"prompt": prompt}, ignored)

    async def native_input_tokens(request: web.Request) -> web.StreamResponse:
        """Count the tokens of a conversation's prompt."""
        count, ignored = await service.count_prompt(await _chat(request))
        told = {"input_tokens": count, "object": "response.input_tokens"}
        return json_answer(request, told, ignored)

    counting = "Count the tokens of a conversation (llama.cpp)"
    return [
        call("/apply-template", native_apply_template, "Tell the prompt of a conversation (llama.cpp)", ChatRequest, "apply_template"),
        *both("/chat/completions/input_tokens", native_input_tokens, counting, ChatRequest, "input_tokens"),
    ]  # fmt: skip


async def _chat(request: web.Request) -> ChatRequest:
    """
    Return the conversation of a body.

    Raises:
        InvalidRequest: It holds none.
    """
    asked = await decode_request(request, openai_chat.decode)
    if not isinstance(asked.request, ChatRequest):
        raise InvalidRequest.at("messages", "is missing; expected a conversation.")
    return asked.request


async def _tokens(body: TokenizeRequest, model: Model, backend: Backend) -> list[Any]:
    """Token ids, or what each stands for: a text, or bytes where it is a part of a character."""
    plain = body.parse_special is False
    ids = await ids_of(body.content, bool(body.add_special), backend, plain)
    if not body.with_pieces:
        return ids
    pieces = await backend.pieces(ids) if ids else []
    return [{"id": id, "piece": _piece(piece)} for id, piece in zip(ids, pieces, strict=True)]


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


async def _text(ids: list[int], model: Model, backend: Backend) -> str:
    return await backend.detokenize(ids) if ids else ""
