"""What reaches a server before any request is one: floods without an end, upgrades, paths, halves of connections, clients by the hundred."""

import json
import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from watch import loop_s

from support.servers.serving import KEY, Server, serve

CONFIG = f"""
api_keys = ["{KEY}"]
log_format = "json"
max_body_bytes = 1048576
[models.m]
source = "echo:"
"""
#: On demand 200 MB of each.
FLOOD_BYTES = int(os.environ.get("UNILECT_TEST_FLOOD", "24")) * 10**6
ACCEPTED_BYTES = 20 * 10**6  # with what lies in the buffers of both sockets
GROWTH_BYTES = 24 * 2**20
MANY = 1000 if "UNILECT_TEST_FLOOD" in os.environ else 200
TIMEOUT_S = 30.0
MOST_WORK_S = 0.1
HEAD = f"Host: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
POST = f"POST /v1/chat/completions HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\n"
PIECE = b"a" * 65536
#: What a flood begins with, and what it goes on with.
FLOODS = {
    "a method": (b"", PIECE),
    "a path": (b"GET /", PIECE),
    "a query": (b"GET /v1/models?", PIECE),
    "a header's name": (b"GET / HTTP/1.1\r\n", PIECE),
    "a header's value": (b"GET / HTTP/1.1\r\nX-A: ", PIECE),
    "headers": (b"GET / HTTP/1.1\r\n", b"X-A: 1\r\n" * 8192),
    "line breaks": (b"", b"\r\n" * 32768),
    "a chunk's extension": (f"{POST}Transfer-Encoding: chunked\r\n\r\n1;".encode(), PIECE),
    "trailers": (f"{POST}Transfer-Encoding: chunked\r\n\r\n0\r\n".encode(), b"X-A: 1\r\n" * 8192),
    "a trailer": (f"{POST}Transfer-Encoding: chunked\r\n\r\n0\r\nX-A: ".encode(), PIECE),
    "a body": (f"{POST}Transfer-Encoding: chunked\r\n\r\n".encode(), b"10000\r\n" + PIECE + b"\r\n"),
}  # fmt: skip
_PATIENCE_S = 5.0  # with a server that reads no more


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of an echo, with a key."""
    with serve(config=CONFIG) as running:
        yield running


@pytest.mark.parametrize("kind", FLOODS)
def test_floods(server: Server, kind: str) -> None:
    """What never ends is refused by its size, costs little memory, and others are answered meanwhile."""
    begin, more = FLOODS[kind]
    process = psutil.Process(server.pid)
    answered(server)
    before, sent = process.memory_info().rss, 0
    with connected(server) as flood:
        with suppress(ConnectionError, TimeoutError):
            flood.sendall(begin)
            flood.settimeout(_PATIENCE_S)
            while sent < FLOOD_BYTES:
                flood.sendall(more)
                sent += len(more)
        answered(server)
    grown = process.memory_info().rss - before

    print(f"{kind}: {sent / 1e6:.1f} MB were taken, and memory grew by {grown / 2**20:.1f} MiB")
    assert sent <= ACCEPTED_BYTES
    assert grown <= GROWTH_BYTES


@pytest.mark.heavy
def test_bodies_byte_by_byte(server: Server) -> None:
    """Four bodies in chunks of one byte keep the event loop from nobody for longer than a tenth of a second of the processor."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 50_000}]})
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body.encode())
    slowest_s = busiest_s = 0.0
    with connected(server) as a, connected(server) as b, connected(server) as c, connected(server) as d:  # fmt: skip
        four = (a, b, c, d)
        for one in four:
            one.sendall(f"{POST}Transfer-Encoding: chunked\r\n\r\n".encode())
        for at in range(0, len(chunks), 8192):
            begun_s, busy_s = time.monotonic(), loop_s(server.pid)
            for one in four:
                one.sendall(chunks[at : at + 8192])
            answered(server)
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
            busiest_s = max(busiest_s, loop_s(server.pid) - busy_s)
        for one in four:
            one.sendall(b"0\r\n\r\n")
            assert b"HTTP/1.1 200" == one.recv(12)

    print(
        f"the slowest /healthz took {slowest_s * 1000:.0f} ms, in which the loop worked {busiest_s * 1000:.0f} ms at most"
    )
    assert busiest_s < MOST_WORK_S


def test_upgrades(server: Server) -> None:
    """Upgrades to a protocol that is not spoken, with bytes that no name may have, are refused or ignored, and the process stays."""
    for _ in range(MANY):
        said = exchanged(server, f"GET /healthz HTTP/1.1\r\n{HEAD}Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: ".encode() + b"\x80\xff\r\n\r\n")  # fmt: skip
        assert said.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400")), said[:200]
    answered(server)


_UPWARDS = ["..", "%2e%2e", "%2e.", "..%2f", "..%5c", "..\\", "%252e%252e", "..;", "....//", "%c0%ae%c0%ae", "%00", "%2e%2e%2f"]  # fmt: skip
_ROOTS = ["/", "/docs/", "/static/", "/assets/", "/v1/models/", "//", "/v1/responses/", "/healthz/"]
_FILES = ["etc/passwd", "proc/self/environ"]


def test_paths_that_lead_out(server: Server) -> None:
    """192 paths that lead out of a folder find no file."""
    paths = [f"{root}{up}/{up}/{up}/{file}" for root in _ROOTS for up in _UPWARDS for file in _FILES]  # fmt: skip
    assert 192 == len(paths)
    for path in paths:
        said = exchanged(server, f"GET {path} HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n".encode())
        assert re.match(rb"HTTP/1\.1 4\d\d ", said), (path, said[:200])
        assert b"root:" not in said
        assert b"PATH=" not in said


def test_a_range_of_thousands(server: Server) -> None:
    """A page is sent whole whatever parts of it are asked for: 5,000 parts are no more work."""
    parts = ",".join(f"{n}-{n}" for n in range(1200))
    said = exchanged(server, f"GET /docs HTTP/1.1\r\n{HEAD}Accept: text/html\r\nRange: bytes={parts}\r\nConnection: close\r\n\r\n".encode())  # fmt: skip

    assert said.startswith(b"HTTP/1.1 200")
    assert b"multipart/byteranges" not in said


def test_a_half_closed_connection(server: Server) -> None:
    """A client that says that it will send nothing more has left: its answer ends, and the server goes on."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello there"}]})
    with connected(server) as client:
        client.sendall(f"{POST}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        client.shutdown(socket.SHUT_WR)
        client.settimeout(TIMEOUT_S)
        said = b""
        with suppress(ConnectionError):
            while read := client.recv(65536):
                said += read

    assert said == b"" or said.startswith(b"HTTP/1.1 200")
    answered(server)


@pytest.mark.heavy
def test_a_flood_of_disconnects(server: Server) -> None:
    """Clients that break off in the middle cause one line of the log each, and each line can be read."""
    before = len(settled(server.log))
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "word " * 2000}]})  # fmt: skip
    for _ in range(MANY):
        with connected(server) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(f"{POST}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            client.recv(1)
    answered(server)
    answered(server)
    lines = settled(server.log)[before:]

    assert len(lines) <= MANY + 2
    assert all(isinstance(json.loads(line), dict) for line in lines)


def settled(log: Path) -> list[str]:
    """The lines of a log once no more are added for a second."""
    size, since = -1, time.monotonic()
    while time.monotonic() - since < 1.0:
        if log.stat().st_size != size:
            size, since = log.stat().st_size, time.monotonic()
        time.sleep(0.05)
    return log.read_text().splitlines()


def connected(server: Server) -> socket.socket:
    """A connection to the server."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)


def exchanged(server: Server, data: bytes) -> bytes:
    """What is answered to bytes, up to the connection's end."""
    with connected(server) as client:
        client.sendall(data)
        said = b""
        with suppress(ConnectionError):
            while read := client.recv(65536):
                said += read
    return said


def answered(server: Server) -> None:
    """Another client is answered."""
    said = exchanged(server, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")  # fmt: skip
    assert said.startswith(b"HTTP/1.1 200"), said[:200]
