"""Leases of a model's backend, as requests have them, that a test gives back when it wants to."""

from contextlib import ExitStack

from unilect.answers.attempts import Attempts, any_backend
from unilect.api.backend import Backend
from unilect.models.model import Model


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
        attempts = stack.enter_context(Attempts(model, any_backend))
        lease = await attempts.lease()
        assert lease is not None
        stack.enter_context(lease)
        return Held(lease.backend, stack.pop_all())
