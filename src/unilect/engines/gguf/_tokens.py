"""Tokens of the child's model: texts to ids and back, what an id stands for, and how many tokens a prompt has."""

from typing import Any

import msgspec
from msgspec import Struct

from unilect.core.requests import ChatRequest, Prompt
from unilect.engines.gguf import _request as wire
from unilect.engines.gguf._turns import Turns
from unilect.engines.text_bounds import beyond
from unilect.http.client import HttpServer
from unilect.wire.llamacpp import Content, Pieces, Rendered, Tokens


class _Count(Struct):
    input_tokens: int


async def ids_of(server: HttpServer, text: str, special: bool, plain: bool = False) -> list[int]:
    """
    The ids of a text.

    Args:
        special: With those that the model reads before a prompt.
        plain: The names of special tokens are text like any other.
    """
    body = {"content": text, "add_special": special, "parse_special": not plain}
    return msgspec.json.decode(
        await server.post("/tokenize", msgspec.json.encode(body)), type=Tokens
    ).tokens


async def prompt_ids(server: HttpServer, prompt: Prompt, special: bool) -> list[int]:
    """The ids of a prompt, with or without what the server puts before it."""
    return prompt if isinstance(prompt, list) else await ids_of(server, prompt, special)


async def text_of(server: HttpServer, tokens: list[int]) -> str:
    """The text of token ids, special ones too."""
    body = await server.post("/detokenize", msgspec.json.encode({"tokens": tokens}))
    return msgspec.json.decode(body, type=Content).content


async def pieces_of(server: HttpServer, tokens: list[int]) -> list[bytes]:
    """Read the bytes of each token id."""
    body = msgspec.json.encode({"content": tokens, "with_pieces": True})
    return msgspec.json.decode(await server.post("/tokenize", body), type=Pieces).raw


async def render(server: HttpServer, request: ChatRequest, turns: Turns) -> str:
    """A conversation as the model reads it."""
    return await apply_template(server, await _chat(server, request, turns))


async def apply_template(server: HttpServer, body: dict[str, Any]) -> str:
    """Apply the chat template to a body of `template_body`; returns the prompt."""
    answer = await server.post("/apply-template", msgspec.json.encode(body))
    return msgspec.json.decode(answer, type=Rendered).prompt


async def chat_length(server: HttpServer, request: ChatRequest, turns: Turns) -> int:
    """The tokens of a conversation's prompt."""
    body = msgspec.json.encode(await _chat(server, request, turns))
    answer = await server.post("/v1/chat/completions/input_tokens", body)
    return msgspec.json.decode(answer, type=_Count).input_tokens


async def check_length(server: HttpServer, text: Prompt, context: int) -> None:
    """
    Count only what may be too long: a token is at least a byte.

    Raises:
        ContextLengthExceeded: The input is longer than the context.
    """
    count = len(text if isinstance(text, list) else text.encode())
    if count + 2 > context and isinstance(text, str):
        count = len(await ids_of(server, text, special=True))
    if count > context:
        raise beyond(context, count, "input")


async def _chat(server: HttpServer, request: ChatRequest, turns: Turns) -> dict[str, Any]:
    body = wire.template_body(request)
    return body | {"messages": await turns.fit(server, body["messages"])}
