"""Tests of unilect.routing._failover: which failures are retried, and where."""

from typing import Any

import pytest

from engine import chat
from unilect.backend import Capabilities
from unilect.errors import BackendUnavailable, EngineDied, UnilectError
from unilect.routing._failover import Failover
from unilect.routing.pool import Member
from unilect.routing.registry import Model


class Scripted:
    """A backend whose attempts end as told: with an error, or with an answer once no error is left."""

    def __init__(self, *errors: UnilectError) -> None:
        self.capabilities = Capabilities()
        self.asked = 0
        self._errors = list(errors)

    async def start(self) -> None:
        """Be ready."""

    async def aclose(self) -> None:
        """Stop."""

    async def answer(self) -> str:
        """Fail, or answer."""
        self.asked += 1
        if self._errors:
            raise self._errors.pop(0)
        return "answered"


def died(blamed: bool = False) -> EngineDied:
    """The death of an engine."""
    error = EngineDied("The engine died.")
    error.blamed = blamed
    return error


async def tried(*backends: Any, begun: bool = False, about: bool = False) -> str:
    """What one request gets from a model with these backends; `about` is a call that brings no request."""
    model = Model("m", [Member(backend) for backend in backends])
    with Failover(model, None if about else chat()) as failover:
        async for lease in failover:
            with lease:
                lease.begun = begun
                return await lease.bare.answer()
    raise AssertionError("neither an answer nor an error")


@pytest.mark.parametrize("about", [False, True])
async def test_the_death_of_an_engine_for_another_request(about: bool) -> None:
    """A request or a call whose engine died of another one is sent to the same engine once more, and to no other."""
    first, second = Scripted(died()), Scripted()

    assert "answered" == await tried(first, second, about=about)
    assert (2, 0) == (first.asked, second.asked)


async def test_a_second_death() -> None:
    """A request at two deaths of its engine is sent nowhere else."""
    first, second = Scripted(died(), died()), Scripted()
    with pytest.raises(EngineDied):
        await tried(first, second)
    assert (2, 0) == (first.asked, second.asked)


async def test_the_request_that_an_engine_died_of() -> None:
    """A request that its engine died of is not retried anywhere."""
    first, second = Scripted(died(blamed=True)), Scripted()
    with pytest.raises(EngineDied):
        await tried(first, second)
    assert (1, 0) == (first.asked, second.asked)


async def test_an_answer_that_had_begun() -> None:
    """A request of whose answer the client has a part is not retried when the engine dies."""
    first = Scripted(died())
    with pytest.raises(EngineDied):
        await tried(first, begun=True)
    assert 1 == first.asked


async def test_another_failure_after_a_death() -> None:
    """A request whose engine cannot be started again is sent to the next backend."""
    first, second = Scripted(died(), BackendUnavailable("It is gone.")), Scripted()

    assert "answered" == await tried(first, second)
    assert (2, 1) == (first.asked, second.asked)
