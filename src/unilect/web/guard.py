"""
The guard before every route, known or not: checks Host, Origin and API key, and converts errors to responses.

1. It reads headers only, never a rebuilt URL, and goes by the route that was matched, not by a path, which a client spells.
2. Every error leaves in the form of its route, which is OpenAI's where the dialect has none: ours, aiohttp's, and our flaws.
3. One line a request in the log, with control characters escaped (`repr`); never its text.
"""

import asyncio
import itertools
import logging
import math
import random
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache

from aiohttp import HttpVersion11, web

from unilect.accounting.failures import Failures
from unilect.accounting.tracing import Tracing
from unilect.auth.keys import Keys
from unilect.config.server import Config, is_loopback
from unilect.core.bounds import LARGE_BYTES, SMALL_BYTES, check_body
from unilect.core.errors import (
    AuthenticationError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    MisdirectedRequest,
    ModelNotFound,
    ModelTooLarge,
    OutOfMemory,
    PermissionDenied,
    QuotaExceeded,
    QuotaReserved,
    RequestTooLarge,
    RouteNotFound,
    UnilectError,
    UnsupportedEncoding,
    UnsupportedOperation,
)
from unilect.runtime.context import (
    CURRENT_REQUEST,
    Context,
    Requests,
    current_request,
    explain_cancellation,
)
from unilect.runtime.logs import escape
from unilect.web._access_log import AccessLog, RequestLine
from unilect.web.aiohttp_internals import set_body
from unilect.web.bodies import Bodies
from unilect.web.failure import describe_failure
from unilect.web.pages import HEADERS as PAGE_HEADERS
from unilect.web.pages import sign_in, wants_html
from unilect.web.profile import OPENAI, CompatProfile
from unilect.web.route import BODY, ErrorForm, Handler, Route, detail_error, openai_error
from unilect.web.streaming import HEADERS, SHORTENED

log = logging.getLogger("unilect")
_HAS_PORT = re.compile(r":\d*$")
_STAINLESS = (
    "Arch Helper Helper-Method Lang OS Package-Version Retry-Count Runtime Runtime-Version Timeout"
)
_SDK_HEADERS = (  # what the official JavaScript clients send from a browser
    *("anthropic-beta", "anthropic-dangerous-direct-browser-access", "anthropic-version"),
    *(f"X-Stainless-{name}" for name in _STAINLESS.split()),
)
#: What pages of allowed origins may read of an answer.
_EXPOSED = (
    *("X-Request-Id", "request-id", "X-Unilect-Ignored", "X-Unilect-Fallback", "X-Unilect-Attempts", "X-Unilect-Loaded-In", "X-Unilect-Rejoined"),
    *("X-Unilect-Queue-Position", "X-Unilect-Queue-Wait-S"),
    *("Retry-After", *(f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset"))),
)  # fmt: skip
_SIGN_IN = {**PAGE_HEADERS, "WWW-Authenticate": 'Basic realm="unilect", charset="UTF-8"'}
_NO_HEADERS: dict[str, str] = {}
_WILDCARDS = ("0.0.0.0", "::", "")
MAX_NAMED = 100  # characters of a host or an origin that an error names
_METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
#: A second try would do the same work again, in vain; the official clients make two of every 5xx and 429 unless they are told.
_FINAL = (
    *(AuthenticationError, PermissionDenied),
    *(UnsupportedOperation, OutOfMemory, QuotaExceeded, RequestTooLarge, ModelTooLarge),
)
#: Dialects whose clients look for `detail` in errors.
_DETAILED = frozenset({"chatglm", "fastchat"})
_SOON = (429, 503, 529)  # some clients give up where these say no time
_RETRY_AFTER_S = 1  # where nobody knows better
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
#: Addresses, and names that nobody can have on the internet, so that no stranger's page comes from there.
_NO_DOMAIN = re.compile(
    r"[^.]*|[0-9.]+|\[[^\]]*\]|.+\.(?:local|localhost|internal|lan|home\.arpa)", re.DOTALL
)


class Guard:
    """
    The middleware of one server.

    Args:
        config: Its keys, hosts and origins.
        routes: Our routes, by aiohttp's.
        profile: The listener's.
        bodies: What reads and bounds request bodies, for all listeners.
        look_again: Looks for models that have come meanwhile, where a request's is not known; false where there are none to come.
        requests: Where the requests that are being answered are listed, for all listeners.
        keys: Who may send requests; who has one of `config` by default.
        refuse: Counts a request that is refused before a backend is asked, by its caller and the code of the error.
        failures: Keeps the requests that failed; None where they are logged only.
        tracing: Traces the requests to dialects; None where nothing is traced.
        admin: It is that of the admin API.

    Attributes:
        requests: As given.
        log: The access log.
    """

    def __init__(
        self,
        config: Config,
        routes: Mapping[web.AbstractRoute, Route],
        profile: CompatProfile = OPENAI,
        bodies: Bodies | None = None,
        look_again: Callable[[], Awaitable[bool]] | None = None,
        requests: Requests | None = None,
        keys: Keys | None = None,
        refuse: Callable[[str, str], None] = lambda caller, code: None,
        tracing: Tracing | None = None,
        admin: bool = False,
        failures: Failures | None = None,
    ) -> None:
        self._admin = admin
        self.requests: Requests = {} if requests is None else requests
        self._routes = routes
        self._look_again = look_again
        self._bodies = bodies or Bodies(config.max_body_bytes, config.max_total_body_bytes)
        self._profile = profile
        self._keys = keys or Keys(config.api_keys, profile.any_key_scheme)
        self.change(config)
        self._ids = itertools.count(1)
        self._tracing = tracing
        self._refuse, self._failures = refuse, failures
        self._random = random.Random()  # seeded once: the system is not asked for each request

    def change(self, config: Config) -> None:
        """Go by the hosts, the origins and the log level of another configuration from now on."""
        self._hosts, self._is_open = _host_names(config), config.host in _WILDCARDS
        self._origins = frozenset(config.allowed_origins)
        self._cors = _cors_headers(config)
        self.log = AccessLog()  # the level may have changed

    @web.middleware
    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through to its route, or answer with the error that it meets."""
        route = self._routes.get(request.match_info.route, _NO_ROUTE)
        request_id = f"req_{self._random.getrandbits(48):012x}_{next(self._ids):x}"
        context = Context(
            request_id=request_id,
            address=getattr(request.protocol, "address", ""),
            endpoint=route.endpoint,
            dialect=route.dialect,
            task=asyncio.current_task(),
        )
        self.requests[request_id] = context
        CURRENT_REQUEST.set(context)
        if self._tracing is not None and route.dialect:
            self._tracing.begin(context, request.headers, f"{route.method} {route.path}")
        response: web.StreamResponse | None = None
        cors = request[HEADERS] = _NO_HEADERS
        try:
            if (origin := request.headers.get("Origin")) is not None:
                cors = request[HEADERS] = self._cors_for(origin, request)
            if (
                self._hosts is not None
                and _host_name(request.headers.get("Host", "")) not in self._hosts
            ):
                self._check_host(request, route)
            if cors and request.method == "OPTIONS":
                response = web.Response(status=204)
            else:
                response = await self._answer(request, handler, route, context)
            if cors and not response.prepared:  # a stream has sent its head already, with these
                response.headers.update(cors)
        except UnilectError as error:
            context.fails(error)
            response = self._error(request, route, error)
        finally:
            self._finish(context, request, route, 499 if response is None else response.status)
        return response

    def _finish(self, context: Context, request: web.Request, route: Route, status: int) -> None:
        """Close a request that has been answered, or has ended otherwise."""
        if context.body is not None:
            context.body.release()
        if not context.held:
            del self.requests[context.request_id]
            context.task = None  # the task holds the context: without this, each request would be left to the garbage collector
        if self._tracing is not None and context.trace is not None:
            self._tracing.end(context, request.method, request.path, status, **_of_http(request))
        if route.admin and route.method == "GET" and (status < 400 or status == 499):
            return  # who looks on changes nothing, may do so every second, and leaves at any time
        failure = None
        if status >= 400 or context.failure is not None:
            failure = describe_failure(context, request, status)
            if self._failures is not None:
                self._failures.add(failure)
        if self.log.on:
            admin, path = self._admin, request.path
            self.log.add(RequestLine.of(context, request.method, path, status, admin, failure))

    async def _answer(
        self, request: web.Request, handler: Handler, route: Route, context: Context
    ) -> web.StreamResponse:
        """
        Return the route's answer, to who may have it.

        Raises:
            UnilectError: Whatever else it raised, translated.
        """
        try:
            if not route.public:
                keys = route.keys or self._keys
                # to look, and no more, a browser may send the key as a password
                as_password = route.page and route.method == "GET"
                who = await keys.caller(request.headers, as_password)
                context.caller, context.models, context.owner, context.limits = who
            if request.can_read_body or route.streamed_bytes is not None:
                await self._read(request, context, route.streamed_bytes)
            try:
                return await handler(request)
            except ModelNotFound:  # before anything was begun
                if BODY in request or self._look_again is None or not await self._look_again():
                    raise
                return await handler(request)
        except UnilectError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            raise _translate(request, error) from error

    async def _read(
        self, request: web.Request, context: Context, streamed_bytes: int | None
    ) -> None:
        """
        Read the body, in time; the route finds it read. One that is to be streamed the route reads itself.

        Raises:
            UnsupportedEncoding: It is compressed: what it unpacks to could be anything.
            UnilectError: As `Bodies.read`.
        """
        if request.headers.get("Content-Encoding", "").strip().lower() not in ("", "identity"):
            raise UnsupportedEncoding(
                "Compressed request bodies are not supported. Send the body without Content-Encoding."
            )
        more, announced = request.content.readany, request.content_length
        if streamed_bytes is not None:
            request[BODY] = self._bodies.chunks(more, announced, streamed_bytes)
            return
        if request.content.is_eof():  # all of it came with the head, as nearly always
            body = request.content.read_nowait()
            if len(body) > self._bodies.most_bytes:
                raise self._bodies.too_large()
            if len(body) > SMALL_BYTES:
                lease = context.body = self._bodies.lease(context.caller)
                lease.grow(len(body))
        else:
            lease = context.body = self._bodies.lease(context.caller)
            body = await self._bodies.read(more, announced, lease)
        set_body(request, body)
        if len(body) > LARGE_BYTES:
            request[SHORTENED] = await check_body(body)

    def _check_host(self, request: web.Request, route: Route) -> None:
        """
        Refuse a page whose name resolves to this machine, by a Host header that none of our names is.

        Probes of load balancers have no Host header in HTTP/1.0; a page always has one.

        Raises:
            MisdirectedRequest: The Host header names another host.
        """
        if self._is_open and self._keys.required:
            return
        if route.public and request.version < HttpVersion11 and "Host" not in request.headers:
            return
        host = _host_name(request.headers.get("Host", ""))
        if not (self._is_open and _NO_DOMAIN.fullmatch(host)):
            named = _log_refusal("host", host or "(none)")
            raise MisdirectedRequest(
                f"This server does not accept the host {named} of the request's Host header. Add it to "
                "`allowed_hosts` to allow it.",
            )

    def _cors_for(self, origin: str, request: web.Request) -> dict[str, str]:
        """
        Return the CORS headers of the response to a page; none for a page of this server.

        Raises:
            PermissionDenied: A page of another origin calls, which none may unless it is configured.
        """
        if "*" in self._origins or origin in self._origins:
            return {"Access-Control-Allow-Origin": origin, **self._cors}
        if origin.partition("://")[2] == request.headers.get("Host"):
            return _NO_HEADERS
        raise PermissionDenied(
            f"CORS: the origin {_log_refusal('origin', origin)} is not allowed. Add it to `allowed_origins` to allow it."
        )

    def _error(self, request: web.Request, route: Route, error: UnilectError) -> web.Response:
        if current_request().leased_at is None:
            self._refuse(current_request().caller, type(error).code or "error")
        asks = route.page and isinstance(error, AuthenticationError)
        if asks and wants_html(request.headers.get("Accept", "")):
            return web.Response(status=401, body=sign_in().encode(), headers=_SIGN_IN)
        status, request_id = error.status, current_request().request_id
        if isinstance(error, AuthenticationError) and error.wrong:
            status = self._profile.wrong_key_status
        elif self._profile.error_status is not None and status != 401:
            status = self._profile.error_status
        form = self._form(request, route)
        if form is openai_error and (self._profile.error_detail or route.dialect in _DETAILED):
            form = detail_error
        response = form(error.for_client(request_id), status)
        if not route.path:  # what a form says instead is said of its own routes
            response.set_status(status)
        response.headers["X-Request-Id"] = request_id
        if response.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        is_final = isinstance(error, _FINAL) and not isinstance(error, QuotaReserved)
        if is_final:
            response.headers["x-should-retry"] = "false"
        after_s = error.retry_after_s
        if after_s is None and response.status in _SOON and not is_final:
            after_s = _RETRY_AFTER_S
        if after_s is not None:
            response.headers["Retry-After"] = str(math.ceil(after_s))
        response.headers.update(current_request().headers)
        response.headers.update(request.get(HEADERS, _NO_HEADERS))
        return response

    def _form(self, request: web.Request, route: Route) -> ErrorForm:
        """
        Return the form of a request's errors: of the dialect whose clients send such a header, else of the route.

        Where there is no route, it is that of the route whose path this one is, or lies below.
        """
        every, path = self._routes.values(), request.path
        others = (other for one in every for other in one.others)
        if (by := next((one for one in others if one.needs_header in request.headers), None)) is not None:  # fmt: skip
            return by.error
        if route.path:
            return route.error
        above = [route for route in every if f"{path}/".startswith(f"{route.path}/")]
        return max(above, key=lambda route: len(route.path), default=_NO_ROUTE).error


def _of_http(request: web.Request) -> dict[str, str | int]:
    """Collect the attributes of a span for an HTTP request, beside those of its line of the log."""
    resource = request.match_info.route.resource
    known: dict[str, str | int] = {"url.scheme": request.scheme}
    if resource is not None:
        known["http.route"] = resource.canonical
    if isinstance(address := request.get_extra_info("sockname"), tuple):  # else a unix socket
        known["server.address"], known["server.port"] = address[:2]
    return known


async def _nothing(request: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound


#: Where a request goes that no route takes.
_NO_ROUTE = Route("", "", _nothing)


def _translate(request: web.Request, error: BaseException) -> BaseException:
    """Convert an exception of a route that is no error of ours into one, or into a cancellation where the client has left."""
    if isinstance(error, asyncio.CancelledError):
        told = explain_cancellation(error)
        return asyncio.CancelledError() if told is error else told
    if isinstance(error, web.HTTPException):
        return _refusal(request, error)
    if isinstance(error, web.RequestPayloadError):
        return asyncio.CancelledError()  # the client left while it sent
    if isinstance(error, ConnectionError) and (
        request.transport is None or request.transport.is_closing()
    ):
        return asyncio.CancelledError()  # while it read, or the connection was closed here
    request_id = current_request().request_id
    log.exception("%s failed", request_id)
    if request.writer.output_size and request.transport is not None:
        request.transport.abort()  # a second head in a begun answer would be taken for its text
        return asyncio.CancelledError()
    return InternalError(
        f"The server failed on this request ({request_id}); this is a bug in unilect. Report it, with the log."
    )


def _refusal(request: web.Request, error: web.HTTPException) -> UnilectError:
    """Convert an error of aiohttp into one of ours."""
    path = request.path[:100]
    if isinstance(error, web.HTTPNotFound):
        return RouteNotFound(f"There is no {request.method} {path} here; see GET /docs.")
    if isinstance(error, web.HTTPMethodNotAllowed):
        methods = ", ".join(sorted(error.allowed_methods))
        context = current_request()
        context.headers = {**context.headers, "Allow": methods}
        return MethodNotAllowed(f"{path} does not support {request.method[:20]}; use {methods}.")
    return InvalidRequest(f"The request was refused: {error.reason}.")


def _log_refusal(what: str, text: str) -> str:
    """Return a host or an origin that is not accepted, logged, as an answer may tell it."""
    named = f"`{escape(text[:MAX_NAMED])}`"
    log.info("%s: the %s %s is not allowed", current_request().request_id, what, named)
    return named


def _cors_headers(config: Config) -> dict[str, str]:
    """Make the CORS headers for pages of allowed origins, without the origin itself, which is the request's."""
    names = ("Authorization", "Content-Type", "X-API-Key", "api-key", *_SDK_HEADERS)
    headers = {
        "Access-Control-Allow-Methods": ", ".join(config.allowed_methods or _METHODS),
        "Access-Control-Allow-Headers": ", ".join([*names, *config.allowed_headers]),
        "Access-Control-Expose-Headers": ", ".join(_EXPOSED),
        "Access-Control-Max-Age": "600",
        "Vary": "Origin",
    }
    if config.allow_credentials:
        headers["Access-Control-Allow-Credentials"] = "true"
    return headers


@lru_cache(64)
def _host_name(host: str) -> str:
    """Return the name in a Host header, without the port."""
    return (host.rpartition(":")[0] if _HAS_PORT.search(host) else host).lower()


def _host_names(config: Config) -> frozenset[str] | None:
    """Return the names that a Host header may have; None for any."""
    if "*" in config.allowed_hosts:
        return None
    own = socket.gethostname() if config.host in _WILDCARDS else config.host
    names = {own.lower(), *map(_host_name, config.allowed_hosts)}
    if ":" in config.host:
        names.add(f"[{config.host.lower()}]")
    return frozenset(names | _LOOPBACK_NAMES if is_loopback(config.host) else names)
