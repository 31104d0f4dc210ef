"""A route of a dialect: URL, handler and options."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from aiohttp import web
from msgspec import Struct

from unilect.auth.keys import Caller
from unilect.core.errors import UnilectError
from unilect.web.streaming import JSON, headers_of

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
#: The answer to an error, with the status that it has at this address; the guard adds its headers.
ErrorForm: TypeAlias = Callable[[UnilectError, int], web.Response]
_EXPRESSION = re.compile(r":[^{}]*\}")
#: The body of a request, for a route that reads it as it comes.
BODY = web.RequestKey("body", AsyncGenerator[bytes, None])


class Callers(Protocol):
    """Keys, each with whom it belongs to."""

    async def caller(self, headers: Mapping[str, str], as_password: bool = False) -> Caller:
        """Find who has sent a request; raises an `AuthenticationError` or a `PermissionDenied` where nobody who may has."""


def openai_error(error: UnilectError, status: int) -> web.Response:
    """Return an error in OpenAI's form, with what FastChat's clients look for beside it."""
    body = {name: value for name, value in error.envelope().items() if name != "detail"}
    return web.Response(status=status, body=msgspec.json.encode(body), content_type=JSON)


def detail_error(error: UnilectError, status: int) -> web.Response:
    """Return an error as in `openai_error`, for clients that look for `detail`."""
    body = msgspec.json.encode(error.envelope())
    return web.Response(status=status, body=body, content_type=JSON)


class Translation(Struct, frozen=True):
    """
    The words of an API whose requests become chats.

    Attributes:
        names: A chat's parameters by what they are called there; empty for one that has no name.
        optional: The chat's parameters that are ignored where a model refuses them.
    """

    names: Mapping[str, str]
    optional: Sequence[str] = ()


class Route(Struct, frozen=True):
    """
    A URL.

    Attributes:
        method: The HTTP method.
        path: The path, with `{name:regex}` parts as aiohttp writes them.
        handler: Answers it. Its name is the operationId, its docstring the documentation.
        endpoint: What metrics call it.
        public: True for the few that need no key.
        admin: True for those of the admin API, which are on an address of their own and need a key of its own.
        page: True for what people look at in a browser, which asks them for the key.
        request: The Struct of its body, for the schema.
        translation: The words of its body, where that becomes a chat; None where it is one, or something else.
        summary: One line for the documentation.
        error: The form of its errors: of the handler's, and of the guard's.
        streamed_bytes: The most bytes of a body that the handler reads from `BODY` as it comes; None where the guard reads it first.
        needs_header: A header with which a request comes here, and without which to the route of the same URL that needs none.
        keys: Who may ask it, where that is not who has a key of the address.
        dialect: The dialect that it belongs to; the application sets it, as it does `others`.
        others: The routes of the same URL that need a header.
    """

    method: str
    path: str
    handler: Handler
    endpoint: str = ""
    public: bool = False
    admin: bool = False
    page: bool = False
    request: Any = None
    summary: str = ""
    error: ErrorForm = openai_error
    streamed_bytes: int | None = None
    needs_header: str = ""
    keys: Callers | None = None
    dialect: str = ""
    others: "tuple[Route, ...]" = ()
    translation: Translation | None = None

    @property
    def template(self) -> str:
        """The path as documents write it: with `{name}` parts, without their expressions."""
        return _EXPRESSION.sub("}", self.path)

    @property
    def access(self) -> Literal["public", "key", "own", "admin"]:
        """The callers that it is for: everybody, who has a client's key, who has one of the route's own keys, or who has a key of the admin API."""
        if self.admin or self.public:
            return "admin" if self.admin else "public"
        return "key" if self.keys is None else "own"


def call(path: str, handler: Handler, summary: str, body: Any = None, endpoint: str = "") -> Route:
    """Return a URL that is asked with a body of this kind, or without any."""
    method = "GET" if body is None else "POST"
    return Route(method, path, handler, endpoint, request=body, summary=summary)


def both(
    path: str, handler: Handler, summary: str, body: Any = None, endpoint: str = ""
) -> list[Route]:
    """Make routes as `call` does, under /v1 and by its unversioned alias, which some older clients call."""
    return [call(f"{prefix}{path}", handler, summary, body, endpoint) for prefix in ("/v1", "")]


def json_answer(request: web.Request, body: Any, ignored: Sequence[str] = ()) -> web.Response:
    """Return a whole answer: a value, or JSON that is encoded already; with the names of the parameters that were ignored."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return web.Response(body=data, headers=headers_of(request, JSON, ignored))
