"""Tests of unilect.engines.process.supervisor and _crash_blame: what the death of a child means for what ran in it, on a real child."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from support.backends.tiny_child import Tiny, halted
from support.common.waiting import until
from unilect.core.errors import (
    BackendUnavailable,
    EngineDied,
    MemoryExhausted,
    RequestKilledEngine,
)
from unilect.core.requests import ChatRequest, Message
from unilect.engines.process import _crash_blame, _restarts, _watchdog
from unilect.engines.process._crash_blame import (
    KEPT_WHOLE,
    REMEMBERED_S,
    CrashBlame,
    Ticket,
    digest,
)
from unilect.engines.process._restarts import MAX_DEATHS


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are short."""
    monkeypatch.setattr(_restarts, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(_watchdog, "PAUSE_S", 0.05)


@contextlib.asynccontextmanager
async def tiny(**settings: Any) -> AsyncIterator[Tiny]:
    """A tiny child, stopped at the end."""
    child = Tiny(**settings)
    try:
        yield child
    finally:
        await child.aclose()


async def died(child: Tiny) -> None:
    """Wait until the child has died, and is back."""
    await until(lambda: child.process.starts == 2)


def ended(child: Tiny, life: int) -> bool:
    """Whether this life of a child is over."""
    return child.process.state != "ready" or child.process.starts != life


async def test_a_death_while_idle() -> None:
    """A child that dies with nothing in it comes back by itself, and the death counts."""
    async with tiny() as child:
        assert ["hello"] == await child.ask("say hello")
        child.kill()
        await died(child)
        assert 2 == child.process.starts
        assert 1 == len(child.process.restarts.deaths)
        assert ["hello"] == await child.ask("say hello")


async def test_a_request_that_was_alone() -> None:
    """A request that a child died of is begun once more; when it dies again the request is refused, and counts for nothing."""
    async with tiny() as child:
        with pytest.raises(EngineDied, match="worked on this request"):
            await child.ask("die")
        with pytest.raises(RequestKilledEngine) as refused:
            await child.ask("die")
        await until(lambda: child.process.starts == 3)

        assert (400, "request_killed_engine") == (refused.value.status, refused.value.code)
        assert not child.process.restarts.deaths
        assert ["hello"] == await child.ask("say hello")


async def test_a_child_that_somebody_else_killed() -> None:
    """A lone request at a SIGKILL from outside is begun once more; one that runs when that comes again is to blame."""
    async with tiny() as child:
        waiting = asyncio.create_task(child.ask("wait"))
        await until(lambda: 1 == len(child.supervisor.blame._running))
        child.kill()
        await died(child)
        await until(lambda: 1 == len(child.supervisor.blame._running))
        assert not waiting.done()
        assert 1 == len(child.process.restarts.deaths)
        child.kill()
        with pytest.raises(EngineDied, match="worked on this request"):
            await waiting
        with pytest.raises(RequestKilledEngine):
            await child.ask("wait")
        assert ["hello"] == await child.ask("say hello")


async def test_a_child_without_memory() -> None:
    """A request at whose time a child has no memory left is begun once more, then told so with its sizes, and never refused."""
    async with tiny() as child:
        child.supervisor.sizes = "weights 4 MB"
        for _ in range(2):
            with pytest.raises(MemoryExhausted, match=r"weights 4 MB.*Nothing is wrong") as told:
                await child.ask("starve")
            assert (503, "memory_exhausted") == (told.value.status, told.value.code)
            assert told.value.retry_after_s
        child.supervisor.check("starve")
        assert 4 == len(child.process.restarts.deaths)
        assert ["hello"] == await child.ask("say hello")


async def test_an_answer_without_memory() -> None:
    """A request of which a living child says that it has no memory is told so, and is no suspect when the child dies later."""
    async with tiny() as child:
        await child.process.start()
        with pytest.raises(MemoryExhausted, match="no memory left"):
            async with child.supervisor.watch("a"):
                raise MemoryExhausted("")
        child.supervisor.blame.record_death(1)
        assert 0 == child.supervisor.blame.count_deaths(Ticket("a"))


async def test_several_that_ran() -> None:
    """Of several requests at a death those that had not begun are begun again in turn; the one that kills again is refused."""
    async with tiny() as child:
        begun = await child.begin()
        waiting = [asyncio.create_task(child.ask(f"wait {n}")) for n in range(2)]
        await until(lambda: 3 == len(child.supervisor.blame._running))
        killer = asyncio.create_task(child.ask("die"))
        with pytest.raises(EngineDied, match="during the answer"):
            await anext(begun)
        with pytest.raises(EngineDied):
            await killer
        with pytest.raises(RequestKilledEngine):
            await child.ask("die")
        assert ["innocent"] == await child.ask("say innocent")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert len(child.process.restarts.deaths) < 3


async def test_who_is_answered_is_cleared() -> None:
    """A request that was at a death and is answered afterwards is no suspect of the next."""
    async with tiny() as child:
        begun = await child.begin()
        fine = asyncio.create_task(child.ask("say fine"))
        assert ["fine"] == await fine
        child.supervisor.blame.enter(Ticket("say fine"), child.process.starts)
        child.kill()
        with pytest.raises(EngineDied):
            await anext(begun)
        assert 1 == child.supervisor.blame.count_deaths(Ticket("say fine"))
        assert ["fine"] == await child.ask("say fine")
        assert 0 == child.supervisor.blame.count_deaths(Ticket("say fine"))
        assert 1 == child.supervisor.blame.count_deaths(Ticket("begin"))


async def test_five_requests_that_kill() -> None:
    """More requests that kill than deaths are allowed do not put a model out."""
    async with tiny() as child:
        for number in range(MAX_DEATHS + 1):
            with pytest.raises(EngineDied):
                await child.ask(f"die {number}")
        assert ["hello"] == await child.ask("say hello")
        assert 2 * MAX_DEATHS + 3 == child.process.starts


async def test_deaths_of_which_nobody_is_to_blame() -> None:
    """A child that dies again and again for no request's fault is given up for a while, or until an operator has it forgiven."""
    async with tiny() as child:
        await child.process.start()
        for _ in range(MAX_DEATHS):
            await child.until("ready")
            life = child.process.starts
            child.kill()
            await until(partial(ended, child, life))
        await child.until("failed")
        with pytest.raises(BackendUnavailable, match="not restarted") as told:
            await child.ask("say hello")
        assert told.value.retry_after_s
        child.process.forgive()
        assert ["hello"] == await child.ask("say hello")


async def test_a_hang() -> None:
    """A child that answers nobody is killed; the request that ran is to blame, and what came after the hang is begun again."""
    async with tiny(hang_timeout_s=60) as child:
        await child.process.start()
        killer = asyncio.create_task(child.ask("stop"))
        await until(lambda: halted(child.process.pid))
        watchdog = child.supervisor._watchdog
        asked = asyncio.Event()
        ask = watchdog._ask

        async def seen() -> bool:
            if not asked.is_set():
                asked.set()
                await until(lambda: 2 == len(child.supervisor.blame._running))
            return await ask()

        watchdog._ask = seen
        await asked.wait()
        later = asyncio.create_task(child.ask("say later"))
        with pytest.raises(EngineDied, match="hung while it worked on this request"):
            await killer
        assert ["later"] == await later
        with pytest.raises(RequestKilledEngine):
            await child.ask("stop")
        assert 1 == child.process.hangs
        assert not child.process.restarts.deaths


async def test_a_client_that_left_before_the_end() -> None:
    """A request whose client left is still to blame for what it does to the child, and the one that came after it is not."""
    async with tiny(hang_timeout_s=60) as child:
        await child.process.start()
        killer = asyncio.create_task(child.ask("stop"))
        await until(lambda: halted(child.process.pid))
        killer.cancel()
        await asyncio.gather(killer, return_exceptions=True)
        await died(child)
        with pytest.raises(RequestKilledEngine):
            await child.ask("stop")


async def test_a_lost_socket() -> None:
    """A child whose socket was removed is started again by the next request, which is answered; nobody is blamed."""
    async with tiny() as child:
        begun = await child.begin()
        folder = child.process._folder
        assert folder is not None
        (folder / "engine.sock").unlink()
        folder.rmdir()
        assert ["hello"] == await child.ask("say hello")
        with pytest.raises(EngineDied):
            await anext(begun)
        assert 2 == child.process.starts
        assert not child.process.restarts.deaths
        assert ["hello"] == await child.ask("say hello")
        assert 0 == child.supervisor.blame.count_deaths(Ticket("begin"))
        again = await child.begin()
        await again.aclose()


async def test_a_stopped_child_ends_what_runs() -> None:
    """What runs when a child is stopped is told so, and is not begun again."""
    async with tiny() as child:
        waiting = asyncio.create_task(child.ask("wait"))
        await until(lambda: child.supervisor.blame._running)
        await child.aclose()
        with pytest.raises(BackendUnavailable, match="was stopped"):
            await waiting
        assert "stopped" == child.process.state


async def test_what_ran_before_a_stop_is_not_blamed() -> None:
    """A request whose end is seen only when the stopped child runs again is to blame for nothing."""
    async with tiny() as child:
        begun = await child.begin()
        await child.aclose()
        assert ["hello"] == await child.ask("say hello")
        with pytest.raises(EngineDied):
            await anext(begun)
        again = await child.begin()
        await again.aclose()
        assert 0 == child.supervisor.blame.count_deaths(Ticket("begin"))


async def test_copies_that_wait_their_turn() -> None:
    """Of two requests alike that wait their turn the second is refused when the first has shown what it does."""
    async with tiny() as child:
        await child.process.start()
        suspects = child.supervisor.blame
        for request in ("die", "other"):
            suspects.enter(Ticket(request), 0)
        suspects.record_death(0)
        asked = (child.ask("die") for _ in range(2))
        first, second = await asyncio.gather(*asked, return_exceptions=True)

        assert [EngineDied, RequestKilledEngine] == [type(first), type(second)]
        assert ["hello"] == await child.ask("say hello")
        assert 2 == child.process.starts


async def test_few_calls_at_a_time() -> None:
    """Calls of one answer wait where as many as are allowed are running."""
    async with tiny() as child:
        await child.process.start()
        running, most = 0, 0
        gate = asyncio.Event()

        async def call() -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await gate.wait()
            running -= 1
            return 7

        calls = [asyncio.create_task(child.supervisor.call("x", call)) for _ in range(9)]
        await until(lambda: running == 4)
        gate.set()
        assert [7] * 9 == await asyncio.gather(*calls)
        assert 4 == most


# CrashBlame, on a clock of the test's own


@pytest.fixture
def clock() -> list[float]:
    """The time, which a test may set."""
    return [0.0]


@pytest.fixture
def suspects(clock: list[float]) -> CrashBlame:
    """CrashBlame at that time."""
    return CrashBlame(lambda: clock[0])


def entered(suspects: CrashBlame, request: str, life: int = 1) -> Ticket:
    """A request that is in a life of the engine."""
    ticket = Ticket(request)
    suspects.enter(ticket, life)
    return ticket


def killed_twice(suspects: CrashBlame, request: str) -> int:
    """What is said of the second death of an engine in which a request was alone both times."""
    entered(suspects, request, 1)
    assert 0 == suspects.record_death(1)
    entered(suspects, request, 2)
    return suspects.record_death(2)


def test_one_death_convicts_nobody(suspects: CrashBlame) -> None:
    """A request that was alone when an engine died runs again, and is cleared by an answer."""
    entered(suspects, "ping", 1)
    assert 0 == suspects.record_death(1)
    suspects.check(Ticket("ping"))
    suspects.leave(entered(suspects, "ping", 2), answered=True)
    entered(suspects, "ping", 3)
    assert 0 == suspects.record_death(3)
    suspects.check(Ticket("ping"))


def test_want_of_memory_is_nobodys_fault(suspects: CrashBlame) -> None:
    """A request that was there each time that memory ran out is neither refused nor suspected."""
    for life in (1, 2, 3):
        entered(suspects, "a", life)
        assert 0 == suspects.record_death(life, of_memory=True)

    suspects.check(Ticket("a"))
    assert 0 == suspects.count_deaths(Ticket("a"))


def test_a_culprit_is_forgiven(suspects: CrashBlame, clock: list[float]) -> None:
    """A request that an engine died of is refused for ten minutes, and is taken again after that."""
    assert 2 == killed_twice(suspects, "a")
    with pytest.raises(RequestKilledEngine):
        suspects.check(Ticket("a"))
    suspects.check(Ticket("b"))
    clock[0] = REMEMBERED_S
    suspects.check(Ticket("a"))


def test_an_answer_that_was_all_there_when_the_engine_died(suspects: CrashBlame) -> None:
    """A request whose answer is read to its end after the engine has died is no suspect of that death; one that left is."""
    answered, left = entered(suspects, "a"), entered(suspects, "b")
    assert 0 == suspects.record_death(1)
    suspects.leave(answered, True)
    suspects.leave(left, False)

    assert (0, 1) == (suspects.count_deaths(answered), suspects.count_deaths(left))


def test_the_one_of_two_deaths(suspects: CrashBlame) -> None:
    """The only request that was at two deaths is to blame for both."""
    for name in ("a", "b", "x"):
        entered(suspects, name, 1)
    assert 0 == suspects.record_death(1)
    for name in ("c", "x"):
        entered(suspects, name, 2)
    assert 2 == suspects.record_death(2)
    for name in ("a", "b", "c"):
        suspects.check(Ticket(name))
    with pytest.raises(RequestKilledEngine):
        suspects.check(Ticket("x"))


def test_copies_of_one_request(suspects: CrashBlame) -> None:
    """Several that ask for the same are several: none of them is known to be to blame for the first death."""
    tickets = [entered(suspects, "same", 1) for _ in range(2)]

    assert 0 == suspects.record_death(1)
    assert not any(map(suspects.is_culprit, tickets))
    entered(suspects, "same", 2)
    assert 2 == suspects.record_death(2)


def test_two_of_two_deaths(suspects: CrashBlame) -> None:
    """Where several requests were at both deaths nobody is blamed yet, and they run one at a time."""
    for life in (1, 2):
        entered(suspects, "a", life)
        entered(suspects, "b", life)
        assert 0 == suspects.record_death(life)
    assert [2, 2, 0] == [suspects.count_deaths(Ticket(name)) for name in "abc"]
    entered(suspects, "b", 3)
    assert 3 == suspects.record_death(3)


def test_deaths_are_forgotten(suspects: CrashBlame, clock: list[float]) -> None:
    """Nobody is suspected for a death of long ago."""
    for name in ("a", "b"):
        entered(suspects, name, 1)
    suspects.record_death(1)
    clock[0] = REMEMBERED_S
    for name in ("a", "c"):
        entered(suspects, name, 2)
    assert 0 == suspects.record_death(2)
    suspects.check(Ticket("a"))


def test_memory_of_culprits_is_bounded(
    suspects: CrashBlame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more culprits than are remembered the oldest are forgotten."""
    monkeypatch.setattr(_crash_blame, "MAX_CULPRITS", 2)
    for name in "abc":
        assert 2 == killed_twice(suspects, name)
    suspects.check(Ticket("a"))
    for name in "bc":
        with pytest.raises(RequestKilledEngine):
            suspects.check(Ticket(name))


def test_the_dead_of_another_life(suspects: CrashBlame) -> None:
    """What ran in a life that was ended in order is no suspect of the next life's death."""
    left, _ = entered(suspects, "left", 1), entered(suspects, "runs", 1)
    suspects.leave(left, answered=False)
    entered(suspects, "alone", 2)

    assert 0 == suspects.record_death(2)
    for name in ("left", "runs"):
        assert 0 == suspects.count_deaths(Ticket(name))
    assert 1 == suspects.count_deaths(Ticket("alone"))


def test_digests_that_nobody_needs(suspects: CrashBlame, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that leave are digested where an engine dies of them, or where more of them would have to be kept."""
    made: list[str] = []
    monkeypatch.setattr(
        _crash_blame, "digest", lambda request: made.append(request) or digest(request)
    )
    for number in range(KEPT_WHOLE + 2):
        suspects.leave(entered(suspects, f"{number}"), answered=False)
    assert ["0", "1"] == made
    suspects.record_death(1)
    assert KEPT_WHOLE + 2 == len(made)
    assert 1 == suspects.count_deaths(Ticket(f"{KEPT_WHOLE}"))


def test_one_that_is_never_taken_up(suspects: CrashBlame, clock: list[float]) -> None:
    """A request of which the engine says nothing, though it answers, is stuck and alone to blame for the engine's end; those beside it are not."""
    late, taken, new = (Ticket(name) for name in ("late", "taken", "new"))
    for ticket in (late, taken):
        suspects.enter(ticket, 1)
    taken.acked = True
    clock[0] += 10
    suspects.enter(new, 1)

    assert suspects.find_stuck(11) is None
    assert suspects.find_stuck(9) is late
    late.acked_at = clock[0] - 5  # the engine has it, and is busy with others
    assert suspects.find_stuck(9) is None
    assert suspects.find_stuck(4) is late
    suspects.block(late)
    assert 1 == suspects.record_death(1)
    assert suspects.is_culprit(late)
    assert [0, 0] == [suspects.count_deaths(one) for one in (taken, new)]
    assert suspects.find_stuck(0) is None


def test_what_is_asked_counts() -> None:
    """Requests that differ in what is no part of the question are the same, and others are not."""
    messages = [Message("user", "Hi")]
    plain = digest(ChatRequest(messages=messages))

    assert plain == digest(
        ChatRequest(messages=messages, seed=7, stream=True, user="me", model="x")
    )
    assert plain != digest(ChatRequest(messages=messages, temperature=0.5))
    assert plain != digest(ChatRequest(messages=[Message("user", "Ho")]))
    assert digest("a") != digest(["a"])
