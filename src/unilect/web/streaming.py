"""
Writes all answers: events in, an HTTP response out, non-streaming or as server-sent events.

1. One task reads events and writes the response. aiohttp cancels it within a millisecond when the client leaves, in every
   phase, and `aclosing` then closes the generator, which stops the backend. Where a write meets a closed connection first, the
   guard makes the same of it.
2. The status is 200 only once there is something to say: an error before the first event is an ordinary error answer.
   The exception is a long silence: after `KEEP_ALIVE_S` the encoder's keep-alive is sent, and what fails later is told in the stream.
3. A broken answer is never called finished: a stream ends with its finish reasons and `[DONE]`, or with one error frame.
4. A whole answer is one body, for which aiohttp is writer enough; streams, ours and those passed on, have one between them.
5. What may outlive its client is written into a record instead (`rejoining.py`), and the writer is the same.
6. A client that does not read stops the backend's reading. `server/_connections.py` lets it go in the end, whoever writes here.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from typing import Protocol
from urllib.parse import quote

from aiohttp import web
from aiohttp.hdrs import METH_HEAD

from unilect.answers.inflight import Answer as Record
from unilect.answers.service import Run
from unilect.api.parameters.rules import format_ignored
from unilect.core.errors import UnilectError
from unilect.core.events import Answer, Event, Fold, Usage
from unilect.runtime.context import Queued, current_request, explain_cancellation
from unilect.web.aiohttp_internals import ChunkedResponse, FullResponse

SHORTENED = web.RequestKey("shortened", bytes)  # a large body with its long texts shortened, if any
#: What every answer to the request has, such as what a page of another origin is told.
HEADERS = web.RequestKey("headers", dict[str, str])
HIGH_WATER_BYTES = 64 * 1024  # what a client may leave unread before the backend is read no further
KEEP_ALIVE_S = 10.0  # client libraries and proxies give up after 30 to 60 s without a byte
HOLD_S = 0.02  # a piece of an answer waits so long for its end: one write is cheaper than two
#: Proxies pass a stream on as it comes.
_UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


JSON = "application/json"
SERVER_SENT_EVENTS = "text/event-stream; charset=utf-8"
COMMENT = b": keep-alive\n\n"  # every reader of server-sent events skips it


#: Where an answer is recorded that may outlive its request's connection.
RECORD = web.RequestKey("record", Record)


class Encoder(Protocol):
    """A dialect's words for one answer. It keeps what belongs to the answer: id, time, model."""

    def encode(self, batch: list[Event]) -> bytes:
        """Return the frames for a batch; empty where it has nothing to say."""

    def keep_alive(self) -> bytes:
        """
        Return bytes to send in a silence that change nothing for the reader.

        They are empty where the API has none, or the answer's end is encoded.
        """

    def end(self) -> bytes:
        """Return the frames after the last batch."""

    def error(self, error: UnilectError) -> bytes:
        """Return the frame that ends a broken answer."""

    def whole(self, answer: Answer, ignored: tuple[str, ...]) -> bytes:
        """Return the body of a whole answer."""


async def respond(
    request: web.Request,
    run: Run,
    encoder: Encoder,
    content_type: str = SERVER_SENT_EVENTS,
    keep: Callable[[], Awaitable[None]] | None = None,
) -> web.StreamResponse:
    """
    Answer a request.

    Args:
        content_type: That of a stream.
        keep: Stores the answer after its last batch; a stream is told to have ended after that.

    Raises:
        UnilectError: Before anything was sent; the caller turns it into an error answer.
    """
    if not run.streams:
        return await respond_whole(request, run, encoder.whole)
    writer = _Writer(request, content_type, encoder.error, encoder.keep_alive, run)

    def push(batch: list[Event]) -> bool:
        """Send a batch as the loop below does, which waits for the next one meanwhile."""
        if (is_ready := writer.is_ready) and (data := encoder.encode(run.note(batch))):
            writer.put(data)
        return is_ready

    run.push = push
    async with writer, aclosing(run.batches()) as batches:
        async for batch in batches:
            data = encoder.encode(batch)
            if type(batch[-1]) is Usage:
                writer.last = data
                if keep is not None:
                    writer.release_soon()
            elif data and writer.is_ready:
                writer.put(data)
            elif data:
                await writer.write(data)
        if keep is not None:
            await writer.keep(keep)
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
    folding, batches = Fold(), run.batches()
    try:  # as `aclosing`, at half of its price
        async for batch in batches:
            folding.add(batch)
    finally:
        await batches.aclose()
    return full_response(request, run, whole(folding.answer(), run.ignored))


def full_response(request: web.Request, run: Run, body: bytes) -> web.StreamResponse:
    """Make the response with the body of a whole answer, once it has ended."""
    return FullResponse(body=body, headers=headers_of(request, JSON, run=run))


class Chunks(Protocol):
    """The bytes of another server's stream, to be used inside `aclosing`."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None:
        """Stop reading."""


async def relay(
    request: web.Request,
    chunks: Chunks,
    content_type: str,
    told: Callable[[UnilectError], bytes],
) -> web.StreamResponse:
    """
    Pass another server's stream on as it comes.

    Args:
        told: The frame for the error that breaks it.

    Raises:
        UnilectError: Before anything was sent.
    """
    writer = _Writer(request, content_type, told)  # no keep-alive: a chunk may end within a frame
    async with writer, aclosing(chunks):
        async for data in chunks:
            if data:
                await writer.write(data)
    return writer.response


def headers_of(
    request: web.Request,
    content_type: str,
    ignored: Sequence[str] = (),
    run: Run | None = None,
    streams: bool = False,
) -> dict[str, str]:
    """
    Return the headers of an answer.

    Args:
        ignored: The names of the parameters that were ignored.
        run: Who answers, which knows of more that were.
        streams: It comes piece by piece.
    """
    context = current_request()
    headers = {"Content-Type": content_type, "X-Request-Id": context.request_id}
    if context.headers:
        headers |= context.headers
    if context.queued is not None:
        headers |= _of_queue(context.queued)
    if of_all := request[HEADERS]:
        headers |= of_all
    if run is not None:
        ignored = run.ignored
        if run.answering.name != run.model.name:  # headers are ASCII
            headers["X-Unilect-Fallback"] = quote(run.answering.name, safe="/:@+")
        if run.attempts:
            headers["X-Unilect-Attempts"] = str(run.attempts)
    if ignored:
        headers["X-Unilect-Ignored"] = format_ignored(ignored)
    if streams:
        headers |= _UNBUFFERED
    return headers


def _of_queue(queued: Queued) -> dict[str, str]:
    """Make the headers with the place of a request in the queue; none if it does not wait any more."""
    position, wait_s = queued.position, queued.wait_s
    if not position:  # its turn has come in this moment
        return {}
    told = {"X-Unilect-Queue-Position": str(position)}
    return told if wait_s is None else told | {"X-Unilect-Queue-Wait-S": str(math.ceil(wait_s))}


class _HeadIsAll(Exception):
    """The head was sent, and a request with HEAD gets no more."""


class _Writer(AbstractAsyncContextManager["_Writer"]):
    """
    One stream on its way to the client: begun with its first bytes, kept alive while it is silent, ended with the block.

    An error within the block is raised while nothing was sent, and else told in the last frame.

    Args:
        told: The frame for an error.
        keep_alive: What to send in a silence; None to leave it one.
        run: Who answers, where it is one of our models.

    Attributes:
        last: The last bytes, which go out together with the end of the body; alone, where nothing was sent before.
        response: What was sent, from the first bytes on.
    """

    response: web.StreamResponse

    def __init__(
        self,
        request: web.Request,
        content_type: str,
        told: Callable[[UnilectError], bytes],
        keep_alive: Callable[[], bytes] | None = None,
        run: Run | None = None,
    ) -> None:
        self.last = b""
        self._request = request
        self._record = request.get(RECORD)
        self._content_type = content_type
        self._told = told
        self._filler = keep_alive
        self._run = run
        self._transport = self._record or request.transport
        self._chunked = False
        self._begun, self._quiet = False, 0  # half times of KEEP_ALIVE_S without a byte
        self._comment: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._hold: asyncio.TimerHandle | None = None
        if keep_alive is not None and request.method != METH_HEAD:
            self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S / 2, self._tick)

    @property
    def is_ready(self) -> bool:
        """True while a piece need not wait: the head is sent, and the client has read most of what came before."""
        transport = self._transport
        return (
            self._begun
            and transport is not None
            and transport.get_write_buffer_size() <= HIGH_WATER_BYTES
            and not transport.is_closing()
        )

    def put(self, data: bytes) -> None:
        """Send a piece, after the head; aiohttp's own `write` takes five calls for each."""
        self._quiet = 0
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)  # type: ignore[union-attr]

    async def write(self, data: bytes) -> None:
        """
        Send a piece, after the head, and wait for a client that reads slowly.

        Raises:
            _HeadIsAll: The request was HEAD, for which a body would be the next answer.
        """
        self._quiet = 0
        if not self._begun:  # the keep-alive comes here, too: nothing in it waits
            self._begun = True
            headers = headers_of(self._request, self._content_type, run=self._run, streams=True)
            if self._record is None:
                self.response = ChunkedResponse(headers=headers)
            else:
                self.response = _RecordedResponse(self._record, headers)
            await self.response.prepare(self._request)
            self._chunked = self.response.chunked
            if self._request.method == METH_HEAD:
                raise _HeadIsAll
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("The client closed the connection.")
        self.put(data)
        if transport.get_write_buffer_size() > HIGH_WATER_BYTES:
            await (self._record or self._request.writer).drain()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Send the end of the body, with the error if one can be told; what cannot is raised."""
        for timer in (self._timer, self._hold):
            if timer is not None:
                timer.cancel()
        if isinstance(error, _HeadIsAll):
            error, self.last = None, b""
        if error is not None:
            error = explain_cancellation(error)
        if error is not None and not isinstance(error, UnilectError):
            return False
        if self._comment is not None:
            await self._comment  # it may be sending the head
        if error is not None and not self._begun:
            return False
        if self._begun:
            await self.response.write_eof(self.last if error is None else self._error_frame(error))
        else:
            headers = headers_of(self._request, self._content_type, run=self._run, streams=True)
            self.response = FullResponse(body=self.last, headers=headers)
        return True

    def _error_frame(self, error: UnilectError) -> bytes:
        """Return the frame for an error, which the log tells; a record is told that it is one."""
        current_request().fails(error)
        if self._record is not None:
            self._record.failed = True
        return self._told(error)

    def _tick(self) -> None:
        """Break a silence of KEEP_ALIVE_S, unless the client still has to read what was sent before."""
        self._quiet += 1
        transport = self._record or self._request.transport
        if self._quiet >= 2 and transport is not None and not transport.get_write_buffer_size():
            self._quiet = 0
            self._comment = asyncio.create_task(self._keep_alive())
        self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S / 2, self._tick)

    async def _keep_alive(self) -> None:
        """Send what changes nothing for the reader; the end of the answer waits for it."""
        # encoded and sent in one turn, and not before what was encoded earlier: events may be numbered
        if self._filler is not None and not self.last and (filler := self._filler()):
            request = current_request()
            if filler is COMMENT and request.leased_at is None and request.stage is not None:
                filler = b": %b\n\n" % request.stage().encode()
            with suppress(ConnectionError):
                await self.write(filler)

    async def keep(self, keep: Callable[[], Awaitable[None]]) -> None:
        """Have the answer stored; where that fails, what the model has said is sent all the same. Errors as `keep`."""
        try:
            await keep()
        except UnilectError:
            await self._release()
            raise

    def release_soon(self) -> None:
        """Send the last bytes alone if the end does not come within `HOLD_S`."""
        self._hold = asyncio.get_running_loop().call_later(HOLD_S, self._end_hold)

    def _end_hold(self) -> None:
        self._comment = asyncio.create_task(self._release_quietly())

    async def _release_quietly(self) -> None:
        with suppress(ConnectionError):
            await self._release()

    async def _release(self) -> None:
        data, self.last = self.last, b""
        if data:
            await self.write(data)


class _RecordedResponse(web.StreamResponse):
    """A stream into a record: pieces without HTTP's framing, which its readers get each in their own."""

    def __init__(self, record: Record, headers: dict[str, str]) -> None:
        super().__init__(headers=headers)
        self._record = record

    async def prepare(self, request: web.BaseRequest) -> None:
        """Record the head."""
        self._record.begin(self.status, self.headers)

    async def write_eof(self, data: bytes = b"") -> None:
        """Record the end."""
        self._record.end(data)
