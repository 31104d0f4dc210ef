"""
A connection to one server: the single border where aiohttp's client errors become ours.

Every request gets a fresh connection unless told otherwise: an upstream that sends one answer too many on a kept connection
would give it to the next request, and llama-server closes after each stream without saying so. Redirects are never followed
(they would carry prompts and keys elsewhere), nothing is decompressed, and no proxy is taken from the environment.
"""

import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from unilect.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
    RateLimited,
    UnilectError,
)

MAX_BODY_BYTES = 32 * 1024 * 1024
CONNECT_TIMEOUT_S = 5.0
_SKIPPED_HEADERS = ("User-Agent", "Accept", "Accept-Encoding")
_PATH = re.compile(r"(?<![\w:/.])(?:/[\w.@+-]+){2,}|[A-Za-z]:\\\S+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]+")


class HttpServer:
    """
    One server that answers JSON and event streams.

    Args:
        base: Its base URL; a path in it is kept. For a unix socket, the host does not matter.
        headers: Sent with every request.
        socket_path: The unix socket that it listens on, instead of the URL's host.
        timeout_s: The longest silence before and between the bytes of an answer.
        reuse_connections: Keep connections open between requests.
    """

    def __init__(
        self,
        base: str,
        *,
        headers: Mapping[str, str] | None = None,
        socket_path: str | None = None,
        timeout_s: float = 300.0,
        reuse_connections: bool = False,
    ) -> None:
        self.base = base.rstrip("/")
        self._headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            **(headers or {}),
        }
        self._socket_path = socket_path
        self._timeout_s = timeout_s
        self._reuse = reuse_connections
        self._urls: dict[str, URL] = {}
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: bytes) -> bytes:
        """
        POST and read the whole answer.

        Raises:
            UnilectError: As `raise_for_answer` says, or the server could not be reached.
        """
        return await self._whole("POST", path, body)

    async def get(self, path: str) -> bytes:
        """GET and read the whole answer; errors as in `post`."""
        return await self._whole("GET", path, None)

    async def stream(self, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """
        POST and yield the bytes of an event stream as they come.

        Raises:
            UnilectError: As in `post`; before the first byte when the status is not 200.
        """
        with translated_errors():
            async with self._request("POST", path, body) as response:
                kind = response.headers.get("Content-Type", "")
                if response.status != 200 or not kind.startswith("text/event-stream"):
                    raise_for_answer(response.status, response.headers, await _body(response))
                    raise BackendError(
                        "The backend answered a request for a stream with something else "
                        f"({kind.partition(';')[0] or 'no content type'})."
                    )
                try:
                    while data := await response.content.readany():
                        yield data
                except BaseException:
                    response.close()
                    raise

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _whole(self, method: str, path: str, body: bytes | None) -> bytes:
        with translated_errors():
            async with self._request(method, path, body) as response:
                answer = await _body(response)
                raise_for_answer(response.status, response.headers, answer)
                return answer

    def _request(self, method: str, path: str, body: bytes | None) -> Any:
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = URL(self.base + path)
        if self._session is None:
            self._session = self._open()
        return self._session.request(method, url, data=body, allow_redirects=False)

    def _open(self) -> aiohttp.ClientSession:
        connector: aiohttp.BaseConnector
        if self._socket_path is not None:
            connector = aiohttp.UnixConnector(
                self._socket_path, force_close=not self._reuse, limit=0
            )
        else:
            connector = aiohttp.TCPConnector(force_close=not self._reuse, limit=0)
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            skip_auto_headers=_SKIPPED_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            read_bufsize=2**18,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=self._timeout_s
            ),
        )


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """
    The whole body of an answer.

    Raises:
        BackendError: It is longer than MAX_BODY_BYTES.
    """
    pieces, size = [], 0
    while data := await response.content.readany():
        size += len(data)
        if size > MAX_BODY_BYTES:
            response.close()
            raise BackendError(f"The backend's answer is longer than {MAX_BODY_BYTES} bytes.")
        pieces.append(data)
    return b"".join(pieces)


@contextmanager
def translated_errors() -> Iterator[None]:
    """aiohttp's client errors, and the operating system's, as ours."""
    try:
        yield
    except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
        raise BackendUnavailable(
            "The model's server cannot be reached. Try again, or ask its operator.",
            retry_after_s=1,
        ) from error
    except (TimeoutError, aiohttp.ServerTimeoutError) as error:
        raise BackendTimeout(
            "The model's server was silent for too long; the answer was given up."
        ) from error
    except (aiohttp.ClientError, OSError) as error:
        raise BackendError("The model's server broke off in the middle of its answer.") from error


def raise_for_answer(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """
    Turn an upstream's error answer into ours; return where it is none.

    What is wrong with the *request* (4xx) is told in the upstream's words, cleaned: the client can mend it. What is wrong
    with the *upstream* is told in ours.

    Raises:
        InvalidRequest, ContextLengthExceeded: 400, 404, 409, 413, 422.
        RateLimited: 429, with its Retry-After.
        BackendUnavailable: 503.
        BackendError: Any other status that is not 200.
    """
    if status == 200:
        return
    if status in (400, 404, 409, 413, 422):
        raise refused_request(body)
    retry_after_s = _seconds(headers.get("Retry-After"))
    if status == 429:
        raise RateLimited(
            "The model's server is over its limit. Try again later.", retry_after_s=retry_after_s
        )
    if status == 503:
        raise BackendUnavailable(
            "The model's server is busy or not ready. Try again.",
            retry_after_s=retry_after_s or 1,
        )
    if status in (401, 403):
        raise BackendError("The model's server refused the key that it is configured with.")
    raise BackendError(f"The model's server answered with status {status}.")


def refused_request(body: bytes) -> UnilectError:
    """The error for a request that the upstream refuses, from the body of its answer."""
    try:
        error = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = None
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if not isinstance(error, dict):
        return InvalidRequest("The model's server refused the request without a reason.")
    message = clean(error.get("message"))
    if error.get("type") == "exceed_context_size_error":
        return too_long(error.get("n_prompt_tokens"), error.get("n_ctx"))
    if error.get("code") == "context_length_exceeded" or "maximum context length" in message:
        return ContextLengthExceeded(message)
    param = error.get("param")
    return InvalidRequest(
        f"The model's server refused the request: {message}",
        param=param if isinstance(param, str) else None,
    )


def too_long(prompt_tokens: Any, context: Any) -> ContextLengthExceeded:
    """The error for a prompt that does not fit, with both numbers."""
    return ContextLengthExceeded(
        f"This model's context is {context} tokens, and the prompt has {prompt_tokens}. "
        "Shorten the prompt, or serve the model with a larger context.",
        param="messages",
    )


def clean(text: Any) -> str:
    """A foreign text made fit to be shown: one line, at most 500 characters, without file paths."""
    if not isinstance(text, str):
        return "no reason given"
    return _PATH.sub("[path]", _CONTROL.sub(" ", text[:2000]))[:500].strip()


def _seconds(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value is not None else None
    except ValueError:
        return None
