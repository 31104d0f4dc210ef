"""
Grammars of chats where a model thinks before it answers: what the child's chat template makes of three conversations tells where thoughts
stand, and a rendered prompt tells whether it has begun them.
"""

from typing import Any

from unilect.engines.gguf._turns import prompt_of
from unilect.http.client import HttpServer
from unilect.templates.thoughts import (
    Ending,
    Thoughts,
    behind,
    find_open_ending,
    learn_marks,
    probes,
)

#: In a body: a schema as llama.cpp's own converter takes it, for a template whose answers are framed.
FRAMED = "response_format"
_BUDGET = "thinking_budget_tokens"


class ThoughtsOfModel:
    """The place of thoughts in one model's turns. Its template is probed once, for the first chat that bounds them."""

    def __init__(self, template: str) -> None:
        self._template = template
        self._shown: Thoughts | None = None

    async def find_open_ending(self, server: HttpServer, prompt: str) -> Ending | None:
        """Find the end of the thoughts that a prompt has begun; None where it has begun none."""
        return find_open_ending(prompt, await self._probe(server))

    async def bound(self, server: HttpServer, body: dict[str, Any], prompt: str) -> dict[str, Any]:
        """
        Return a body whose grammar begins behind the thoughts.

        Args:
            body: Its grammar is of the answer; with `FRAMED` where that is JSON.
            prompt: The rendered conversation.
        """
        shown = await self._probe(server)
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

    async def _probe(self, server: HttpServer) -> Thoughts:
        if self._shown is None:
            made = [await prompt_of(server, turns, goes_on) for turns, goes_on in probes()]
            self._shown = learn_marks(made, self._template)
        return self._shown


def _is_over(prompt: str, ending: Ending) -> bool:
    """Return True if the prompt has ended the thoughts already."""
    return prompt.rstrip().endswith((ending.mark + ending.rest).rstrip())
