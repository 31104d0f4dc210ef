"""
Both sides of tests/reliability/test_vanishing.py, each a process in a network namespace of its own.

usage: half_open.py server ADDRESS CERT KEY LIMITS   (CERT and KEY may be empty; LIMITS: JSON, empty for the server's own)
       half_open.py clients URL COUNT                COUNT streams, and as many that wait

Each says in lines on stdout what has happened, and ends when its stdin does.
"""

import asyncio
import json
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.backends.scripted import STREAM_HEAD, Exchange, answer, delta, frames, scripted
from unilect.config.server import Config, ModelConfig
from unilect.models import sources
from unilect.server.listener import Listener

STREAMED, WAITING = "stream", "wait"


async def ended() -> None:
    """Return when stdin ends."""
    await asyncio.to_thread(sys.stdin.read)


async def serve(address: str, cert: str, key: str, limits: str) -> None:
    """Serve a model whose backend answers those who ask for a stream, and lets the others wait."""
    busy = 0

    async def script(exchange: Exchange) -> None:
        nonlocal busy
        if not exchange.body:  # a look at what kind of server this is
            await exchange.send(answer(b"{}", "404 Not Found"))
            return
        busy += 1
        print(f"busy {busy}", flush=True)
        try:
            if STREAMED in exchange.json()["messages"][0]["content"]:
                await exchange.send(STREAM_HEAD)
                gone = asyncio.ensure_future(exchange.client_gone())
                while not gone.done():
                    await exchange.send(frames(delta(content="word ")))
                    await asyncio.wait({gone}, timeout=0.2)
            else:
                await exchange.client_gone()
        except ConnectionError:
            pass
        finally:
            busy -= 1
            print(f"busy {busy}", flush=True)

    async with scripted(script) as upstream:
        config = Config(
            host=address,
            port=0,
            api_keys=["sk-test"],
            tls_cert=cert or None,
            tls_key=key or None,
            models={"m": ModelConfig(source=f"{upstream.url}", model="theirs")},
        )
        registry = sources.registry(config)
        listener = Listener(config, registry, *_limits(limits))
        print((await listener.listen())[0], flush=True)
        await ended()
        await listener.aclose()
        await registry.aclose()


def _limits(text: str) -> list[object]:
    if not text:
        return []
    from msgspec import convert

    from unilect.server._connections import Limits

    return [convert(json.loads(text), Limits)]


async def ask(url: str, count: int) -> None:
    """Have so many streams, and as many requests that wait, half of them for a stream."""
    parts = urlsplit(url)
    tls = None
    if parts.scheme == "https":
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    writers = []
    for number in range(2 * count):
        what = STREAMED if number < count else WAITING
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
        writers.append(writer)
        message = [{"role": "user", "content": what}]
        body = json.dumps({"messages": message, "stream": what == STREAMED or number % 2 == 0})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.hostname}\r\nAuthorization: Bearer sk-test"
        writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        if what == STREAMED:
            await reader.readuntil(b"word ")
    print("asked", flush=True)
    await ended()
    for writer in writers:
        writer.transport.abort()


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "server":
        asyncio.run(serve(*arguments))
    else:
        asyncio.run(ask(arguments[0], int(arguments[1])))
