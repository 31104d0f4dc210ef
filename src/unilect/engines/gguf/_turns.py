"""
Prompts of the child's model: conversations as its chat template takes and renders them, how many tokens a prompt has, and where thoughts stand.

The child renders them, since its own Jinja differs from others, and since a template out of a stranger's file runs there only.
The prompts that it makes of some conversations tell what its template takes, and where the model thinks before it answers.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from unilect.core.errors import BackendError, InvalidRequest
from unilect.core.requests import ChatRequest, Prompt
from unilect.engines.gguf._request import template_body
from unilect.engines.text_bounds import beyond
from unilect.families import PLAIN, CallStyle, ToolFormat, of_template
from unilect.http.client import HttpServer
from unilect.http.error_bodies import REPORTED
from unilect.templates.takes import Takes, Turn, learn, probes, stands_out
from unilect.templates.thoughts import (
    Ending,
    Thoughts,
    behind,
    find_open_ending,
    learn_marks,
)
from unilect.templates.thoughts import probes as thought_probes
from unilect.templates.turns import fit
from unilect.tools.forced import call_style
from unilect.wire.llamacpp import apply_template, post, tokenize

#: In a body: a schema as llama.cpp's own converter takes it, for a template whose answers are framed.
FRAMED = "response_format"
_BUDGET = "thinking_budget_tokens"


class _Count(Struct):
    input_tokens: int


class ModelTemplate:
    """
    The chat template of one model. It is probed once each, for the first chat that not every template takes and the first that bounds thoughts.

    Args:
        text: The template.

    Attributes:
        text: As given.
        style: How its model writes calls.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.style: CallStyle = call_style(text)
        self._takes: Takes | None = None
        self._thoughts: Thoughts | None = None
        self._form: ToolFormat = (of_template(text) or PLAIN).written

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

    async def find_open_ending(self, server: HttpServer, prompt: str) -> Ending | None:
        """Find the end of the thoughts that a prompt has begun; None where it has begun none."""
        return find_open_ending(prompt, await self._find_thoughts(server))

    async def bound(self, server: HttpServer, body: dict[str, Any], prompt: str) -> dict[str, Any]:
        """
        Return a body whose grammar begins behind the thoughts.

        Args:
            body: Its grammar is of the answer; with `FRAMED` where that is JSON.
            prompt: The rendered conversation.
        """
        shown = await self._find_thoughts(server)
        ending = find_open_ending(prompt, shown)
        is_schema = FRAMED in body
        is_over = shown.ending is not None and _is_over(prompt, shown.ending)
        if is_schema and ending is None and shown.is_framed:  # only llama.cpp knows how
            return {name: value for name, value in body.items() if name != "grammar"}
        body = {name: value for name, value in body.items() if name != FRAMED}
        thinks = body.get(_BUDGET) != 0
        if not thinks:  # the grammar sees to it
            del body[_BUDGET]
        if ending is not None:
            body["grammar"] = behind(body["grammar"], ending, thinks=thinks)
        elif thinks and is_schema and shown.ending and shown.opening and not is_over:
            body["grammar"] = behind(body["grammar"], shown.ending, shown.opening)
        return body

    async def _find_thoughts(self, server: HttpServer) -> Thoughts:
        if self._thoughts is None:
            made = [await prompt_of(server, turns, goes_on) for turns, goes_on in thought_probes()]
            self._thoughts = learn_marks(made, self.text)
        return self._thoughts

    async def _body(self, server: HttpServer, request: ChatRequest) -> dict[str, Any]:
        body = template_body(request)
        return body | {"messages": await self.fit(server, body["messages"])}


def _is_over(prompt: str, ending: Ending) -> bool:
    """Return True if the prompt has ended the thoughts already."""
    return prompt.rstrip().endswith((ending.mark + ending.rest).rstrip())


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
