"""
The models and their backends: started once, shared, stopped when idle.

A caller asks for a lease without a look at the backend's state; the backend decides inside `start` whether anything is to be done.
"""

import asyncio
import gc
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from unilect.api.backend import Backend, Capabilities
from unilect.api.parameters.rules import Unsupported
from unilect.config.limits import Limits
from unilect.config.model import Price
from unilect.constraints.checker import Checker
from unilect.core.errors import BackendUnavailable, ModelNotFound, UnilectError
from unilect.models.settings import Settings, State, name_idle
from unilect.runtime.context import current_request
from unilect.runtime.tasks import spawn_detached
from unilect.scheduling.fair_queue import Queue
from unilect.scheduling.parts import Room
from unilect.scheduling.pool import Pool, PooledBackend
from unilect.scheduling.prefixes import without_billing
from unilect.scheduling.routed import RoutedRequest

log = logging.getLogger("unilect")
_TRIED_AGAIN_S = 60.0
_FREE_AFTER_S = 1.0  # many models may leave together


class Model:
    """
    A name that clients send, and the backends that answer for it.

    Args:
        name: The name.
        members: Its backends, not yet started; or the only one.
        aliases: Other names for it.
        defaults: Values for parameters that a request leaves out.
        prepare: What else is done to each request; without it Claude Code's billing header is left out.
        unsupported: What happens to parameters that the backend refuses.
        fallback: The model that answers when no backend of this one can.
        idle_stop_s: Stop the backends after so long without a request; None for never.
        runs_locally: The server does not start without it; true for what we run ourselves, while a server elsewhere may come later.
        created: Unix seconds.
        price: What its tokens cost; None where they are free.
        limits: Of all requests to it together.

    Attributes:
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

    def __init__(
        self,
        name: str,
        members: Backend | Iterable[PooledBackend],
        *,
        aliases: Iterable[str] = (),
        defaults: Mapping[str, Any] | None = None,
        prepare: Callable[[Any], Any] = without_billing,
        unsupported: Unsupported = "refuse",
        fallback: str | None = None,
        idle_stop_s: float | None = None,
        runs_locally: bool = True,
        created: int = 0,
        price: Price | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        pool = members if isinstance(members, Iterable) else [PooledBackend(members)]
        self.pool = Pool(name, pool, has_fallback=fallback is not None)
        self.aliases = tuple(aliases)
        self.defaults = dict(defaults or {})
        self.prepare = prepare
        self.unsupported = unsupported
        self.fallback = fallback
        self.runs_locally = runs_locally
        self.created = created
        self.price, self.limits = price, limits
        self._idle_stop_s = self._stays_s = idle_stop_s
        self._in_use = 0
        self._retired = self.closed = self.draining = False
        self.successor: Model | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self.stopping: asyncio.Task[None] | None = None
        self.own_defaults: dict[str, dict[str, Any]] = {}
        self.retries, self.fallbacks = 0, Counter[str]()
        self.on_gone: Callable[[], None] = lambda: None
        self.idle_others: Callable[[], list[str]] = list

    @property
    def _cold(self) -> bool:
        """True while nothing of it runs, of what this server starts."""
        return self.runs_locally and not any(one.started for one in self.pool.members)

    @property
    def runs_here(self) -> bool:
        """True while something of it runs that this server starts and stops."""
        return self.runs_locally and not self._cold and self.stopping is None

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

    def stay(self, seconds: float | None) -> None:
        """
        Say how long it stays after its last request, until it is stopped, instead of what is configured. What does not run, and is not
        asked for, is to stay as configured.

        Args:
            seconds: None for ever; 0 to stop it once no request runs, as one that is drained is in any case.
        """
        if not self.runs_locally or self.closed:
            return
        runs = self.stopping is None and any(one.begun for one in self.pool.members)
        if runs or self._in_use:
            self._stays_s = 0 if self.draining else seconds
        if runs and not self._in_use:
            self._await_idle()

    def drain(self) -> None:
        """Take no more requests, and stop what is ours to stop once the running ones have ended."""
        self.draining = True
        self.stay(0)

    def adopt(self, other: "Model") -> None:
        """Take the settings of a model with the same backends, which need not be started again for them."""
        self.aliases, self.defaults, self.prepare = other.aliases, other.defaults, other.prepare
        self.unsupported, self.fallback = other.unsupported, other.fallback
        self.price, self.limits = other.price, other.limits
        self.pool.falls_back(other.fallback is not None)
        if self._idle_stop_s != other._idle_stop_s:  # else what a caller has said instead goes on
            self._idle_stop_s = other._idle_stop_s
            if not self.draining:
                self._stays_s = other._idle_stop_s
                self.stay(other._idle_stop_s)

    @property
    def queue(self) -> Queue:
        """The requests that wait for its backends."""
        queues = self.pool.queues
        lasts = [one.interval_s for one in queues if one.interval_s is not None]
        waits = [len(one) * (one.interval_s or 0) for one in queues]
        return Queue(sum(map(len, queues)), max(waits) if lasts else None)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the model, on any of its backends."""
        return self.pool.capabilities

    @property
    def static_capabilities(self) -> Capabilities | None:
        """The capabilities of the model where nothing of it runs yet and they are final; else None."""
        can = self.capabilities if self._cold else None
        return can if can is not None and can.is_final else None

    async def start_for_request(self, member: PooledBackend) -> None:
        """
        Start a backend; a load is logged once for all requests that wait for it.

        Raises:
            UnilectError: It cannot be started.
        """
        if not self._cold:
            return await member.start()
        alone, began = self._in_use == 1, time.monotonic()
        if alone:
            log.info("%s: starting, for a request", self.name)
        try:
            await member.start()
        except BackendUnavailable as error:
            raise name_idle(error, self.idle_others) from error.__cause__
        if alone:
            log.info("%s: started in %.1f s", self.name, time.monotonic() - began)

    async def start(self) -> None:
        """
        Start all backends; those that are down are looked after. What an operator has drained takes requests again.

        Raises:
            UnilectError: All of them failed, or one that we run ourselves.
        """
        self.arrive()
        self.draining, self._stays_s = False, self._idle_stop_s
        try:
            if self.stopping is not None:
                await asyncio.shield(self.stopping)
            errors = await self.pool.start(tell=not self.runs_locally)
        finally:
            self.left()
        if errors and (self.runs_locally or len(errors) == len(self.pool.members)):
            raise errors[0]

    @property
    def settings(self) -> Settings:
        """The settings for requests of the current caller. A request that has begun keeps them, whatever changes meanwhile."""
        defaults: Mapping[str, Any] = self.defaults
        if self.own_defaults:
            defaults = {**defaults, **self.own_defaults.get(current_request().caller, {})}
        return Settings(self.prepare, defaults, self.unsupported)

    def arrive(self) -> None:
        """A request has come: the backends are kept running until it has `left`."""
        self._in_use += 1
        if (caller := current_request().caller) not in self.pool.callers:
            self.pool.meets(caller)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def left(self) -> None:
        """A request has left."""
        self._in_use -= 1
        if self._retired:
            self.retire()
        elif self._in_use == 0 and not self.closed:
            self._await_idle()

    def record_result(
        self, member: PooledBackend, error: UnilectError | None, asked: RoutedRequest | None = None
    ) -> None:
        """Take note of how a request to a backend ended, or an attempt to start it."""
        if not self.closed:
            self.pool.record_result(member, error, asked)

    async def aclose(self) -> None:
        """Stop the backends, for good."""
        self.closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self.pool.aclose()

    def retire(self) -> None:
        """No request will come any more: stop the backends once nothing runs in them."""
        self._retired = True
        if self._in_use or self.closed:
            return
        self.closed = True
        if self.stopping is None:
            self.stopping = spawn_detached(self.aclose())
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
        if self.stopping is not None:
            return  # a request came while it stopped, and left before it was done
        log.info("%s: idle, stopping", self.name)
        self._stays_s = self._idle_stop_s  # what is said from now on is of its next life
        self.stopping = spawn_detached(self._stop())

    async def _stop(self) -> None:
        try:
            await self.pool.aclose()
        finally:
            self.stopping = None


class Registry:
    """
    All models of a server. The first one is the default.

    Args:
        models: The models.
        checker: What compiles the grammars and schemas of clients; it is closed with the models.

    Attributes:
        room: The room for parts of requests.
        seek: Looks for further models, for a name that none here has; None where there is nobody to ask.
        forgotten: Is told the name of a model that was taken out.
    """

    def __init__(self, models: Iterable[Model], checker: Checker | None = None) -> None:
        self.checker, self.room = checker or Checker(), Room()
        self.seek: Callable[[], Awaitable[None]] | None = None
        self.forgotten: Callable[[str], None] = lambda name: None
        self.models: dict[str, Model] = {}
        self._by_name: dict[str, Model] = {}
        self._leaving: list[Model] = []
        self._freeing: asyncio.TimerHandle | None = None
        for model in models:
            self.add(model)

    def __contains__(self, name: str) -> bool:
        """Return True if a model has this name or alias."""
        return name in self._by_name

    @property
    def leaving(self) -> list[Model]:
        """Models that were taken out, and whose last requests still run, or that are being stopped."""
        return [one for one in self._leaving if not one.gone]

    def add(self, model: Model) -> None:
        """
        Take a model in, in the place of one of its name that is here already; its aliases give way to what has these names already.
        """
        if (before := self.models.get(model.name)) is not None and before is not model:
            self._leave(before, model)
        self.models[model.name] = self._by_name[model.name] = model
        model.idle_others = lambda: [
            one.name for one in self.models.values() if one.runs_here and not one.in_use
        ]
        for alias in model.aliases:
            self._by_name.setdefault(alias, model)

    def forget(self, name: str) -> None:
        """Take a model out; its backends are stopped once what runs in them has ended."""
        model = self.models.pop(name)
        for known in (name, *model.aliases):
            if self._by_name.get(known) is model:
                del self._by_name[known]
        self._leave(model)
        self.forgotten(name)

    def swap(self, models: Iterable[Model]) -> None:
        """
        Serve these models and no others, in this order, from now on. What leaves finishes its requests; a request that has been taken in,
        and has not come to its model yet, goes to the one of the same name.
        """
        before, self.models, self._by_name = self.models, {}, {}
        for model in models:
            self.add(model)
        for name, model in before.items():
            if (now := self.models.get(name)) is not model:
                self._leave(model, now)
                if now is None:
                    self.forgotten(name)

    def _leave(self, model: Model, successor: Model | None = None) -> None:
        """Send a model no more requests, and stop it once those that it has have ended."""
        model.successor, model.on_gone = successor, self._free_soon
        model.retire()
        self._leaving = [*self.leaving, model]

    def _free_soon(self) -> None:
        """Free the models that have left, and are stopped."""
        if self._freeing is None:
            self._freeing = asyncio.get_running_loop().call_later(_FREE_AFTER_S, self._free)

    def _free(self) -> None:
        """
        An engine and its child refer to each other, and by now the garbage collector looks at things so old only after millions of new
        ones: a server whose configuration is reloaded often would keep all engines that it ever had.
        """
        self._freeing = None
        self._leaving = self.leaving
        gc.collect()

    def check_able(self) -> None:
        """
        A request for one of the models may succeed; where there are no models, some may come.

        Raises:
            BackendUnavailable: None of them can answer; the servers among them are looked at.
        """
        models = self.models.values()
        if not models or any(model.can_answer for model in models):
            return
        for model in models:
            model.pool.look_at_all()
        counts = Counter("drained" if model.draining else model.state for model in models)
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        raise BackendUnavailable(f"No model can answer ({told}); `unilect ps` says why.")

    def queues(self) -> dict[str, Queue]:
        """The requests that wait for each model."""
        return {name: model.queue for name, model in self.models.items()}

    async def look_again(self) -> bool:
        """Look for further models, since one that was asked for is not known; false where there is nobody to ask."""
        if self.seek is None:
            return False
        await self.seek()
        return True

    def get(self, name: str | None) -> Model:
        """
        The model of this name or alias; the default model for None.

        Raises:
            ModelNotFound: There is none.
        """
        if name is None and self.models:
            return next(iter(self.models.values()))
        model = self._by_name.get(name or "")
        if model is None:
            names = ", ".join(islice(filter(current_request().may_use, self.models), 20)) or "none"
            raise ModelNotFound(
                f"The model `{(name or '')[:100]}` is not served here. Models: {names}.",
                param="model",
            )
        return model

    def price(self, name: str) -> Price | None:
        """Return the price of a model; None where it is free, or gone."""
        model = self._by_name.get(name)
        return None if model is None else model.price

    async def start(self, names: Iterable[str]) -> None:
        """
        Start the backends of these models, all at once.

        Raises:
            UnilectError: The first of the required ones that cannot be started.
        """
        await self.start_all([self.models[name] for name in names])

    async def start_all(self, models: Iterable[Model]) -> None:
        """As `start`, also of models that are not served yet."""
        async with asyncio.TaskGroup() as group:
            for model in models:
                group.create_task(self._start(model))

    async def aclose(self) -> None:
        """Stop all backends and the checker, for good."""
        if self._freeing is not None:
            self._freeing.cancel()
        models = (*self.models.values(), *self._leaving)
        await asyncio.gather(*(model.aclose() for model in models), self.checker.aclose())

    async def _start(self, model: Model) -> None:
        try:
            await model.start()
        except UnilectError:
            if model.runs_locally:
                raise
            log.info("%s: it is tried again with each request", model.name)  # the pool has said why
