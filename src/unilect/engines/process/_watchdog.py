"""
Detects an engine that hangs: its process runs, but answers no request.

A grammar or a schema of fifty bytes can keep llama.cpp busy for hours, for every client and long after the one that sent it has
left; no bound on size stops that. So while requests run, the engine is asked something that waits its turn with them, and is
killed when the answer does not come. A prompt that is read for minutes does not look like that: the engine answers between steps.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from unilect.core.errors import UnilectError
from unilect.runtime.tasks import spawn_detached

PAUSE_S = 2.0


class Watchdog:
    """
    Watches one engine while requests run, and for one answer longer, since a hang outlives its client.

    Args:
        ask: Asks the engine something that goes through its queue; false where it does not run just now. None watches nothing.
        hung: Told that the engine did not answer, and when it was asked: what came after that is not the reason.
        well: Told that the engine answered, and when it was asked: it has done with all that had left by then.
        patience_s: How long an answer may take.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[bool]] | None,
        hung: Callable[[float], None],
        well: Callable[[float], None],
        patience_s: float,
    ) -> None:
        self._ask = ask
        self._hung = hung
        self._well = well
        self._patience_s = patience_s
        self._running = 0
        self._task: asyncio.Task[None] | None = None

    def enter(self) -> None:
        """Note that a request begins."""
        self._running += 1
        if self._ask is not None and (self._task is None or self._task.done()):
            self._task = spawn_detached(self._watch())

    def leave(self) -> None:
        """Note that a request has ended."""
        self._running -= 1

    def stop(self) -> None:
        """Watch no more, until the next request."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch(self) -> None:
        owed = True
        # read anew: a request may come while the last answer is waited for
        while owed or self._running:
            await asyncio.sleep(min(PAUSE_S, self._patience_s))
            owed = self._running > 0
            asked_at = time.monotonic()
            try:
                async with asyncio.timeout(self._patience_s):
                    assert self._ask is not None  # else nothing is watched
                    answered = await self._ask()
            except TimeoutError:
                self._hung(asked_at)
            except UnilectError:
                continue  # it died, or was stopped; others see to that, and the next life is watched too
            else:
                if answered:
                    self._well(asked_at)
