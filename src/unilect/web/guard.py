"""
The guard before every route, known or not: checks Host, Origin and API key, and converts errors to responses.

1. It reads headers only, never a rebuilt URL, and compares the matched route's own path (a client cannot spell it).
2. Every error leaves in the one envelope of errors.py: ours, aiohttp's, and our flaws.
3. One line a request in the log, with control characters escaped (`repr`); never its text.
"""

import asyncio
import itertools
import logging
import math
import random
import re
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache

import msgspec
from aiohttp import web

from unilect.bounds import LARGE_BYTES, check_body
from unilect.config.server import Config, is_loopback
from unilect.context import IN_HAND, Record
from unilect.errors import (
    AuthenticationError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    MisdirectedRequest,
    ModelNotFound,
    PermissionDenied,
    RouteNotFound,
    UnilectError,
    UnsupportedEncoding,
)
from unilect.gateway.keys import Keys
from unilect.web._access_log import AccessLog, answered
from unilect.web._foreign_urls import hint
from unilect.web.bodies import Bodies
from unilect.web.pages import HEADERS, sign_in, wants_html
from unilect.web.profile import OPENAI, CompatProfile
from unilect.web.route import Handler
from unilect.web.streaming import CORS_HEADERS, REQUEST_ID, SHORTENED

log = logging.getLogger("unilect")
_HAS_PORT = re.compile(r":\d*$")
_SDK_HEADERS = (  # what the official JavaScript client sends from a browser
    "X-Stainless-Arch",
    "X-Stainless-Lang",
    "X-Stainless-OS",
    "X-Stainless-Package-Version",
    "X-Stainless-Retry-Count",
    "X-Stainless-Runtime",
    "X-Stainless-Runtime-Version",
    "X-Stainless-Timeout",
)
_SIGN_IN = {**HEADERS, "WWW-Authenticate": 'Basic realm="unilect", charset="UTF-8"'}
_NO_HEADERS: dict[str, str] = {}
_WILDCARDS = ("0.0.0.0", "::", "")
_METHODS = ("GET", "POST", "OPTIONS")
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
        public: Paths of the routes that need no key.
        profile: The listener's.
        bodies: What reads request bodies, for all listeners.
        look_again: Looks for models that have come meanwhile, where a request's is not known; false where there are none to come.

    Attributes:
        active: Requests that are being answered.
        log: The access log.
        pages: Paths of the pages for people: there a browser asks for the key, and sends it as a password (RFC 7617).
    """

    def __init__(
        self,
        config: Config,
        public: Collection[str],
        profile: CompatProfile = OPENAI,
        bodies: Bodies | None = None,
        look_again: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.active = 0
        self._look_again = look_again
        self._bodies = bodies or Bodies(config.max_body_bytes)
        self.pages: Collection[str] = ()
        self.log = AccessLog()
        self._profile = profile
        self._keys = Keys(config.api_keys, profile.any_key_scheme)
        self._needs_key = bool(self._keys)
        self._public = frozenset(public)
        self._hosts, self._is_open = _host_names(config), config.host in _WILDCARDS
        self._origins = frozenset(config.allowed_origins)
        self._cors = _cors_headers(config)
        self._ids = itertools.count(1)
        self._random = random.Random()  # seeded once: the system is not asked for each request

    @web.middleware
    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through to its route, or answer with the error that it meets."""
        start = time.perf_counter()
        request_id = f"req_{self._random.getrandbits(48):012x}_{next(self._ids):x}"
        request[REQUEST_ID] = request_id
        caller, status = "-", 499
        record = Record(request_id)
        IN_HAND.set(record)
        self.active += 1
        try:
            allowed = self._check_origin(request)
            request[CORS_HEADERS] = self._cors_for(request) if allowed else _NO_HEADERS
            self._check_host(request)
            if request.method == "OPTIONS" and allowed:
                status = 204
                return web.Response(status=204, headers=self._cors_for(request))
            path = _canonical(request)
            if path not in self._public:
                as_password = path in self.pages and _only_reads(request)
                caller = self._keys.caller(request.headers, as_password)
                record.caller = caller if self._needs_key else ""
            response = await self._answer(request, handler)
            status = response.status
            if allowed and not response.prepared:  # a stream has sent its head already, with these
                response.headers.update(request[CORS_HEADERS])
            return response
        except UnilectError as error:
            response = self._error(request, error)
            status = response.status
            return response
        finally:
            self.active -= 1
            if self.log.on:
                self.log.add(
                    f"{request_id} {request.method} {request.path[:200]!r} {status} "
                    f"{(time.perf_counter() - start) * 1000:.1f} ms {caller}{answered(record)}"
                )

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """
        The route's answer.

        Raises:
            UnilectError: Whatever else it raised, translated.
        """
        try:
            if request.can_read_body:
                body = await self._read(request)
                if len(body) > LARGE_BYTES:
                    request[SHORTENED] = await check_body(body)
            try:
                return await handler(request)
            except ModelNotFound:  # before anything was begun
                if self._look_again is None or not await self._look_again():
                    raise
                return await handler(request)
        except UnilectError:
            raise
        except web.HTTPException as error:
            raise _refusal(request, error) from error
        except web.RequestPayloadError as error:
            raise asyncio.CancelledError from error  # the client left while it sent
        except Exception as error:
            if isinstance(error, ConnectionError) and _has_left(request):
                raise asyncio.CancelledError from error  # while it read
            log.exception("%s failed", request[REQUEST_ID])
            if request.writer.output_size and request.transport is not None:
                request.transport.abort()  # a second head in a begun answer would be taken for its text
                raise asyncio.CancelledError from error
            raise InternalError(
                f"The server failed on this request ({request[REQUEST_ID]}); this is a bug in unilect."
            ) from error

    async def _read(self, request: web.Request) -> bytes:
        """
        Read the body, in time; the route finds it read.

        Raises:
            UnsupportedEncoding: It is compressed: what it unpacks to could be anything.
            UnilectError: As `Bodies.read`.
        """
        if "Content-Encoding" in request.headers:
            raise UnsupportedEncoding(
                "Compressed request bodies are not supported. Send the body without Content-Encoding."
            )
        if request.content.is_eof():  # all of it came with the head, as nearly always
            try:
                return await request.read()
            except web.HTTPRequestEntityTooLarge as error:
                raise self._bodies.too_large() from error
        body = await self._bodies.read(request.content.readany, request.content_length)
        request._read_bytes = body  # what `request.read` returns from now on
        return body

    def _check_host(self, request: web.Request) -> None:
        """
        A page whose name resolves to this machine must not reach it with that name.

        Raises:
            MisdirectedRequest: The Host header names another host.
        """
        if self._hosts is None:
            return
        host = _host_name(request.headers.get("Host", ""))
        if host not in self._hosts and not (self._is_open and _NO_DOMAIN.fullmatch(host)):
            raise MisdirectedRequest(
                "This server does not accept the host of the request's Host header. Add it to "
                "`allowed_hosts` to allow it.",
            )

    def _check_origin(self, request: web.Request) -> bool:
        """
        Whether the answer gets CORS headers.

        Raises:
            PermissionDenied: A page of another origin calls, which none may unless it is configured.
        """
        origin = request.headers.get("Origin")
        if origin is None:
            return False
        if "*" in self._origins or origin in self._origins:
            return True
        if origin.partition("://")[2] == request.headers.get("Host"):
            return False
        raise PermissionDenied(
            "CORS: this origin is not allowed. Add it to `allowed_origins` to allow it."
        )

    def _error(self, request: web.Request, error: UnilectError) -> web.Response:
        is_page = _canonical(request) in self.pages and _only_reads(request)
        asks = is_page and isinstance(error, AuthenticationError)
        if asks and wants_html(request.headers.get("Accept", "")):
            return web.Response(status=401, body=sign_in().encode(), headers=_SIGN_IN)
        headers = {"Content-Type": "application/json", "X-Request-Id": request[REQUEST_ID]}
        status = error.status
        if isinstance(error, AuthenticationError) and error.wrong:
            status = self._profile.wrong_key_status
        elif self._profile.error_status is not None and status != 401:
            status = self._profile.error_status
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if error.retry_after_s is not None:
            headers["Retry-After"] = str(math.ceil(error.retry_after_s))
        headers |= request.get(CORS_HEADERS, _NO_HEADERS)
        body = msgspec.json.encode(error.for_client(request[REQUEST_ID]).envelope())
        return web.Response(status=status, body=body, headers=headers)

    def _cors_for(self, request: web.Request) -> dict[str, str]:
        return {"Access-Control-Allow-Origin": request.headers.get("Origin", ""), **self._cors}


def _refusal(request: web.Request, error: web.HTTPException) -> UnilectError:
    """What aiohttp refused, as an error of ours."""
    path = request.path[:100]
    if isinstance(error, web.HTTPNotFound):
        return RouteNotFound(
            f"There is no {request.method} {path} here; see GET /docs.{hint(request.path)}"
        )
    if isinstance(error, web.HTTPMethodNotAllowed):
        methods = ", ".join(sorted(error.allowed_methods))
        return MethodNotAllowed(f"{path} does not support {request.method[:20]}; use {methods}.")
    return InvalidRequest(f"The request was refused: {error.reason}.")


def _has_left(request: web.BaseRequest) -> bool:
    """Whether the client has closed its connection, or was let go."""
    return request.transport is None or request.transport.is_closing()


def _canonical(request: web.Request) -> str | None:
    """The path of the route that a request goes to, as the route was added; None where there is none."""
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical


def _only_reads(request: web.Request) -> bool:
    """Whether a password will do in place of a key: a browser sends it whoever made it ask, so only where nothing changes."""
    return request.method in ("GET", "HEAD")


def _cors_headers(config: Config) -> dict[str, str]:
    """What pages of allowed origins are told; the origin itself is the request's."""
    names = ("Authorization", "Content-Type", "X-API-Key", "api-key", *_SDK_HEADERS)
    headers = {
        "Access-Control-Allow-Methods": ", ".join(config.allowed_methods or _METHODS),
        "Access-Control-Allow-Headers": ", ".join([*names, *config.allowed_headers]),
        "Access-Control-Expose-Headers": "X-Request-Id, X-Unilect-Ignored, X-Unilect-Fallback",
        "Access-Control-Max-Age": "600",
        "Vary": "Origin",
    }
    if config.allow_credentials:
        headers["Access-Control-Allow-Credentials"] = "true"
    return headers


@lru_cache(64)
def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    return (host.rpartition(":")[0] if _HAS_PORT.search(host) else host).lower()


def _host_names(config: Config) -> frozenset[str] | None:
    """The names that a Host header may have; None for any: where every machine may call, and has to have a key."""
    open_with_keys = config.host in _WILDCARDS and config.api_keys
    if "*" in config.allowed_hosts or open_with_keys:
        return None
    own = socket.gethostname() if config.host in _WILDCARDS else config.host
    names = {own.lower(), *(host.lower() for host in config.allowed_hosts)}
    if ":" in config.host:
        names.add(f"[{config.host.lower()}]")
    return frozenset(names | _LOOPBACK_NAMES if is_loopback(config.host) else names)
