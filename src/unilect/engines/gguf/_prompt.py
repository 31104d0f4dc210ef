"""Prompts of the child's model: as it reads them, and how many tokens they have."""

from typing import Any

from msgspec import Struct

from unilect.core.requests import ChatRequest, Prompt
from unilect.engines.gguf import _request as wire
from unilect.engines.gguf._turns import Turns
from unilect.engines.text_bounds import beyond
from unilect.http.client import HttpServer
from unilect.wire.llamacpp import apply_template, post, tokenize


class _Count(Struct):
    input_tokens: int


async def render(server: HttpServer, request: ChatRequest, turns: Turns) -> str:
    """Return a conversation as the model reads it."""
    return await apply_template(server, await _chat(server, request, turns))


async def chat_length(server: HttpServer, request: ChatRequest, turns: Turns) -> int:
    """Count the tokens of a conversation's prompt."""
    body = await _chat(server, request, turns)
    return (await post(server, "/v1/chat/completions/input_tokens", body, _Count)).input_tokens


async def check_length(server: HttpServer, text: Prompt, context: int) -> None:
    """
    Count only what may be too long: a token is at least a byte.

    Raises:
        ContextLengthExceeded: The input is longer than the context.
    """
    count = len(text if isinstance(text, list) else text.encode())
    if count + 2 > context and isinstance(text, str):
        count = len(await tokenize(server, text, special=True))
    if count > context:
        raise beyond(context, count, "input")


async def _chat(server: HttpServer, request: ChatRequest, turns: Turns) -> dict[str, Any]:
    body = wire.template_body(request)
    return body | {"messages": await turns.fit(server, body["messages"])}
