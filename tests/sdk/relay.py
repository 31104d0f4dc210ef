"""
What stands between a program and the world, for tests of what the program does on the wire: a relay to a server, and a closed door.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from aiohttp import ClientSession, ClientTimeout, web

from support.backends.loopback import served

_OF_ONE_HOP = ("connection", "transfer-encoding", "content-length", "host")


@dataclass
class Asked:
    """
    One request that went through a relay.

    Attributes:
        ignored: What `X-Unilect-Ignored` of the answer names.
        told: The bytes of the answer, as far as they have come.
    """

    method: str
    path: str
    body: bytes
    status: int = 0
    ignored: tuple[str, ...] = ()
    told: bytearray = field(default_factory=bytearray)

    def json(self) -> Any:
        """The request's body, decoded."""
        return msgspec.json.decode(self.body)


@contextmanager
def relay(to: str) -> Iterator[tuple[str, list[Asked]]]:
    """
    Pass on whatever is asked, byte for byte, while the block runs.

    Args:
        to: The URL of a server, without a path.

    Yields:
        The URL to ask instead, and all that was asked so far.
    """
    seen: list[Asked] = []

    async def pass_on(request: web.Request) -> web.StreamResponse:
        asked = Asked(request.method, request.path_qs, await request.read())
        seen.append(asked)
        headers = {
            name: v for name, v in request.headers.items() if name.lower() not in _OF_ONE_HOP
        }
        async with (
            ClientSession(timeout=ClientTimeout(total=None), auto_decompress=False) as session,
            session.request(
                request.method, to + request.path_qs, data=asked.body, headers=headers
            ) as answer,
        ):
            asked.status = answer.status
            asked.ignored = tuple(answer.headers.get("X-Unilect-Ignored", "").split(", "))
            back = web.StreamResponse(status=answer.status)
            back.headers.extend(
                {name: v for name, v in answer.headers.items() if name.lower() not in _OF_ONE_HOP}
            )
            await back.prepare(request)
            async for piece in answer.content.iter_any():
                asked.told += piece
                await back.write(piece)
            await back.write_eof()
        return back

    with served(web.route("*", "/{path:.*}", pass_on)) as port:
        yield f"http://127.0.0.1:{port}", seen


@contextmanager
def closed_door() -> Iterator[tuple[str, list[str]]]:
    """
    A proxy that lets nobody through, while the block runs.

    Yields:
        Its URL, and where it was asked to go.
    """
    wanted: list[str] = []

    class Refusing(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            line = self.rfile.readline(4096).decode("latin-1").split(" ")
            wanted.append(" ".join(line[:2]))
            self.wfile.write(
                b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", wanted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
