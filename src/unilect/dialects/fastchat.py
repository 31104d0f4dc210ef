"""
What FastChat's API server has beside OpenAI's API: /api/v1/chat/completions, /api/v1/token_check, /v1/engines/{model}/embeddings.

All of them want a key where there are keys; FastChat's own leaves those under /api open.

Source: https://github.com/lm-sys/FastChat (fastchat/serve/openai_api_server.py, protocol/api_protocol.py)
"""

from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from unilect.dialects import openai_chat, openai_embeddings
from unilect.dialects._decode import decoded, wrong_field
from unilect.dialects._manners import Manners
from unilect.dialects._openai import encode_json
from unilect.dialects._routes import Route
from unilect.errors import WrongType
from unilect.parameters import ignored_header
from unilect.requests import (
    ChatRequest,
    Count,
    EmbeddingRequest,
    Name,
    Text,
)
from unilect.service import Service
from unilect.streaming import REQUEST_ID, respond


class Item(Struct, frozen=True):
    """One prompt to be checked."""

    model: Name
    prompt: Text
    max_tokens: Count


class TokenCheckRequest(Struct, frozen=True):
    """POST /api/v1/token_check."""

    prompts: Annotated[list[Item], Meta(max_length=128)]


def routes(service: Service, manners: Manners) -> list[Route]:
    """The URLs of this dialect."""
    raw = msgspec.structs.replace(manners, string_messages="raw")

    async def create_raw_chat_completion(request: web.Request) -> web.StreamResponse:
        """Answer a conversation, or a prompt as the model reads it."""
        asked = await decoded(request, lambda body, wire: openai_chat.decode(body, raw, wire))
        run = service.run(asked.request, "chat.completions")
        encoder = openai_chat.ChatEncoder(
            asked.request, run.model.name, asked.legacy, asked.echoed, raw
        )
        return await respond(request, run, encoder, bool(asked.request.stream))

    async def check_tokens(request: web.Request) -> web.StreamResponse:
        """Say which prompts fit into the context of their models."""
        items = decode_check(await request.read()).prompts
        body = encode_json({"prompts": [await _checked(service, item) for item in items]})
        headers = {"Content-Type": "application/json", "X-Request-Id": request[REQUEST_ID]}
        return web.Response(body=body, headers=headers)

    async def create_engine_embedding(request: web.Request) -> web.StreamResponse:
        """Embed texts with the model that the URL names."""
        asked = await decoded(request, openai_embeddings.decode)
        if asked.model is None:
            asked = asked.changed(model=request.match_info["model"])
        model, embeddings, ignored = await service.embed(asked)
        body = openai_embeddings.encode(asked, embeddings, model.name, ignored)
        headers = {"Content-Type": "application/json", "X-Request-Id": request[REQUEST_ID]}
        if ignored:
            headers["X-Unilect-Ignored"] = ignored_header(ignored)
        return web.Response(body=body, headers=headers)

    return [
        Route(
            "POST",
            "/api/v1/chat/completions",
            create_raw_chat_completion,
            request=ChatRequest,
            summary="Answer a conversation or a raw prompt (FastChat)",
        ),
        Route(
            "POST",
            "/api/v1/token_check",
            check_tokens,
            request=TokenCheckRequest,
            summary="Say which prompts fit into the context (FastChat)",
        ),
        Route(
            "POST",
            "/v1/engines/{model:.+}/embeddings",
            create_engine_embedding,
            request=EmbeddingRequest,
            summary="Embed texts with the model of the URL",
        ),
    ]


def decode_check(body: bytes) -> TokenCheckRequest:
    """
    A body of /api/v1/token_check.

    Raises:
        InvalidRequest: A field is missing or wrong; the message names it.
    """
    try:
        return msgspec.json.decode(body, type=TokenCheckRequest)
    except msgspec.ValidationError as error:
        raise wrong_field(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WrongType(
            f"The request's body is not valid JSON ({str(error)[:100]}). Send one JSON object."
        ) from error


async def _checked(service: Service, item: Item) -> dict[str, bool | int | None]:
    async with service.lease(item.model, "token_check") as lease:
        count = await lease.backend.count_tokens(item.prompt)
        context = lease.backend.capabilities.context
    fits = context is None or count + item.max_tokens <= context
    return {"fits": fits, "tokenCount": count, "contextLength": context}
