"""Tasks that belong to no request, though one has caused them: they are shared, outlive it, and know nothing of it."""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

from unilect.errors import BackendUnavailable, UnilectError

log = logging.getLogger("unilect")
_Result = TypeVar("_Result")


def apart(work: Coroutine[Any, Any, _Result]) -> "asyncio.Task[_Result]":
    """A task that may outlive the request that has caused it, and so knows nothing of it."""
    task = asyncio.get_running_loop().create_task(work, context=Context())
    task.add_done_callback(_log_flaw)
    return task


async def shared(task: "asyncio.Task[_Result]") -> _Result:
    """
    The result of a task for one of those who wait for it. Who leaves stops nothing.

    Raises:
        BackendUnavailable: The task was cancelled: what it worked for was stopped.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        waiting = asyncio.current_task()
        if not task.cancelled() or (waiting is not None and waiting.cancelling()):
            raise
        raise BackendUnavailable("The model was stopped.", retry_after_s=5) from None


def _log_flaw(task: "asyncio.Task[Any]") -> None:
    """An error of ours is for who waits, if anybody does; anything else nobody may ever ask for."""
    if not task.cancelled() and not isinstance(error := task.exception(), UnilectError | None):
        log.error("a task failed", exc_info=error)
