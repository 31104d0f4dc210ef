"""One backend of a model as its pool has it: started, counted, behind its queues, and closed once it has left."""

import asyncio
import math
import time
from typing import NamedTuple

from unilect.api.backend import Backend, Capabilities, Report, Witness
from unilect.runtime.redact import Secrets, redact
from unilect.runtime.tasks import join_shared, spawn_detached
from unilect.scheduling.breaker import Breaker
from unilect.scheduling.fair_queue import FairQueue, QueuedBackend, QueueSettings


class Trouble(NamedTuple):
    """
    The failure of a backend, and its times.

    Attributes:
        reason: A sentence for the operator.
        since: When it failed first, without an answer since, in seconds since 1970.
        at: When it failed last.
    """

    reason: str
    since: float
    at: float


class Step(NamedTuple):
    """
    The step that a start is at.

    Attributes:
        what: `downloading` or `loading`.
        part: What is done of it, from 0 to 1.
        size_bytes: All of it; 0 where that is not known.
    """

    what: str
    part: float
    size_bytes: int


class Steps:
    """
    The steps of a backend's starts, as it reports them; from a thread, too.

    Args:
        tell: Told of each as well.

    Attributes:
        last: The last one of the start that goes on; None where none was told.
    """

    def __init__(self, tell: Report | None = None) -> None:
        self._tell = tell
        self.last: Step | None = None

    def report(self, what: str, part: float, size_bytes: int = 0, /) -> None:
        """Note a step; see `Report`."""
        self.last = Step(what, part, size_bytes)
        if self._tell is not None:
            self._tell(what, part, size_bytes)


class PooledBackend:
    """
    One backend of a model.

    Args:
        source: Where it comes from.
        secrets: What is taken out of all that it says of its errors.
        queue: How requests wait for it.
        scheme: Of its source, which tells its kind; empty where nobody says it.
        steps: Has the steps of its starts, which it reports there.

    Attributes:
        backend, secrets, queue_settings, scheme, steps: As given.
        source: Where it comes from, without credentials.
        witness: Told what happens to its processes; None for nobody.
        told_at_s: When it was told last that it fails.
        outstanding: Requests that are in it now.
        served: Requests that it has been given.
        failures: Requests and starts that failed, and not for what was asked.
        breaker: Whether it is worth asking.
        queues: Where requests wait for it; none where it takes all that come.
        leaving: It was taken out of its pool.
        closing: Closes it, once it has been taken out and nothing runs in it.
        started: It was started, and not stopped since.
        trouble: Why it fails, where its last request or start has failed.
        began_at: When its last start began, in seconds since 1970.
        load_s: Seconds that its last start took, without what was fetched for it.
        loaded_at: When that ended, by `time.monotonic`.
        next_look_at: The event loop's time of the next look at it, while it is out and looked after; None else.
    """

    def __init__(
        self,
        backend: Backend,
        source: str = "",
        secrets: Secrets | None = None,
        queue: QueueSettings | None = None,
        scheme: str = "",
        steps: Steps | None = None,
    ) -> None:
        self.backend = backend
        self.scheme = scheme
        self.steps = steps or Steps()
        self.source = redact(source)
        self.secrets = secrets or Secrets()
        self.witness: Witness | None = None
        self.told_at_s = -math.inf
        self.outstanding = 0
        self.served = 0
        self.failures = 0
        self.breaker = Breaker()
        self.leaving = False
        self.closing: asyncio.Task[None] | None = None
        self.started = False
        self.trouble: Trouble | None = None
        self.next_look_at: float | None = None
        self.began_at = self.load_s = self.loaded_at = 0.0
        self._fetching: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self.queue_settings = queue or QueueSettings()
        self.queues: tuple[FairQueue, ...] = ()
        self._queued: QueuedBackend | None = None
        self._can: Capabilities | None = None  # what it could do when it was entered last
        self._entered: Backend | QueuedBackend | None = None

    @property
    def is_coming_back(self) -> bool:
        """True while an engine of it has died and does not serve again yet."""
        return any(one.comes_back and not one.processes for one in self.backend.children)

    @property
    def begun(self) -> bool:
        """True once a start has begun since the last stop. Something of it may run, even if that start has failed."""
        return self._starting is not None or self._fetching is not None

    @property
    def works(self) -> bool:
        """True if a request may be answered, as far as is known: its last start has not failed, and it is not out."""
        if self.breaker.open:
            return False
        engines = self.backend.children
        runs = any(one.processes for one in engines) if engines else self.started
        return self.trouble is None or runs

    @property
    def loads(self) -> bool:
        """True while it starts, or its files come."""
        return any(one is not None and not one.done() for one in (self._fetching, self._starting))

    @property
    def is_fetching(self) -> bool:
        """True while its files come."""
        return self._fetching is not None and not self._fetching.done()

    @property
    def places(self) -> int | None:
        """The number of requests that it answers at a time; None where nothing bounds it, or before its start."""
        can = self.backend.capabilities
        return self.queue_settings.max_in_flight or can.max_in_flight or can.slots

    @property
    def has_room(self) -> bool:
        """True while a request would not wait in the queue."""
        return not self.queues or self.queues[0].has_room

    async def fetch(self) -> None:
        """Bring the files here that it is loaded from, as the first part of a start, which tells of a failure."""
        if self.started or (self.loads and self._fetching is None):
            return
        if self._fetching is None or self._fetching.done():
            self._fetching = spawn_detached(self.backend.fetch())
        await asyncio.wait({self._fetching})

    async def start(self) -> None:
        """Start the backend: a first start goes on, whoever waits for it leaves, and is known to be over. Errors as the backend."""
        if self.started:
            return await self.backend.start()
        if self._starting is None or self._starting.done():
            self._starting, self.began_at = spawn_detached(self._start()), time.time()
        await join_shared(self._starting)

    async def _start(self) -> None:
        if self._fetching is None:
            self._fetching = spawn_detached(self.backend.fetch())
        try:
            await join_shared(self._fetching)
        finally:
            self._fetching = None
        if self.witness is not None:
            for life in self.backend.children:
                life.witnesses.add(self.witness)
        began = time.monotonic()
        try:
            await self.backend.start()
        finally:
            self.steps.last = None
        self.loaded_at = time.monotonic()
        self.load_s = self.loaded_at - began
        self.started, self.trouble = True, None

    async def aclose(self) -> None:
        """Stop the backend, also one that is being started."""
        begun = {one for one in (self._fetching, self._starting) if one is not None}
        self._fetching, self._starting, self.started = None, None, False
        for one in begun:
            one.cancel()
        if begun:
            await asyncio.wait(begun)
        await self.backend.aclose()
        if self.witness is not None:
            for life in self.backend.children:  # which may go on for others
                life.witnesses.discard(self.witness)

    def enter(self) -> Backend | QueuedBackend:
        """Take in a request until its `release`; returns the started backend, behind its queues, if it has places."""
        self.outstanding += 1
        self.served += 1
        if self._entered is not None and self._can is self.backend.capabilities:
            return self._entered
        self._can = self.backend.capabilities
        self._entered = self._behind_queues(self._can)
        return self._entered

    def _behind_queues(self, can: Capabilities) -> Backend | QueuedBackend:
        """The backend behind queues with as many places as it has now, if it has any."""
        if (places := self.places) is None:
            return self.backend
        if self._queued is None:
            # slots are for answers: vectors are made beside them
            beside = self.queue_settings.max_in_flight is None and can.max_in_flight is None
            self.queues = tuple(FairQueue(places, self.queue_settings) for _ in range(1 + beside))
            self._queued = QueuedBackend(self.backend, *self.queues)
        for queue in self.queues:
            queue.places = places
        return self._queued

    def release(self, requests: int = 1) -> None:
        """Requests have left it; it is closed with the last one, where it is leaving."""
        self.outstanding -= requests
        if self.leaving and not self.outstanding:
            self.closing = spawn_detached(self.aclose())
