"""
A request that its server refuses, in other words that ask the same:

1. With less room for the answer, where the prompt leaves less than the request wants: agents want 32,000 tokens of every model.
2. With its messages as a stricter chat template takes them: what templates take differs, and only a refusal tells it. Which form was
   taken is remembered, and the next chat has it at once.

A server is asked at most three times more for one request; the client is told the first reason.
"""

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from unilect.api.parameters.rules import limit_tokens
from unilect.core.errors import ContextLengthExceeded, InvalidRequest
from unilect.core.requests import ChatRequest, GenerationRequest
from unilect.http.client import EVENTS, HttpServer, Response
from unilect.runtime.context import current_request
from unilect.templates.takes import ALL, LEAST, LITTLE, stands_out
from unilect.templates.turns import fit

#: Makes the body of a request, with other messages than its own where there are some.
BodyOf: TypeAlias = Callable[[GenerationRequest, list[Any] | None], bytes]
#: The forms that conversations are turned into, from the one that loses least.
_FORMS = (ALL, LITTLE, LEAST)
#: Servers' words about a conversation that a template does not take: the template's own words.
_OF_TEMPLATE = re.compile(r"\broles?\b|system|alternat|template|jinja|tool.calls?", re.IGNORECASE)


class Forms(Struct):
    """
    The form of conversations that a server's chat template takes, as learned from refusals.

    Attributes:
        first: The number of the form in which chats are sent.
    """

    first: int = 0


class PatientServer:
    """
    A server that is asked again where it refuses a request.

    Args:
        server: The server.
        request: What is asked.
        body_of: Makes its body.
        forms: What is known of the server.
    """

    def __init__(
        self, server: HttpServer, request: GenerationRequest, body_of: BodyOf, forms: Forms
    ) -> None:
        self._server = server
        self._request = request
        self._body_of = body_of
        self._forms = forms
        self._form = forms.first
        self._is_lowered = False
        self._refusal: InvalidRequest | None = None

    def body(self) -> bytes:
        """Return the body, as far as it is known how the server wants it."""
        return self._body_of(self._request, self._in_form(self._form))

    async def post(self, path: str, body: bytes) -> bytes:
        """As of the server."""
        answer = await self.stream(path, body, kind="")
        return await answer.whole(self._server.max_body_bytes)

    async def stream(
        self, path: str, body: bytes, gather_s: float = 0, kind: str = EVENTS
    ) -> Response:
        """As of the server; the answer is to the first body that it takes."""
        while True:
            try:
                answer = await self._server.stream(path, body, gather_s, kind)
            except InvalidRequest as error:
                body = self._after(error)
            else:
                if self._form > self._forms.first:
                    self._forms.first = self._form
                return answer

    def _after(self, error: InvalidRequest) -> bytes:
        """
        Return the body to be sent after a refusal.

        Raises:
            InvalidRequest: There is none.
        """
        if isinstance(error, ContextLengthExceeded):
            self._lower(error)
        elif not self._takes_another_form(error):
            raise self._refusal or error
        return self.body()

    def _lower(self, error: ContextLengthExceeded) -> None:
        """
        Ask for as many tokens as the prompt leaves room for.

        Raises:
            ContextLengthExceeded: The prompt itself is too long.
        """
        limit = self._request.token_limit
        if self._is_lowered or limit is None or None in (error.prompt_tokens, error.context):
            raise error
        room = (error.context or 0) - (error.prompt_tokens or 0)
        if not 0 < room < limit:
            raise error
        self._is_lowered = True
        self._request, name = limit_tokens(self._request, room)
        current_request().lowered = name

    def _takes_another_form(self, error: InvalidRequest) -> bool:
        """Move on to the next form that changes the conversation. False without one, and for an error that is not the template's."""
        if not _OF_TEMPLATE.search(error.message):
            return False
        self._refusal = self._refusal or error
        before = self._in_form(self._form)
        while self._form + 1 < len(_FORMS):
            self._form += 1
            if (now := self._in_form(self._form)) is not None and now != before:
                return True
        return False

    def _in_form(self, form: int) -> list[Any] | None:
        return in_form(self._request, form) if isinstance(self._request, ChatRequest) else None


def in_form(request: ChatRequest, form: int) -> list[Any] | None:
    """Return the messages of a chat in the form of a number; None where they are sent as they are."""
    if not form:
        return None
    raw = request.raw_fields.get("messages")
    turns = msgspec.to_builtins(request.messages) if raw is None else msgspec.json.decode(raw)
    return fit(turns, _FORMS[form]) if stands_out(turns) else None
