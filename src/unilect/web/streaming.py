"""
The one place that writes answers: events in, an HTTP response out, whole or as server-sent events.

1. One task reads events and writes the response. aiohttp cancels it within a millisecond when the client leaves, in every
   phase, and `aclosing` then closes the generator, which stops the backend.
2. The status is 200 only once there is something to say: an error before the first event is an ordinary error answer.
   The exception is a long silence: after `KEEP_ALIVE_S` a comment is sent, and what fails later is told in the stream.
3. A broken answer is never called finished: a stream ends with its finish reasons and `[DONE]`, or with one error frame.
4. A client that does not read stops the backend's reading. `server/_connections.py` lets it go in the end, whoever writes here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Protocol

from aiohttp import web
from msgspec import Struct

from unilect.errors import UnilectError
from unilect.events import Answer, Event, Fold, Usage
from unilect.parameters.rules import ignored_header
from unilect.routing.service import Run

REQUEST_ID = web.RequestKey("request_id", str)
SHORTENED = web.RequestKey("shortened", bytes)  # a large body with its long texts shortened, if any
CORS_HEADERS = web.RequestKey(
    "cors_headers", dict[str, str]
)  # where a page of another origin asks and may
KEEP_ALIVE_S = 10.0  # client libraries and proxies give up after 30 to 60 s without a byte


class Framing(Struct, frozen=True):
    """
    What the frames of a stream are.

    Attributes:
        content_type: How the answer is announced.
        keep_alive: Bytes that every reader of such frames skips.
    """

    content_type: str
    keep_alive: bytes


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
    request: web.Request,
    run: Run,
    encoder: Encoder,
    stream: bool,
    framing: Framing = SERVER_SENT_EVENTS,
) -> web.StreamResponse:
    """
    Answer a request.

    Raises:
        UnilectError: Before anything was sent; the caller turns it into an error answer.
    """
    if stream:
        return await _Stream(request, run, encoder, framing).respond()
    return await respond_whole(request, run, encoder.whole)


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
    headers = {"Content-Type": "application/json"} | _headers(request, run)
    return web.Response(body=body, headers=headers)


class _Stream:
    """One streamed answer."""

    def __init__(self, request: web.Request, run: Run, encoder: Encoder, framing: Framing) -> None:
        self._framing = framing
        self._request = request
        self._run = run
        self._encoder = encoder
        self._response: web.StreamResponse | None = None
        self._opening = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()
        self._writing = False
        self._over = False  # nothing may be written but the end
        self._keeping_alive: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(KEEP_ALIVE_S, self._tick)

    async def respond(self) -> web.StreamResponse:
        """Send the answer, or the error that broke it; before the first byte errors are raised."""
        try:
            last = await self._send_all()
        except UnilectError as error:
            last = await self._broken(error)
        except ConnectionError as error:
            if not has_left(self._request):
                raise
            raise asyncio.CancelledError from error  # in the middle of a write
        finally:
            self._timer.cancel()
            self._over = True
        response = self._response or await self._open()
        await response.write_eof(last)
        return response

    async def _send_all(self) -> bytes:
        """
        Send every batch but the last.

        Returns:
            The last bytes, which go out together with the end of the body.
        """
        encode, last = self._encoder.encode, b""
        async with aclosing(self._run.batches()) as batches:
            async for batch in batches:
                data = encode(batch)
                if type(batch[-1]) is Usage:
                    last = data
                elif data:
                    await self._write(data)
        return last + self._encoder.end()

    async def _write(self, data: bytes) -> None:
        response = self._response
        if response is None:
            response = await self._open()
        self._last_write = self._loop.time()
        self._writing = True
        await response.write(data)
        self._writing = False

    async def _open(self) -> web.StreamResponse:
        """The response, its head sent once, by this task or by the keep-alive timer."""
        async with self._opening:
            if self._response is None:
                headers = stream_headers(self._framing) | _headers(self._request, self._run)
                response = web.StreamResponse(headers=headers)
                await response.prepare(self._request)
                self._response = response
        return self._response

    async def _broken(self, error: UnilectError) -> bytes:
        """
        The frame for an error in a begun stream.

        Raises:
            UnilectError: The error itself, where nothing was sent yet.
        """
        if self._keeping_alive is not None:
            await self._keeping_alive
        if self._response is None:
            raise error
        return self._encoder.error(error)

    def _tick(self) -> None:
        """Every KEEP_ALIVE_S: keep a silent connection alive."""
        silent_s = self._loop.time() - self._last_write
        if silent_s >= KEEP_ALIVE_S / 2 and not self._writing:
            self._keeping_alive = self._loop.create_task(self._keep_alive())
        self._timer = self._loop.call_later(KEEP_ALIVE_S, self._tick)

    async def _keep_alive(self) -> None:
        """Send what every reader skips, unless the answer has ended since the tick, or while the head was sent."""
        if self._over:
            return
        with suppress(ConnectionError):
            response = await self._open()
            if not self._over:
                await response.write(self._framing.keep_alive)


def has_left(request: web.BaseRequest) -> bool:
    """Whether the client has closed its connection, or was let go."""
    return request.transport is None or request.transport.is_closing()


def stream_headers(framing: Framing) -> dict[str, str]:
    """The headers of a stream of such frames; proxies pass them on as they come."""
    return {
        "Content-Type": framing.content_type,
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",
    }


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
    response: web.StreamResponse | None = None
    headers = stream_headers(framing) | {"X-Request-Id": request[REQUEST_ID]}
    last = b""
    try:
        async with aclosing(chunks):
            async for data in chunks:
                if response is None:
                    response = web.StreamResponse(headers=headers)
                    await response.prepare(request)
                await response.write(data)
    except UnilectError as error:
        if response is None:
            raise
        last = told(error)
    except ConnectionError as error:
        if not has_left(request):
            raise
        raise asyncio.CancelledError from error
    if response is None:
        return web.Response(headers=headers)
    await response.write_eof(last)
    return response


def _headers(request: web.Request, run: Run) -> dict[str, str]:
    headers = {"X-Request-Id": request[REQUEST_ID]} | request[CORS_HEADERS]
    if run.answering is not run.model:
        headers["X-Unilect-Fallback"] = run.answering.name
    if run.ignored:
        headers["X-Unilect-Ignored"] = ignored_header(run.ignored)
    return headers
