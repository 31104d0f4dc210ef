"""The events of a model, of its place in memory and of its processes, with reasons: most are a line of the log, the last ones are kept, and all are fed to a store."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from unilect.api.backend import Happening

log = logging.getLogger("unilect")
KEPT = 100  # of each model
_MOST_UNSAVED = 1000

#: Of its place: loaded, evicted (for another model, or since memory is short) or stopped; waits: for the memory of others; refused: it can never fit; failed: its load; skipped: at the
#: server's start. Of its processes: as `Happening`.
Kind: TypeAlias = Literal["loaded", "evicted", "stopped", "waits", "refused", "skipped"] | Happening


class Event(Struct, frozen=True):
    """
    One event.

    Attributes:
        time: Seconds since 1970.
        kind: As `Kind`.
        reason: A sentence with the numbers.
        numbers: The same by name: bytes (`..._bytes`) and seconds (`..._s`).
    """

    time: float
    kind: Kind
    reason: str
    numbers: Mapping[str, float]


class Feed:
    """
    The events of all models on their way to a store.

    Attributes:
        unsaved: The last ones that no store has taken, each with its model's name, the oldest first.
        on_event: Called after each.
    """

    def __init__(self) -> None:
        self.unsaved: deque[tuple[str, Event]] = deque(maxlen=_MOST_UNSAVED)
        self.on_event: Callable[[], None] = lambda: None

    def add(self, model: str, event: Event) -> None:
        """Keep an event of a model for a store, and tell that it is there."""
        self.unsaved.append((model, event))
        self.on_event()


class Events:
    """
    The last events of a model.

    Args:
        model: Its name.

    Attributes:
        feed: Gets each; None for nobody.
        last: The events, the oldest first.
        counts: How many of each kind there were.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self.feed: Feed | None = None
        self.last: deque[Event] = deque(maxlen=KEPT)
        self.counts: Counter[Kind] = Counter()

    def add(self, kind: Kind, reason: str, **numbers: float) -> None:
        """Keep an event, and log it unless it ends a request or a start, whose own error is logged."""
        if kind not in ("refused", "failed"):
            log.info("%s", reason)
        self._keep(kind, reason, numbers)

    def witness(self, kind: Happening, reason: str, /, **numbers: float) -> None:
        """Keep an event of a process of the model, which has logged it; see `Witness`."""
        self._keep(kind, f"{self._model}: {reason}", numbers)

    def _keep(self, kind: Kind, reason: str, numbers: Mapping[str, float]) -> None:
        event = Event(time.time(), kind, reason, numbers)
        self.last.append(event)
        self.counts[kind] += 1
        if self.feed is not None:
            self.feed.add(self._model, event)


def describe_size(size: float) -> str:
    """Write bytes as people do: `4.1 GB`, `62 MB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
