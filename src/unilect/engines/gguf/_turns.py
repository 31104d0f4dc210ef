"""
The conversations that the child's chat template takes.

The child renders them, since its own Jinja differs from others, and since a template out of a stranger's file runs there only.
"""

from collections.abc import Sequence
from typing import Any

from unilect.core.errors import BackendError, InvalidRequest
from unilect.families import PLAIN, ToolFormat, of_template
from unilect.http.client import HttpServer
from unilect.http.error_bodies import REPORTED
from unilect.templates.takes import Takes, Turn, learn, probes, stands_out
from unilect.templates.turns import fit
from unilect.wire.llamacpp import apply_template


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
