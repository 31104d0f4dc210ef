"""
Limits the concurrent requests of a backend; the others are queued by priority, and within a priority first come first served.

Some servers answer concurrent requests wrongly (PowerInfer), some refuse the second.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from unilect.backend import Backend, Batches, Capabilities, embeds, reranks
from unilect.context import in_hand
from unilect.ranking import Ranking, RerankRequest
from unilect.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Embeddings


class ConcurrencyLimit:
    """
    A backend with a limit of concurrent requests.

    Args:
        backend: The backend.
        places: The limit.
    """

    def __init__(self, backend: Backend, places: int) -> None:
        self._backend = backend
        self._free = places
        self._waiting: dict[int, OrderedDict[asyncio.Future[None], None]] = {}  # by priority

    @property
    def capabilities(self) -> Capabilities:
        """The backend's capabilities."""
        return self._backend.capabilities

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Answer a request, when its turn has come; one whose client leaves before that is never sent."""
        async with self._place(), aclosing(self._backend.generate(request)) as batches:
            async for batch in batches:
                yield batch

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request, when its turn has come."""
        async with self._place():
            return await embeds(self._backend).embed(request)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Score the documents of a request, when its turn has come."""
        async with self._place():
            return await reranks(self._backend).rerank(request)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        turn, priority = asyncio.get_running_loop().create_future(), in_hand().priority
        self._waiting.setdefault(priority, OrderedDict())[turn] = None
        self._give(0)
        try:
            yield await turn
        finally:
            if turn.cancelled():  # it was never its turn
                self._take_out(priority, turn)
            else:
                self._give(1)

    def _give(self, places: int) -> None:
        """Give what is free, and these places, to those who wait."""
        self._free += places
        while self._free and self._waiting:
            first = max(self._waiting)
            turn = next(iter(self._waiting[first]))
            self._take_out(first, turn)
            if not turn.done():  # who waited is still there
                turn.set_result(None)
                self._free -= 1

    def _take_out(self, priority: int, turn: asyncio.Future[None]) -> None:
        """Somebody no longer waits, who may have been taken out already."""
        waiting = self._waiting.get(priority, OrderedDict())
        waiting.pop(turn, None)
        if not waiting:
            self._waiting.pop(priority, None)
