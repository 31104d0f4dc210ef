"""
Streamed answers: server-sent events in, batches of events out.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeAlias

from unilect.api.backend import Batches
from unilect.core.errors import UnilectError
from unilect.core.events import Event, TextDelta
from unilect.http.client import Response
from unilect.http.sse import FrameReader
from unilect.runtime.context import Push
from unilect.wire.chunks import ChunkDecoder
from unilect.wire.llamacpp import FrameDecoder

GATHER_S = 0.005
END_TIMEOUT_S = 5.0  # of silence after the last finish reason: the usage may follow, and `[DONE]`
#: Sends a body to a path; returns the answer, whose bytes are gathered for some seconds.
Send: TypeAlias = Callable[[str, bytes, float], Awaitable[Response]]
_no_events: Callable[[], list[Event]] = list  # `list[Event]()` takes a hundred times as long


class _End:
    """The end of a finished answer, for which unilect waits a short time only."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at = 0.0

    def is_due(self, answer: Response, frames: list[bytes]) -> bool:
        """Return True if there are no frames, and the last ones came too long ago. Comments do not prolong the wait."""
        answer.timeout_s = min(END_TIMEOUT_S, answer.timeout_s)
        now = asyncio.get_running_loop().time()
        if frames:
            self._at = now + answer.timeout_s
        return now >= self._at and not frames


async def stream(
    send: Send,
    path: str,
    body: bytes,
    decoder: ChunkDecoder | FrameDecoder,
    push: Push | None = None,
) -> Batches:
    """
    Send a streaming request and yield its events.

    The end of the bytes is not the end of an answer: `decoder.end` decides. Some servers keep the connection open after
    the answer: once every choice has a finish reason, unilect waits only a short time for the end, and one that breaks takes nothing from it.

    Args:
        push: Delivers plain texts that come one by one past the reader of this, which waits meanwhile; as `Context.push`.

    Raises:
        UnilectError: As `HttpServer.stream` and `decoder`; BackendError if the stream was cut.
    """
    reader, batch, end = FrameReader(), _no_events(), _End()
    answer = await send(path, body, GATHER_S * decoder.joined)
    if push is not None and isinstance(decoder, ChunkDecoder):
        answer.divert(partial(_push_text, push, reader, decoder))
    try:
        async for data in answer:
            decoder.decode(found := reader.feed(data), batch)
            if decoder.done and answer.may_close:
                break
            if batch:
                yield batch
                batch = []
            if decoder.finished and end.is_due(answer, found):
                break
    except UnilectError:
        if not (decoder.finished and answer.broken):  # else the answer is whole
            if batch:  # it came before a frame that is an error
                yield batch
            raise
    finally:
        await answer.aclose()
    if not (decoder.done or answer.broken):
        decoder.decode(reader.end(), batch)
    batch += decoder.end()
    if batch:
        yield batch


def _push_text(push: Push, reader: FrameReader, decoder: ChunkDecoder, block: bytes) -> bool:
    """Deliver a block that is a plain text, if nothing before it is incomplete."""
    text = None if reader.has_rest else decoder.plain_text(block)
    return text is not None and push([TextDelta(text)])


async def map_batches(batches: Batches, change: Callable[[list[Event]], list[Event]]) -> Batches:
    """Yield what a function makes of each batch, unless that is empty."""
    async with aclosing(batches):
        async for batch in batches:
            if changed := change(batch):
                yield changed
