"""
Limits the concurrent requests of a backend; the others are queued by priority, and within a priority first come first served.

Some servers answer concurrent requests wrongly (PowerInfer), some refuse the second.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import count

from unilect.backend import Backend, Batches, Capabilities, embeds
from unilect.context import in_hand
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
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

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

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (-in_hand().priority, next(self._numbers), turn))
        self._give(0)
        try:
            yield await turn
        finally:
            if not turn.cancelled():  # else it was never its turn
                self._give(1)

    def _give(self, places: int) -> None:
        """Give what is free, and these places, to those who wait."""
        self._free += places
        while self._free and self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():  # who waited is still there
                turn.set_result(None)
                self._free -= 1
