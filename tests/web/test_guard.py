"""Tests of unilect.web.guard: what is refused before a route, and what becomes of errors."""

import asyncio
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout, web

from unilect.config.server import Config
from unilect.core.bounds import SMALL_BYTES
from unilect.core.errors import (
    AuthenticationError,
    BackendError,
    BackendUnavailable,
    InvalidRequest,
    OutOfMemory,
    PermissionDenied,
    QuotaExceeded,
    RateLimited,
    UnilectError,
    UnsupportedOperation,
)
from unilect.web.bodies import Bodies
from unilect.web.guard import Guard
from unilect.web.profile import profile_of
from unilect.web.route import BODY, Route

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPEN: dict[str, Any] = {"host": "0.0.0.0", "api_keys": [], "insecure_no_auth": True}
BEARER = {"Authorization": "Bearer sk-test"}


async def hello(request: web.Request) -> web.StreamResponse:
    """Answer with the length of the body."""
    return web.json_response({"length": len(await request.read())})


class Served:
    """A server with a guard, and a client of it."""

    def __init__(self, guard: Guard, port: int, session: ClientSession) -> None:
        self.guard = guard
        self.port = port
        self._session = session

    async def ask(
        self, method: str = "GET", path: str = "/x", **options: Any
    ) -> tuple[int, Mapping[str, str], Any]:
        """The status, the headers and the body of an answer."""
        url = f"http://127.0.0.1:{self.port}{path}"
        async with self._session.request(method, url, **options) as response:
            body = await response.json() if response.content_length else None
            return response.status, response.headers, body

    async def code(self, method: str = "GET", path: str = "/x", **options: Any) -> tuple[int, Any]:
        """The status of an answer, and the code of its error."""
        status, _, body = await self.ask(method, path, **options)
        return status, body["error"]["code"] if body and "error" in body else None


@asynccontextmanager
async def served(
    handler: Handler = hello,
    bodies: Bodies | None = None,
    own: Sequence[Route] = (),
    **config: Any,
) -> AsyncIterator[Served]:
    """A server with a guard on a free port, and routes of a test's own; `/free` needs no key, `/x` does."""
    settings = Config(**{"api_keys": ["sk-test"]} | config)
    routes: dict[web.AbstractRoute, Route] = {}
    guard = Guard(settings, routes, profile_of(settings), bodies)
    app = web.Application(middlewares=[guard.handle], client_max_size=settings.max_body_bytes)
    ours = [
        Route(method, path, handler, public=path == "/free")
        for path in ("/x", "/free", "/x/{name}")
        for method in ("GET", "POST")
    ]
    for route in [*ours, *own]:
        routes[app.router.add_route(route.method, route.path, route.handler)] = route
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, auto_decompress=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with ClientSession(timeout=ClientTimeout(10), auto_decompress=False) as session:
            yield Served(guard, runner.addresses[0][1], session)
    finally:
        await runner.cleanup()


# Keys


async def test_a_key() -> None:
    """A route needs a key, and answers with one."""
    async with served() as server:
        assert await server.code() == (401, "invalid_api_key")
        assert await server.code(headers={"Authorization": "Bearer x"}) == (401, "invalid_api_key")
        assert await server.code(headers=BEARER) == (200, None)


async def test_a_wrong_key_of_llama_cpp() -> None:
    """In llama.cpp's dialect a wrong key is 403, a missing one 401, and any word may stand before it."""
    async with served(dialect="llamacpp") as server:
        assert await server.code() == (401, "invalid_api_key")
        assert await server.code(headers={"Authorization": "Bearer x"}) == (403, "invalid_api_key")
        assert await server.code(headers={"Authorization": "sk-test"}) == (401, "invalid_api_key")
        assert await server.code(headers={"Authorization": "Foo sk-test"}) == (200, None)


async def test_a_public_route() -> None:
    """A public route needs no key, and ignores a wrong one."""
    async with served() as server:
        assert await server.code(path="/free") == (200, None)
        assert await server.code(path="/free", headers={"api-key": "x"}) == (200, None)


@pytest.mark.parametrize(
    "path", ["/free/", "//free", "/free/../x", "/FREE", "/%66ree/x", "/nothing", "/", "/x/free"]
)
async def test_no_spelling_makes_a_route_public(path: str) -> None:
    """However a path is spelled, only the public route itself needs no key."""
    async with served() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()

    assert line.startswith(b"HTTP/1.1 401 ")


async def test_an_unknown_route() -> None:
    """An unknown route is told to callers with a key only, as is a wrong method."""
    async with served() as server:
        assert await server.code(path="/nothing") == (401, "invalid_api_key")
        assert await server.code(path="/nothing", headers=BEARER) == (404, "unknown_url")
        assert await server.code("DELETE", headers=BEARER) == (405, "method_not_allowed")


async def test_a_401_says_how() -> None:
    """A 401 names the scheme."""
    async with served() as server:
        _, headers, _ = await server.ask()

    assert headers["WWW-Authenticate"] == "Bearer"


# Hosts and origins


@pytest.mark.parametrize(
    ("host", "config", "expected"),
    [
        ("localhost", {}, 200),
        ("127.0.0.1:9", {}, 200),
        ("LOCALHOST:9", {}, 200),
        ("[::1]:9", {}, 200),
        ("evil.example", {}, 421),
        ("evil.example:80", {}, 421),
        ("localhost.evil.example", {}, 421),
        ("localhost:80@evil.example", {}, 421),
        ("", {}, 421),
        ("my.host", {"allowed_hosts": ["My.Host"]}, 200),
        ("my.host:9", {"allowed_hosts": ["my.host:8443"]}, 200),
        ("[fe80::1]", {"allowed_hosts": ["[fe80::1]:8443"]}, 200),
        ("evil.example:8443", {"allowed_hosts": ["my.host:8443"]}, 421),
        ("evil.example", {"allowed_hosts": ["my.host"]}, 421),
        ("evil.example", {"allowed_hosts": ["*"]}, 200),
        ("evil.example", {"host": "0.0.0.0"}, 200),
        *(
            (host, OPEN, 421)
            for host in (
                "evil.example",
                "evil.example:80",
                "1.example",
                "x.local.example",
                "evil.lan.",
            )
        ),
        *(
            (host, OPEN, 200)
            for host in (
                "10.0.0.1:80",
                "[fe80::1]",
                "[::1]:80",
                "localhost",
                "gpu",
                "gpu.local",
                "Gpu.Lan:80",
                "",
            )
        ),
        (socket.gethostname(), OPEN, 200),
        ("a.example", OPEN | {"allowed_hosts": ["A.example"]}, 200),
        ("a.example", OPEN | {"allowed_hosts": ["*"]}, 200),
        ("evil.example", OPEN | {"host": "::"}, 421),
        ("evil.example", {"host": "10.0.0.1"}, 421),
        ("10.0.0.1", {"host": "10.0.0.1"}, 200),
        ("localhost", {"host": "10.0.0.1"}, 421),
        ("[::1]", {"host": "::1"}, 200),
    ],
)
async def test_hosts(host: str, config: dict[str, Any], expected: int) -> None:
    """A server answers for the hosts that it listens on and those it was told; one that is open to all, for what is no domain."""
    async with served(**config) as server:
        status, _ = await server.code(path="/free", headers={"Host": host})

    assert expected == status


@pytest.mark.parametrize(
    ("path", "version", "expected"),
    [("/free", "1.0", 200), ("/free", "1.1", 400), ("/x", "1.0", 421)],
)
async def test_no_host(path: str, version: str, expected: int) -> None:
    """A probe of HTTP/1.0 needs no Host header, since no page sends a request without one; other requests do."""
    async with served(api_keys=[]) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET {path} HTTP/{version}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readline()
        writer.close()

    assert str(expected).encode() == head.split()[1]


async def test_methods() -> None:
    """A method that a path has not is refused with those that it has."""
    async with served() as server:
        status, headers, _ = await server.ask("DELETE", headers=BEARER)

    assert (405, "GET, POST") == (status, headers["Allow"])


@pytest.mark.parametrize(
    ("origin", "allowed", "expected"),
    [
        ("https://evil.example", [], 403),
        ("null", [], 403),
        ("https://my.page", ["https://my.page"], 200),
        ("https://my.page.evil", ["https://my.page"], 403),
        ("http://my.page", ["https://my.page"], 403),
        ("https://any.page", ["*"], 200),
        ("http://localhost", [], 200),
    ],
)
async def test_origins(origin: str, allowed: list[str], expected: int) -> None:
    """Pages of foreign origins may call only where that is configured, and are told so."""
    async with served(allowed_origins=allowed) as server:
        status, headers, _ = await server.ask(
            headers=BEARER | {"Origin": origin, "Host": "localhost"}
        )

    assert expected == status
    told = headers.get("Access-Control-Allow-Origin")
    assert told == (origin if allowed and expected == 200 else None)
    assert "Access-Control-Allow-Credentials" not in headers


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (b"Host: Evil.example:8000", "evil.example"),
        (b"Host: ", "(none)"),
        (b"Host: <b>\xc2\x85\xe2\x80\xae" + b"x" * 3000, "<b>\\x85\\u202e" + "x" * 95),
        (b"Host: localhost\r\nOrigin: https://evil.example:8000", "https://evil.example:8000"),
        (b"Host: localhost\r\nOrigin: \x9b" + b"x" * 3000, "\\udc9b" + "x" * 99),
    ],
)
async def test_what_was_refused_is_named(
    header: bytes, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused host, without its port, and a refused origin are named in the error and in the log, cut and in one line."""
    caplog.set_level(logging.INFO)
    async with served() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /free HTTP/1.1\r\n%b\r\nConnection: close\r\n\r\n" % header)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()

    error = json.loads(body)["error"]
    assert (head[9:12], error["code"]) in [
        (b"421", "misdirected_request"),
        (b"403", "permission_denied"),
    ]
    assert f"`{named}`" in error["message"]
    (line,) = [text for text in caplog.messages if "is not allowed" in text and "CORS" not in text]
    assert line.endswith(f" `{named}` is not allowed")


async def test_preflight() -> None:
    """A browser's question needs no key, and is answered only for allowed origins."""
    async with served(allowed_origins=["https://my.page"]) as server:
        status, headers, _ = await server.ask("OPTIONS", headers={"Origin": "https://my.page"})
        assert (204, "https://my.page") == (status, headers["Access-Control-Allow-Origin"])
        assert "Authorization" in headers["Access-Control-Allow-Headers"]
        status, headers, _ = await server.ask("OPTIONS", headers={"Origin": "https://evil"})
        assert (403, False) == (status, "Access-Control-Allow-Origin" in headers)
        assert await server.code("OPTIONS") == (401, "invalid_api_key")


async def test_what_a_page_may_send() -> None:
    """Methods, headers and credentials of pages are those of the configuration."""
    page = {"Origin": "https://my.page"}
    config = {"allowed_origins": ["https://my.page"]}
    more = {"allow_credentials": True, "allowed_headers": ["X-Team"], "allowed_methods": ["POST"]}
    async with served(**config) as plain, served(**config | more) as own:
        _, before, _ = await plain.ask("OPTIONS", headers=page)
        _, after, _ = await own.ask("OPTIONS", headers=page)

    assert "Access-Control-Allow-Credentials" not in before
    assert "GET, HEAD, POST, DELETE, OPTIONS" == before["Access-Control-Allow-Methods"]
    assert "X-Stainless-Helper-Method" in before["Access-Control-Allow-Headers"]
    assert "true" == after["Access-Control-Allow-Credentials"]
    assert "POST" == after["Access-Control-Allow-Methods"]
    assert f"{before['Access-Control-Allow-Headers']}, X-Team" == after["Access-Control-Allow-Headers"]  # fmt: skip


async def test_errors_are_readable_across_origins() -> None:
    """An allowed page can read an error too."""
    async with served(allowed_origins=["https://my.page"]) as server:
        status, headers, _ = await server.ask(headers={"Origin": "https://my.page"})

    assert (401, "https://my.page") == (status, headers["Access-Control-Allow-Origin"])


# Bodies


async def test_a_body() -> None:
    """A body is there for the route, whole or in chunks."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"ab"

    async with served() as server:
        for data in (b"abcdef", pieces()):
            _, _, body = await server.ask("POST", headers=BEARER, data=data)
            assert body == {"length": 6}


@pytest.mark.parametrize("chunks", [False, True])
async def test_a_large_body(chunks: bool) -> None:
    """A body over the limit is refused, whether it tells its length or not."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 1024

    async with served(max_body_bytes=1024) as server:
        data = pieces() if chunks else b"x" * 3072
        assert await server.code("POST", headers=BEARER, data=data) == (413, "request_too_large")
        assert await server.code("POST", headers=BEARER, data=b"x" * 1000) == (200, None)


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip", "x"])
async def test_a_compressed_body(coding: str) -> None:
    """A body in any Content-Encoding is refused unread."""
    async with served() as server:
        headers = BEARER | {"Content-Encoding": coding}
        expected = (415, "unsupported_content_encoding")
        assert expected == await server.code("POST", headers=headers, data=b"x")


@pytest.mark.parametrize("coding", ["identity", "Identity ", ""])
async def test_a_body_that_is_not_compressed(coding: str) -> None:
    """The coding `identity` is none, as is an empty one."""
    async with served() as server:
        headers = BEARER | {"Content-Encoding": coding}
        assert (200, None) == await server.code("POST", headers=headers, data=b"x")


async def test_a_slow_body() -> None:
    """A body that does not come is given up."""
    async with served(bodies=Bodies(1024, timeout_s=0.05)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = (
            "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nX-API-Key: sk-test\r\n\r\n"
        )
        writer.write(head.encode() + b"ab")
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()

    assert line.startswith(b"HTTP/1.1 408 ")


async def test_a_body_is_not_read_without_a_key() -> None:
    """Who has no key is refused before the body is read."""
    async with served() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n")
        async with asyncio.timeout(60):
            line = await reader.readline()
        writer.close()
        await writer.wait_closed()

    assert line.startswith(b"HTTP/1.1 401 ")


# Bodies that are streamed


async def count(request: web.Request) -> web.StreamResponse:
    """Answer with the length of the body, and of its longest piece."""
    sizes = [len(piece) async for piece in request[BODY]]
    return web.json_response({"length": sum(sizes), "longest": max(sizes, default=0)})


async def piecewise(pieces: int) -> AsyncIterator[bytes]:
    """A body of so many times 64 kB."""
    for _ in range(pieces):
        yield b"x" * SMALL_BYTES


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_streamed_body(chunked: bool) -> None:
    """A route that streams its bodies reads more than a body in memory may have, piece by piece, up to its own limit."""
    most = 8
    own = [Route("POST", "/file", count, streamed_bytes=most * SMALL_BYTES)]
    async with served(own=own, max_body_bytes=SMALL_BYTES) as server:

        async def send(pieces: int) -> tuple[int, Any]:
            data = piecewise(pieces) if chunked else b"x" * (pieces * SMALL_BYTES)
            status, _, body = await server.ask("POST", "/file", headers=BEARER, data=data)
            return status, body

        status, body = await send(most)
        assert (200, most * SMALL_BYTES) == (status, body["length"])
        assert 2 * body["longest"] <= body["length"]
        status, _, body = await server.ask("POST", "/file", headers=BEARER)
        assert (200, 0) == (status, body["length"])
        status, body = await send(most + 1)
        assert 413 == status
        assert f"larger than {most * SMALL_BYTES} bytes. Send less." in body["message"]
        assert (413, "request_too_large") == await server.code(
            "POST", headers=BEARER, data=b"x" * (SMALL_BYTES + 1)
        )


@pytest.mark.parametrize("sent", [2, 3 * SMALL_BYTES])
async def test_a_streamed_body_that_stops(sent: int) -> None:
    """A streamed body of which no more comes is given up, at its beginning and later."""
    own = [Route("POST", "/file", count, streamed_bytes=2**30)]
    bodies = Bodies(1024, timeout_s=0.01, pace_s=0.01)
    async with served(own=own, bodies=bodies) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = "POST /file HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\nX-API-Key: sk-test\r\n\r\n"
        writer.write(head.encode() + b"x" * sent)
        async with asyncio.timeout(60):
            line = await reader.readline()
        writer.close()
        await writer.wait_closed()

    assert line.startswith(b"HTTP/1.1 408 ")


async def test_a_streamed_body_waits_for_its_reader() -> None:
    """Time in which the handler of a streamed body does not read counts for nobody."""
    read = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        body = request[BODY]
        first = await anext(body)
        await asyncio.sleep(0.05)
        read.set()
        return web.json_response({"length": len(first) + sum([len(one) async for one in body])})

    own = [Route("POST", "/file", slow, streamed_bytes=2**30)]
    async with served(own=own, bodies=Bodies(1024, timeout_s=60, pace_s=0.02)) as server:
        data = b"x" * (16 * SMALL_BYTES)
        status, _, body = await server.ask("POST", "/file", headers=BEARER, data=data)

    assert (200, 16 * SMALL_BYTES) == (status, body["length"])


# Errors


def theirs(error: UnilectError, status: int) -> web.Response:
    """An error as Anthropic's API has it."""
    kind = "overloaded_error" if status == 503 else error.code
    body = {"type": "error", "error": {"type": kind, "message": error.message}}
    return web.json_response(body, status=529 if status == 503 else status)


async def fail(request: web.Request) -> web.StreamResponse:
    """Fail as the body says."""
    match await request.read():
        case b"limit":
            raise RateLimited("Slow.", retry_after_s=2)
        case b"busy":
            raise BackendUnavailable("Busy.")
        case b"flaw":
            raise RuntimeError("flaw")
    return web.json_response({})


@pytest.mark.parametrize(
    ("method", "path", "asked", "expected"),
    [
        ("POST", "/v1/messages", {"headers": {}}, (401, "invalid_api_key")),
        ("POST", "/v1/messages", {"headers": BEARER | {"Origin": "http://x"}}, (403, "permission_denied")),
        ("POST", "/v1/messages", {"data": b"x" * 2000}, (413, "request_too_large")),
        ("POST", "/v1/messages", {"data": b"limit"}, (429, "rate_limit_exceeded")),
        ("POST", "/v1/messages", {"data": b"flaw"}, (500, "internal_error")),
        ("POST", "/v1/messages", {"data": b"busy"}, (529, "overloaded_error")),
        ("GET", "/v1/messages", {}, (405, "method_not_allowed")),
        ("POST", "/v1/messages/batches", {}, (404, "unknown_url")),
    ],
)  # fmt: skip
async def test_errors_in_a_dialects_own_form(
    method: str, path: str, asked: dict[str, Any], expected: tuple[int, str]
) -> None:
    """The guard's errors and the handler's have the form of their route, also where only the path is known to be its own."""
    own = [Route("POST", "/v1/messages", fail, error=theirs)]
    async with served(own=own, max_body_bytes=1024) as server:
        status, headers, body = await server.ask(method, path, **{"headers": BEARER} | asked)

    assert expected == (status, body["error"]["type"])
    assert {"type", "error"} == body.keys()
    assert headers["X-Request-Id"].startswith("req_")
    assert {429: "2", 529: "1"}.get(status) == headers.get("Retry-After")
    assert ("Bearer" if status == 401 else None) == headers.get("WWW-Authenticate")


@pytest.mark.parametrize("path", ["/x/y/z", "/v1/messagesx", "/v1"])
async def test_errors_beside_a_dialects_routes(path: str) -> None:
    """A path that merely resembles a dialect's route gets OpenAI's form."""
    own = [Route("POST", "/v1/messages", fail, error=theirs)]
    async with served(own=own) as server:
        assert (404, "unknown_url") == await server.code(path=path, headers=BEARER)


def raising(error: BaseException) -> Handler:
    """A handler that raises."""

    async def handler(request: web.Request) -> web.StreamResponse:
        raise error

    return handler


async def test_our_errors() -> None:
    """An error of ours has its status, the envelope, the request's id and its Retry-After."""
    async with served(raising(RateLimited("Slow.", retry_after_s=1.2))) as server:
        status, headers, body = await server.ask(headers=BEARER)

    assert (429, "2", "application/json") == (
        status,
        headers["Retry-After"],
        headers["Content-Type"],
    )
    assert RateLimited("Slow.").envelope() == body
    assert headers["X-Request-Id"].startswith("req_")


@pytest.mark.parametrize(
    ("error", "after", "again"),
    [
        (RateLimited("Slow."), "1", None),
        (BackendUnavailable("Busy."), "1", None),
        (BackendUnavailable("Busy.", retry_after_s=6.5), "7", None),
        (BackendError("Broken."), None, None),
        (AuthenticationError("Who?"), None, "false"),
        (PermissionDenied("No."), None, "false"),
        (QuotaExceeded("Spent."), None, "false"),
        (QuotaExceeded("Spent.", retry_after_s=60), "60", "false"),
        (UnsupportedOperation("No."), None, "false"),
        (OutOfMemory("Full."), None, "false"),
    ],
)
async def test_when_to_try_again(error: UnilectError, after: str | None, again: str | None) -> None:
    """What may succeed soon says when, and what a second try would not change says so."""
    async with served(raising(error)) as server:
        _, headers, _ = await server.ask(headers=BEARER)

    assert (after, again) == (headers.get("Retry-After"), headers.get("x-should-retry"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidRequest("x"), 400),
        (UnilectError("x"), 500),
        (web.HTTPNotFound(), 404),
        (web.HTTPBadRequest(), 400),
        (web.HTTPForbidden(), 400),
    ],
)
async def test_errors_of_the_framework(error: Exception, expected: int) -> None:
    """Every error leaves in the envelope."""
    async with served(raising(error)) as server:
        status, _, body = await server.ask(headers=BEARER)

    assert expected == status
    assert {"message", "type", "param", "code"} == set(body["error"])


@pytest.mark.parametrize("error", [ValueError("SECRET"), RecursionError("SECRET"), KeyError(1)])
async def test_flaws_of_ours(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """A flaw of ours is a 500 with the request's id, its traceback only in the log."""
    async with served(raising(error)) as server:
        status, headers, body = await server.ask(headers=BEARER)

    assert (500, "internal_error") == (status, body["error"]["code"])
    assert "SECRET" not in str(body)
    assert headers["X-Request-Id"] in body["error"]["message"]
    assert [logging.ERROR] == [record.levelno for record in caplog.records]


async def test_a_connection_error_that_is_not_the_clients(caplog: pytest.LogCaptureFixture) -> None:
    """A ConnectionError of a handler whose client is still there is a flaw of ours, with its traceback in the log."""
    async with served(raising(ConnectionResetError("of something else"))) as server:
        status, _, body = await server.ask(headers=BEARER)

    assert (500, "internal_error") == (status, body["error"]["code"])
    assert ["of something else"] == [str(r.exc_info[1]) for r in caplog.records if r.exc_info]


async def test_a_flaw_in_a_begun_answer(caplog: pytest.LogCaptureFixture) -> None:
    """A flaw after the first bytes of an answer ends the connection, and writes no second head into the answer."""
    seen = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begun")
        await seen.wait()  # a reset makes the reader forget what it has not told yet
        raise ValueError("SECRET")

    async with served(handler) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /x HTTP/1.1\r\nHost: localhost\r\nX-API-Key: sk-test\r\n\r\n")
        async with asyncio.timeout(60):
            told = await reader.readuntil(b"begun")
            seen.set()
            with suppress(ConnectionError):
                told += await reader.read()
        writer.close()

    assert 1 == told.count(b"HTTP/1.1")
    assert not told.endswith(b"0\r\n\r\n")
    assert [logging.ERROR] == [record.levelno for record in caplog.records]


async def test_requests_in_progress() -> None:
    """A request counts as active until its answer is done, and not after it."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        begun.set()
        await go_on.wait()
        return web.json_response({})

    async with served(handler) as server:
        assert not server.guard.requests
        task = asyncio.create_task(server.code(headers=BEARER))
        await begun.wait()
        assert len(server.guard.requests) == 1
        go_on.set()
        await task
        assert not server.guard.requests


async def test_a_client_that_leaves() -> None:
    """A handler is cancelled when its client leaves, and counts no more."""
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        begun.set()
        try:
            return await asyncio.Future()
        finally:
            cancelled.set()

    async with served(handler) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /x HTTP/1.1\r\nHost: localhost\r\nX-API-Key: sk-test\r\n\r\n")
        await begun.wait()
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(60):
            await cancelled.wait()
        assert not server.guard.requests


async def test_the_log_line() -> None:
    """A request's log line has its id, path, status and caller, no text and no control character."""
    async with served() as server:
        lines: list[str] = []
        server.guard.log.on = True
        server.guard.log.add = lambda line: lines.append(line.text())  # type: ignore[method-assign]
        await server.ask(
            "POST", "/x/a%0ab%1b", headers=BEARER, data=b"SECRET", params={"q": "SECRET"}
        )
        await server.code(headers={"api-key": "WRONG"})

    assert re.match(r"req_\w+ POST '/x/a\\nb\\x1b' 200 [\d.]+ ms key-", lines[0])
    assert lines[1].endswith(
        ' ms - error=invalid_api_key reason="Incorrect API key provided: this server does not know it. Copy it again, or ask the operator for another one."'
    )
    assert all(line.isprintable() for line in lines)
    assert "SECRET" not in str(lines)
    assert "WRONG" not in str(lines)


async def test_request_ids_are_unique() -> None:
    """Every request has an id of its own."""
    async with served() as server:
        ids = {(await server.ask())[1]["X-Request-Id"] for _ in range(10)}

    assert len(ids) == 10


# Bodies


async def test_a_body_of_too_many_values() -> None:
    """A body of too many values is refused before a route decodes it, and a long text of commas is not."""
    async with served() as server:
        many = await server.ask("POST", "/x", headers=BEARER, data=b"[" + b"{}," * 300_000 + b"1]")
        text = await server.ask("POST", "/x", headers=BEARER, data=b'"' + b"{}," * 300_000 + b'"')

    assert (400, True) == (many[0], "more than 120000 texts" in many[2]["error"]["message"])
    assert (200, {"length": 900_002}) == (text[0], text[2])
