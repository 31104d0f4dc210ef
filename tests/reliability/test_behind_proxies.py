"""A server behind nginx and behind HAProxy: requests that two servers could read in two ways are the same requests to both."""

import asyncio
import json
import os
import random
import re
from collections.abc import Iterator

import pytest
from test_hand_made import BODY, CHUNKED, CHUNKS, GET, LENGTH, POST, PROBES, SECOND
from test_http_edge import settled

from support.servers.proxies import KINDS, Proxy, proxy
from support.servers.serving import KEY, Server, serve

CONFIG = f"""
api_keys = ["{KEY}"]
log_format = "json"
log_level = "debug"
[models.m]
source = "echo:"
"""
AT_ONCE = 64
_MORE = ("nginx, unbuffered", "haproxy")  # of which the others show the same
#: On demand 5,000 of each.
MUTATIONS = int(os.environ.get("UNILECT_FUZZ", "300"))
TIMEOUT_S = 60.0
#: Bodies that hold a request, behind lines that each side may read in its own way.
_FRAMED = [
    f"{POST}{LENGTH}{CHUNKED}\r\n0\r\n\r\n{SECOND}",
    f"{POST}{CHUNKED}{LENGTH}\r\n{CHUNKS}{SECOND}",
    f"{POST}Content-Length: {len(SECOND)}\r\n\r\n{SECOND}",
    f"{POST}{CHUNKED}\r\n{len(SECOND):x}\r\n{SECOND}\r\n0\r\n\r\n{SECOND}",
    f"{GET}Content-Length: {len(SECOND)}\r\n\r\n{SECOND}{SECOND}",
    f"{GET}{CHUNKED}\r\n0\r\n\r\n{SECOND}",
    f"{POST}Transfer-Encoding: identity\r\n{LENGTH}\r\n{BODY}{SECOND}",
    f"{POST}Transfer_Encoding: chunked\r\n{LENGTH}\r\n{BODY}{SECOND}",
    f"{POST}{CHUNKED}\r\n{len(BODY):x};a={SECOND.splitlines()[0]}\r\n{BODY}\r\n0\r\nX: 1\r\n\r\n{SECOND}",
    f"{POST}Expect: 100-continue\r\n{LENGTH}\r\n{BODY}{SECOND}",
    f"{GET}Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n{SECOND}",
    f"GET /a HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: {SECOND}",
]  # fmt: skip
_PIECES = ["\r\n", "\n", "\r", "\0", "\t", "\x0b", " ", ":", ",", ";", "0", "1", "ff", "-", "+", "0x", LENGTH, CHUNKED, "Content-Length: 0\r\n", "Transfer-Encoding: x\r\n", "Connection: close\r\n", SECOND]  # fmt: skip


@pytest.fixture(scope="module")
def behind() -> Iterator[Server]:
    """A server of an echo, with a key."""
    with serve(config=CONFIG) as server:
        yield server


@pytest.mark.heavy
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.heavy if kind in _MORE else ()) for kind in KINDS]
)
def test_no_request_is_two(behind: Server, kind: str) -> None:
    """What a proxy passes on as one request is one request to the server: none is smuggled, and none is lost."""
    sent = [probe[1] if isinstance(probe[1], bytes) else probe[1].encode("latin-1") for probe in PROBES]  # fmt: skip
    sent = [data for data in sent if len(data) < 2**20] + [data.encode() for data in _FRAMED]
    sent += mutations(sent, MUTATIONS)
    before = seen(behind)
    with proxy(kind, behind.port) as front:
        asyncio.run(converse(front, sent))
        asyncio.run(converse(front, [f"{GET}Connection: close\r\n\r\n".encode()] * 4))
        passed, answered = front.counted()
    found = seen(behind) - before

    print(f"{kind}: {len(sent)} conversations, {passed} requests were passed on, {answered} of them answered, and {found} were seen")  # fmt: skip
    assert passed > len(sent) / 10
    assert answered <= found <= passed


def mutations(seeds: list[bytes], count: int) -> list[bytes]:
    """Conversations with pieces put in, taken out and doubled; the same in every run."""
    chance = random.Random(7)
    found = []
    for _ in range(count):
        data = chance.choice([seed for seed in seeds if len(seed) < 4096])
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(data) + 1)
            piece = chance.choice(_PIECES).encode()
            kind = chance.randrange(4)
            if kind == 0:
                data = data[:at] + piece + data[at:]
            elif kind == 1:
                data = data[:at] + data[at + chance.randint(1, 4) :]
            elif kind == 2:  # at the end of a line, where headers are
                ends = [match.end() for match in re.finditer(rb"\r\n", data)]
                at = chance.choice(ends or [at])
                data = data[:at] + piece + data[at:]
            else:
                data = data[:at] + data[at : at + 40] + data[at:]
        found.append(data)
    return found


async def converse(front: Proxy, sent: list[bytes]) -> None:
    """Send each over a connection of its own, and read until the proxy closes it."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(data: bytes) -> None:
        async with free, asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
            try:
                writer.write(data)
                while await reader.read(65536):
                    pass
            except ConnectionError:
                pass
            finally:
                writer.transport.abort()

    await asyncio.gather(*map(one, sent))


def seen(server: Server) -> int:
    """How many requests the server has seen: those that it has answered, and those that were no HTTP."""
    lines = [json.loads(line) for line in settled(server.log)]
    return sum("status" in line or "is no HTTP" in line["message"] for line in lines)
