"""
A server that says exactly the bytes that a test gives it, on a real socket of this machine.

A script is a coroutine that is called once for each request with an `Exchange`; what it does not send is not sent. The
connection stays open after a script, unless the script ends it.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec


class Exchange:
    """
    One request, and the connection to answer it on.

    Attributes:
        head: The request's head, without its blank line.
        body: Its body.
    """

    def __init__(
        self, head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.head = head
        self.body = body
        self._reader = reader
        self._writer = writer

    def json(self) -> Any:
        """The request's body, decoded."""
        return msgspec.json.decode(self.body)

    async def send(self, data: bytes) -> None:
        """Send bytes, and wait until the kernel has taken them."""
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """End the connection in order (FIN), after what was sent."""
        self._writer.close()

    def reset(self) -> None:
        """Break the connection off (RST)."""
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def client_gone(self) -> None:
        """Return once the client has closed its side."""
        with suppress(ConnectionError):
            await self._reader.read()


Script = Callable[[Exchange], Awaitable[None]]


class Scripted:
    """
    A server that follows a script.

    Attributes:
        port: Where it listens, on 127.0.0.1.
        requests: What it was asked, in order.
        connections: How many connections were made to it.
        gone: Released once for every connection that has ended.
    """

    def __init__(self, script: Script) -> None:
        self.port = 0
        self.requests: list[Exchange] = []
        self.connections = 0
        self.gone = asyncio.Semaphore(0)
        self.listening: asyncio.Server | None = None
        self._script = script
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Its base URL, as an OpenAI server has it."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
                length = next(
                    int(line[15:])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length:")
                )
                exchange = Exchange(head, await reader.readexactly(length), reader, writer)
                self.requests.append(exchange)
                await self._script(exchange)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.gone.release()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self._tasks.discard(task)

    async def until_gone(self) -> None:
        """Wait until a connection has ended."""
        async with asyncio.timeout(60):
            await self.gone.acquire()

    async def stop(self) -> None:
        """Listen no more, and end all connections."""
        if self.listening is not None:
            self.listening.close()
            await self.aclose()
            await self.listening.wait_closed()

    async def aclose(self) -> None:
        """End all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def scripted(script: Script, port: int = 0) -> AsyncIterator[Scripted]:
    """A server that follows a script, until the block ends; on a free port where none is given."""
    server = Scripted(script)
    server.listening = await asyncio.start_server(
        server.connected, "127.0.0.1", port, limit=2**22, reuse_address=True
    )
    server.port = server.listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        await server.stop()


def says(data: bytes, end: str = "close") -> Script:
    """A script that answers every request with these bytes and then ends the connection: `close`, `reset` or `keep`."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(data)
        if end != "keep":
            getattr(exchange, end)()

    return script


def answer(
    body: bytes, status: str = "200 OK", kind: str = "application/json", **headers: str
) -> bytes:
    """A whole HTTP answer with a Content-Length; `retry_after="7"` becomes the header `retry-after: 7`."""
    lines = {"content-type": kind, "content-length": str(len(body))} | headers
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def stream_of(body: bytes) -> bytes:
    """An event stream that ends with the connection."""
    return STREAM_HEAD + body


def chunked(pieces: Iterable[bytes], head: bytes = STREAM_HEAD) -> bytes:
    """An answer in HTTP chunks, one for each piece."""
    head = head[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def frames(*chunks: Any) -> bytes:
    """Server-sent events, one for each chunk; bytes are taken as they are."""
    datas = (item if isinstance(item, bytes) else msgspec.json.encode(item) for item in chunks)
    return b"".join(b"data: " + data + b"\n\n" for data in datas)


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of a chat answer with one choice."""
    choice = {"index": index, "delta": fields, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice]}


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
DONE = b"[DONE]"
HELLO = frames(
    delta(role="assistant", content=""),
    delta(content="Hel"),
    delta(content="lo"),
    delta(finish="stop"),
    USAGE,
    DONE,
)
#: A list of one model, as `GET /v1/models` has it.
LIST = b'{"object": "list", "data": [{"id": "theirs", "object": "model"}]}'


def waits(go_on: asyncio.Event, chats: list[Exchange]) -> Script:
    """A server of the model of `LIST`, which answers a chat, noted in `chats`, once it may go on."""

    async def script(exchange: Exchange) -> None:
        if exchange.head.startswith(b"GET"):
            return await exchange.send(answer(LIST))
        chats.append(exchange)
        await go_on.wait()
        await exchange.send(stream_of(HELLO))
        exchange.close()

    return script


def one_by_one(pieces: Iterable[bytes], taken: asyncio.Semaphore, end: str = "close") -> Script:
    """A server that sends an HTTP chunk for each piece, once what came before was taken: whoever takes a piece releases it."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(chunked([])[: -len(b"0\r\n\r\n")])
        for piece in pieces:
            await exchange.send(b"%x\r\n%s\r\n" % (len(piece), piece))
            await taken.acquire()
        if end == "close":
            await exchange.send(b"0\r\n\r\n")
        if end != "keep":
            getattr(exchange, end)()

    return script


def small(context: int, tokens: int) -> Script:
    """A server of vLLM's kind: it refuses a request whose prompt and answer together have more tokens than its context."""

    async def script(exchange: Exchange) -> None:
        body = exchange.json()
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or 0
        if tokens + asked <= context:
            await exchange.send(stream_of(HELLO))
        else:
            message = (
                f"This model's maximum context length is {context} tokens. However, you requested {tokens + asked} tokens "
                f"({tokens} in the messages, {asked} in the completion). Please reduce the length of the messages or completion."
            )
            told = {"object": "error", "message": message, "type": "BadRequestError", "code": 400}
            await exchange.send(answer(msgspec.json.encode(told), "400 Bad Request"))
        exchange.close()

    return script
