"""What a dialect tells the app about one of its URLs."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from aiohttp import web
from msgspec import Struct

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


def both(method: str, path: str, handler: Handler, **rest: Any) -> list[Route]:
    """A route under /v1 and its unversioned alias, which some older clients call."""
    return [Route(method, f"/v1{path}", handler, **rest), Route(method, path, handler, **rest)]
