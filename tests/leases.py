"""Leases of a model's backend, as requests have them, that a test gives back when it wants to."""

from contextlib import ExitStack

from unilect.backend import Backend
from unilect.routing._failover import Failover
from unilect.routing.registry import Model


class Held:
    """
    A lease.

    Attributes:
        backend: The backend, ready.
    """

    def __init__(self, backend: Backend, stack: ExitStack) -> None:
        self.backend = backend
        self.release = stack.close


async def acquire(model: Model) -> Held:
    """Lease a model's backend."""
    with ExitStack() as stack:
        failover = stack.enter_context(Failover(model))
        lease = stack.enter_context(await anext(failover))
        return Held(lease.backend, stack.pop_all())
