"""The place of a model in memory: of the model what is to be known for it, and of the place what has happened to it."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

from unilect.core.errors import UnilectError
from unilect.residency.events import Events
from unilect.residency.load_times import Lie, LoadTimes
from unilect.residency.page_cache import measure_share
from unilect.residency.space import NOTHING, Space
from unilect.residency.turns import Ticket


class State(Enum):
    """The state of a place. The ledger has the model's bytes in each but `GONE`."""

    #: The model is not in memory, and nothing is promised.
    GONE = auto()
    #: Its bytes are promised: those that leave for it have been told.
    PROMISED = auto()
    #: It may be started, or starts.
    GIVEN = auto()
    #: The same, without regard to what is free.
    FORCED = auto()
    #: It takes requests.
    LOADED = auto()
    #: It takes no new requests, and is stopped as soon as none runs: for another model, or since memory is short.
    LEAVING = auto()


#: The states that follow each other.
_NEXT = {
    State.GONE: (State.PROMISED, State.GIVEN, State.FORCED),
    State.PROMISED: (State.GIVEN, State.FORCED, State.GONE),
    State.GIVEN: (State.FORCED, State.LOADED, State.GONE),
    State.FORCED: (State.LOADED, State.GONE),
    State.LOADED: (State.LEAVING, State.GONE),
    State.LEAVING: (State.LEAVING, State.LOADED, State.GONE),
}
_STARTS = (State.GIVEN, State.FORCED)


class Resident(Protocol):
    """
    A model that this server starts and stops.

    Attributes:
        name: Its name.
        events: What has happened to it.
        open: Requests go to it at once.
        closed: It is stopped for good, or being so.
        stopping: Stops it.
        used_at: When its last request ended, by `time.monotonic`.
        on_idle: Called when its last running request has ended; None for nobody.
        place: Its place; None where it does not take part.
    """

    name: str
    events: Events
    open: bool
    closed: bool
    stopping: asyncio.Task[None] | None
    used_at: float
    on_idle: Callable[[], None] | None
    place: "Seat | None"

    @property
    def pinned(self) -> bool:
        """True if it never leaves for another one."""

    @property
    def in_use(self) -> int:
        """The number of requests and starts that keep it running."""

    @property
    def runs_here(self) -> bool:
        """True while something of it runs."""

    @property
    def is_loading(self) -> bool:
        """True while something of it starts."""

    @property
    def most_waiting(self) -> int:
        """The most requests that may wait for it."""

    @property
    def files(self) -> Sequence[Path]:
        """The files that are read to load it."""

    @property
    def last_load(self) -> tuple[float, float]:
        """The seconds that its last load took, without what was fetched for it, and when it ended, by `time.monotonic`."""

    def measure_memory(self) -> int:
        """Measure the bytes of its processes, with their parts of what they share; for a thread."""

    def memory_need(self, measured_bytes: int = 0) -> Space | None:
        """
        The bytes that it takes at most: as its operator says, else as they are reckoned, and no less than what was measured; on each GPU
        those that it takes where it has room. None where they are not this machine's.
        """

    def evict(self) -> None:
        """Stop it; it is asked for nothing now."""


class Owner(Protocol):
    """The one that gives places and takes them back."""

    async def wait(self, seat: "Seat", until: float | None, timeout_s: float) -> None:
        """Wait until a model has its place, until a time of the event loop, and no longer than so many seconds."""

    def wait_s(self, seat: "Seat") -> float:
        """Return seconds until a model is loaded, as far as is known."""

    def note_size(self, seat: "Seat") -> None:
        """Reckon with what a model takes, now that its files are here."""

    def note_loaded(self, seat: "Seat") -> float:
        """Note that a model is loaded; returns the seconds that it took."""

    def note_failed(self, seat: "Seat", error: UnilectError) -> None:
        """Note that a model could not be loaded."""

    def note_gone(self, seat: "Seat", for_good: bool) -> None:
        """Note that a model is stopped."""


class Seat:
    """
    The place of a model, whether it has one or not.

    Attributes:
        model: The model.
        events: What has happened to the model.
        state: Whether it has one; set by `enter`.
        leaves_for: The model for which it is `LEAVING`; None where memory is short, and in any other state.
        given_at: When it was given, by `time.monotonic`.
        loaded_at: When it was `LOADED`.
        waiting: The requests that wait for it, the first first.
        waits_for: The models whose turns it waits for, where it was told until when.
        payers: The callers who are charged for its load, while it `starts`.
        load_s: Seconds that its last load took; None before the first.
        expected_s: Seconds that the load which runs, or ran last, was expected to take when it began.
        measured_bytes: What it took once it was loaded, of memory that is shared its part; 0 while nobody knows.
    """

    def __init__(self, owner: Owner, model: Resident) -> None:
        self.model, self.events = model, model.events
        self.state = State.GONE
        self.leaves_for: Seat | None = None
        self.load_s: float | None = None
        self.measured_bytes = 0
        self.given_at = self.loaded_at = self._begins_at = 0.0
        self.waits_for: Sequence[Seat] = ()
        self.waiting: dict[asyncio.Future[None], Ticket] = {}
        self.payers: tuple[str, ...] = ()
        self.expected_s = 0.0
        self._times, self._lie = LoadTimes(), Lie(0, 0)
        self._owner = owner

    def enter(self, state: State, leaves_for: "Seat | None" = None) -> None:
        """Be in another state, and have requests go to the model, or not; `leaves_for` is who it is `LEAVING` for."""
        assert state in _NEXT[self.state], f"{self.model.name}: {self.state} to {state}"
        if state in _STARTS and self.state not in _STARTS:
            self.given_at = time.monotonic()
            self._expect()
        self.state, self.leaves_for, self.waits_for = state, leaves_for, ()
        self.model.open = state in (*_STARTS, State.LOADED)

    def _expect(self) -> None:
        """Reckon what a load takes that begins now, as its files lie."""
        self._begins_at, self._lie = time.monotonic(), _look(self.model.files)
        self.expected_s = self._times.expect(self._lie)

    @property
    def has_place(self) -> bool:
        """True from before its start until it is stopped."""
        return self.state not in (State.GONE, State.PROMISED)

    @property
    def starts(self) -> bool:
        """True while it may be started, and is not known to be loaded."""
        return self.state in _STARTS

    @property
    def is_loaded(self) -> bool:
        """True while it runs, also as one that leaves."""
        return self.state in (State.LOADED, State.LEAVING)

    @property
    def goes(self) -> bool:
        """True if its bytes will be free soon."""
        return self.state is State.LEAVING or (self.has_place and self.model.stopping is not None)

    @property
    def need(self) -> Space:
        """The bytes that it takes at most, as far as is known."""
        return self.model.memory_need(self.measured_bytes) or NOTHING

    @property
    def reload_s(self) -> float:
        """Seconds to load it, as its files lie now: longer where they are not in the page cache."""
        return self._times.expect(_look(self.model.files))

    def note_load(self, seconds: float, at: float) -> None:
        """Keep what a load took that has ended at this time, by `time.monotonic`."""
        self.load_s, self.loaded_at = seconds, at
        self._times.note(seconds, self._lie)

    @property
    def wait_s(self) -> float:
        """Seconds until it is loaded, as far as is known: its load, or the rest of it, after those before it in line."""
        if self.starts:
            return max(0.1, self.expected_s - (time.monotonic() - self._begins_at))
        return self._owner.wait_s(self)

    @property
    def stage(self) -> str:
        """The wait of a request for it, in a few words."""
        name, so_far_s = self.model.name, time.monotonic() - self._begins_at
        if self.starts and so_far_s >= self.expected_s:
            return f"loading {name}, for {so_far_s:.0f} s so far"
        what = "loading" if self.has_place else "waiting for memory to load"
        return f"{what} {name}, about {math.ceil(self.wait_s)} s left"

    async def wait(self, until: float | None, timeout_s: float) -> None:
        """As `Residency.wait`."""
        await self._owner.wait(self, until, timeout_s)

    def wake(self) -> None:
        """Let all who wait for it look again."""
        waiting, self.waiting = self.waiting, {}
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    def note_size(self) -> None:
        """Reckon with what it takes, and what its load takes, now that its files are here."""
        self._owner.note_size(self)
        if self.starts:
            self._expect()

    def note_loaded(self) -> float:
        """Note that it is loaded, if that is not known; returns the seconds that it took."""
        return self._owner.note_loaded(self)

    def note_failed(self, error: UnilectError) -> None:
        """Note that it could not be loaded, where nothing of it runs."""
        self._owner.note_failed(self, error)

    def note_gone(self, for_good: bool) -> None:
        """Note that it is stopped; `for_good`: it is not started again."""
        self._owner.note_gone(self, for_good)


def _look(files: Iterable[Path]) -> Lie:
    """Look at how much of some files is in the page cache."""
    size = cold = 0.0
    for file in files:
        share = measure_share(file)
        length = _size(file)
        size += length
        cold += length * (0.0 if share is None else 1 - share)
    return Lie(size, cold)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
