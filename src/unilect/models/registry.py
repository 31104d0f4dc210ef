"""The models of a server, by their names, and their exchange while it runs."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice

from unilect.config.model import Price
from unilect.constraints.checker import Checker
from unilect.core.errors import BackendUnavailable, ModelNotFound, UnilectError
from unilect.models.model import Model
from unilect.residency.events import Feed
from unilect.residency.residency import Residency
from unilect.runtime.context import current_request
from unilect.scheduling.fair_queue import Queue
from unilect.scheduling.parts import Room

log = logging.getLogger("unilect")
_FREE_AFTER_S = 1.0  # many models may leave together


class Registry:
    """
    All models of a server. The first one is the default.

    Args:
        models: The models.
        checker: What compiles the grammars and schemas of clients; it is closed with the models.
        residency: Gives the models their places in memory; None where they share none.

    Attributes:
        room: The room for parts of requests.
        feed: Gets the models' events.
        seek: Looks for further models, for a name that none here has; None where there is nobody to ask.
        forgotten: Is told the name of a model that was taken out.
    """

    def __init__(
        self,
        models: Iterable[Model],
        checker: Checker | None = None,
        residency: Residency | None = None,
    ) -> None:
        self.checker, self.room, self.residency = checker or Checker(), Room(), residency
        self.feed = Feed()
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
    def bases(self) -> list[Model]:
        """The models with backends of their own: all but presets."""
        return [one for one in self.models.values() if one.base is one]

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
        model.base.events.feed = self.feed
        if self.residency is not None:
            self.residency.take(model.base)
        model.idle_others = lambda: [
            one.name for one in self.bases if one.runs_here and not one.in_use
        ]
        if model.fallback is not None and not model.pool.has_fallback:  # a preset's own
            model.pool.falls_back(True)
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
        models = self.bases
        if not models or any(model.can_answer for model in models):
            return
        for model in models:
            model.pool.look_at_all()
        counts = Counter("drained" if model.draining else model.state for model in models)
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        raise BackendUnavailable(f"No model can answer ({told}); `unilect ps` says why.")

    def queues(self) -> dict[str, Queue]:
        """The requests that wait for each model."""
        return {model.name: model.queue for model in self.bases}

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
            listed = (one.name for one in self.models.values() if not one.unlisted)
            names = ", ".join(islice(filter(current_request().may_use, listed), 20)) or "none"
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
        models = [self.models[name] for name in dict.fromkeys(names)]
        if self.residency is not None:
            self.residency.pressure.open()
            models = self.residency.admit_at_start(models)
        await self.start_all(models)

    async def start_all(self, models: Iterable[Model]) -> None:
        """As `start`, also of models that are not served yet, which wait for their places."""
        models = list(models)
        if self.residency is not None:
            self.residency.force(one.base for one in models)
        async with asyncio.TaskGroup() as group:
            for model in models:
                group.create_task(self._start(model))

    async def aclose(self) -> None:
        """Stop all backends and the checker, for good."""
        if self._freeing is not None:
            self._freeing.cancel()
        if self.residency is not None:
            self.residency.pressure.close()
        models = (*self.models.values(), *self._leaving)
        await asyncio.gather(*(model.aclose() for model in models), self.checker.aclose())

    async def _start(self, model: Model) -> None:
        try:
            await model.start()
        except UnilectError:
            if model.runs_locally:
                raise
            log.info("%s: it is tried again with each request", model.name)  # the pool has said why
