"""
Notices an engine that hangs: alive, and answering nobody.

A grammar or a schema of fifty bytes can keep llama.cpp busy for hours, for every client and long after the one that sent it has
left; no bound on size stops that. So while requests run, the engine is asked something that waits its turn with them, and is
killed when the answer does not come. A prompt that is read for minutes does not look like that: the engine answers between steps.
"""

import asyncio
from collections.abc import Awaitable, Callable

from unilect.errors import UnilectError

PAUSE_S = 2.0


class Watchdog:
    """
    Watches one engine while requests run.

    Args:
        ask: Asks the engine something that goes through its queue.
        kill: Kills it.
        patience_s: How long an answer may take.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[object]], kill: Callable[[], None], patience_s: float
    ) -> None:
        self._ask = ask
        self._kill = kill
        self._patience_s = patience_s
        self._running = 0
        self._task: asyncio.Task[None] | None = None

    def enter(self) -> None:
        """A request begins."""
        self._running += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch())

    def leave(self) -> None:
        """A request has ended."""
        self._running -= 1

    async def aclose(self) -> None:
        """Watch no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        """Ask again and again; once more after the last request has ended, since a hang outlives its client."""
        last = False
        while not last:
            await asyncio.sleep(min(PAUSE_S, self._patience_s))
            last = self._running == 0
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._ask()
            except TimeoutError:
                self._kill()
                return
            except UnilectError:
                return  # it died, or was stopped; others see to that
