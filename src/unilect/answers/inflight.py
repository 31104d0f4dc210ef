"""
Answers that may go on without their client: for a while after it has left, so that the same request, sent again, gets them, or in the
background, where nobody has to wait for them. `Answers` is their owner.

1. An answer is *joined* by the client that reads it, *held* for a window once that has left, and *over* when nobody gets it any more. It
   has one reader at a time, and who joins reads it from its first byte. One in the *background* has any number of readers, each with a
   place of its own, and does not wait for them.
2. A request owns nothing that outlives it: the task that makes an answer is the owner's from its beginning.
3. What is kept is bounded, in answers, of each caller, and in bytes. Where a bound is passed an answer ends with its client, as it does
   where nothing is held. One in the background is bounded by their number alone: more are refused.
4. An answer without a client is in the list of requests while it is made: who ends a request (an operator, the end of its key, its
   budget) ends it too, and a server that stops cancels it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from enum import Enum
from functools import partial
from typing import Any

from msgspec import Struct

from unilect.core.bounds import most_background
from unilect.core.errors import RateLimited, UnilectError
from unilect.runtime.context import Context, Requests
from unilect.runtime.tasks import Tasks

_MIB = 1024 * 1024
_SHARES = 4  # a caller may have one in so many of the answers that may be made in the background
_ROOM_S = 5.0  # after which one of them may have ended


class State(Enum):
    """The state of an `Answer`."""

    JOINED = "a client reads it"
    HELD = "its client has left, and the same request may take its place"
    BACKGROUND = "it needs no client, and any number may read it"
    OVER = "no other client gets it"


class Bounds(Struct, frozen=True, kw_only=True):
    """
    The most that a server keeps of answers.

    Attributes:
        held: Answers without a client.
        held_of_caller: Of these, one caller's.
        joins: The number of times that an answer is joined: each time it is sent from its beginning.
        answer_bytes: Bytes of one answer and the body of its request.
        all_bytes: Bytes of all answers, also of those that a client reads.
    """

    held: int = 128
    held_of_caller: int = 16
    joins: int = 8
    answer_bytes: int = 4 * _MIB
    all_bytes: int = 128 * _MIB


class Answer:
    """
    One answer: what was made of it so far, and the place of its reader. Whoever makes it begins, writes and ends it, as a transport.

    Args:
        key: Distinguishes its request from others.
        context: That of its request.
        grow: Called with each number of bytes that is kept for another client; None where none may join it.

    Attributes:
        key, context: As given.
        pieces: What was written, as far as it is kept.
        task: The task that makes it; None before it begins.
        size: The bytes that are kept of it and for it.
        state: Who gets it.
        status, headers: Its head, known when there is something to take.
        joins: How often it was joined.
        unread: Bytes that its reader has not taken; 0 while it has none.
        failed: It ended before it was complete, also where its last piece says so.
        listed: Its owner takes it off the list of requests.
        timer: Ends the window in which it is held.
    """

    task: "asyncio.Task[None] | None" = None
    timer: asyncio.TimerHandle

    def __init__(
        self,
        key: Hashable,
        context: Context,
        grow: "Callable[[Answer, int], None] | None" = None,
    ) -> None:
        self.key, self.context = key, context
        self.state = State.JOINED
        self.status, self.headers = 0, dict[str, str]()
        self.size = self.joins = self.unread = 0
        self.failed = self.listed = False
        self.pieces: list[bytes] = []
        self._grow = grow
        self._taken = 0  # pieces that the reader has
        self._is_whole = False
        self._error: BaseException | None = None
        self._news, self._room = asyncio.Event(), asyncio.Event()

    @property
    def kept(self) -> bool:
        """True while all of it is kept, so that another client may join it."""
        return self._grow is not None

    @property
    def is_over(self) -> bool:
        """True once nothing is written any more."""
        return self._is_whole or self._error is not None

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Set the head."""
        self.status, self.headers = status, dict(headers)

    def write(self, data: bytes) -> None:
        """Add a piece."""
        self.pieces.append(data)
        if self.state is State.JOINED:
            self.unread += len(data)
        self._news.set()
        if self._grow is not None:
            self._grow(self, len(data))

    def end(self, data: bytes = b"") -> None:
        """Add the last piece."""
        self._is_whole = True
        self.write(data)

    def fail(self, error: BaseException) -> None:
        """End it before it is whole; nothing where it has ended already."""
        if not self.is_over:
            self._error, self.failed = error, True
            self._news.set()

    def is_closing(self) -> bool:
        """Never: who does not want the answer any more cancels the task that makes it."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that its reader has not taken."""
        return self.unread

    async def drain(self) -> None:
        """Wait until the reader has all pieces, or there is none any more."""
        while self.unread:
            self._room.clear()
            await self._room.wait()

    async def take(self) -> tuple[bytes, bool]:
        """
        Wait for more, for its reader.

        Returns:
            What has come since the last time, and whether this is the end.

        Raises:
            BaseException: What it failed with, once all before that was taken.
        """
        while (
            self._taken == len(self.pieces) and not self.is_over
        ):  # what is taken may be forgotten
            self._news.clear()
            await self._news.wait()
        if self._error is not None and self._taken == len(self.pieces):
            raise self._error
        data = b"".join(self.pieces[self._taken :])
        self._taken = len(self.pieces)
        if not self.kept:
            self.forget()
        self.release_writer()
        return data, self._is_whole

    async def wait(self, seen: int) -> None:
        """Wait until there are more pieces than so many, of an answer that forgets none, or nothing is written any more."""
        while len(self.pieces) == seen and not self.is_over:
            self._news.clear()
            await self._news.wait()

    def rewind(self) -> None:
        """Have its next reader begin at its first byte."""
        self._taken, self.unread = 0, sum(map(len, self.pieces))

    def release_writer(self) -> None:
        """Have whoever makes it go on: the reader has all, or is gone."""
        self.unread = 0
        self._room.set()

    def forget(self) -> None:
        """Keep only what its reader still has to take."""
        self._grow, self.size = None, 0
        del self.pieces[: self._taken]
        self._taken = 0


class Answers:
    """
    The owner of all answers of a server that may outlive their clients.

    Args:
        window_s: How long an answer is held; 0 where none is joined.
        requests: Where the requests that are being answered are listed.
        bounds: What is kept at most.

    Attributes:
        window_s: As given.
        background: The answers in the background, by their keys.
        counts: How many answers were `joined`, and how many `ended` without anybody having come back.
        kept_bytes: The memory of all answers, in bytes.
    """

    def __init__(self, window_s: float, requests: Requests, bounds: Bounds | None = None) -> None:
        self.window_s = window_s
        self.background: dict[Hashable, Answer] = {}
        self.counts = Counter[str](joined=0, ended=0)
        self.kept_bytes = 0
        self._requests, self._bounds = requests, bounds or Bounds()
        self._held: list[Answer] = []  # the oldest first
        self._tasks, self._background_tasks = Tasks(), Tasks()
        self._is_open = True

    @property
    def held(self) -> int:
        """The number of held answers."""
        return len(self._held)

    def start(
        self, key: bytes, context: Context, size: int, make: Callable[[Answer], Awaitable[Any]]
    ) -> Answer:
        """
        Start an answer, which the caller reads.

        Args:
            key: Distinguishes its request from others, its caller included.
            context: That of its request, which from now on ends by ending the answer.
            size: Bytes that are kept as long as the answer.
            make: Makes it. It runs in a task of its own, which has no current request.
        """
        answer = Answer(key, context, self._grow)
        self._start(answer, self._tasks, "an answer that may be held", _run(answer, make))
        self._grow(answer, size)
        return answer

    def reserve(self, answer: Answer) -> None:
        """
        Take a place in the background, under the key of an answer: until that has ended, or is finished without having begun.

        Raises:
            RateLimited: As many as may are being made, of this caller or of all.
        """
        most, caller = most_background(), answer.context.caller
        share = max(1, most // _SHARES)
        if sum(one.context.caller == caller for one in self.background.values()) >= share:
            why = f"{share} of yours are being made in the background, which is the most of one caller"
        elif len(self.background) >= most:
            why = f"{most} are being made in the background, which is the most of all callers"
        else:
            answer.state, self.background[answer.key] = State.BACKGROUND, answer
            return
        raise RateLimited(
            f"No response can begin now: {why}. Wait for one to end, or cancel one.",
            param="background",
            retry_after_s=_ROOM_S,
        )

    def run(self, answer: Answer, name: str, work: Coroutine[Any, Any, None]) -> None:
        """
        Make an answer in the background that has a place there.

        Args:
            name: That of its task; an error of it is logged.
            work: Writes and ends it.
        """
        answer.listed = True
        self._requests[answer.context.request_id] = answer.context
        self._start(answer, self._background_tasks, name, work)

    def join(self, key: bytes, models: frozenset[str] | None) -> Answer | None:
        """
        Take the place of the client that has left.

        Args:
            models: The models that the caller may use now; an answer that was begun with other rights is not given out.

        Returns:
            The answer, whose reader the caller is now; None where none is held for such a request.
        """
        answer = next((one for one in self._held if one.key == key), None)
        if answer is None or answer.context.models != models:
            return None
        self._release(answer)
        answer.state = State.JOINED
        answer.joins += 1
        answer.rewind()
        self.counts["joined"] += 1
        return answer

    def leave(self, answer: Answer) -> None:
        """Hold an answer whose reader has left before its end, or end it where it cannot be held."""
        if answer.state is not State.JOINED:
            return
        answer.release_writer()
        if not self._may_hold(answer):
            self._drop(answer)
            return
        answer.state = State.HELD
        self._held.append(answer)
        if not answer.is_over:
            answer.listed = answer.context.held = True
        loop = asyncio.get_running_loop()
        answer.timer = loop.call_later(self.window_s, self._drop, answer)

    def finish(self, answer: Answer) -> None:
        """Give an answer to no other client: its reader has all of it, or its error, or nobody may come back."""
        if answer.state is State.HELD:
            self._release(answer)
        if answer.state is State.BACKGROUND:
            del self.background[answer.key]
            if answer.context.body is not None:
                answer.context.body.release()
        answer.state = State.OVER
        if answer.kept:
            self._forget(answer)

    def shut(self) -> None:
        """Hold nothing any more: what is held ends, and what is read ends with its client."""
        self._is_open = False
        for answer in list(self._held):
            self._drop(answer)

    async def end_background(self) -> None:
        """Cancel what is made in the background, and wait for it. Idempotent."""
        await self._background_tasks.aclose()

    async def aclose(self) -> None:
        """End all answers. Idempotent."""
        self.shut()
        await asyncio.gather(self._tasks.aclose(), self.end_background())

    def delist(self, answer: Answer) -> None:
        """Take an answer off the list of requests: nobody ends it any more."""
        answer.context.held = False
        self._requests.pop(answer.context.request_id, None)

    def _start(
        self, answer: Answer, tasks: Tasks, name: str, work: Coroutine[Any, Any, None]
    ) -> None:
        answer.task = answer.context.task = tasks.start(name, work)
        answer.task.add_done_callback(partial(self._end_task, answer))

    def _may_hold(self, answer: Answer) -> bool:
        most, caller = self._bounds, answer.context.caller
        return (
            self._is_open
            and answer.kept
            and not answer.failed
            and answer.context.ended is None
            and answer.joins < most.joins
            and self.held < most.held
            and sum(one.context.caller == caller for one in self._held) < most.held_of_caller
        )

    def _release(self, answer: Answer) -> None:
        """Hold an answer no more."""
        self._held.remove(answer)
        answer.context.held = False
        answer.timer.cancel()

    def _drop(self, answer: Answer) -> None:
        """End an answer that nobody reads, also where nobody has come back in time."""
        self.counts["ended"] += 1
        self.finish(answer)
        if answer.task is not None:
            answer.task.cancel()

    def _grow(self, answer: Answer, count: int) -> None:
        """Keep more of an answer, unless that is too much."""
        answer.size += count
        self.kept_bytes += count
        if answer.size > self._bounds.answer_bytes or self.kept_bytes > self._bounds.all_bytes:
            if answer.state is State.HELD:
                self._drop(answer)
            else:
                self._forget(answer)

    def _forget(self, answer: Answer) -> None:
        self.kept_bytes -= answer.size
        answer.forget()

    def _end_task(self, answer: Answer, task: "asyncio.Task[None]") -> None:
        """Note that the task of an answer has ended: the answer is whole, or will never be."""
        if answer.listed:
            self.delist(answer)
        answer.context.task = None  # which holds the context: no work for the garbage collector
        error = None if task.cancelled() else task.exception()
        answer.fail(error or answer.context.ended or asyncio.CancelledError())
        if answer.state is State.BACKGROUND or (answer.failed and answer.state is State.HELD):
            self.finish(answer)  # the same request is a new one


async def _run(answer: Answer, make: Callable[[Answer], Awaitable[Any]]) -> None:
    """Make an answer; its errors are its reader's."""
    try:
        await make(answer)
    except UnilectError as error:
        answer.fail(error)
