"""The events of models, as far as a store keeps them: the last ones of each model, of all its servers."""

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from unilect.store.database import ABSENT, Database
from unilect.store.records import ModelEvent
from unilect.store.sql import model_events

_MAX_AGE_S = 30 * 86_400.0


class ModelEventStore:
    """
    The events in a database.

    `add` and `read` may raise `StoreUnavailable`.

    Args:
        is_named: The operator has named the database; else nothing is kept before something else has made it.
        clock: Seconds since 1970.
    """

    def __init__(
        self, database: Database, is_named: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self._database, self._is_named, self._clock = database, is_named, clock

    @property
    def is_kept(self) -> bool:
        """True if events outlive this server: its database does, and is named or there already."""
        database = self._database
        lasts = database.is_server or database.file is not None
        return lasts and (self._is_named or database.mark() is not ABSENT)

    @property
    def works(self) -> bool:
        """True if the last use of the database succeeded."""
        return self._database.works

    def add(self, events: Sequence[ModelEvent]) -> Awaitable[None]:
        """Insert events in one transaction; those that are there stay as they are."""
        since = self._clock() - _MAX_AGE_S
        return self._database.write(partial(model_events.add, events=events, since=since))

    def read(self, model: str) -> Awaitable[list[ModelEvent]]:
        """Read the last events of a model, the oldest first."""
        return self._database.read(partial(model_events.read_last, model=model))
