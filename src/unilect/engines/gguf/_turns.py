"""
Prompts of the child's model: conversations as its chat template takes and renders them, and how many tokens a prompt has.

The child renders them, since its own Jinja differs from others, and since a template out of a stranger's file runs there only.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from unilect.core.errors import BackendError, InvalidRequest
from unilect.core.requests import ChatRequest, Prompt
from unilect.engines.gguf._request import template_body
from unilect.engines.text_bounds import beyond
from unilect.families import PLAIN, ToolFormat, of_template
from unilect.http.client import HttpServer
from unilect.http.error_bodies import REPORTED
from unilect.templates.takes import Takes, Turn, learn, probes, stands_out
from unilect.templates.turns import fit
from unilect.wire.llamacpp import apply_template, post, tokenize


class _Count(Struct):
    input_tokens: int


class Turns:
    """The messages of chats as one model's template takes them. It is looked at once, for the first chat that not every template takes."""

    def __init__(self, template: str) -> None:
        self._takes: Takes | None = None
        self._form: ToolFormat = (of_template(template) or PLAIN).written

    async def fit(self, server: HttpServer, turns: list[Turn]) -> list[Turn]:
        """Return the messages of a body as the template takes them."""
        if not stands_out(turns):
            return turns
        if self._takes is None:
            made = probes(as_text=True)
            self._takes = learn({name: await prompt_of(server, made[name]) for name in made})
        return fit(turns, self._takes, self._form)

    async def render(self, server: HttpServer, request: ChatRequest) -> str:
        """Return a conversation as the model reads it."""
        return await apply_template(server, await self._body(server, request))

    async def count_tokens(self, server: HttpServer, request: ChatRequest) -> int:
        """Count the tokens of a conversation's prompt."""
        body = await self._body(server, request)
        return (await post(server, "/v1/chat/completions/input_tokens", body, _Count)).input_tokens

    async def _body(self, server: HttpServer, request: ChatRequest) -> dict[str, Any]:
        body = template_body(request)
        return body | {"messages": await self.fit(server, body["messages"])}


async def prompt_of(
    server: HttpServer, turns: Sequence[Turn], goes_on: bool = True, tools: Sequence[Any] = ()
) -> str | None:
    """
    Render a conversation with the child's template; None where it refuses.

    Args:
        goes_on: The model's turn is opened behind it.

    Raises:
        UnilectError: The child does not answer.
    """
    body: dict[str, Any] = {"messages": turns, "add_generation_prompt": goes_on}
    body |= {"tools": tools} if tools else {}
    try:
        return await apply_template(server, body)
    except InvalidRequest:
        return None
    except BackendError as error:
        if REPORTED not in error.message:  # what its Jinja raises is told with 500
            raise
        return None


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
