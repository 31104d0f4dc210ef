"""
A backend that takes only so many requests at a time; the others wait here, first come first served.

Some servers answer wrongly when two requests meet in them (PowerInfer), some refuse the second.
"""

import asyncio
from contextlib import aclosing

from unilect.backend import Backend, Batches, Capabilities, embeds
from unilect.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Embeddings


class ConcurrencyLimit:
    """
    What stands in front of a backend.

    Args:
        backend: The backend.
        places: The most requests that may be in it.
    """

    def __init__(self, backend: Backend, places: int) -> None:
        self._backend = backend
        self._places = asyncio.Semaphore(places)

    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do."""
        return self._backend.capabilities

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Answer a request, when its turn has come; one whose client leaves before that is never sent."""
        async with self._places, aclosing(self._backend.generate(request)) as batches:
            async for batch in batches:
                yield batch

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request, when its turn has come."""
        async with self._places:
            return await embeds(self._backend).embed(request)
