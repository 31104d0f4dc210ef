"""
The events of models, on their way to the store and back: the events of this process, and of those before it and beside it.

1. No load and no request waits for the store: events gather in their feed, and are written together, soon after the first.
2. Where the store is away, they stay (the last ones), and are written once it is back; what is told meanwhile is of this process.
"""

import asyncio
import os
import socket
from collections.abc import Iterable
from contextlib import suppress

from unilect.core.errors import StoreUnavailable
from unilect.models.model import Model
from unilect.residency.events import Event, Feed
from unilect.runtime.tasks import Tasks
from unilect.store.model_events import ModelEventStore
from unilect.store.records import ModelEvent

_GATHER_S = 1.0  # from an event to the transaction that has it
_AGAIN_S = 5.0  # from a transaction that failed to the next one
_AT_ONCE = 200


class ModelEvents:
    """
    The events of a server's models.

    Args:
        feed: Has those of this process; None for a server of which none are kept.
        stored: Keeps them; None where nothing does.

    Attributes:
        server: This process, as `HOST/PID`.
    """

    def __init__(self, feed: Feed | None = None, stored: ModelEventStore | None = None) -> None:
        self.server = f"{socket.gethostname()}/{os.getpid()}"
        self._feed, self._stored = feed or Feed(), stored
        self._batch: list[ModelEvent] = []  # taken from the feed, and not in the store yet
        self._tasks, self._closed = Tasks(), False
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Write the events that were before, and those to come."""
        if self._stored is not None:
            self._feed.on_event = self._begin
            self._begin()

    async def read(self, model: Model) -> tuple[list[ModelEvent], str | None]:
        """
        Read the events of a model, the oldest first.

        Returns:
            The events, and why those of other processes are missing, if they are.
        """
        events = {(one.at, one.kind): one for one in self._make(model.name, model.events.last)}
        found, missing = list[ModelEvent](), None
        if self._stored is not None and self._stored.is_kept:
            try:
                found = await self._stored.read(model.name)
            except StoreUnavailable:
                missing = "The store cannot be read now: what happened before this server's start is missing."
        others = [one for one in found if one.server != self.server or (one.at, one.kind) not in events]  # fmt: skip
        return sorted((*others, *events.values()), key=lambda one: one.at), missing

    async def aclose(self) -> None:
        """Write what is left, unless the store is away. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._feed.on_event = lambda: None
        await self._tasks.aclose()
        with suppress(StoreUnavailable):  # the log tells it already
            while self._stored is not None and self._stored.works and await self._write():
                pass

    def _make(self, model: str, events: Iterable[Event]) -> list[ModelEvent]:
        """Make the records of a model's events in this process."""
        return [
            ModelEvent(model, one.time, self.server, one.kind, one.reason, one.numbers)
            for one in events
        ]

    def _begin(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.start("the writer of models' events", self._write_on())

    async def _write_on(self) -> None:
        """Write until nothing is left."""
        wait_s = _GATHER_S
        while self._batch or self._feed.unsaved:
            await asyncio.sleep(wait_s)
            wait_s = 0.0
            try:
                if not await self._write():
                    return
            except StoreUnavailable:  # the log tells it already
                wait_s = _AGAIN_S

    async def _write(self) -> bool:
        """Write some events; returns False where none is left, or none is to be kept."""
        unsaved = self._feed.unsaved
        if self._stored is None or not self._stored.is_kept:
            return False
        while unsaved and len(self._batch) < _AT_ONCE:
            name, event = unsaved.popleft()
            self._batch += self._make(name, [event])
        if self._batch:
            await self._stored.add(self._batch)
            self._batch = []
        return bool(unsaved)
