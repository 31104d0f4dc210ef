"""A route of a dialect: URL, handler and options."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from aiohttp import web
from msgspec import Struct

from unilect.web.streaming import JSON, headers_of

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Route(Struct, frozen=True):
    """
    A URL.

    Attributes:
        method: The HTTP method.
        path: The path, with `{name:regex}` parts as aiohttp writes them.
        handler: Answers it. Its name is the operationId, its docstring the documentation.
        public: True for the few that need no key.
        page: True for what people look at in a browser, which asks them for the key.
        request: The Struct of its body, for the schema.
        summary: One line for the documentation.
    """

    method: str
    path: str
    handler: Handler
    public: bool = False
    page: bool = False
    request: Any = None
    summary: str = ""


def call(path: str, handler: Handler, summary: str, body: Any = None) -> Route:
    """A URL that is asked with a body of this kind, or without any."""
    method = "GET" if body is None else "POST"
    return Route(method, path, handler, request=body, summary=summary)


def both(path: str, handler: Handler, summary: str, body: Any = None) -> list[Route]:
    """As `call`, under /v1 and by its unversioned alias, which some older clients call."""
    return [call(f"{prefix}{path}", handler, summary, body) for prefix in ("/v1", "")]


def json_answer(request: web.Request, body: bytes, ignored: Sequence[str] = ()) -> web.Response:
    """A whole answer, with the names of the parameters that were ignored."""
    return web.Response(body=body, headers=headers_of(request, JSON.content_type, ignored))
