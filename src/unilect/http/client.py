"""
A server that answers with JSON and event streams; its failures are translated to unilect's errors only here.

Every request gets a fresh connection, unless `reuse_connections` is set: an upstream that sends one answer too many on a kept connection
could give it to the next request, and llama-server closes after each stream without `Connection: close`. Redirects are never followed:
they would send prompts and keys elsewhere.
"""

import math
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import NoReturn, Self, TypeAlias

from unilect.config.model import ModelConfig
from unilect.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    BackendUnreachable,
    UnilectError,
    UnsupportedOperation,
)
from unilect.http.base_url import head, key_headers, split, with_user
from unilect.http.body import (
    CHUNKED,
    MAX_HEAD_BYTES,
    ChunkedBody,
    CountedBody,
    JsonEnd,
    ProtocolError,
)
from unilect.http.connection import (
    Address,
    ClosedEarly,
    ConnectFailed,
    Connection,
    Silence,
    Tap,
    parse_head,
)
from unilect.http.error_bodies import (
    REFUSED,
    NoSuchModel,
    error_text,
    missing,
    no_stream,
    parse_refusal,
    plain,
    too_many,
)
from unilect.http.reasons import of_answer
from unilect.http.tls import client_context
from unilect.runtime.context import CURRENT_REQUEST
from unilect.runtime.redact import redact

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_LIST_BYTES = 4 * 1024 * 1024  # of a list of models
CONNECT_TIMEOUT_S = 5.0
EVENTS = "text/event-stream"
MAX_IDLE = 64  # kept connections to one server
_NO_KEY = " No key is configured for it: set `api_key` (`unilect chat`: --api-key)."
_LONGEST_PAUSE_S = 7 * 86_400.0  # that a Retry-After is believed
_ANNOUNCEMENTS = (b"HTTP/1.1 1", b"HTTP/1.0 1")  # 100 Continue and its like, before the real answer
# a server that says every ten seconds that it works does so for five minutes
MAX_ANNOUNCEMENTS = 32

RaiseFor: TypeAlias = Callable[[int, Mapping[str, str], bytes], None]


class HttpServer:
    """
    A server and its connections.

    Args:
        base: Its base URL. Its path is the prefix of every path, its query is sent with every request, and its user and password as
            Basic authentication. For a unix socket the host is ignored.
        headers: Sent with every request.
        socket_path: The unix socket that it listens on, instead of the URL's host.
        connect_to: The IP address of the URL's host, which is then not resolved again.
        timeout_s: The read timeout, before and during an answer.
        reuse_connections: Keep connections open between requests.
        raise_for: Raises the error for an error answer (status, headers, body); default: `raise_for_answer`.
        max_body_bytes: The size limit of a non-streaming answer; default: `MAX_BODY_BYTES`.

    Attributes:
        shown: Its base URL without credentials, for the operator.
        socket_path, reuses_connections, timeout_s: As given.
        lost: Why the last connection failed; None if it succeeded.
        doubts: How often it was unreachable, or did not know the model: another server may run there by now.
        raise_for: As given, for protocols with their own error formats.

    Raises:
        ConfigError: The URL or a header is invalid.
    """

    def __init__(
        self,
        base: str,
        *,
        headers: Mapping[str, str] | None = None,
        socket_path: str | None = None,
        connect_to: str | None = None,
        timeout_s: float = 300.0,
        reuse_connections: bool = False,
        raise_for: RaiseFor | None = None,
        max_body_bytes: int | None = None,
    ) -> None:
        url, port = split(base)
        headers = with_user(url, headers or {})
        self.shown = redact(base)
        self.max_body_bytes = max_body_bytes or MAX_BODY_BYTES
        self.lost: str | None = None
        self.doubts = 0
        self.socket_path = socket_path
        tls = client_context() if url.scheme == "https" else None
        self._address = Address(url.hostname or "", port, tls, socket_path, connect_to)
        self._host = url.netloc.rpartition("@")[2]
        self._root = f"{url.scheme}://{self._host}"
        self._path = url.path.rstrip("/")
        self._query = url.query
        self._has_key = any("key" in name.lower() or "auth" in name.lower() for name in headers)
        self.timeout_s = timeout_s
        self.reuses_connections = reuse_connections
        self.raise_for = raise_for or raise_for_answer
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._head = head(self._host, headers, reuse_connections)

    async def post(self, path: str, body: bytes, max_bytes: int | None = None) -> bytes:
        """
        Send a POST request and read the whole answer.

        Args:
            max_bytes: The size limit of the answer; default: the server's.

        Raises:
            UnilectError: As `raise_for_answer`, or the server is unreachable.
        """
        answer = await self.stream(path, body, kind="")
        return await answer.whole(max_bytes or self.max_body_bytes)

    async def get(self, path: str, max_bytes: int | None = None) -> bytes:
        """Send a GET request and read the whole answer; as `post`."""
        answer = await self.stream(path, b"", kind="", method="GET")
        return await answer.whole(max_bytes or self.max_body_bytes)

    async def stream(
        self, path: str, body: bytes, gather_s: float = 0, kind: str = EVENTS, method: str = "POST"
    ) -> "Response":
        """
        Send a request, and read the head of its answer; the caller reads the body, and closes the answer.

        Args:
            kind: The required content type; "" for any, if servers do not send one.

        Raises:
            UnilectError: As in `post`, or the answer has another content type.
        """
        request = self._request(method, path, body)
        try:
            while True:
                kept = self._take_idle()
                response = Response(self, kept or await self._connect(), gather_s)
                try:
                    await response.begin(request)
                    break
                except ClosedEarly:
                    if kept is None:
                        raise
                finally:
                    if not response.status:
                        await response.aclose()
        except (ConnectionError, ProtocolError, Silence) as error:
            raise self.translate(error) from error
        if response.status != 200 or not response.kind.startswith(kind):
            await self._refuse(request, response)
        return response

    def retire(self) -> None:
        """Keep no more connections; running requests continue."""
        self.reuses_connections = False
        while self._idle:
            self.release(self._idle.pop(), reusable=False)

    async def aclose(self) -> None:
        """Close all connections; running requests fail."""
        for connection in list(self._open):
            connection.close()
        self._idle.clear()

    def release(self, connection: Connection, reusable: bool) -> None:
        """Keep a connection for the next request, or close it."""
        if reusable and self.reuses_connections and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            self._open.discard(connection)
            connection.close()

    def unreachable(self, reason: str) -> BackendUnreachable:
        """Return the error for a server that is unreachable."""
        return BackendUnreachable(
            "The model's server cannot be reached. Try again, or ask its operator.",
            retry_after_s=1,
            reason=f"The model's server cannot be reached: {reason}.",
        )

    def translate(self, error: Exception) -> UnilectError:
        """Return the unilect error for a failed exchange."""
        match error:
            case Silence():
                told = f"sent nothing for {self.timeout_s:g} s (`timeout_s`); aborted"
            case ProtocolError():
                told = f"violated HTTP/1.1: {error}"
            case ClosedEarly():
                told = "closed the connection before the answer"
            case _:
                told = "closed the connection in the middle of its answer"
        kind = BackendTimeout if isinstance(error, Silence) else BackendError
        reason = f"The model's server ({self.shown}) {told}."
        ours = kind(f"The model's server {told}.", reason=reason)
        ours.connection_failed = isinstance(error, ClosedEarly)
        return ours

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        if self._query:
            path += ("&" if "?" in path else "?") + self._query
        context = CURRENT_REQUEST.get()
        return b"%s %s HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n%s" % (
            method.encode(),
            (self._path + path).encode(),
            self._head,
            b"" if context is None else context.trace_headers,
            len(body),
            body,
        )

    def _take_idle(self) -> Connection | None:
        """Return a kept connection without unsolicited bytes."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh:
                return connection
            self.release(connection, reusable=False)
        return None

    async def _connect(self) -> Connection:
        try:
            connection = await self._address.connect(CONNECT_TIMEOUT_S)
        except ConnectFailed as error:
            self.lost = str(error)
            self.doubts += 1
            raise self.unreachable(self.lost) from error
        self.lost = None
        self._open.add(connection)
        return connection

    async def _refuse(self, request: bytes, response: "Response") -> NoReturn:
        """
        Raise the error for an answer that is not a success, or has another content type; errors of the server or its configuration have a reason.

        Raises:
            UnilectError: As `raise_for`.
        """
        status, body = response.status, await response.whole(self.max_body_bytes)
        try:
            self.raise_for(status, response.headers, body)
        except UnilectError as error:
            if isinstance(error, NoSuchModel):
                self.doubts += 1
            if error.status >= 429 and error.reason is None:
                method, path, _ = request.split(b" ", 2)
                asked = f"{method.decode()} {self._root}{path.decode()}"
                hint = _NO_KEY if status in (401, 403) and not self._has_key else ""
                error.reason, error.logged = of_answer(asked, status, response.headers, body, hint)
            raise
        raise no_stream(response.kind, body)


class Response:
    """
    One request and its answer: `begin` sends the request and reads the head of the answer; an async iterator of the bytes of its body
    as they arrive, to be used inside `aclosing`.

    It is not a generator, because opening and closing one for each request costs more than its reads.

    Attributes:
        status: The HTTP status.
        headers: Names in lower case; of repeated headers the last.
        kind: The content type.
        complete: True when the whole body was read and the connection can be reused.
        timeout_s: The read timeout within the body.
        broken: The body has not come to its end.
    """

    def __init__(self, server: HttpServer, connection: Connection, gather_s: float) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.kind = ""
        self.complete = self.broken = False
        self.timeout_s = server.timeout_s
        connection.gather_s = gather_s
        self._server = server
        self._connection = connection
        self._closed = False
        self._body: ChunkedBody | CountedBody | None = None
        self._keeps = False
        self._tap: Tap | None = None

    async def begin(self, request: bytes) -> None:
        """
        Send a request, and read the head of its answer.

        Raises:
            ProtocolError: The head is too long, cut, or malformed, or comes after too many announcements.
            ClosedEarly: The connection broke, or was closed, before the first byte.
            Silence: No whole head arrived for `timeout_s`.
        """
        connection, until = self._connection, time.monotonic() + self.timeout_s
        connection.write(request)
        data, sought, announced = bytearray(), 0, 0
        while (end := data.find(b"\r\n\r\n", sought)) < 0 or data.startswith(_ANNOUNCEMENTS):
            if announced >= MAX_ANNOUNCEMENTS if end >= 0 else len(data) > MAX_HEAD_BYTES:
                raise ProtocolError("the head is too long, or comes after too many announcements")
            if end >= 0:
                del data[: end + 4]
                sought, announced = 0, announced + 1
            else:
                sought = max(0, len(data) - 3)
                await connection.readable(until - time.monotonic())
                data += self._piece_of_head(bool(data or announced))
        connection.put_back(bytes(data[end + 4 :]))
        self._read_head(bytes(data[:end]))

    def _piece_of_head(self, begun: bool) -> bytes:
        """
        Take the bytes that have arrived.

        Raises:
            ClosedEarly: No byte of an answer came; only such a request may be sent again.
            ProtocolError: The head is cut.
        """
        try:
            piece = self._connection.take()
        except ConnectionError:
            piece = b""
        if piece:
            return piece
        if begun:
            raise ProtocolError("the head ended early")
        raise ClosedEarly("closed before an answer")

    def _read_head(self, head: bytes) -> None:
        status, self.headers, self.kind, length, self._keeps = parse_head(head)
        if length is not None:
            self._body = ChunkedBody() if length == CHUNKED else CountedBody(length)
        self.status = status  # last: an answer without one has its connection closed

    @property
    def may_close(self) -> bool:
        """False while the rest of the body is worth waiting for: the connection can be reused after it."""
        return self.complete or self._body is None or not self._server.reuses_connections

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> bytes:
        """
        Return the bytes that have arrived, at least one.

        Raises:
            UnilectError: The connection broke or timed out, or the body has invalid framing or ends early.
        """
        body, payload = self._body, b""
        try:
            while not payload and (body is None or not body.done):
                if not self._connection.unread:
                    await self._connection.readable(self.timeout_s, self._tap)
                payload = self._connection.take()
                if body is None:
                    break
                if not payload:
                    raise ProtocolError("the body ended early")
                payload = body.feed(payload)
        except (ConnectionError, ProtocolError, Silence) as error:
            self.broken = True
            raise self._server.translate(error) from error
        if body is not None and body.done:
            self.complete = not body.rest and self._keeps
        if not payload:
            raise StopAsyncIteration
        return payload

    def divert(self, take: Tap) -> None:
        """
        Have a function take the payload of each chunk that arrives by itself while the reader waits, in place of the reader.

        Args:
            take: False for a payload that the reader must have.
        """
        if isinstance(self._body, ChunkedBody):
            one_chunk = self._body.single_chunk
            self._tap = lambda data: bool(payload := one_chunk(data)) and take(payload)

    async def whole(self, max_bytes: int) -> bytes:
        """
        Return all bytes; then the answer is closed. A body without a length ends with its JSON, because not every server closes the connection then.

        Raises:
            UnilectError: As `__anext__`.
            BackendError: The body is larger than `max_bytes`.
        """
        pieces, size = [], 0
        end = JsonEnd() if self._body is None else None
        try:
            async for data in self:
                size += len(data)
                if size > max_bytes:
                    raise BackendError(f"The backend's answer is longer than {max_bytes} bytes.")
                pieces.append(data)
                if self.complete:
                    break
                if end is not None and end.feed(data):
                    if plain(b"".join(pieces)) is not None:
                        break
                    end = None  # no JSON, which more bytes do not make it
        finally:
            await self.aclose()
        return b"".join(pieces)

    async def aclose(self) -> None:
        """Keep the connection, or close it if the body was not read to its end."""
        if not self._closed:
            self._closed = True
            self._server.release(self._connection, self.complete)


def server_at(url: str, config: ModelConfig, raise_for: RaiseFor | None = None) -> HttpServer:
    """Return the server at a URL, with the settings of a model."""
    return HttpServer(
        url,
        headers=key_headers(config),
        timeout_s=config.timeout_s,
        reuse_connections=config.reuse_connections,
        raise_for=raise_for,
    )


def raise_for_answer(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """
    Raise the error for an upstream's error answer; return for a success.

    An error about the *request* (4xx) has the upstream's text, cleaned, because the client can fix it. An error of
    the *upstream* has a general text.

    Raises:
        InvalidRequest, ContextLengthExceeded: 400, 404, 409, 413, 422.
        NoSuchPath, NoSuchModel: 404 for a URL or a model.
        RateLimited: 429, with its Retry-After.
        BackendUnavailable: 503.
        UnsupportedOperation: 501.
        BackendError: Any other status that is not 200.
    """
    if status == 200:
        return
    if status in REFUSED:
        raise missing(body) if status == 404 else parse_refusal(body)
    retry_after_s = _seconds(headers.get("retry-after"))
    if status == 429:
        raise too_many(body, retry_after_s)
    if status == 503:
        raise BackendUnavailable(
            "The model's server is busy or not ready. Try again.",
            retry_after_s=retry_after_s or 1,
        )
    if status == 501:
        raise UnsupportedOperation(f"The model's server cannot do this: {error_text(body)}")
    if status in (401, 403):
        raise BackendError(
            "The model's server refused the API key, or requires one; the operator must check `api_key`."
        )
    raise BackendError(
        f"The model's server answered with status {status}. Try again, or ask its operator."
    )


def _seconds(value: str | None) -> float | None:
    """Return the seconds of a Retry-After, which is a number or an HTTP date; a week at most."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(max(0.0, seconds), _LONGEST_PAUSE_S) if math.isfinite(seconds) else None
