"""Tests of unilect.answers.attempts: which failures are retried, and where."""

from collections.abc import Callable
from typing import Any

import pytest

from support.backends.engine import chat
from unilect.answers.attempts import Attempts, any_backend
from unilect.api.backend import Backend, Capabilities, Witness
from unilect.core.errors import (
    BackendUnavailable,
    BackendUnreachable,
    ContextLengthExceeded,
    EngineDied,
    InvalidRequest,
    UnilectError,
)
from unilect.models.model import Model
from unilect.runtime.context import CURRENT_REQUEST, Context
from unilect.scheduling.pooled_backend import PooledBackend


class Scripted(Backend):
    """A backend whose attempts end as told: with an error, or with an answer once no error is left."""

    def __init__(self, *errors: UnilectError) -> None:
        self.capabilities = Capabilities()
        self.asked = 0
        self.start_error: UnilectError | None = None
        self._errors = list(errors)

    async def start(self) -> None:
        """Be ready, or not."""
        if self.start_error is not None:
            raise self.start_error

    async def aclose(self) -> None:
        """Stop."""

    async def answer(self) -> str:
        """Fail, or answer."""
        self.asked += 1
        if self._errors:
            raise self._errors.pop(0)
        return "answered"


class Engine(Scripted):
    """An engine that is ended from outside once, and is away until it is started again."""

    def __init__(self) -> None:
        super().__init__(died(from_outside=True))
        self.comes_back, self.processes = True, 1
        self.children, self.witnesses = (self,), set[Witness]()

    async def start(self) -> None:
        """Be back."""
        self.processes = 1

    async def answer(self) -> str:
        """Be ended, or answer."""
        self.processes = len(self._errors) ^ 1
        return await super().answer()


def died(blamed: bool = False, from_outside: bool = False) -> EngineDied:
    """The death of an engine."""
    error = EngineDied("The engine died.")
    error.blamed, error.from_outside = blamed, from_outside
    return error


def model_of(*backends: Any, name: str = "m", fallback: str | None = None) -> Model:
    """A model with these backends."""
    return Model(name, [PooledBackend(backend) for backend in backends], fallback=fallback)


async def tried(
    *backends: Any,
    begun: bool = False,
    about: bool = False,
    fallback: Model | None = None,
    after: Callable[[Model], object] = lambda model: None,
) -> str:
    """
    What one request gets from a model with these backends.

    Args:
        about: It is a call that brings no request.
        after: Called when an attempt has failed.
    """
    model = model_of(*backends, fallback=None if fallback is None else fallback.name)
    other = None if fallback is None else {fallback.name: fallback}.__getitem__
    with Attempts(model, any_backend, None if about else chat(), other=other) as attempts:
        while lease := await attempts.lease():
            with lease:
                if begun:
                    attempts.begun = True
                return await lease.member.backend.answer()
            after(model)
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


async def test_an_engine_that_cannot_be_started_again() -> None:
    """A request whose only engine died, and cannot be started again, hears why it cannot."""
    only = Scripted(died())

    def fail(model: Model) -> None:
        only.start_error = BackendUnavailable("Too many deaths.", retry_after_s=600)

    with pytest.raises(BackendUnavailable, match="Too many deaths"):
        await tried(only, after=fail)


async def test_each_engine_has_a_second_try() -> None:
    """A request whose engine died, and cannot be started again, has a second try on the next engine that dies, too."""
    first, second = Scripted(died(), BackendUnavailable("It is gone.")), Scripted(died())

    assert "answered" == await tried(first, second)
    assert (2, 2) == (first.asked, second.asked)


async def test_a_model_that_is_stopped_after_a_death() -> None:
    """A request whose model was stopped when its engine had died is answered by an engine of the fallback, not by the stopped one."""
    first, other = Scripted(died()), Scripted()

    def stop(model: Model) -> None:
        model.closed = True

    assert "answered" == await tried(first, fallback=model_of(other, name="other"), after=stop)
    assert (1, 1) == (first.asked, other.asked)


async def test_a_backend_that_was_removed_before_its_death() -> None:
    """A request whose engine was taken out of the pool and died is not sent to it again; that may have been its own doing, so to no other."""
    first, second = Scripted(died()), Scripted()
    model = model_of(first, second)
    with pytest.raises(EngineDied), Attempts(model, any_backend, chat()) as attempts:
        while lease := await attempts.lease():
            with lease:
                model.pool.remove(model.pool.members[0])
                await lease.member.backend.answer()

    assert (1, 0) == (first.asked, second.asked)


async def test_a_backend_that_was_removed_before_it_was_ended() -> None:
    """A request whose engine was taken out of the pool and ended from outside is sent to another one: it was no doing of the request."""
    first, second = Engine(), Scripted()
    model = model_of(first, second)
    with Attempts(model, any_backend, chat()) as attempts:
        while lease := await attempts.lease():
            with lease:
                if first.asked == 0:
                    model.pool.remove(model.pool.members[0])
                await lease.member.backend.answer()

    assert (1, 1) == (first.asked, second.asked)


@pytest.mark.parametrize("error", [ContextLengthExceeded("Too long."), InvalidRequest("No.")])
async def test_another_backend_refuses_what_an_engine_had(error: UnilectError) -> None:
    """A request that an engine had when it was ended from outside goes back to it where the other backend refuses it."""
    first, second = Engine(), Scripted(error)

    assert "answered" == await tried(first, second)
    assert (2, 1) == (first.asked, second.asked)


@pytest.mark.parametrize("ends", [False, True])
async def test_a_fallback_that_is_drained(ends: bool) -> None:
    """A fallback that is drained is passed over: its own fallback answers, or the request gets the error of the model that was asked."""
    first, second, third = Scripted(BackendUnavailable("It is gone.")), Scripted(), Scripted()
    models = {
        "first": model_of(first, name="first", fallback="second"),
        "second": model_of(second, name="second", fallback=None if ends else "third"),
        "third": model_of(third, name="third"),
    }
    models["second"].drain()
    answers = list[str]()
    try:
        with Attempts(models["first"], any_backend, chat(), other=models.__getitem__) as attempts:
            while lease := await attempts.lease():
                with lease:
                    answers.append(await lease.member.backend.answer())
    except BackendUnavailable as error:
        answers.append(error.message)

    assert ["It is gone." if ends else "answered"] == answers
    assert (1, 0, int(not ends)) == (first.asked, second.asked, third.asked)
    assert [0, 0, 0] == [model.in_use for model in models.values()]
    assert "draining" == models["second"].state


@pytest.mark.parametrize("may_use", [{"first"}, {"first", "third"}, None])
async def test_a_fallback_that_the_key_may_not_use(may_use: set[str] | None) -> None:
    """A fallback that the caller's key may not use is left out: the next one that it may use answers, else the error is that of the model."""
    CURRENT_REQUEST.set(Context(models=None if may_use is None else frozenset(may_use)))
    first, second, third = Scripted(BackendUnavailable("It is gone.")), Scripted(), Scripted()
    models = {
        "first": model_of(first, name="first", fallback="second"),
        "second": model_of(second, name="second", fallback="third"),
        "third": model_of(third, name="third"),
    }
    answers = list[str]()
    try:
        with Attempts(models["first"], any_backend, chat(), other=models.__getitem__) as attempts:
            while lease := await attempts.lease():
                with lease:
                    answers.append(f"{await lease.member.backend.answer()} by {lease.model.name}")
    except BackendUnavailable as error:
        answers.append(error.message)

    expected = {1: "It is gone.", 2: "answered by third", 0: "answered by second"}
    assert [expected[len(may_use or ())]] == answers
    assert (may_use is None, len(may_use or ()) == 2) == (bool(second.asked), bool(third.asked))


@pytest.mark.parametrize("other", [None, "second"])
async def test_a_backend_that_is_out_and_no_fallback_for_the_request(other: str | None) -> None:
    """The only backend of a model is asked, though it cannot be reached, by a request that the model's fallback may not answer."""
    CURRENT_REQUEST.set(Context(models=frozenset({"first"})))
    only, models = Scripted(), {"second": model_of(Scripted(), name="second")}
    model = model_of(only, name="first", fallback="second")
    model.pool.record_result(model.pool.members[0], BackendUnreachable("It is gone."))
    assert model.pool.members[0].breaker.open
    with Attempts(
        model, any_backend, chat(), other=None if other is None else models.__getitem__
    ) as attempts:
        while lease := await attempts.lease():
            with lease:
                assert "answered" == await lease.member.backend.answer()

    assert 1 == only.asked
    await model.aclose()


async def test_fallbacks_in_a_circle_of_aliases() -> None:
    """Models that are each other's fallback, by whatever names, are asked once each."""
    first, second = Scripted(BackendUnavailable("1")), Scripted(BackendUnavailable("2"))
    one = model_of(first, name="one", fallback="also-two")
    two = model_of(second, name="two", fallback="also-one")
    with (
        pytest.raises(BackendUnavailable, match="2"),
        Attempts(
            one, any_backend, chat(), other={"also-two": two, "also-one": one}.__getitem__
        ) as attempts,
    ):
        while lease := await attempts.lease():
            with lease:
                await lease.member.backend.answer()

    assert (1, 1) == (first.asked, second.asked)
