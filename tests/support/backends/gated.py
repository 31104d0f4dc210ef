"""An `echo:` whose answers wait for a test, for tests of what waits before a backend."""

import asyncio
from contextlib import aclosing

from unilect.api.backend import Batches
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.testing.echo import Echo, Options


class Gated(Echo):
    """
    An `echo:` that begins an answer for each turn that a test gives.

    Attributes:
        turns: Released once for each answer that may begin.
        asked: The requests that it got, in order.
        running: How many of them wait or are answered.
        most: The most of them at a time.
    """

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self.turns = asyncio.Semaphore(0)
        self.asked: list[ChatRequest | CompletionRequest] = []
        self.running = self.most = 0
        self._news = asyncio.Condition()

    def open(self) -> None:
        """Let all answers begin from now on."""
        for _ in range(1000):
            self.turns.release()

    async def has(self, count: int) -> None:
        """Wait until it was asked so often."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.asked) >= count)

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Answer, once there is a turn."""
        self.asked.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            async with self._news:
                self._news.notify_all()
            await self.turns.acquire()
            async with aclosing(super().generate(request)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self.running -= 1
