"""
Which models there are, and their backends: started once, shared, stopped when idle.

A caller never looks at a backend's state first and acts then: it asks for a lease, and the backend decides inside `start`
whether anything is to be done.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from unilect.backend import Backend
from unilect.errors import ConfigError, ModelNotFound, UnilectError
from unilect.parameters import Unsupported
from unilect.requests import Request

log = logging.getLogger("unilect")


class Model:
    """
    A name that clients send, and the backend that answers for it.

    Args:
        name: The name.
        backend: Its backend, not yet started.
        source: Where the model comes from, as the configuration says; shown to nobody but the operator.
        aliases: Other names for it.
        defaults: Values for parameters that a request leaves out.
        unsupported: What happens to parameters that the backend refuses.
        idle_stop_s: Stop the backend after so long without a request; None for never.
        required: The server does not start without it; true for what we run ourselves, while a server elsewhere may come later.
        created: Unix seconds.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        *,
        source: str = "",
        aliases: Iterable[str] = (),
        defaults: Mapping[str, Any] | None = None,
        unsupported: Unsupported = "refuse",
        idle_stop_s: float | None = None,
        required: bool = True,
        created: int = 0,
    ) -> None:
        self.name = name
        self.backend = backend
        self.source = source
        self.aliases = tuple(aliases)
        self.defaults = dict(defaults or {})
        self.unsupported = unsupported
        self.required = required
        self.created = created
        self._idle_stop_s = idle_stop_s
        self._in_use = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def acquire(self) -> Backend:
        """
        Lease the backend: started, and kept running until `release`.

        Raises:
            BackendUnavailable: It cannot be started now.
        """
        self._in_use += 1
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        try:
            if self._stopping is not None:
                await asyncio.shield(self._stopping)
            await self.backend.start()
        except BaseException:
            self.release()
            raise
        return self.backend

    def release(self) -> None:
        """Give a lease back."""
        self._in_use -= 1
        if self._in_use == 0 and self._idle_stop_s is not None:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._idle_stop_s, self._stop_idle)

    def with_defaults(self, request: Any) -> Any:
        """The request with this model's defaults for what it leaves out."""
        missing = {
            name: value
            for name, value in self.defaults.items()
            if getattr(request, name, _NO_FIELD) is None and name not in request.wire
        }
        return request.changed(**missing) if missing else request

    async def aclose(self) -> None:
        """Stop the backend."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self.backend.aclose()

    def _stop_idle(self) -> None:
        self._idle_timer = None
        log.info("%s: idle, stopping", self.name)
        self._stopping = asyncio.get_running_loop().create_task(self._stop())

    async def _stop(self) -> None:
        try:
            await self.backend.aclose()
        finally:
            self._stopping = None


_NO_FIELD = object()


class Registry:
    """All models of a server. The first one is the default."""

    def __init__(self, models: Iterable[Model]) -> None:
        self.models = {model.name: model for model in models}
        self._by_name = dict(self.models)
        for model in self.models.values():
            for alias in model.aliases:
                self._by_name.setdefault(alias, model)

    def get(self, name: str | None) -> Model:
        """
        The model of this name or alias; the default model for None.

        Raises:
            ModelNotFound: There is none.
        """
        model = (
            self._by_name.get(name) if name is not None else next(iter(self.models.values()), None)
        )
        if model is None:
            names = ", ".join(list(self.models)[:20]) or "none yet"
            which = f"The model `{name[:100]}`" if name is not None else "A model"
            raise ModelNotFound(f"{which} is not served here. Models: {names}.", param="model")
        return model

    def add(self, model: Model) -> None:
        """Serve one more model; a name that is taken stays with its owner."""
        self.models.setdefault(model.name, model)
        for name in (model.name, *model.aliases):
            self._by_name.setdefault(name, model)

    def remove(self, name: str) -> None:
        """Serve a model no longer. What runs goes on; its backend is not stopped here."""
        model = self.models.pop(name)
        self._by_name = {name: one for name, one in self._by_name.items() if one is not model}

    async def start(self, names: Iterable[str]) -> None:
        """
        Start the backends of these models, all at once.

        Raises:
            UnilectError: The first of the required ones that cannot be started.
        """
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self._start(self.models[name]))

    async def aclose(self) -> None:
        """Stop all backends."""
        await asyncio.gather(*(model.aclose() for model in self.models.values()))

    async def _start(self, model: Model) -> None:
        try:
            await model.acquire()
        except UnilectError as error:
            if model.required:
                raise
            log.warning("%s: %s It is tried again with each request.", model.name, error.message)
        else:
            model.release()


def check_defaults(
    model: str, defaults: Mapping[str, Any], *request_classes: type[Request]
) -> None:
    """
    Validate a model's defaults as if they stood in a request.

    Raises:
        ConfigError: No kind of request has such a parameter, or it does not take the value.
    """
    types = {
        field.name: field.type
        for request_class in request_classes
        for field in msgspec.structs.fields(request_class)
        if field.name not in request_class.own and field.name != "wire"
    }
    for name, value in defaults.items():
        where = f"models.{model}.defaults.{name}"
        if name not in types:
            raise ConfigError(f"{where}: there is no such parameter.")
        try:
            msgspec.convert(value, types[name])
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where}: {error}.") from error
