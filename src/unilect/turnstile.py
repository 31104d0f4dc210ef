"""
A backend that takes only so many requests at a time; the others wait here, first come first served.

Some servers answer wrongly when two requests meet in them (PowerInfer), some refuse the second.
"""

import asyncio
from contextlib import aclosing

from unilect.backend import Backend, Batches, Capabilities
from unilect.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Embeddings,
    Prompt,
)


class Turnstile:
    """
    A backend in front of another.

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

    async def start(self) -> None:
        """Make the backend ready."""
        await self._backend.start()

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Answer a request, when its turn has come; one whose client leaves before that is never sent."""
        async with self._places, aclosing(self._backend.generate(request)) as batches:
            async for batch in batches:
                yield batch

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request, when its turn has come."""
        async with self._places:
            return await self._backend.embed(request)

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """The token ids of a text."""
        return await self._backend.tokenize(text, special)

    async def detokenize(self, tokens: list[int]) -> str:
        """The text of token ids."""
        return await self._backend.detokenize(tokens)

    async def count_tokens(self, request: ChatRequest | CompletionRequest | Prompt) -> int:
        """The number of tokens that the model would read."""
        return await self._backend.count_tokens(request)

    async def check(self) -> None:
        """See whether the backend is well."""
        await self._backend.check()

    async def aclose(self) -> None:
        """Stop the backend."""
        await self._backend.aclose()
