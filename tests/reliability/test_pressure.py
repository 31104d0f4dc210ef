"""Many at once: fifty streams at SIGTERM, a hundred clients that do not read, an upstream whose line does not end."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil
import pytest

from support.servers.serving import Server, serve

STREAMS = 50
SILENT = 100
TIMEOUT_S = 60.0
#: Of the answer of each client that does not read; it is made as fast as it is read.
ANSWER_BYTES = 8 * 10**6
FRAME_BYTES = 200  # about
GROWTH_BYTES = 64 * 2**20
LINE_BYTES = 64 * 10**6
PACED = """
[models.m]
source = "echo:"
options = { tokens_per_s = 20 }
"""
FAST = """
[models.m]
source = "echo:"
"""


@pytest.mark.heavy
def test_streams_at_sigterm() -> None:
    """Fifty streams that run when SIGTERM comes are whole, and the server exits with 0."""
    text = " ".join(["word"] * 20)
    ends: list[bytes] = []
    with serve(config=PACED) as server, ExitStack() as stack:
        streams = [stack.enter_context(asked(server, text)) for _ in range(STREAMS)]
        for one in streams:
            assert one.recv(1) == b"H"  # its head has come, and it runs
        os.kill(server.pid, signal.SIGTERM)
        readers = [threading.Thread(target=lambda one=one: ends.append(rest(one))) for one in streams]  # fmt: skip
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(TIMEOUT_S)

    assert STREAMS == len(ends)
    assert STREAMS == sum(b"[DONE]" in end and b'"finish_reason":"stop"' in end for end in ends)


@pytest.mark.heavy
def test_clients_that_do_not_read() -> None:
    """A hundred clients that ask for 8 MB each and read nothing cost the server little memory, and others are answered."""
    with serve(config=FAST) as server, ExitStack() as stack:
        process = psutil.Process(server.pid)
        for _ in range(3):  # what is made once
            with asked(server, "a " * 1000) as one:
                rest(one)
        before = process.memory_info().rss
        text = "word " * (ANSWER_BYTES // FRAME_BYTES)  # each word is a frame of its own
        for _ in range(SILENT):
            stack.enter_context(asked(server, text))
        grown = settled(process) - before
        with asked(server, "hello") as one:
            assert b"[DONE]" in rest(one)

    print(f"memory grew by {grown / 2**20:.0f} MiB")
    assert grown <= GROWTH_BYTES


def test_a_line_without_an_end() -> None:
    """A line of 64 MB of an upstream ends its own answer with an error, costs no memory, and keeps nobody waiting for long."""
    with endless() as port:
        config = f'[models.far]\nsource = "http://127.0.0.1:{port}/v1"\nmodel = "x"\n' + FAST
        with serve(config=config) as server:
            process = psutil.Process(server.pid)
            before, slowest_s = process.memory_info().rss, 0.0
            found: list[bytes] = []
            reader = threading.Thread(target=lambda: found.append(said(server, "far")))
            reader.start()
            while reader.is_alive():
                begun_s = time.monotonic()
                assert b"[DONE]" in said(server, "m")
                slowest_s = max(slowest_s, time.monotonic() - begun_s)
            grown = process.memory_info().rss - before

    print(f"memory grew by {grown / 2**20:.0f} MiB, and the slowest other answer took {slowest_s * 1000:.0f} ms")  # fmt: skip
    assert b"error" in found[0]
    assert b"[DONE]" not in found[0]
    assert grown <= GROWTH_BYTES


def said(server: Server, model: str) -> bytes:
    """All of a short stream."""
    with asked(server, "hello", model) as one:
        return rest(one)


def asked(server: Server, text: str, model: str = "m") -> socket.socket:
    """A connection on which a stream was asked for."""
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": text}]})  # fmt: skip
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
    sock.sendall(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    return sock


def rest(sock: socket.socket) -> bytes:
    """All that comes."""
    found = []
    with suppress(ConnectionError):
        while read := sock.recv(65536):
            found.append(read)
    return b"".join(found)


def settled(process: psutil.Process) -> int:
    """The memory of a process once it has not grown for a second."""
    most, since = 0, time.monotonic()
    while time.monotonic() - since < 1.0:
        now = process.memory_info().rss
        if now > most:
            most, since = now, time.monotonic()
        time.sleep(0.05)
    return most


@contextmanager
def endless() -> Iterator[int]:
    """The port of a server that begins each stream with a line that does not end."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            head = connection.recv(65536)
            if head.startswith(b"GET"):
                body = b'{"object":"list","data":[{"id":"x","object":"model"}]}'
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))  # fmt: skip
                return
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: ")  # fmt: skip
            for _ in range(LINE_BYTES // 65536):
                connection.sendall(b"a" * 65536)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.close()
