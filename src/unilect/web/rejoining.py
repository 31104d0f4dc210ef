"""
Requests that come again: the same request of the same key, sent again after its connection was lost, gets the answer that is still made.

`Rejoining` stands in front of the handlers that ask a model, below the guard: the key of a request is checked before, each time. The handler
runs in a task of `answers/inflight.py`, and what it answers is recorded there, in bytes, whatever its dialect. So ids and times stay
those of the first request.

What SDKs send says too little to go by: openai and anthropic (2.x) number their own retries in `X-Stainless-Retry-Count`, do not retry a
stream that has begun, and send no `Idempotency-Key` of their own; other clients send nothing.
"""

import asyncio
import hashlib
import time
from contextlib import suppress
from functools import partial, wraps

from aiohttp import HttpVersion11, web
from msgspec import structs

from unilect.accounting.account import CLIENT_LEFT, RequestRecord
from unilect.accounting.ledger import LedgerRecorder
from unilect.answers.inflight import Answer, Answers
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
from unilect.web.streaming import RECORD

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
    The requests of one address that may come again.

    Args:
        answers: The answers of the server.
        ledger: Records a request that has joined an answer, with no tokens: those are the answer's.
    """

    def __init__(self, answers: Answers, ledger: LedgerRecorder | None = None) -> None:
        self._answers, self._ledger = answers, ledger
        self._place = f"{id(self):x}"  # other addresses may answer in another way

    def joinable(self, route: Route) -> Route:
        """Return the route with a handler whose answers may be joined, if that is for it."""
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
        """Return the answer that was begun for the same request, or a new one; errors as the handler."""
        body = await request.read()
        parts = _parts(request, context, self._place)
        if len(body) > LARGE_BYTES:
            key = await asyncio.to_thread(_digest, parts, body)
        else:
            key = _digest(parts, body)
        if "no-cache" not in request.headers.get("Cache-Control", ""):
            found = self._answers.join(key, context.models)
            if found is not None:
                return await self._join(_Reader(request, found, context))
        answer = self._answers.start(key, context, len(body), partial(_make, request, handler))
        try:
            return await self._send(_Reader(request, answer, context))
        except asyncio.CancelledError:
            # what ends the answer from now on is no reason why this task has ended
            CURRENT_REQUEST.set(None)
            raise

    async def _join(self, reader: "_Reader") -> web.StreamResponse:
        """
        Send an answer that was begun for an earlier request.

        Raises:
            LedgerUnavailable: This request has to be recorded, and cannot be; the answer is held again.
            UnilectError: The answer has failed before there was anything to send.
        """
        answer, context = reader.answer, reader.context
        begun = answer.context
        context.set_model(begun.model, reader)
        try:
            if self._ledger is not None:
                reader.entry = await self._ledger.open(context, Request())
        except BaseException:
            self._answers.leave(answer)
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

    async def _send(self, reader: "_Reader") -> web.StreamResponse:
        """Send an answer to its reader, which leaves it or finishes it."""
        answer = reader.answer
        try:
            response = await reader.send()
        except (asyncio.CancelledError, ConnectionError):
            reader.cut()
            self._answers.leave(answer)
            raise
        except BaseException:
            self._answers.finish(answer)
            raise
        self._answers.finish(answer)
        return response


class _Reader:
    """
    The reader of an answer, for whose request it was begun, or that has joined it; one that has joined measures its own request, which uses no tokens.

    Attributes:
        answer: The answer that it reads.
        context: Of its request.
        entry: Its row of the ledger, if it gets one.
        usage, first_token_s, finish_reason: As `Measured`.
    """

    usage = Usage(0, 0)
    finish_reason = ""

    def __init__(self, request: web.Request, answer: Answer, context: Context) -> None:
        self.answer, self.context = answer, context
        self.entry: RequestRecord | None = None
        self.first_token_s: float | None = None
        self._request = request
        self._has_joined = context is not answer.context
        self._begun = False

    async def send(self) -> web.StreamResponse:
        """
        Send the answer: in one piece where it is whole before anything was sent.

        Raises:
            UnilectError: It has failed before that.
        """
        data, is_last = await self._take()
        answer, headers = self.answer, self.answer.headers
        if self._has_joined:
            own = {"X-Request-Id": self.context.request_id, REJOINED: answer.context.request_id}
            headers = headers | own
        if is_last:
            await self.close(answer.status)
            return web.Response(status=answer.status, headers=headers, body=data)
        response = web.StreamResponse(status=answer.status, headers=headers)
        self._begun = True
        if self._request.version >= HttpVersion11:
            response.enable_chunked_encoding()
        await response.prepare(self._request)
        while not is_last:
            await response.write(data)
            data, is_last = await self._take()
        await self.close(answer.status)
        await response.write_eof(data)
        return response

    async def close(self, status: int) -> None:
        """
        Have the row written: the last piece is about to be sent, or will never be. Idempotent.

        That of the answer is there already, so one that cannot be written now is no reason to break it.
        """
        entry, self.entry = self.entry, None
        if entry is not None:
            with suppress(LedgerUnavailable):
                await entry.close(self.usage, status)

    def hold(self, prompt: int, completion: int) -> None:
        """Nothing is made for this request."""

    def cut(self) -> None:
        """End the answer too, and abort a begun response, if the server has ended a request that has joined: a part must not look complete."""
        if self._has_joined and (ended := self.context.ended) is not None:
            self.answer.context.end(ended)
            if self._begun and self._request.transport is not None:
                self._request.transport.abort()

    async def _take(self) -> tuple[bytes, bool]:
        """Take as of the answer; where a request that has joined is ended by us the answer is, and tells it in its own form."""
        while True:
            try:
                taken = await self.answer.take()
                break
            except asyncio.CancelledError as error:
                ended = self.context.ended if self._has_joined else None
                if ended is None or explain_cancellation(error) is error:
                    raise
                self.answer.context.end(ended)
        if self.first_token_s is None:
            self.first_token_s = time.perf_counter() - self.context.started
        return taken


async def _make(request: web.Request, handler: Handler, answer: Answer) -> None:
    """Have a handler's answer recorded; errors as the handler."""
    CURRENT_REQUEST.set(answer.context)
    request[RECORD] = answer
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
    """Return a digest of all that tells a request from others; each part by its length, so that none runs into the next."""
    found = hashlib.blake2b(digest_size=32)
    for part in (*(text.encode(errors="surrogateescape") for text in parts), body):
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.digest()
