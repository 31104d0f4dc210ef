"""
A preset: a further name for a model, with settings of its own, and the same backends.

The backends have one life, which is the model's: a preset starts and stops nothing, and has no count of requests that keep them running.
"""

import asyncio
from typing import Any

from unilect.models.model import Model, State
from unilect.models.stays import Stays
from unilect.residency.seat import Seat
from unilect.scheduling.pooled_backend import PooledBackend


def _of_base(name: str) -> Any:
    """Make an attribute that is the base's."""
    return property(lambda preset: getattr(preset.base, name))


class Preset(Model):
    """
    A preset of a model.

    Args:
        name: The name.
        base: The model whose backends answer.
        settings: As of `Model`; those about the life of backends have no effect.
    """

    closed: bool = _of_base("closed")
    draining: bool = _of_base("draining")
    open: bool = _of_base("open")
    place: Seat | None = _of_base("place")
    stays: Stays = _of_base("stays")
    stopping: asyncio.Task[None] | None = _of_base("stopping")

    def __init__(self, name: str, base: Model, **settings: Any) -> None:
        super().__init__(name, (), **settings)
        self.bind(base)

    def bind(self, base: Model) -> None:
        """Have the backends of a model answer; only before the preset is served."""
        self._base, self.pool, self.runs_locally = base, base.pool, base.runs_locally
        self.events = base.events

    @property
    def base(self) -> Model:
        """The model whose backends answer."""
        return self._base

    @property
    def state(self) -> State:
        """The state of the base."""
        return self.base.state

    @property
    def in_use(self) -> int:
        """The requests and starts that keep the base running."""
        return self.base.in_use

    @property
    def idle_stop_at(self) -> float | None:
        """The event loop's time at which the base is stopped."""
        return self.base.idle_stop_at

    @property
    def gone(self) -> bool:
        """True once it has been retired: it has nothing to stop."""
        return self._retired

    def set_keep_alive(self, seconds: float | None) -> None:
        """Set the time that the base stays loaded."""
        self.base.set_keep_alive(seconds)

    def drain(self) -> None:
        """Drain the base."""
        self.base.drain()

    def update_settings(self, other: Model) -> None:
        """Take the settings of a preset of the same base."""
        self._copy_settings(other)

    async def start_for_request(self, member: PooledBackend) -> bool:
        """Start a backend of the base."""
        return await self.base.start_for_request(member)

    async def wait_until_open(self, until: float | None = None) -> None:
        """Wait until requests may go to the backends of the base."""
        await self.base.wait_until_open(until)

    def load_soon(self) -> None:
        """Have the base loaded."""
        self.base.load_soon()

    async def start(self) -> None:
        """Start the base."""
        await self.base.start()

    def acquire(self) -> None:
        """Keep the base running, until `release`."""
        self.base.acquire()

    def release(self) -> None:
        """End what `acquire` has begun."""
        self.base.release()

    async def aclose(self) -> None:
        """Stop nothing: the base has the backends."""

    def retire(self) -> None:
        """No request will come any more; those that run go on with the base."""
        self._retired = True
