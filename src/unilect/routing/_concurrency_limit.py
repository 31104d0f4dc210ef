"""
Limits the concurrent requests of a backend; the others are queued, first come first served.

Some servers answer concurrent requests wrongly (PowerInfer), some refuse the second.
"""

import asyncio
from contextlib import aclosing

from unilect.backend import Backend, Batches, Capabilities, embeds
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
        self._places = asyncio.Semaphore(places)

    @property
    def capabilities(self) -> Capabilities:
        """The backend's capabilities."""
        return self._backend.capabilities

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Answer a request when there is room for it; a queued request of a client that disconnects is never sent."""
        async with self._places, aclosing(self._backend.generate(request)) as batches:
            async for batch in batches:
                yield batch

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request when there is room for it."""
        async with self._places:
            return await embeds(self._backend).embed(request)
