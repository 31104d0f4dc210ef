"""Tests of unilect.web.aiohttp_internals: aiohttp has what it uses; whole answers and streams on a socket, in every version of HTTP."""

import ast
import asyncio
import inspect
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import StreamReader, __version__, web
from aiohttp.http_writer import StreamWriter
from aiohttp.web_urldispatcher import UrlMappingMatchInfo

from unilect.web import aiohttp_internals
from unilect.web.aiohttp_internals import ChunkedResponse, FullResponse

TEXT = b"Hello!" * 40_000
pytestmark = pytest.mark.asyncio(loop_scope="module")


#: What is used of aiohttp that its documentation does not promise.
USED = {
    web.RequestHandler: ["_messages", "_current_request", "_waiter", "_request_count"],
    web.Request: ["_read_bytes", "writer"],
    web.Response: [
        *("_body", "_payload_writer", "_eof_sent", "_req", "_body_length", "_chunked"),
        *("_headers", "_keep_alive", "_must_be_empty_body"),
    ],
    StreamWriter: [
        *("write_headers", "send_headers", "write_eof", "enable_chunking", "length", "output_size"),
    ],
    StreamReader: ["total_bytes", "readany", "read_nowait", "is_eof"],
    UrlMappingMatchInfo: ["add_app", "freeze"],
    web.Server: ["request_handler"],
}


def names_of(kind: type) -> set[str]:
    """The attributes of the objects of a class, also those that its methods set first."""
    trees = [
        ast.parse(inspect.getsource(one).lstrip())
        for one in kind.__mro__[:-1]
        if "aiohttp" in one.__module__
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {*dir(kind), *(node.attr for node in nodes if isinstance(node, ast.Attribute))}


@pytest.mark.parametrize("kind", USED, ids=lambda kind: kind.__name__)
async def test_aiohttp_has_what_is_used_of_it(kind: type) -> None:
    """Every attribute of aiohttp that nobody has promised is still there."""
    missing = set(USED[kind]) - names_of(kind)
    assert not missing, (
        f"aiohttp {__version__} has no {kind.__name__}.{', '.join(sorted(missing))} any more: "
        "change web/aiohttp_internals.py and whoever uses it, then the bound in pyproject.toml"
    )


async def test_every_private_attribute_is_named() -> None:
    """No private attribute of aiohttp is used that the test above does not look for."""
    tree = ast.parse(inspect.getsource(aiohttp_internals))
    own = {"_is_ours"}
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    private = {name for name in used if name.startswith("_") and not name.endswith("__")}

    assert {name for names in USED.values() for name in names if name[0] == "_"} == private - own


async def whole(request: web.Request) -> web.StreamResponse:
    """An answer of one piece."""
    return FullResponse(body=TEXT)


async def stream(request: web.Request) -> web.StreamResponse:
    """The same in pieces."""
    response = ChunkedResponse()
    await response.prepare(request)
    for at in range(0, len(TEXT), 6000):
        await response.write(TEXT[at : at + 6000])
    return response


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port() -> AsyncIterator[int]:
    """The port of a server with both."""
    app = web.Application()
    app.router.add_get("/whole", whole)
    app.router.add_get("/stream", stream)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


def unchunked(body: bytes) -> bytes:
    """The text of a chunked body."""
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found, body = found + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return found


@pytest.mark.parametrize("path", ["/whole", "/stream"])
@pytest.mark.parametrize(
    ("version", "connection"),
    [
        ("1.1", "keep-alive"),
        ("1.1", "close"),
        ("1.0", "close"),
        ("1.0", "keep-alive"),
        ("2.0", "close"),
    ],
)
async def test_versions(
    port: int, path: str, version: str, connection: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An answer arrives whole, and its end is known, whatever version of HTTP a client names; nothing of it is a flaw in the log."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    for _ in range(2 if (version, connection) == ("1.1", "keep-alive") else 1):
        head = f"GET {path} HTTP/{version}\r\nHost: a\r\nConnection: {connection}\r\n\r\n"
        writer.write(head.encode())
        head_told = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 OK" in head_told.partition(b"\r\n")[0]
        if b"Content-Length: " in head_told:
            assert str(len(TEXT)).encode() in head_told
            found = await reader.readexactly(len(TEXT))
        elif b"chunked" in head_told:
            found = unchunked(await reader.readuntil(b"\r\n0\r\n\r\n"))
            assert "1.0" != version
        else:
            found = await reader.read()
        assert TEXT == found
    writer.close()
    assert [] == [one for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.parametrize("path", ["/whole", "/stream"])
async def test_only_the_head(port: int, path: str) -> None:
    """Who asks for the head alone gets no body, and the connection goes on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    for _ in range(2):
        writer.write(f"HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()
