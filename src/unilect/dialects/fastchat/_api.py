"""
FastChat's API server, in addition to OpenAI's API: /api/v1/chat/completions, /api/v1/token_check, /v1/engines/{model}/embeddings.

All of them want a key where there are keys; FastChat's own leaves those under /api open.

Source: https://github.com/lm-sys/FastChat (fastchat/serve/openai_api_server.py, protocol/api_protocol.py)
"""

from functools import partial
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from unilect.answers.service import Service
from unilect.api.backend import Backend
from unilect.core.requests import ChatRequest, Count, EmbeddingRequest, Name, Text
from unilect.dialects.fastchat._worker import decode_call
from unilect.dialects.openai import chat as openai_chat
from unilect.dialects.openai import embeddings as openai_embeddings
from unilect.models.model import Model
from unilect.web.decode import decode_request
from unilect.web.route import Route, call, json_answer
from unilect.web.site import Site
from unilect.web.streaming import respond


class Item(Struct, frozen=True):
    """One prompt to be checked."""

    model: Name
    prompt: Text
    max_tokens: Count


class TokenCheckRequest(Struct, frozen=True):
    """POST /api/v1/token_check."""

    prompts: Annotated[list[Item], Meta(max_length=128)]


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect."""
    service, profile = site.service, site.profile
    raw = msgspec.structs.replace(profile, string_messages="raw")
    decode_body = partial(openai_chat.decode, profile=raw)

    async def create_raw_chat_completion(request: web.Request) -> web.StreamResponse:
        """Answer a conversation, or a prompt as the model reads it."""
        asked = await decode_request(request, decode_body)
        run = service.run(asked.request)
        encoder = openai_chat.ChatEncoder(
            asked.request, run.model.name, asked.legacy, asked.echoed, raw
        )
        return await respond(request, run, encoder)

    async def check_tokens(request: web.Request) -> web.StreamResponse:
        """Say which prompts fit into the context of their models."""
        items = decode_call(await request.read(), TokenCheckRequest).prompts
        checked = [await _check_item(service, item, at == 0) for at, item in enumerate(items)]
        return json_answer(request, {"prompts": checked})

    async def create_engine_embedding(request: web.Request) -> web.StreamResponse:
        """Embed texts with the model that the URL names."""
        asked = await decode_request(request, openai_embeddings.decode)
        if asked.model is None:
            asked = asked.changed(model=request.match_info["model"])
        return await openai_embeddings.answer(request, service, asked)

    chat, check = "/api/v1/chat/completions", "/api/v1/token_check"
    embed, of_url = "/v1/engines/{model:.+}/embeddings", "Embed texts with the model of the URL"
    raw_too = "Answer a conversation or a raw prompt (FastChat)"
    which_fit = "Check which prompts fit into the context (FastChat)"
    return [
        call(chat, create_raw_chat_completion, raw_too, ChatRequest, "chat.completions"),
        call(check, check_tokens, which_fit, TokenCheckRequest, "token_check"),
        call(embed, create_engine_embedding, of_url, EmbeddingRequest, "embeddings"),
    ]


async def _check_item(service: Service, item: Item, counts: bool) -> dict[str, bool | int | None]:
    async def ask(model: Model, backend: Backend) -> tuple[int, int | None]:
        count = await backend.count_tokens(item.prompt)
        return count, backend.capabilities.context

    count, context = await service.call(item.model, ask, counts)
    fits = context is None or count + item.max_tokens <= context
    return {"fits": fits, "tokenCount": count, "contextLength": context}
