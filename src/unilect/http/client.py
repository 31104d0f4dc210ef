"""
One server that answers JSON and event streams: the single border where its failures become our errors.

Every request gets a fresh connection unless told otherwise: an upstream that sends one answer too many on a kept connection
could give it to the next request, and llama-server closes after each stream without saying so. Redirects are never followed:
they would carry prompts and keys elsewhere.
"""

import math
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Self, TypeAlias

from unilect.config.model import ModelConfig
from unilect.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    BackendUnreachable,
    RateLimited,
    UnilectError,
    UnsupportedOperation,
)
from unilect.http._connection import (
    Address,
    ClosedEarly,
    ConnectFailed,
    Connection,
    Response,
    Silence,
    exchange,
)
from unilect.http._reasons import of_answer
from unilect.http.base_url import head, key_headers, split, with_user
from unilect.http.body import ProtocolError
from unilect.http.error_bodies import (
    REFUSED,
    NoSuchModel,
    missing,
    no_stream,
    plain,
    refused_request,
    told_text,
)
from unilect.redact import redacted

MAX_BODY_BYTES = 32 * 1024 * 1024
CONNECT_TIMEOUT_S = 5.0
MAX_IDLE = 64  # kept connections to one server

RaiseFor: TypeAlias = Callable[[int, Mapping[str, str], bytes], None]


class HttpServer:
    """
    A server, and the connections to it.

    Args:
        base: Its base URL. Its path stands before every other, its query is sent with every request, and its user and password as
            Basic authentication. For a unix socket, the host does not matter.
        headers: Sent with every request.
        socket_path: The unix socket that it listens on, instead of the URL's host.
        connect_to: The IP address that the URL's host has, which is then not resolved again.
        timeout_s: The longest silence before and between the bytes of an answer.
        reuse_connections: Keep connections open between requests.
        raise_for: Turns an error answer (status, headers, body) into our error; `raise_for_answer` where it is left out.
        max_body_bytes: The longest whole answer that is read; `MAX_BODY_BYTES` where it is left out.

    Attributes:
        shown: Its base URL without credentials, for the operator.
        reuses_connections: As given.
        lost: Why it could not be reached when it was tried last; None where it could.
        doubts: How often it could not be reached, or did not know the model: it may be another server by now.
        raise_for: Turns an error answer into ours: by default as `raise_for_answer`, where the protocol has no words of its own.

    Raises:
        ConfigError: The URL or a header is wrong.
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
        self.shown = redacted(base)
        self.max_body_bytes = max_body_bytes or MAX_BODY_BYTES
        self.lost: str | None = None
        self.doubts = 0
        self._address = Address(
            url.hostname or "", port, url.scheme == "https", socket_path, connect_to
        )
        self._host = url.netloc.rpartition("@")[2]
        self._root = f"{url.scheme}://{self._host}"
        self._path = url.path.rstrip("/")
        self._query = url.query
        self._has_key = any("key" in name.lower() or "auth" in name.lower() for name in headers)
        self._timeout_s = timeout_s
        self.reuses_connections = reuse_connections
        self.raise_for = raise_for or raise_for_answer
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._head = head(self._host, headers, reuse_connections)

    async def post(self, path: str, body: bytes, max_bytes: int | None = None) -> bytes:
        """
        POST and read the whole answer.

        Args:
            max_bytes: The longest answer that is read; the server's where it is left out.

        Raises:
            UnilectError: As `raise_for_answer` says, or the server could not be reached.
        """
        return await self._whole(self._request("POST", path, body), max_bytes)

    async def get(self, path: str) -> bytes:
        """GET and read the whole answer; errors as in `post`."""
        return await self._whole(self._request("GET", path, b""))

    def stream(
        self,
        path: str,
        body: bytes,
        gather_s: float = 0.0,
        content_type: str = "text/event-stream",
    ) -> "EventStream":
        """
        POST and yield the bytes of a stream as they come.

        Args:
            gather_s: How long bytes may be gathered before they are given; see `Connection`.
            content_type: What the answer must be; "" for anything, where servers do not say.

        Raises:
            UnilectError: As in `post`; before the first byte when the status is not 200.
        """
        return EventStream(self, self._request("POST", path, body), gather_s, content_type)

    def retire(self) -> None:
        """Keep no connection any more; what runs goes on."""
        self.reuses_connections = False
        while self._idle:
            self.release(self._idle.pop(), reusable=False)

    async def aclose(self) -> None:
        """Close all connections; running requests break off."""
        for connection in list(self._open):
            connection.close()
        self._idle.clear()

    async def _whole(self, request: bytes, max_bytes: int | None = None) -> bytes:
        with translated_errors(self):
            connection, response = await self.exchange(request, 0.0)
            try:
                answer = await _body(response, max_bytes or self.max_body_bytes)
                self.check(request, response, answer)
                return answer
            finally:
                self.release(connection, response.complete)

    async def exchange(self, request: bytes, gather_s: float) -> tuple[Connection, Response]:
        """
        Send a request; the connection must be given to `release` once its answer was read.

        Returns:
            The connection, and the head of the answer. A kept connection that turns out to be closed is no failure.
        """
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh:
                connection.gather_s = gather_s
                try:
                    return connection, await self._answer(connection, request)
                except ConnectionError:
                    continue
            self.release(connection, reusable=False)
        try:
            connection = await self._address.connect(CONNECT_TIMEOUT_S)
        except ConnectFailed as error:
            self.lost = str(error)
            self.doubts += 1
            raise
        self.lost = None
        self._open.add(connection)
        connection.gather_s = gather_s
        return connection, await self._answer(connection, request)

    async def _answer(self, connection: Connection, request: bytes) -> Response:
        try:
            return await exchange(connection, request, self._timeout_s)
        except BaseException:
            self.release(connection, reusable=False)
            raise

    def release(self, connection: Connection, reusable: bool) -> None:
        """Keep a connection for the next request, or close it."""
        if (
            reusable
            and self.reuses_connections
            and connection.is_quiet  # the kernel is asked before the next exchange
            and len(self._idle) < MAX_IDLE
        ):
            self._idle.append(connection)
        else:
            self._open.discard(connection)
            connection.close()

    def check(self, request: bytes, response: Response, body: bytes) -> None:
        """
        Raise what an answer means, where it is no success; what is the server's fault, or the operator's, with the reason.

        Raises:
            UnilectError: As `raise_for`.
        """
        status = response.status
        try:
            self.raise_for(status, response.headers, body)
        except UnilectError as error:
            if isinstance(error, NoSuchModel):
                self.doubts += 1
            if error.status >= 429 and error.reason is None:
                method, path, _ = request.split(b" ", 2)
                asked = f"{method.decode()} {self._root}{path.decode()}"
                error.reason = of_answer(asked, status, response.headers, body)
                if status in (401, 403) and not self._has_key:
                    error.reason += (
                        " No key is configured for it: set `api_key` (`unilect chat`: --api-key)."
                    )
            raise

    def unreachable(self, reason: str) -> BackendUnreachable:
        """The error for a server to which no connection can be made."""
        return BackendUnreachable(
            "The model's server cannot be reached. Try again, or ask its operator.",
            retry_after_s=1,
            reason=f"The model's server cannot be reached: {reason}.",
        )

    def translated(self, error: BaseException) -> UnilectError | None:
        """An error of the client, or of the operating system, as ours; None for any other."""
        match error:
            case Silence() | TimeoutError():
                return BackendTimeout(
                    "The model's server was silent for too long; the answer was given up.",
                    reason=f"The model's server ({self.shown}) was silent for {self._timeout_s:g} s; the answer was given up.",
                )
            case ProtocolError():
                return BackendError(
                    f"The model's server broke the protocol: {error}.",
                    reason=f"The model's server ({self.shown}) broke the protocol: {error}.",
                )
            case ConnectFailed():
                return self.unreachable(str(error))
            case ClosedEarly():
                ours = BackendError(
                    "The model's server closed the connection before it answered.",
                    reason=f"The model's server ({self.shown}) closed the connection before it answered.",
                )
                ours.connection_failed = True
                return ours
            case ConnectionError():
                return BackendError(
                    "The model's server broke off in the middle of its answer.",
                    reason=f"The model's server ({self.shown}) broke off in the middle of its answer.",
                )
            case OSError():
                return self.unreachable(f"{self._host} ({error.strerror or error})")
        return None

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        if self._query:
            path += ("&" if "?" in path else "?") + self._query
        return b"%s %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (
            method.encode(),
            (self._path + path).encode(),
            self._head,
            len(body),
            body,
        )


async def _body(response: Response, max_bytes: int) -> bytes:
    """
    The whole body of an answer. One without a length ends with its JSON, since not every server closes the connection then.

    Raises:
        BackendError: It is longer than `max_bytes`.
    """
    pieces, size = [], 0
    while data := await response.read():
        size += len(data)
        if size > max_bytes:
            raise BackendError(f"The backend's answer is longer than {max_bytes} bytes.")
        pieces.append(data)
        if not response.has_end and data.rstrip().endswith((b"}", b"]")):
            if plain(body := b"".join(pieces)) is not None:
                return body
            pieces = [body]
    return b"".join(pieces)


class EventStream:
    """
    The bytes of a stream as they come: an async iterator, to be used inside `aclosing`.

    It is no generator, since opening and closing one for each request costs more than its reads.
    """

    def __init__(
        self, server: HttpServer, request: bytes, gather_s: float, content_type: str
    ) -> None:
        self._content_type = content_type
        self._server = server
        self._request = request
        self._gather_s = gather_s
        self._connection: Connection | None = None
        self._response: Response | None = None

    @property
    def complete(self) -> bool:
        """True once all was read and the connection can serve again: there is nothing to wait for."""
        return self._response is not None and self._response.complete

    @property
    def has_end(self) -> bool:
        """False where only the end of the connection ends the stream."""
        return self._response is not None and self._response.has_end

    def hurry(self, timeout_s: float) -> None:
        """Allow no longer silence than this from now on."""
        if self._response is not None:
            self._response.timeout_s = min(timeout_s, self._response.timeout_s)

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def __anext__(self) -> bytes:
        """
        The bytes that have come, at least one.

        Raises:
            UnilectError: As `HttpServer.stream`.
        """
        try:
            response = self._response or await self._open()
            data = await response.read()
        except (OSError, ProtocolError, Silence) as error:
            ours = self._server.translated(error)
            raise (ours or error) from error
        if not data:
            raise StopAsyncIteration
        return data

    async def aclose(self) -> None:
        """Give the connection back, or close it where the answer was not read to its end."""
        if self._connection is not None:
            self._server.release(self._connection, self.complete)
            self._connection = None

    async def _open(self) -> Response:
        """The answer's head, which must be that of such a stream."""
        self._connection, response = await self._server.exchange(self._request, self._gather_s)
        self._response = response
        kind = response.headers.get("content-type", "")
        if response.status != 200 or not kind.startswith(self._content_type):
            told = await _body(response, self._server.max_body_bytes)
            self._server.check(self._request, response, told)
            raise no_stream(kind, told)
        return response


class translated_errors:
    """
    The client's errors, and the operating system's, as ours.

    It is used as a function would be; a generator with `@contextmanager` costs three times as much, for each read.
    """

    __slots__ = ("_server",)

    def __init__(self, server: HttpServer) -> None:
        self._server = server

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise what the error means here."""
        if error is not None and (ours := self._server.translated(error)) is not None:
            raise ours from error


def server_at(url: str, config: ModelConfig, raise_for: RaiseFor | None = None) -> HttpServer:
    """The server at a URL, as the settings of a model say."""
    return HttpServer(
        url,
        headers=key_headers(config),
        timeout_s=config.timeout_s,
        reuse_connections=config.reuse_connections,
        raise_for=raise_for,
    )


def raise_for_answer(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """
    Turn an upstream's error answer into ours; return where it is none.

    What is wrong with the *request* (4xx) is told in the upstream's words, cleaned: the client can mend it. What is wrong
    with the *upstream* is told in ours.

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
        raise missing(body) if status == 404 else refused_request(body)
    retry_after_s = _seconds(headers.get("retry-after"))
    if status == 429:
        raise RateLimited(
            "The model's server is over its limit. Try again later.", retry_after_s=retry_after_s
        )
    if status == 503:
        raise BackendUnavailable(
            "The model's server is busy or not ready. Try again.",
            retry_after_s=retry_after_s or 1,
        )
    if status == 501:
        raise UnsupportedOperation(f"The model's server cannot do this: {told_text(body)}")
    if status in (401, 403):
        raise BackendError(
            "The model's server refused our key, or wants one; its operator must look at the configuration."
        )
    raise BackendError(f"The model's server answered with status {status}.")


def _seconds(value: str | None) -> float | None:
    """A Retry-After: seconds, or the date in HTTP's form."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
