"""
The responses that are stored, and the answers that go on without their client.

1. Whoever made a response sees it, and no one else. An id that is not theirs is one that is not there.
2. A response is stored before its end is sent, so that a client that has its end can go on from it.
3. One that runs in the background belongs to the server: a client that leaves stops nothing, but it ends with its key. A server that ends leaves it `failed`; one that
   was killed is detected by others, since its server's record is no longer refreshed.

Source: https://platform.openai.com/docs/guides/conversation-state, https://platform.openai.com/docs/guides/background
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import msgspec

from unilect.answers.inflight import Answer, Answers
from unilect.answers.service import Run
from unilect.core.bounds import LARGE_BYTES
from unilect.core.errors import (
    BackendUnavailable,
    InternalError,
    InvalidRequest,
    StoreUnavailable,
    UnilectError,
)
from unilect.dialects.openai.chunks import encode_json
from unilect.dialects.responses._history import UNFINISHED, History, require_found, require_store
from unilect.dialects.responses._items import list_form
from unilect.dialects.responses._output import ResponseEncoder
from unilect.dialects.responses._request import PromptRequest
from unilect.runtime.context import (
    CURRENT_REQUEST,
    Context,
    current_request,
    explain_cancellation,
)
from unilect.runtime.tasks import Tasks
from unilect.store.records import Item, StoredResponse
from unilect.store.responses import ResponseStore
from unilect.web import streaming

log = logging.getLogger("unilect")
_Answer = TypeVar("_Answer")
_LIFE_SIGN_S = 10.0
_STALE_S = 3 * _LIFE_SIGN_S
_STORE_AGAIN_S = (
    0.2,
    1.0,
    4.0,
    10.0,
)  # pauses between attempts to store the end of a response that nobody waits for
_STORE_AT_LAST_S = 2.0  # for one more attempt, of a server that stops


class BackgroundResponse(Answer):
    """
    A response that is made without its client; its pieces are its events, of which the last one is written once its end is stored.

    Attributes:
        encoder: Encodes it.
        cancelled: Its owner wants it no more.
    """

    def __init__(self, encoder: ResponseEncoder, context: Context) -> None:
        super().__init__((context.caller, encoder.id), context)
        self.encoder = encoder
        self.cancelled = False

    def write_events(self, data: bytes) -> None:
        """Add events, each as a piece: the number of an event is its place."""
        for event in _split(data):
            self.write(event)

    async def stop(self) -> None:
        """Cancel it, and wait until its end is stored."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])


class ResponseService:
    """
    The responses that a server keeps.

    Args:
        answers: Where they are stored; None where nothing is.
        inflight: The owner of those that are made in the background, of all addresses.
        background: Where work is done that belongs to no request.

    Attributes:
        answers: As given.
        history: The turns before a request.
    """

    def __init__(self, answers: ResponseStore | None, inflight: Answers, background: Tasks) -> None:
        self.answers = answers
        self.history = History(answers)
        self._inflight, self._background = inflight, background
        self._instance = "" if answers is None else answers.instance
        self._signs: asyncio.Task[None] | None = None

    async def save(
        self,
        asked: PromptRequest,
        items: Sequence[dict[str, Any]],
        encoder: ResponseEncoder,
        owner: str,
        instance: str = "",
    ) -> None:
        """Store a response, whole or just begun."""
        store = self.store()
        stored = StoredResponse(
            encoder.id,
            owner,
            encoder.status,
            encoder.body(),
            _as_items(items),
            encoder.items,
            asked.previous_response_id,
            asked.conversation_id,
            store.clock(),
            instance=instance,
        )
        await store.save(stored)

    async def expect(self, answer: Awaitable[_Answer]) -> _Answer:
        """Wait for an answer, in the end of which a response is stored; the store is told that it comes."""
        store = self.store()
        store.expect(1)
        try:
            return await answer
        finally:
            store.expect(-1)

    async def get(self, owner: str, id: str) -> StoredResponse:
        """
        Return a stored response, as it is now.

        Raises:
            NotStored: There is none.
        """
        while True:
            found = require_found(await self.store().get(owner, id), "Response", id)
            live = self._find(owner, id)
            if live is None or live.task is None or found.status not in UNFINISHED:
                break
            if live.encoder.status in UNFINISHED:
                found.status, found.body = live.encoder.status, live.encoder.body()
                return found
            await asyncio.wait([live.task])  # its end is told once it is stored
        if found.status in UNFINISHED:
            # its end could not be stored; or its server has ended without a word
            if found.instance == self._instance or await self.store().is_stale(found, _STALE_S):
                await self._end_unfinished(owner, found)
            found = await self.store().get(owner, id) or found
        return found

    async def delete(self, owner: str, id: str) -> None:
        """
        Remove a response; one that is being made is stopped.

        Raises:
            NotStored: There is none.
        """
        if (live := self._find(owner, id)) is not None:
            with suppress(asyncio.CancelledError):
                await live.stop()
        require_found(await self.store().delete(owner, id), "Response", id)

    async def cancel(self, owner: str, id: str) -> StoredResponse:
        """
        Stop a response that is being made in the background; one that has ended stays as it is.

        Raises:
            NotStored: There is none.
            InvalidRequest: It was not asked for in the background.
        """
        found = await self.get(owner, id)
        if not msgspec.json.decode(found.body).get("background"):
            raise InvalidRequest(
                "Only a response that was created with `background: true` can be cancelled.",
                param="response_id",
            )
        live = self._find(owner, id)
        if live is None or live.encoder.status not in UNFINISHED:
            return found
        await live.stop()
        return await self.get(owner, id)

    async def begin(
        self,
        asked: PromptRequest,
        items: Sequence[dict[str, Any]],
        encoder: ResponseEncoder,
        run: Callable[[], Run],
    ) -> None:
        """
        Store a response that has yet to be made, for the caller of the current request, and begin to make it.

        Args:
            run: Asks the model.

        Raises:
            RateLimited: Too many are being made.
        """
        asker = current_request()
        context = Context(
            request_id=encoder.id,
            caller=asker.caller,
            models=asker.models,
            owner=asker.owner,
            limits=asker.limits,
            endpoint="responses",
            dialect="responses",
        )
        live = BackgroundResponse(encoder, context)
        self._inflight.reserve(live)
        try:
            await self.save(asked, items, encoder, asker.caller, self._instance)
        except BaseException:
            self._inflight.finish(live)
            raise
        live.write_events(encoder.wait())
        if self._signs is None:
            self._signs = self._background.start(
                "the life signs of responses", self._send_life_signs()
            )
        context.body, asker.body = asker.body, None
        self._inflight.run(live, f"the response {encoder.id}", self._make(live, run))

    def _find(self, owner: str, id: str) -> BackgroundResponse | None:
        """Return a response that is being made."""
        found = self._inflight.background.get((owner, id))
        assert isinstance(found, BackgroundResponse | None)
        return found

    async def events(self, owner: str, id: str, after: int) -> AsyncGenerator[bytes, None]:
        """Return the events of a response after the one of a number: those that were, and those to come. Errors as `get`."""
        live = self._find(owner, id)
        if live is None:
            stored = await self.get(owner, id)
            frames = _split(stored.events or b"")
            if not frames:
                raise InvalidRequest(_not_streamed(stored), param="stream")
            return _join(frames[after + 1 :])
        return _follow(live, after)

    async def _make(self, live: BackgroundResponse, run: Callable[[], Run]) -> None:
        """Ask the model, and store what it says, whatever it comes to."""
        encoder, stops = live.encoder, False
        CURRENT_REQUEST.set(live.context)
        try:
            async with aclosing(run().batches()) as batches:
                async for batch in batches:
                    live.write_events(encoder.encode(batch))
            encoder.close()
        except UnilectError as error:
            encoder.fail(error)
        except asyncio.CancelledError as error:
            if isinstance(
                why := explain_cancellation(error), UnilectError
            ):  # such as of a revoked key
                encoder.fail(why)
                return
            if live.cancelled:
                encoder.cancel()
            else:
                encoder.fail(BackendUnavailable("The server was stopped. Send the request again."))
                stops = True
            raise
        finally:
            self._inflight.delist(live)  # nobody ends what has ended
            if encoder.status in UNFINISHED:  # what is raised is a flaw of ours
                flaw = "The server failed on this response; this is a bug in unilect. Report it, with the log."
                encoder.fail(InternalError(flaw))
            await self._finish(live, stops)

    async def _finish(self, live: BackgroundResponse, stops: bool) -> None:
        """Store the end; while the store cannot be written, its readers wait for it, and then they are told that it has failed."""
        last = _split(live.encoder.end())
        try:
            if not stops:
                await self._store_patiently(live, last)
        except UnilectError as error:
            last[-1] = live.encoder.replace_end(error)
            raise
        except asyncio.CancelledError:
            stops = True
            raise
        finally:
            try:
                if stops:
                    await self._store_at_last(live, last)
            finally:
                live.write_events(b"".join(last))
                live.end()

    async def _store_patiently(self, live: BackgroundResponse, last: list[bytes]) -> None:
        """Store the end of a response, with several attempts; errors as of the last one."""
        for pause_s in _STORE_AGAIN_S:
            with suppress(StoreUnavailable):
                return await self._store_end(live, last)
            await asyncio.sleep(pause_s)
        await self._store_end(live, last)

    async def _store_at_last(self, live: BackgroundResponse, last: list[bytes]) -> None:
        """Store the end of a response that is waited for, such as by a server that stops: one attempt; the log tells what is lost."""
        try:
            async with asyncio.timeout(_STORE_AT_LAST_S):
                await self._store_end(live, last)
        except (UnilectError, TimeoutError) as error:
            why = (
                error.for_operator
                if isinstance(error, UnilectError)
                else "the store does not answer"
            )
            log.error("the response %s ended as %s, which could not be stored and is lost: %s", live.encoder.id, live.encoder.status, why)  # fmt: skip

    async def _store_end(self, live: BackgroundResponse, last: list[bytes]) -> None:
        """Store a response with its last events, which nobody has yet."""
        encoder = live.encoder
        await self.store().update(
            live.context.caller,
            encoder.id,
            status=encoder.status,
            body=encoder.body(),
            output=encoder.items,
            events=b"".join([*live.pieces, *last]),
            only_if=UNFINISHED,
        )

    async def _send_life_signs(self) -> None:
        """Say that this server still makes its responses."""
        while True:
            with suppress(UnilectError):
                await self.store().touch(self._instance)
            await asyncio.sleep(_LIFE_SIGN_S)

    async def _end_unfinished(self, owner: str, stored: StoredResponse) -> None:
        """Store a response that nobody makes any more as failed, unless its end was stored meanwhile."""
        error = {"code": "server_error", "message": "The server ended before the answer did."}
        body = msgspec.json.decode(stored.body) | {"status": "failed", "error": error}
        await self.store().update(
            owner,
            stored.id,
            status="failed",
            body=encode_json(body),
            output=stored.output,
            only_if=UNFINISHED,
        )

    def store(self) -> ResponseStore:
        """Return the store of responses; errors as `require_store`."""
        return require_store(self.answers)


def _not_streamed(stored: StoredResponse) -> str:
    if msgspec.json.decode(stored.body).get("background"):
        if stored.status in UNFINISHED:
            return "This response is being made by another server. Ask for it without `stream` until it has ended."
        return "The events of this response are lost, as its server could not store them. Ask for it without `stream`."
    return "Only a response that was created with `background: true` can be streamed again."


def _split(data: bytes) -> list[bytes]:
    """Return the events that some bytes are; no JSON text has a line end in it."""
    return [event + b"\n\n" for event in data.split(b"\n\n") if event]


async def _join(frames: list[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield events as they are written: together, unless the response that some of them tell is large."""
    for piece in frames if sum(map(len, frames)) > LARGE_BYTES else [b"".join(frames)]:
        yield piece


async def _follow(live: BackgroundResponse, after: int) -> AsyncGenerator[bytes, None]:
    """Yield the events of a response that is being made, from one on; those that break a silence belong to them, for all who read it."""
    at = after + 1
    while True:
        seen = len(live.pieces)
        if at < seen:
            frames, at = live.pieces[at:], seen
            async for piece in _join(frames):
                yield piece
        elif live.is_over:
            return
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(streaming.KEEP_ALIVE_S):
                    await live.wait(seen)
            if seen == len(live.pieces) and live.encoder.status in UNFINISHED:  # for all readers
                live.write_events(live.encoder.keep_alive())


def _as_items(items: Sequence[dict[str, Any]]) -> list[Item]:
    return [Item(item["id"], encode_json(list_form(item))) for item in items]
