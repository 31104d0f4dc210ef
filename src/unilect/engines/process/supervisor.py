"""
Supervises the requests in an engine's child: monitors them, says which of them the child died of, and refuses those.

All requests to a child go through `watch` or `call`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any, NoReturn, TypeVar

from unilect.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    EngineDied,
    MemoryExhausted,
    UnilectError,
)
from unilect.engines.process._crash_blame import CrashBlame, Ticket
from unilect.engines.process._watchdog import Watchdog
from unilect.engines.process.child_process import ChildProcess

__all__ = ["Supervisor", "Ticket"]

CALLS_AT_ONCE = 4  # each may hold a text of the largest size in several forms
_Item = TypeVar("_Item")


class Supervisor:
    """
    A child and the requests in it.

    Args:
        process: The child.
        ask: Asks the child something that waits its turn among the requests; none where the child has no such thing.
        hang_timeout_s: How long the answer may take.
        acks_requests: The child says at once when it takes a request up, or `ask` notes it (`Ticket.acked_at`): one of which neither tells for
            `hang_timeout_s`, though the child answers, has never come to the others, as where its chat template does not end.
        outlast: Returns once a child that is about to end, and answers errors meanwhile, has ended; at once if it is well.

    Attributes:
        process: As given.
        blame: Which requests it has died of.
        sizes: What it takes of memory, in words, for those that it has none left for.
    """

    def __init__(
        self,
        process: ChildProcess,
        ask: Callable[[], Awaitable[object]] | None = None,
        hang_timeout_s: float = 60.0,
        acks_requests: bool = False,
        outlast: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self.process = process
        self.blame = CrashBlame()
        self.sizes = ""
        self._ask, self._outlast = ask, outlast
        probe = self._probe if ask is not None else None
        self._ack_timeout_s = hang_timeout_s if acks_requests else float("inf")
        self._watchdog = Watchdog(probe, self._kill_silent, self._note_answer, hang_timeout_s)
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE)
        # the last that died, what `_note_death` said of it, and whether somebody else ended it, or it had no memory left
        self._ended_life = self._solved = 0
        self._outside = self._of_memory = False
        self._hung_life, self._hung_at = 0, 0.0
        process.on_death = self._note_death

    @asynccontextmanager
    async def watch(self, request: Any) -> AsyncIterator[Ticket]:
        """
        The time of a request in the child, which runs from then on. What comes of an error is decided where requests are retried.

        Yields:
            The request's ticket, to be told of what is answered.

        Raises:
            RequestKilledEngine: The child has died of such a request.
            EngineDied: It died.
            UnilectError: As the child says, or as it cannot be started.
        """
        ticket = Ticket(request)
        with ExitStack() as held:
            await self.blame.take_turn(ticket, held)
            if not self.process.alive:
                await self.process.start()
            self.blame.check(ticket)  # another one like it may have shown what it does
            self.blame.enter(ticket, self.process.starts)
            self._watchdog.enter()
            answered = False
            try:
                yield ticket
                answered = True
            except (BackendError, BackendUnavailable, BackendTimeout) as error:
                answered = isinstance(error, MemoryExhausted)  # of that it is no suspect
                await self._judge(error, ticket)
            except UnilectError:
                answered = True  # by a refusal
                raise
            finally:
                self.blame.leave(ticket, answered)
                self._watchdog.leave()

    def check(self, request: Any) -> None:
        """
        Raises:
            RequestKilledEngine: The child has died of such a request.
        """
        self.blame.check(Ticket(request))

    async def call(self, request: Any, function: Callable[[], Awaitable[_Item]]) -> _Item:
        """Return the one value that the child answers with; few such calls run at the same time."""
        async with self._calls, self.watch(request):
            return await function()

    async def aclose(self) -> None:
        """Stop the child, and watch it no more."""
        self._watchdog.stop()
        await self.process.aclose()  # from its first step on who comes waits, and gets a new life

    async def _judge(self, error: UnilectError, ticket: Ticket) -> NoReturn:
        """
        Raise the error that explains why an answer broke.

        Raises:
            UnilectError: The error itself where the child lives; BackendUnavailable where it was stopped; EngineDied.
        """
        process = self.process
        if self._outlast is not None:
            await self._outlast(ticket.life)
        ended = process.closed or await process.has_ended(ticket.life)
        if process.closed:
            raise BackendUnavailable(
                "The model was stopped. Try again.", retry_after_s=5
            ) from error
        if not ended and isinstance(error, MemoryExhausted):
            raise self._memory_error(error) from error
        if not ended:
            raise error
        if ticket.life > process.replaced:  # of that nobody is to blame
            self._note_death(ticket.life)
        hung = self._hung_life == ticket.life
        if self._of_memory and ticket.life == self._ended_life:
            raise self._memory_error() from error
        if self.blame.is_culprit(ticket):
            how = "hung" if hung else "ended"
            died = EngineDied(
                f"The model's engine {how} while it worked on this request, perhaps on a grammar, a schema or a chat template "
                "that takes too long, and is restarting. The same request is refused from now on. Change it."
            )
            died.blamed = True
            raise died from error
        what = "hung" if hung else "died during the answer"
        died = EngineDied(f"The model's engine {what} and is restarting. Send the request again.")
        died.from_outside = ticket.life <= process.replaced or (
            ticket.life == self._ended_life and self._outside
        )
        raise died from error

    def _memory_error(self, error: UnilectError | None = None) -> MemoryExhausted:
        sizes = f" It takes: {self.sizes}." if self.sizes else ""
        told = MemoryExhausted(
            f"The model's engine has no memory left.{sizes} Nothing is wrong with the request; send it again later, or to a smaller model.",
            retry_after_s=5,
            logged=None if error is None else error.logged,
        )
        told.from_outside = True
        return told

    def _note_death(self, life: int) -> int:
        """
        Record that a life of the child has ended; who sees it first says so, the others hear the same.

        Returns:
            Of how many deaths the culprit is now known.
        """
        if life > self._ended_life:
            before = self._hung_at if self._hung_life == life else None
            self._outside = self._hung_life != life and self.process.ended_from_outside
            self._of_memory = self._hung_life != life and self.process.ended_for_memory
            self._ended_life = life
            self._solved = self.blame.record_death(life, before, self._of_memory)
        return self._solved if life == self._ended_life else 0

    async def _probe(self) -> bool:
        if self._ask is None or not self.process.alive:
            return False
        await self._ask()
        return True

    def _note_answer(self, asked_at: float) -> None:
        self.blame.note_answer(asked_at)
        if (stuck := self.blame.find_stuck(self._ack_timeout_s)) is not None:
            self.blame.block(stuck)
            self._kill(asked_at, f"it did not begin a request for {self._ack_timeout_s:.0f} s")

    def _kill_silent(self, asked_at: float) -> None:
        self._kill(asked_at, f"it answered nothing for {time.monotonic() - asked_at:.0f} s")

    def _kill(self, asked_at: float, how: str) -> None:
        if self.process.pid is not None:
            self._hung_life, self._hung_at = self.process.starts, asked_at
            self.process.kill_hung(how)
