"""
Requests that come again: the same request of the same key, sent again after its connection was lost, gets the answer that is still made.

`Rejoining` stands in front of the handlers that ask a model, below the guard: the key of a request is checked before, each time. The handler
runs in a task of `answers/rejoin.py`, and what it answers is recorded there, in bytes, whatever its dialect. So ids and times stay
those of the first request.

What SDKs send says too little to go by: openai and anthropic (2.x) number their own retries in `X-Stainless-Retry-Count`, do not retry a
stream that has begun, and send no `Idempotency-Key` of their own; other clients send nothing.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial, wraps

from aiohttp import HttpVersion11, web
from msgspec import structs

from unilect.accounting.account import Entry, wait_for_entry
from unilect.accounting.ledger import LedgerBook
from unilect.accounting.metrics import CLIENT_LEFT
from unilect.answers.rejoin import Answer, Rejoin
from unilect.core.bounds import LARGE_BYTES
from unilect.core.errors import LedgerUnavailable, UnilectError
from unilect.core.events import Usage
from unilect.core.requests import Request
from unilect.runtime.context import (
    ANONYMOUS,
    CURRENT_REQUEST,
    Context,
    current_request,
    explain_cancellation,
)
from unilect.web.route import Handler, Route
from unilect.web.streaming import RECORDER

#: The endpoints, as metrics name them, whose requests may come again.
ENDPOINTS = frozenset(
    {
        "chat",
        "chat.completions",
        "completion",
        "completions",
        "embeddings",
        "generate",
        "langchain",
        "messages",
        "rerank",
        "responses",
    }
)
#: Headers that tell one request from another; no dialect reads any other for these endpoints, but those of the key.
IDENTITY = (
    "Origin",
    "Idempotency-Key",
    "anthropic-beta",
    "anthropic-version",
    "OpenAI-Beta",
)
#: Of an answer that was joined: the id of the request that it was begun for.
REJOINED = "X-Unilect-Rejoined"
_OURS = "unilect.dialects."  # who else knows which headers another package's dialect reads


class Rejoining:
    """
    The requests of one address.

    Args:
        rejoin: The answers of the server.
        ledger: Records a request that has joined an answer, with no tokens: those are the answer's.
    """

    def __init__(self, rejoin: Rejoin, ledger: LedgerBook | None = None) -> None:
        self._rejoin, self._ledger = rejoin, ledger
        self._place = f"{id(self):x}"  # other addresses may answer in another way

    def joinable(self, route: Route) -> Route:
        """The route with a handler whose answers may be joined, if that is for it."""
        ours = route.handler.__module__.startswith(_OURS)
        if not ours or route.endpoint not in ENDPOINTS or route.method != "POST" or route.public:
            return route
        inner = route.handler

        @wraps(inner)
        async def handler(request: web.Request) -> web.StreamResponse:
            context = current_request()
            if context.caller in ("", ANONYMOUS):  # one of them must not get another's answer
                return await inner(request)
            return await self._answer(request, context, inner)

        return structs.replace(route, handler=handler)

    async def _answer(
        self, request: web.Request, context: Context, handler: Handler
    ) -> web.StreamResponse:
        """The answer that was begun for the same request, or a new one; errors as the handler."""
        body = await request.read()
        parts = _parts(request, context, self._place)
        if len(body) > LARGE_BYTES:
            key = await asyncio.to_thread(_digest, parts, body)
        else:
            key = _digest(parts, body)
        if "no-cache" not in request.headers.get("Cache-Control", ""):
            found = self._rejoin.join(key, context.models)
            if found is not None:
                return await self._join(request, context, found)
        answer = self._rejoin.begin(key, context, len(body), partial(_make, request, handler))
        try:
            return await self._send(_First(request, answer))
        except asyncio.CancelledError:
            # what ends the answer from now on is no reason why this task has ended
            CURRENT_REQUEST.set(None)
            raise

    async def _join(
        self, request: web.Request, context: Context, answer: Answer
    ) -> web.StreamResponse:
        """
        Send an answer that was begun for an earlier request.

        Raises:
            LedgerUnavailable: This request has to be recorded, and cannot be; the answer is held again.
            UnilectError: The answer has failed before there was anything to send.
        """
        begun = answer.context
        reader = _Joined(request, answer, context)
        context.set_model(begun.model, reader)
        try:
            if self._ledger is not None and self._ledger.applies(context):
                reader.entry = await wait_for_entry(self._ledger.open(context, Request()))
        except BaseException:
            self._rejoin.leave(answer)
            raise
        context.set_backend(begun.answering, f"rejoined:{begun.request_id}")
        try:
            return await self._send(reader)
        except UnilectError as error:
            if context.ended is None:
                context.ended = error  # its row has the status that its client is told
            raise
        finally:
            await reader.close(CLIENT_LEFT)  # nothing where it was closed before its end

    async def _send(self, reader: "_First") -> web.StreamResponse:
        """Send an answer to its reader, and say what became of that."""
        answer = reader.answer
        try:
            response = await reader.send()
        except (asyncio.CancelledError, ConnectionError):
            reader.cut()
            self._rejoin.leave(answer)
            raise
        except BaseException:
            self._rejoin.finish(answer)
            raise
        self._rejoin.finish(answer)
        return response


class _First:
    """
    The reader of an answer for whose request it was begun.

    Attributes:
        answer: What it reads.
    """

    def __init__(self, request: web.Request, answer: Answer) -> None:
        self.answer = answer
        self._request = request
        self._begun = False

    async def send(self) -> web.StreamResponse:
        """
        Send the answer: in one piece where it is whole before anything was sent.

        Raises:
            UnilectError: It has failed before that.
        """
        data, is_last = await self._take()
        if is_last:
            await self.close(self.answer.status)
            return web.Response(status=self.answer.status, headers=self._headers(), body=data)
        response = web.StreamResponse(status=self.answer.status, headers=self._headers())
        self._begun = True
        if self._request.version >= HttpVersion11:
            response.enable_chunked_encoding()
        await response.prepare(self._request)
        while not is_last:
            await response.write(data)
            data, is_last = await self._take()
        await self.close(self.answer.status)
        await response.write_eof(data)
        return response

    async def close(self, status: int) -> None:
        """The last piece is about to be sent, or will never be. Idempotent."""

    def cut(self) -> None:
        """The answer could not be sent to its end."""

    def _headers(self) -> dict[str, str]:
        return self.answer.headers

    async def _take(self) -> tuple[bytes, bool]:
        return await self.answer.take()


class _Joined(_First):
    """
    The reader of an answer that was begun for an earlier request; it measures its own, which uses no tokens.

    Attributes:
        entry: Its row of the ledger, if it gets one.
        usage, first_token_s, finish_reason: As `Measured`.
    """

    usage = Usage(0, 0)
    finish_reason = ""

    def __init__(self, request: web.Request, answer: Answer, context: Context) -> None:
        super().__init__(request, answer)
        self.entry: Entry | None = None
        self.first_token_s: float | None = None
        self._context = context

    async def close(self, status: int) -> None:
        """Have the row written. That of the answer is there already, so one that cannot be written now is no reason to break it."""
        entry, self.entry = self.entry, None
        if entry is not None:
            with suppress(LedgerUnavailable):
                if (closing := entry.close(self.usage, status)) is not None:
                    await closing

    def hold(self, prompt: int, completion: int) -> None:
        """Nothing is made for this request."""

    def cut(self) -> None:
        """End the answer too, and abort a begun response, if the server has ended this request: a part must not look complete."""
        if (ended := self._context.ended) is not None:
            self.answer.context.end(ended)
            if self._begun and self._request.transport is not None:
                self._request.transport.abort()

    def _headers(self) -> dict[str, str]:
        told = {"X-Request-Id": self._context.request_id}
        return self.answer.headers | told | {REJOINED: self.answer.context.request_id}

    async def _take(self) -> tuple[bytes, bool]:
        """As the answer's; where this request is ended by us the answer is, and tells it in its own form."""
        while True:
            try:
                taken = await self.answer.take()
                break
            except asyncio.CancelledError as error:
                ended = self._context.ended
                if ended is None or explain_cancellation(error) is error:
                    raise
                self.answer.context.end(ended)
        if self.first_token_s is None:
            self.first_token_s = time.perf_counter() - self._context.started
        return taken


class _Recorder:
    """Writes an answer into its record; see `Recorder`."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.write, self.drain, self.mark_broken = answer.write, answer.drain, answer.mark_broken

    @property
    def transport(self) -> "_Recorder":
        """Itself."""
        return self

    writer = transport

    def response(self, headers: Mapping[str, str]) -> "_Recorded":
        """The answer, recorded."""
        return _Recorded(self._answer, headers)

    def is_closing(self) -> bool:
        """Never."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that its reader has not taken."""
        return self._answer.unread


class _Recorded(web.StreamResponse):
    """A stream into a record: pieces without HTTP's framing, which its readers get each in their own."""

    def __init__(self, answer: Answer, headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers)
        self._answer = answer

    def enable_chunked_encoding(self, chunk_size: int | None = None) -> None:
        """There is no framing."""

    async def prepare(self, request: web.BaseRequest) -> None:
        """Record the head."""
        self._answer.begin(self.status, self.headers)

    async def write_eof(self, data: bytes = b"") -> None:
        """Record the end."""
        self._answer.end(data)


async def _make(request: web.Request, handler: Handler, answer: Answer) -> None:
    """Have a handler's answer recorded; errors as the handler."""
    CURRENT_REQUEST.set(answer.context)
    request[RECORDER] = _Recorder(answer)
    response = await handler(request)
    if isinstance(response, web.Response):
        body = response.body or b""
        assert isinstance(body, bytes)
        answer.begin(response.status, response.headers)
        answer.end(body)


def _parts(request: web.Request, context: Context, place: str) -> list[str]:
    """Collect what distinguishes a request from others, except its body."""
    headers = [value for name in IDENTITY for value in (name, *request.headers.getall(name, ()))]
    return [context.caller, place, request.path_qs, *headers]


def _digest(parts: list[str], body: bytes) -> bytes:
    """A digest of all that tells a request from others; each part by its length, so that none runs into the next."""
    found = hashlib.blake2b(digest_size=32)
    for part in (*(text.encode(errors="surrogateescape") for text in parts), body):
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.digest()
