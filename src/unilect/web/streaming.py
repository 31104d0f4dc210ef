"""
Writes all answers: events in, an HTTP response out, non-streaming or as server-sent events.

1. One task reads events and writes the response. aiohttp cancels it within a millisecond when the client leaves, in every
   phase, and `aclosing` then closes the generator, which stops the backend. Where a write meets a closed connection first, the
   guard makes the same of it.
2. The status is 200 only once there is something to say: an error before the first event is an ordinary error answer.
   The exception is a long silence: after `KEEP_ALIVE_S` a comment is sent, and what fails later is told in the stream.
3. A broken answer is never called finished: a stream ends with its finish reasons and `[DONE]`, or with one error frame.
4. A whole answer is one body, for which aiohttp is writer enough; streams, ours and those passed on, have one between them.
5. A client that does not read stops the backend's reading. `server/_connections.py` lets it go in the end, whoever writes here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from typing import Protocol

from aiohttp import HttpVersion11, web
from msgspec import Struct

from unilect.errors import UnilectError
from unilect.events import Answer, Event, Fold, Usage
from unilect.parameters.rules import ignored_header
from unilect.routing.service import Run

REQUEST_ID = web.RequestKey("request_id", str)
SHORTENED = web.RequestKey("shortened", bytes)  # a large body with its long texts shortened, if any
#: What a page of another origin is told, where it asks and may.
CORS_HEADERS = web.RequestKey("cors_headers", dict[str, str])
HIGH_WATER_BYTES = 64 * 1024  # what a client may leave unread before the backend is read no further
KEEP_ALIVE_S = 10.0  # client libraries and proxies give up after 30 to 60 s without a byte
#: Proxies pass a stream on as it comes.
_UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Framing(Struct, frozen=True):
    """
    What the frames of a stream are.

    Attributes:
        content_type: How the answer is announced.
        keep_alive: Bytes that every reader of such frames skips; empty where there are none, and a silence stays one.
    """

    content_type: str
    keep_alive: bytes


JSON = Framing("application/json", b"")
SERVER_SENT_EVENTS = Framing("text/event-stream; charset=utf-8", b": keep-alive\n\n")


class Encoder(Protocol):
    """A dialect's words for one answer. It keeps what belongs to the answer: id, time, model."""

    def encode(self, batch: list[Event]) -> bytes:
        """The frames for a batch; empty where it has nothing to say."""

    def end(self) -> bytes:
        """The frames after the last batch."""

    def error(self, error: UnilectError) -> bytes:
        """The frame that ends a broken answer."""

    def whole(self, answer: Answer, ignored: tuple[str, ...]) -> bytes:
        """The body of a whole answer."""


async def respond(
    request: web.Request, run: Run, encoder: Encoder, framing: Framing = SERVER_SENT_EVENTS
) -> web.StreamResponse:
    """
    Answer a request.

    Raises:
        UnilectError: Before anything was sent; the caller turns it into an error answer.
    """
    if not run.streams:
        return await respond_whole(request, run, encoder.whole)
    writer = _Writer(request, framing, encoder.error, run)
    async with writer, aclosing(run.batches()) as batches:
        async for batch in batches:
            data = encoder.encode(batch)
            if type(batch[-1]) is Usage:
                writer.last = data
            elif data:
                await writer.write(data)
        writer.last += encoder.end()
    return writer.response


async def respond_whole(
    request: web.Request, run: Run, whole: Callable[[Answer, tuple[str, ...]], bytes]
) -> web.StreamResponse:
    """
    Answer a request with one body.

    Args:
        whole: The body for the answer and the parameters that were ignored.

    Raises:
        UnilectError: As the run.
    """
    folding = Fold()
    async with aclosing(run.batches()) as batches:
        async for batch in batches:
            folding.add(batch)
    body = whole(folding.answer(), run.ignored)
    return web.Response(body=body, headers=_headers(request, JSON, run))


class Chunks(Protocol):
    """The bytes of another server's stream, to be used inside `aclosing`."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None:
        """Stop reading."""


async def relay(
    request: web.Request,
    chunks: Chunks,
    framing: Framing,
    told: Callable[[UnilectError], bytes],
) -> web.StreamResponse:
    """
    Pass another server's stream on as it comes.

    Args:
        told: The frame for the error that breaks it.

    Raises:
        UnilectError: Before anything was sent.
    """
    unbroken = Framing(framing.content_type, b"")  # a chunk may end within a frame
    writer = _Writer(request, unbroken, told)
    async with writer, aclosing(chunks):
        async for data in chunks:
            if data:
                await writer.write(data)
    return writer.response


def headers_of(
    request: web.Request, content_type: str, ignored: Sequence[str] = ()
) -> dict[str, str]:
    """The headers of an answer, with the names of the parameters that were ignored."""
    headers = {"Content-Type": content_type, "X-Request-Id": request[REQUEST_ID]}
    if ignored:
        headers["X-Unilect-Ignored"] = ignored_header(ignored)
    return headers | request[CORS_HEADERS]


def _headers(request: web.Request, framing: Framing, run: Run | None) -> dict[str, str]:
    headers = headers_of(request, framing.content_type, run.ignored if run is not None else ())
    if framing is not JSON:
        headers |= _UNBUFFERED
    if run is not None and run.answering is not run.model:
        headers["X-Unilect-Fallback"] = run.answering.name
    return headers


class _Writer(AbstractAsyncContextManager["_Writer"]):
    """
    One stream on its way to the client: begun with its first bytes, kept alive while it is silent, ended with the block.

    An error within the block is raised while nothing was sent, and else told in the last frame.

    Args:
        told: The frame for an error.
        run: Who answers, where it is one of our models.

    Attributes:
        last: The last bytes, which go out together with the end of the body; alone, where nothing was sent before.
        response: What was sent, from the first bytes on.
    """

    response: web.StreamResponse

    def __init__(
        self,
        request: web.Request,
        framing: Framing,
        told: Callable[[UnilectError], bytes],
        run: Run | None = None,
    ) -> None:
        self.last = b""
        self._request = request
        self._framing = framing
        self._told = told
        self._run = run
        self._begun = False
        self._over = False  # nothing may be written but the end
        self._quiet = 0  # half times of KEEP_ALIVE_S without a byte
        self._beginning = asyncio.Lock()
        self._comment: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if framing.keep_alive:
            self._set_timer()

    async def write(self, data: bytes) -> None:
        """Send a piece, after the head; aiohttp's own `write` takes five calls for each."""
        self._quiet = 0
        if not self._begun:
            await self._begin()
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("The client closed the connection.")
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.response.chunked else data)
        if transport.get_write_buffer_size() > HIGH_WATER_BYTES:
            await self._request.writer.drain()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Send the end of the body, with the error if one can be told; what cannot is raised."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if error is not None and not isinstance(error, UnilectError):
            return False
        if self._comment is not None:
            await self._comment  # it may be sending the head
        if error is not None and not self._begun:
            return False
        if self._begun:
            await self.response.write_eof(self.last if error is None else self._told(error))
        else:
            headers = _headers(self._request, self._framing, self._run)
            self.response = web.Response(body=self.last, headers=headers)
        return True

    async def _begin(self) -> None:
        """Send the head, once: this task and the keep-alive may come here at the same time."""
        async with self._beginning:
            if not self._begun:
                headers = _headers(self._request, self._framing, self._run)
                self.response = web.StreamResponse(headers=headers)
                if self._request.version >= HttpVersion11:
                    self.response.enable_chunked_encoding()
                await self.response.prepare(self._request)
                self._begun = True

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S / 2, self._tick)

    def _tick(self) -> None:
        """Break a silence of KEEP_ALIVE_S, unless the client still has to read what was sent before."""
        self._quiet += 1
        transport = self._request.transport
        if self._quiet >= 2 and transport is not None and not transport.get_write_buffer_size():
            self._quiet = 0
            self._comment = asyncio.create_task(self._keep_alive())
        self._set_timer()

    async def _keep_alive(self) -> None:
        """Send what every reader skips, unless the answer has ended since the tick, or while the head was sent."""
        if self._over:
            return
        with suppress(ConnectionError):
            await self._begin()
            if not self._over:
                await self.write(self._framing.keep_alive)
