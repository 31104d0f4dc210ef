"""
A model and its backends: started once, shared, stopped when idle.

A caller asks for a lease without a look at the backend's state; the backend decides inside `start` whether anything is to be done.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

from unilect.api.backend import Backend, Capabilities
from unilect.api.parameters.rules import Settings, Unsupported
from unilect.config.limits import Limits
from unilect.config.model import Price
from unilect.core.errors import BackendUnavailable, UnilectError
from unilect.models.stays import Stays, name_idle
from unilect.residency.events import Events
from unilect.residency.seat import Seat
from unilect.residency.space import Space, sum_up
from unilect.runtime.context import CURRENT_REQUEST, Context, current_request
from unilect.runtime.tasks import spawn_detached
from unilect.scheduling.fair_queue import Queue
from unilect.scheduling.pool import Pool
from unilect.scheduling.pooled_backend import PooledBackend

log = logging.getLogger("unilect")
_TRIED_AGAIN_S = 60.0
_ELSEWHERE = Stays()

#: failed: its last start has failed. out: no backend of it can be asked. leaving: taken out by a reload, its last requests run.
State: TypeAlias = Literal[
    "leaving", "draining", "stopping", "loading", "stopped", "ready", "failed", "out"
]


class Model:
    """
    A name that clients send, and the backends that answer for it.

    Args:
        name: The name.
        members: Its backends, not yet started; or the only one.
        aliases: Other names for it.
        defaults: Values for parameters that a request leaves out.
        drops_billing: Claude Code's billing header is left out of its requests.
        prepare: What else is done to each request.
        unsupported: What happens to parameters that the backend refuses.
        fallback: The model that answers when no backend of this one can.
        idle_stop_s: Stop the backends after so long without a request; None for never.
        runs_locally: The server does not start without it; true for what we run ourselves, while a server elsewhere may come later.
        created: Unix seconds.
        price: What its tokens cost; None where they are free.
        limits: Of all requests to it together.
        unlisted: It is in no list for clients.
        stays: Its stay in memory.

    Attributes:
        settings: What is done to its requests; one that has begun keeps them, whatever changes meanwhile.
        open: Requests go to its backends at once; else they wait for what stops, or for its place in memory (`wait_until_open`).
        place: Its place in memory; None where it takes none that others want.
        events: What has happened to its place and its processes.
        used_at: When its last request ended, by `time.monotonic`.
        on_idle: Called when its last running request has ended; None for nobody.
        pool: Its backends.
        closed: It was stopped for good.
        successor: The model of the same name that is served instead of it, since the configuration was reloaded.
        draining: An operator has it take no more requests; `start` ends that.
        own_defaults: Values that a caller has set for its own requests, by the caller; before those of `defaults`.
        stopping: Stops the backends, until they are stopped.
        retries: How many requests were sent to a backend of it after another one, or the same, had failed.
        fallbacks: How many requests for it were sent to which other model.
        on_gone: Called when it has been retired, and stopped.
        idle_others: Names the models that are loaded and answer nobody.
    """

    closed = draining = False
    stopping: asyncio.Task[None] | None = None
    open = True
    place: Seat | None = None

    def __init__(
        self,
        name: str,
        members: Backend | Iterable[PooledBackend],
        *,
        aliases: Iterable[str] = (),
        defaults: Mapping[str, Any] | None = None,
        drops_billing: bool = True,
        prepare: Callable[[Any], Any] | None = None,
        unsupported: Unsupported = "refuse",
        fallback: str | None = None,
        idle_stop_s: float | None = None,
        runs_locally: bool = True,
        created: int = 0,
        price: Price | None = None,
        limits: Limits | None = None,
        unlisted: bool = False,
        stays: Stays = _ELSEWHERE,
    ) -> None:
        self.name = name
        pool = members if isinstance(members, Iterable) else [PooledBackend(members)]
        self.events = Events(name)
        self.pool = Pool(name, pool, fallback is not None, self.events.witness)
        self.aliases = tuple(aliases)
        self.settings = Settings(drops_billing, prepare, dict(defaults or {}), unsupported)
        self.fallback = fallback
        self.runs_locally = runs_locally
        self.created = created
        self.price, self.limits, self.unlisted = price, limits, unlisted
        self._stays, self.used_at = stays, 0.0
        self.on_idle: Callable[[], None] | None = None
        self._idle_stop_s = self._stays_s = idle_stop_s
        self._in_use = 0
        self._retired = False
        self.successor: Model | None = None
        self._loading: asyncio.Task[None] | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self.own_defaults: dict[str, dict[str, Any]] = {}
        self.retries, self.fallbacks = 0, Counter[str]()
        self.on_gone: Callable[[], None] = lambda: None
        self.idle_others: Callable[[], list[str]] = list

    @property
    def base(self) -> "Model":
        """The model whose backends answer: itself, unless it is a preset."""
        return self

    @property
    def _cold(self) -> bool:
        """True while nothing of it runs, of what this server starts."""
        return self.runs_locally and not any(one.started for one in self.pool.members)

    @property
    def runs_here(self) -> bool:
        """True while something of it runs that this server starts and stops."""
        return self.runs_locally and not self._cold and self.stopping is None

    @property
    def stays(self) -> Stays:
        """Its stay in memory."""
        return self._stays

    @property
    def is_loading(self) -> bool:
        """True while something of it starts."""
        return any(one.loads for one in self.pool.members)

    @property
    def has_begun(self) -> bool:
        """True if a start has begun since the last stop."""
        return any(one.begun for one in self.pool.members)

    @property
    def pinned(self) -> bool:
        """True if it is not stopped to make room for another one."""
        return self.stays.pinned

    @property
    def most_waiting(self) -> int:
        """The most requests that may wait for it."""
        queued = max((one.queue_settings.max_queue for one in self.pool.members), default=0)
        return queued + (self.slots or 1)

    @property
    def files(self) -> list[Path]:
        """The files that are read to load it."""
        return [file for one in self.pool.members for file in one.backend.files]

    @property
    def last_load(self) -> tuple[float, float]:
        """The seconds that its last load took, without what was fetched for it, and when it ended, by `time.monotonic`."""
        loads = [(one.load_s, one.loaded_at) for one in self.pool.members if one.started]
        return max((one for one, _ in loads), default=0.0), max((at for _, at in loads), default=time.monotonic())  # fmt: skip

    def measure_memory(self) -> int:
        """Measure the bytes of its processes, with their parts of what they share; for a thread."""
        lives = (life for one in self.pool.members for life in one.backend.children)
        return sum(life.proportional_memory_bytes for life in lives)

    def memory_need(self, measured_bytes: int = 0) -> Space | None:
        """Return the bytes that it takes at most, 0 where nobody knows; None where it takes none of this machine's. See `Resident`."""
        said = self.stays.memory_bytes
        if not self.stays.takes_memory and said is None:
            return None
        needs = [need for one in self.pool.members if (need := one.backend.memory_need())]
        gpus = sum_up(Space(0, one.gpus) for one in needs).gpus
        if said is not None:
            return Space(said, tuple(min(said, one) for one in gpus))
        return Space(max(measured_bytes, sum(one.ready + one.grows for one in needs)), gpus)

    @property
    def in_use(self) -> int:
        """The number of requests and starts that keep it running."""
        return self._in_use

    @property
    def latest(self) -> "Model":
        """The model that is served under its name now: itself, or its latest successor."""
        model = self
        while model.successor is not None:
            model = model.successor
        return model

    @property
    def state(self) -> State:
        """The state of the model; one elsewhere is `ready` until a request or a look has failed."""
        if self._retired:
            return "leaving"
        if self.draining:
            return "draining"
        if self.stopping is not None:
            return "stopping"
        members = self.pool.members
        if self._cold:
            if any(one.loads for one in members):
                return "loading"
            return "failed" if any(one.trouble for one in members) else "stopped"
        if members and all(one.is_coming_back for one in members):
            return "loading"
        if any(one.works for one in members):
            return "ready"
        return "failed" if self.runs_locally else "out"

    @property
    def can_answer(self) -> bool:
        """True if a request may succeed, as far as is known; a load that failed counts again after a while, since only a request tries it."""
        if self.draining:
            return False
        if self.state == "failed":
            last = max((one.trouble.at for one in self.pool.members if one.trouble), default=0.0)
            return time.time() - last > _TRIED_AGAIN_S
        return self.state != "out"

    @property
    def idle_stop_at(self) -> float | None:
        """The event loop's time at which it is stopped, unless a request comes; None for never, or while a request runs."""
        return None if self._idle_timer is None else self._idle_timer.when()

    def set_keep_alive(self, seconds: float | None) -> None:
        """
        Set the time that it stays loaded after its last request, instead of what is configured. What does not run, and is not
        asked for, is to stay as configured.

        Args:
            seconds: None for ever; 0 to stop it once no request runs, as one that is drained is in any case.
        """
        if not self.runs_locally or self.closed:
            return
        runs = self.stopping is None and self.has_begun
        if runs or self._in_use or self.draining:
            self._stays_s = 0 if self.draining else seconds
        if runs and not self._in_use:
            self._await_idle()

    def drain(self) -> None:
        """Take no more requests, and stop what is ours to stop once the running ones have ended."""
        self.draining = True
        self.set_keep_alive(0)

    def update_settings(self, other: "Model") -> None:
        """Take the settings of a model with the same backends, which need not be started again for them."""
        self._copy_settings(other)
        self.pool.falls_back(other.fallback is not None)
        if self._idle_stop_s != other._idle_stop_s:  # else what a caller has said instead goes on
            self._idle_stop_s = other._idle_stop_s
            if not self.draining:
                self._stays_s = other._idle_stop_s
                self.set_keep_alive(other._idle_stop_s)

    def _copy_settings(self, other: "Model") -> None:
        """Take what another model has under its name, and nothing about the life of its backends."""
        self.aliases, self.settings, self.fallback = other.aliases, other.settings, other.fallback
        self.price, self.limits, self.unlisted = other.price, other.limits, other.unlisted
        self._stays = other._stays

    @property
    def queue(self) -> Queue:
        """The requests that wait for its backends."""
        queues = self.pool.queues
        lasts = [one.interval_s for one in queues if one.interval_s is not None]
        waits = [len(one) * (one.interval_s or 0) for one in queues]
        return Queue(sum(map(len, queues)), max(waits) if lasts else None)

    @property
    def slots(self) -> int | None:
        """The number of requests that its backends answer at a time; None where nothing bounds it, or before their start."""
        return sum(one.places or 0 for one in self.pool.members) or None

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the model, on any of its backends."""
        return self.pool.capabilities

    @property
    def static_capabilities(self) -> Capabilities | None:
        """The capabilities of the model where nothing of it runs yet and they are final; else None."""
        members = self.pool.members
        if (members and members[0].started) or not self._cold:
            return None
        can = self.capabilities
        return can if can.is_final else None

    async def start_for_request(self, member: PooledBackend) -> bool:
        """
        Start a backend; a load is logged once for all requests that wait for it. Returns False where the model is to be waited for anew.

        Raises:
            UnilectError: It cannot be started.
        """
        if member.started or not self._cold:
            await (member.backend if member.started else member).start()
            return True
        alone, began = self._in_use == 1, time.monotonic()
        if alone:
            log.info("%s: starting, for a request", self.name)
        try:
            await self._fetch(member)
            if not self.open or self.closed:
                return False
            await member.start()
        except BackendUnavailable as error:
            if self.place is not None and not self.closed:
                self.place.note_failed(error)
            raise name_idle(error, self.idle_others) from error.__cause__
        if self.place is not None:
            told = f"{self.place.note_loaded():.1f}"
            request = current_request()
            request.headers = {**request.headers, "X-Unilect-Loaded-In": told}
        elif alone:
            log.info("%s: started in %.1f s", self.name, time.monotonic() - began)
        return True

    async def start(self) -> None:
        """
        Start all backends; those that are down are looked after. What an operator has drained takes requests again.

        Raises:
            UnilectError: All of them failed, or one that we run ourselves.
        """
        self.acquire()
        self.draining, self._stays_s = False, self._idle_stop_s
        try:
            await self.wait_until_open()
            await self._fetch(*self.pool.members)
            await self.wait_until_open()
            if self.closed and self.successor is not None:
                return await self.latest.start()
            if self.closed:
                raise BackendUnavailable("The model was stopped. Try again.", retry_after_s=5)
            errors = await self.pool.start(tell=not self.runs_locally)
            if self.place is not None:
                if self._cold and errors:
                    self.place.note_failed(errors[0])
                else:
                    self.place.note_loaded()
        finally:
            self.release()
        if errors and (self.runs_locally or len(errors) == len(self.pool.members)):
            raise errors[0]

    @property
    def own_settings(self) -> Settings:
        """The settings with what the current caller has set for its own requests."""
        own = self.own_defaults.get(current_request().caller, {})
        return self.settings._replace(defaults={**self.settings.defaults, **own})

    def acquire(self) -> None:
        """Keep the backends running for a request, until `release`."""
        self._in_use += 1
        if (caller := current_request().caller) not in self.pool.callers:
            self.pool.note_caller(caller)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def release(self) -> None:
        """End what `acquire` has begun."""
        self._in_use -= 1
        if self._in_use:
            return
        self.used_at = time.monotonic()
        if self._retired:
            self.retire()
        elif self._stays_s is not None and not self.closed:
            self._await_idle()
        if self.on_idle is not None:
            self.on_idle()

    async def wait_until_open(self, until: float | None = None) -> None:
        """
        Wait until requests may go to its backends: nothing of it stops, and it has its place in memory. Who waits for a place does not
        keep it running.

        Args:
            until: The event loop's time after which nobody waits any more; None for never.

        Raises:
            UnilectError: It can have no place, or not in time.
        """
        while not self.open and not self.closed:
            if self.stopping is not None:
                await asyncio.shield(self.stopping)
            elif self.place is not None:
                await self._wait_for_place(self.place, until)

    async def _fetch(self, *members: PooledBackend) -> None:
        """Bring the files of backends here, and have its place reckoned again with them. Of what cannot be fetched the start tells."""
        if self.place is not None and not self.closed:
            await asyncio.gather(*(one.fetch() for one in members))
            self.place.note_size()

    async def _wait_for_place(self, place: Seat, until: float | None) -> None:
        request = current_request()
        request.stage = lambda: place.stage
        self.release()
        try:
            await place.wait(until, self.pool.members[0].queue_settings.timeout_s)
        finally:
            self.acquire()

    def load_soon(self) -> None:
        """Have it loaded, though nobody waits for it."""
        if self._loading is None or self._loading.done():
            self._loading = spawn_detached(self._load_quietly(current_request().caller))

    async def _load_quietly(self, caller: str) -> None:
        CURRENT_REQUEST.set(Context(caller=caller))  # who pays for it
        with suppress(UnilectError):  # its events tell
            await self.start()

    def evict(self) -> None:
        """Stop it for another model, now that nothing runs in it."""
        if self.stopping is None and not self._in_use:
            self._stop_now()

    async def aclose(self) -> None:
        """Stop the backends, for good."""
        self.closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        try:
            await self.pool.aclose()
        finally:
            if self.place is not None:
                self.place.note_gone(for_good=True)

    def retire(self) -> None:
        """No request will come any more: stop the backends once nothing runs in them, and at once where files come for no successor."""
        self._retired = True
        gives_up = self.successor is None and self.pool.only_fetches
        if self.closed or (self._in_use and not gives_up):
            return
        if gives_up:
            log.warning("%s: was taken out while its files were fetched; that stops, and what has come is kept", self.name)  # fmt: skip
        self.closed = True
        self.stopping = self.stopping or spawn_detached(self.aclose())
        self.stopping.add_done_callback(lambda _: self.on_gone())

    @property
    def gone(self) -> bool:
        """True once it has been retired and stopped."""
        return self.closed and (self.stopping is None or self.stopping.done())

    def _await_idle(self) -> None:
        """Set the time of the idle stop."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._stays_s == 0:
            self._stop_idle()
        elif self._stays_s is not None:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._stays_s, self._stop_idle)

    def _stop_idle(self) -> None:
        self._idle_timer = None
        if self.stopping is not None or not self.has_begun:
            return  # a request came while it stopped, or waited for its place, and left before that was done
        log.info("%s: idle, stopping", self.name)
        self._stop_now()

    def _stop_now(self) -> None:
        self._stays_s = 0 if self.draining else self._idle_stop_s  # of its next life
        self.open = False
        self.stopping = spawn_detached(self._stop())

    async def _stop(self) -> None:
        try:
            await self.pool.aclose()
        finally:
            self.stopping, self.open = None, self.place is None
            if self.place is not None:
                self.place.note_gone(for_good=self.closed)  # a reload may have taken it out
