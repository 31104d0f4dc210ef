"""
Tasks that belong to no request, though one has caused them: they are shared, outlive it, and know nothing of it. And work in
slices, so that the other tasks go on.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeVar

from unilect.core.errors import BackendUnavailable, UnilectError

log = logging.getLogger("unilect")
END_TIMEOUT_S = 5.0  # for cancelled background work to clean up
SLICE_S = 0.001  # of the event loop at a time, for what may be long; a token of a stream may wait for two or three of them
_Result = TypeVar("_Result")


def spawn_detached(
    work: Coroutine[Any, Any, _Result], name: str = "a task"
) -> "asyncio.Task[_Result]":
    """Start a task that may outlive the request that has caused it, and so knows nothing of it."""
    task = asyncio.get_running_loop().create_task(work, name=name, context=Context())
    task.add_done_callback(_log_flaw)
    return task


class Tasks:
    """Background work that ends with its owner, such as a server. What nobody waits for fails into the log, by its name."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Begin a piece of work."""
        task = spawn_detached(work, name)
        self._running.add(task)
        task.add_done_callback(self._finish)
        return task

    async def aclose(self) -> None:
        """Cancel what runs, and wait until it has ended; what does not end in time is told, and left behind. Idempotent."""
        for task in self._running:
            task.cancel()
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=END_TIMEOUT_S)
            self._running -= late  # once, however many wait for the end
            for task in late:
                log.error("%s was cancelled, and does not end", task.get_name())

    def _finish(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), UnilectError):
            log.error("%s failed: %s", task.get_name(), error.for_log)


def start_aside(work: Callable[[], _Result]) -> "Future[_Result]":
    """Start what may take long in a thread that ends with the process, which waits for those of an executor."""
    came: Future[_Result] = Future()

    def run() -> None:
        with suppress(InvalidStateError):  # nobody waits for it any more
            try:
                came.set_result(work())
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                came.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return came


async def run_aside(work: Callable[[], _Result]) -> _Result:
    """Run it, and wait for what it returns or raises; see `start_aside`."""
    return await asyncio.wrap_future(start_aside(work))


async def close_each(*parts: Callable[[], Awaitable[object]]) -> None:
    """
    Close parts one after the other, each also where one before it has failed.

    Raises:
        BaseException: The error of the last one that failed, with the errors before it as its context: a traceback begins with the first.
    """
    if parts:
        try:
            await parts[0]()
        finally:
            await close_each(*parts[1:])


async def join_shared(task: "asyncio.Task[_Result]") -> _Result:
    """
    Wait for a task, as one of several; who leaves stops nothing.

    Raises:
        BackendUnavailable: The task was cancelled: what it worked for was stopped.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        waiting = asyncio.current_task()
        if not task.cancelled() or (waiting is not None and waiting.cancelling()):
            raise
        raise BackendUnavailable("The model was stopped. Try again.", retry_after_s=5) from None


def _log_flaw(task: "asyncio.Task[Any]") -> None:
    """Log what is no error of ours, which nobody may ever ask for; an error of ours is for who waits, if anybody does."""
    if not task.cancelled() and not isinstance(error := task.exception(), UnilectError | None):
        log.error("%s failed", task.get_name(), exc_info=error)


async def list_in_slices(items: Iterable[_Result]) -> list[_Result]:
    """Make a list of items that take long to make; every `SLICE_S` the other tasks of the event loop have their turn."""
    result = []
    begin = time.monotonic()
    for item in items:
        result.append(item)
        if time.monotonic() - begin > SLICE_S:
            await asyncio.sleep(0)
            begin = time.monotonic()
    return result
