"""Models that share memory, and start at once or when a test wants it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from support.backends.leases import acquire
from unilect.api.backend import MemoryNeed
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.models.stays import Stays
from unilect.residency.ledger import Ledger
from unilect.residency.residency import Residency
from unilect.scheduling.fair_queue import QueueSettings
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import Echo


def model(
    name: str, size: int = 10, *, pinned: bool = False, gpus: tuple[int, ...] = (), **waits: float
) -> Model:
    """A model that takes so much, and of it so much of each GPU."""
    queue, backend = QueueSettings(**waits), Echo()  # type: ignore[arg-type]
    if gpus:
        backend.memory_need = lambda: MemoryNeed(size, gpus=gpus)  # type: ignore[method-assign]
    member = PooledBackend(backend, name, queue=queue)
    return Model(name, [member], stays=Stays(True, pinned, size))


@asynccontextmanager
async def room(
    *models: Model, memory: int | None = 20, turn_s: float = 0.0
) -> AsyncIterator[Registry]:
    """A registry whose models share so much memory."""
    registry = Registry(models, residency=Residency(memory, turn_s, Ledger()))
    try:
        yield registry
    finally:
        await registry.aclose()


async def use(model: Model) -> None:
    """Ask a model, and be done with it."""
    (await acquire(model)).release()


def kinds(model: Model) -> list[str]:
    """What has happened to a model."""
    return [one.kind for one in model.events.last]


def reason(model: Model) -> str:
    """Why the last thing has happened to it."""
    return model.events.last[-1].reason


def waiting(model: Model) -> Callable[[], bool]:
    """Whether a request waits for its place."""
    return lambda: model.place is not None and bool(model.place.waiting)


class Clock:
    """A clock that goes on when a test says so."""

    seconds = 0.0

    def monotonic(self) -> float:
        """Its time."""
        return self.seconds

    time = monotonic


def hold(model: Model, what: str, member: int = 0) -> asyncio.Event:
    """Have a backend's `fetch`, `start` or `aclose` wait for the event."""
    backend, event = model.pool.members[member].backend, asyncio.Event()
    go_on = getattr(backend, what)

    async def wait() -> None:
        await event.wait()
        await go_on()

    setattr(backend, what, wait)
    return event
