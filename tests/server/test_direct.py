"""Tests of unilect.server._direct: the short way to a route against aiohttp's own, through a real server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import ClassVar

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Service
from unilect.config.server import Config
from unilect.models import sources
from unilect.models.registry import Registry
from unilect.server import listener
from unilect.server._direct import Direct
from unilect.server.app import GUARD, all_routes, create_app
from unilect.web.guard import Guard
from unilect.web.route import Handler
from unilect.web.site import Site

ROUTES = all_routes(Site(Service(Registry([]), Accounts(Metrics()))))
CHAT = b'{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2, "temperature": 0}'


class Noting(Direct):
    """The same, which notes the paths of the requests that take aiohttp's way."""

    searched: ClassVar[list[str]] = []

    def __init__(self, app: web.Application, guard: Guard, search: Handler) -> None:
        def noted(request: web.Request) -> Awaitable[web.StreamResponse]:
            self.searched.append(request.raw_path)
            return search(request)

        super().__init__(app, guard, noted)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port() -> AsyncIterator[int]:
    """The port of a server with the bundled model."""
    config = Config(port=0)
    registry = sources.registry(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "Direct", Noting)
        served = listener.Listener(config, registry)
        (url,) = await served.listen()
    yield int(url.rpartition(":")[2])
    await served.aclose()
    await registry.aclose()


async def told(port: int, head: str, body: bytes = b"") -> tuple[int, bytes]:
    """The status of what a server answers to a request, and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = f"{head}\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(lines.encode() + body)
    answer = await reader.read()
    writer.close()
    if answer.startswith(b"HTTP/1.1 100 "):
        answer = answer.partition(b"\r\n\r\n")[2]
    begin, _, rest = answer.partition(b"\r\n\r\n")
    return int(begin.split()[1]), rest


async def test_the_same_routes() -> None:
    """Every path without a part that varies leads to the route that aiohttp's search finds, with each method that it has."""
    app = create_app(Config(), Registry([]))
    direct = Direct(app, app[GUARD], lambda request: pytest.fail("it was not found"))
    names = {(route.method, route.path) for route in ROUTES if "{" not in route.path}
    names |= {("HEAD", path) for method, path in names if method == "GET"}
    assert names <= direct._known.keys()
    for (method, path), (found, handler) in direct._known.items():
        searched = await app.router.resolve(make_mocked_request(method, path, app=app))
        assert searched.route is found.route
        assert searched.handler is handler
        assert {} == dict(found)
        assert (app,) == found.apps


@pytest.mark.asyncio(loop_scope="module")
async def test_a_path_letter_for_letter(port: int) -> None:
    """A request that names its route goes there at once; its answer is that of one that aiohttp finds the route of."""
    Noting.searched.clear()
    answers = [
        await told(port, f"{method} {path} HTTP/1.1", body)
        for method, path, body in [
            ("GET", "/v1/models", b""),
            ("HEAD", "/healthz", b""),
            ("GET", "/healthz", b""),
            ("POST", "/v1/chat/completions/", CHAT),
            ("POST", "/v1/chat/completions", CHAT),
        ]
    ]
    assert [200] * 5 == [status for status, _ in answers]
    assert (b"", b"ok\n") == (answers[1][1], answers[2][1])
    assert [] == Noting.searched


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        ("GET /v1/models?x=1 HTTP/1.1", b"", 200),
        ("GET /v1/%6dodels HTTP/1.1", b"", 200),
        ("GET http://127.0.0.1/healthz HTTP/1.1", b"", 200),
        ("GET /v1/models/demo HTTP/1.1", b"", 200),
        ("GET /v1/nothing HTTP/1.1", b"", 404),
        ("GET /v1//models HTTP/1.1", b"", 404),
        ("GET /V1/models HTTP/1.1", b"", 404),
        ("DELETE /v1/models HTTP/1.1", b"", 405),
        ("PUT /v1/chat/completions HTTP/1.1", CHAT, 405),
        ("POST /v1/chat/completions HTTP/1.1\r\nExpect: 100-continue", CHAT, 200),
        ("POST /v1/chat/completions HTTP/1.1\r\nexpect: 200-ok", CHAT, 417),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_any_other(port: int, head: str, body: bytes, status: int) -> None:
    """A request that spells its path otherwise, wants something first, or has no route takes aiohttp's way."""
    Noting.searched.clear()
    found, _ = await told(port, head, body)
    assert status == found
    assert [head.split()[1]] == Noting.searched
