"""
Every use of aiohttp's private attributes, which no other module touches: what a connection is doing, a request that was read
here, and responses with a quick head.

The head of those responses takes a third of the work of aiohttp's own, for what nearly every request is: HTTP/1.1 on a connection
that is kept. Any other gets aiohttp's. What is left out finds nothing to do here: cookies, compression, bodies without a length, hooks
before the head (this server has none).
"""

from operator import attrgetter

from aiohttp import HttpVersion11, StreamReader, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE

_OK = "HTTP/1.1 200 OK"


class Protocol(web.RequestHandler):
    """A connection's protocol, which tells what it is doing."""

    #: The requests whose heads have come and that are not being answered yet.
    waiting = property(attrgetter("_messages"))

    @property
    def body(self) -> StreamReader | None:
        """The body that what comes now belongs to, whether somebody reads it or not; None where no request is under way."""
        if self._messages:
            return self._messages[-1][1]
        return self._current_request.content if self._current_request is not None else None

    @property
    def awaits_head(self) -> bool:
        """True if a head may come, or is coming."""
        return self._waiter is not None

    @property
    def requests(self) -> int:
        """The number of requests that have been answered, or are."""
        return self._request_count


def set_body(request: web.BaseRequest, body: bytes) -> None:
    """Have `request.read` return a body, which was read here."""
    request._read_bytes = body


def body_of(request: web.BaseRequest) -> bytes:
    """Return the body of a request as far as it was read; empty where it was not."""
    return request._read_bytes or b""


class FullResponse(web.Response):
    """A 200 with a body of bytes."""

    _is_ours = False  # its head was made here

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Begin the response; its head is sent with its body."""
        size = str(len(self._body))  # type: ignore[arg-type]
        writer = await _begin(self, request, hdrs.CONTENT_LENGTH, size)
        self._is_ours = self._is_ours or writer is not None
        return writer or await super().prepare(request)

    async def write_eof(self, data: bytes = b"") -> None:
        """Send the head and the body."""
        writer = self._payload_writer
        if not self._is_ours or writer is None:
            return await super().write_eof(data)
        await writer.write_eof(self._body)  # type: ignore[arg-type]
        self._eof_sent, self._req, self._payload_writer = True, None, None
        self._body_length = writer.output_size
        return None


class ChunkedResponse(web.StreamResponse):
    """A 200 whose body comes piece by piece, in chunks where HTTP has them."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send the head."""
        writer = await _begin(self, request, hdrs.TRANSFER_ENCODING, "chunked")
        if writer is None:
            if request.version < HttpVersion11:
                self.force_close()  # the end of the connection is the end of the body
            elif request.version == HttpVersion11 and not self.prepared:  # a later one has none
                self.enable_chunked_encoding()
            writer = await super().prepare(request)
            if request.method == hdrs.METH_HEAD and writer is not None:
                # what is written is not sent: the client would take it for the next answer
                writer.length = 0
            return writer
        self._chunked = True
        writer.enable_chunking()
        writer.send_headers()
        return writer


async def _begin(
    response: web.StreamResponse, request: web.BaseRequest, framing: str, value: str
) -> AbstractStreamWriter | None:
    """
    Return the writer of a response's body, after its head was made; None where that is aiohttp's to make, or made.

    Args:
        framing: The header that says where the body ends.
        value: Its value.
    """
    if (
        response.prepared
        or not request.keep_alive
        or request.version != HttpVersion11
        or request.method == hdrs.METH_HEAD
        or response.status != 200
    ):
        return None
    headers, writer = response._headers, request.writer
    headers[framing] = value
    headers[hdrs.DATE] = rfc822_formatted_time()
    headers[hdrs.SERVER] = SERVER_SOFTWARE
    response._req, response._payload_writer = request, writer
    response._keep_alive, response._must_be_empty_body = True, False
    await writer.write_headers(_OK, headers)
    return writer
