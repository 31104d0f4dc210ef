"""Tests of unilect.answers.inflight: the owner of answers that outlive their clients, without engines and connections."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from unilect.answers import inflight
from unilect.answers.inflight import Answer, Answers, Bounds, State
from unilect.core.errors import BackendError, RateLimited, RequestCancelled
from unilect.runtime.context import CURRENT_REQUEST, Context

SOON_S = 0.01
LATE_S = 600.0


class Server:
    """
    An owner of answers, and the requests that are listed.

    Attributes:
        made: The ids of requests whose answer was made to its end.
        cancelled: The ids of those whose answer was cancelled.
    """

    def __init__(self, window_s: float = LATE_S, **bounds: int) -> None:
        self.requests: dict[str, Context] = {}
        self.rejoin = Answers(window_s, self.requests, Bounds(**bounds))
        self.made: list[str] = []
        self.cancelled: list[str] = []

    def ask(
        self,
        id: str,
        caller: str = "ann",
        size: int = 0,
        make: Callable[[Answer], Awaitable[Any]] | None = None,
    ) -> Answer:
        """A request, whose answer stays without an end unless `make` makes one."""
        context = self.requests[id] = Context(request_id=id, caller=caller)

        async def waits(answer: Answer) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(id)
                raise

        return self.rejoin.start(f"{caller} asks".encode(), context, size, make or waits)

    def leaves(self, answer: Answer) -> None:
        """Its reader leaves, and the guard takes the request off the list unless it is held."""
        self.rejoin.leave(answer)
        if not answer.context.held:
            self.requests.pop(answer.context.request_id, None)

    def joins(self, caller: str = "ann") -> Answer | None:
        """The same request comes again."""
        return self.rejoin.join(f"{caller} asks".encode(), None)


async def ended(answer: Answer) -> None:
    """Wait until the task of an answer has ended, and its owner knows."""
    await asyncio.wait([answer.task], timeout=10)
    assert answer.task.done()
    await asyncio.sleep(0)


async def whole(answer: Answer) -> bytes:
    """All that a reader gets."""
    data, is_last = await answer.take()
    while not is_last:
        more, is_last = await answer.take()
        data += more
    return data


async def test_a_reader_that_stays() -> None:
    """An answer that its client reads to the end is over then, and nothing of it is kept."""
    server = Server()

    async def make(answer: Answer) -> None:
        answer.begin(200, {"A": "b"})
        for piece in (b"one ", b"two ", b"three"):
            answer.write(piece)
            await asyncio.sleep(0)
        answer.end(b".")

    async with aclosing(server.rejoin) as rejoin:
        answer = server.ask("r1", size=7, make=make)
        assert State.JOINED is answer.state
        assert b"one two three." == await whole(answer)
        assert 7 + 14 == rejoin.kept_bytes
        rejoin.finish(answer)

        assert (State.OVER, 0, 0) == (answer.state, rejoin.held, rejoin.kept_bytes)
        assert (200, {"A": "b"}) == (answer.status, answer.headers)
        assert server.joins() is None
        assert {"joined": 0, "ended": 0} == rejoin.counts


async def test_a_reader_that_comes_back() -> None:
    """An answer whose reader left goes on; the next one reads it from its first byte, and no third one gets it beside."""
    server, go_on = Server(), asyncio.Event()

    async def make(answer: Answer) -> None:
        answer.begin(200, {})
        answer.write(b"one ")
        await go_on.wait()
        answer.end(b"two")

    async with aclosing(server.rejoin) as rejoin:
        answer = server.ask("r1", make=make)
        assert (b"one ", False) == await answer.take()
        server.leaves(answer)
        assert (State.HELD, "held", 1) == (answer.state, answer.context.state, rejoin.held)
        assert ["r1"] == list(server.requests)
        assert server.joins("bob") is None

        assert server.joins() is answer
        assert (State.JOINED, 0) == (answer.state, rejoin.held)
        assert server.joins() is None
        reading = asyncio.create_task(whole(answer))
        await asyncio.sleep(0)
        go_on.set()
        assert b"one two" == await reading
        await ended(answer)
        assert {} == server.requests
        rejoin.finish(answer)
        assert (State.OVER, 0) == (answer.state, rejoin.kept_bytes)
        assert {"joined": 1, "ended": 0} == rejoin.counts


async def test_an_answer_that_ends_while_it_is_held() -> None:
    """It waits for its reader, and runs no more."""
    server, go_on = Server(), asyncio.Event()

    async def make(answer: Answer) -> None:
        await go_on.wait()
        answer.begin(200, {})
        answer.end(b"all")

    async with aclosing(server.rejoin) as rejoin:
        answer = server.ask("r1", make=make)
        server.leaves(answer)
        go_on.set()
        await ended(answer)
        assert (State.HELD, False, {}) == (answer.state, answer.context.held, server.requests)
        assert server.joins() is answer
        assert b"all" == await whole(answer)

        server.leaves(answer)  # the last bytes did not arrive
        assert (State.HELD, {}) == (answer.state, server.requests)
        assert server.joins() is answer
        rejoin.finish(answer)
        assert 0 == rejoin.kept_bytes


async def test_nobody_comes_back() -> None:
    """An answer is cancelled when its window is over, and taken off the list of requests."""
    server = Server(SOON_S)
    async with aclosing(server.rejoin) as rejoin:
        answer = server.ask("r1")
        await asyncio.sleep(0)
        server.leaves(answer)
        await ended(answer)
        assert (State.OVER, ["r1"], {}) == (answer.state, server.cancelled, server.requests)
        assert (0, 0, None) == (rejoin.held, rejoin.kept_bytes, server.joins())
        assert {"joined": 0, "ended": 1} == rejoin.counts


async def test_ended_from_outside() -> None:
    """Ending the request of a held answer ends the answer; of one that is read, its reader is told why."""
    server = Server()
    async with aclosing(server.rejoin):
        held = server.ask("r1")
        await asyncio.sleep(0)
        server.leaves(held)
        held.context.end(RequestCancelled("enough"))
        await ended(held)
        assert (State.OVER, {}, None) == (held.state, server.requests, server.joins())

        read = server.ask("r2")
        read.context.end(RequestCancelled("enough"))  # before its task has begun
        with pytest.raises(RequestCancelled, match="enough"):
            await read.take()
        assert "JOINED" == read.state.name
        server.leaves(read)
        assert State.OVER is read.state

        both = server.ask("r3")
        await asyncio.sleep(0)
        both.context.end(RequestCancelled("enough"))
        server.leaves(both)  # at the same time
        assert (State.OVER, {}) == (both.state, server.requests)


async def test_an_answer_that_fails() -> None:
    """Its reader gets what was made, and the error; where it is held, the same request is a new one."""
    server, go_on = Server(), asyncio.Event()

    async def make(answer: Answer) -> None:
        answer.begin(200, {})
        answer.write(b"one")
        await go_on.wait()
        raise BackendError("broken")

    async with aclosing(server.rejoin) as rejoin:
        read, held = server.ask("r1", make=make), server.ask("r2", "bob", make=make)
        server.leaves(held)
        go_on.set()
        assert (b"one", False) == await read.take()
        with pytest.raises(BackendError, match="broken"):
            await read.take()
        rejoin.finish(read)
        await ended(held)
        assert (State.OVER, None, ["r1"]) == (held.state, server.joins("bob"), [*server.requests])


async def test_a_flaw_is_carried_to_the_reader(caplog: pytest.LogCaptureFixture) -> None:
    """What nobody has foreseen is raised where the answer is read, and logged."""
    server = Server()

    async def make(answer: Answer) -> None:
        raise ZeroDivisionError

    async with aclosing(server.rejoin):
        answer = server.ask("r1", make=make)
        with pytest.raises(ZeroDivisionError):
            await answer.take()
    assert "an answer that may be held failed" in caplog.text


async def test_a_server_that_stops() -> None:
    """From then on nothing is held: what was held is cancelled, and what is read ends with its client."""
    server = Server()
    held, read = server.ask("r1"), server.ask("r2", "bob")
    await asyncio.sleep(0)
    server.leaves(held)
    server.rejoin.shut()
    await ended(held)
    assert (["r1"], ["r2"], State.JOINED) == (server.cancelled, list(server.requests), read.state)

    server.leaves(read)
    await ended(read)
    assert (["r1", "r2"], {}) == (server.cancelled, server.requests)
    await server.rejoin.aclose()
    await server.rejoin.aclose()


async def test_answers_of_a_closed_owner() -> None:
    """What a reader still waits for when the owner is closed ends as cancelled."""
    server = Server()
    answer = server.ask("r1")
    reading = asyncio.create_task(answer.take())
    await asyncio.sleep(0)
    await server.rejoin.aclose()
    with pytest.raises(asyncio.CancelledError):
        await reading


@pytest.mark.parametrize(
    ("bounds", "held"),
    [
        ({"held": 2}, 2),
        ({"held_of_caller": 1}, 2),
        ({"answer_bytes": 9}, 0),
        ({"all_bytes": 25}, 2),
    ],
    ids=["answers", "of a caller", "bytes of one", "bytes of all"],
)
async def test_bounds(bounds: dict[str, int], held: int) -> None:
    """What would pass a bound is not held: it ends with its client."""
    server = Server(**bounds)
    async with aclosing(server.rejoin) as rejoin:
        callers = ["ann", "ann", "bob"]
        answers = [server.ask(f"r{n}", who, size=10) for n, who in enumerate(callers)]
        await asyncio.sleep(0)
        for answer in answers:
            server.leaves(answer)
        assert held == rejoin.held == [one.state for one in answers].count(State.HELD)
        await asyncio.gather(*(ended(one) for one in answers if one.state is State.OVER))
        assert 3 - held == len(server.cancelled)
        assert held * 10 == rejoin.kept_bytes


async def test_an_answer_that_grows_too_large() -> None:
    """One that is read is sent on and cannot be joined any more; a held one is cancelled."""
    server = Server(answer_bytes=8)
    async with aclosing(server.rejoin) as rejoin:
        read, held = server.ask("r1"), server.ask("r2", "bob")
        await asyncio.sleep(0)
        server.leaves(held)
        for answer in (read, held):
            answer.write(b"12345")
        assert (b"12345", False) == await read.take()
        read.write(b"6789")
        read.write(b"10")
        held.write(b"6789")
        await ended(held)
        assert (["r2"], State.OVER) == (server.cancelled, held.state)
        assert (b"678910", False) == await read.take()
        assert (State.JOINED, 0, 0) == (read.state, read.unread, rejoin.kept_bytes)
        read.end(b".")
        assert (b".", True) == await read.take()
        server.leaves(read)
        assert State.OVER is read.state


async def test_joined_too_often() -> None:
    """An answer is sent from its beginning a few times, and no more."""
    server = Server(joins=2)
    async with aclosing(server.rejoin):
        answer = server.ask("r1")
        for _ in range(2):
            server.leaves(answer)
            assert server.joins() is answer
        server.leaves(answer)
        assert (State.OVER, None) == (answer.state, server.joins())


async def test_other_rights() -> None:
    """Who may use other models than when the answer was begun does not get it."""
    server = Server()
    async with aclosing(server.rejoin) as rejoin:
        answer = server.ask("r1")
        server.leaves(answer)
        assert rejoin.join(answer.key, frozenset({"m"})) is None
        assert rejoin.join(answer.key, None) is answer


async def test_two_that_left() -> None:
    """Of two answers to the same request each is given to one, the older first."""
    server = Server()
    async with aclosing(server.rejoin):
        first, second = server.ask("r1"), server.ask("r2")
        server.leaves(second)
        server.leaves(first)
        assert [second, first, None] == [server.joins() for _ in range(3)]


async def test_who_makes_it_waits_for_the_reader() -> None:
    """`drain` waits until the reader has everything, and for nobody once that has left."""
    server, steps = Server(), list[str]()

    async def make(answer: Answer) -> None:
        CURRENT_REQUEST.set(answer.context)
        for step in ("first", "second", "third"):
            answer.write(step.encode())
            await answer.drain()
            steps.append(step)
        answer.end()

    async with aclosing(server.rejoin):
        answer = server.ask("r1", make=make)
        for _ in range(5):
            await asyncio.sleep(0)
        assert ([], 5) == (steps, answer.unread)
        await answer.take()
        for _ in range(5):
            await asyncio.sleep(0)
        assert (["first"], 6) == (steps, answer.unread)
        server.leaves(answer)
        await ended(answer)
        assert (["first", "second", "third"], 0) == (steps, answer.unread)
        assert server.joins() is answer
        assert b"firstsecondthird" == await whole(answer)


async def test_an_answer_in_the_background() -> None:
    """It goes on without a client, is read by any number from where each is, and gives its place back when it has ended."""
    server, go_on = Server(answer_bytes=2), asyncio.Event()
    answer = Answer("key", Context(request_id="r1", caller="ann"))

    async def make() -> None:
        answer.write(b"one ")
        await go_on.wait()
        answer.write(b"two ")
        answer.end(b"three")

    async def read(seen: int) -> bytes:
        while not answer.is_over:
            await answer.wait(len(answer.pieces))
        return b"".join(answer.pieces[seen:])

    async with aclosing(server.rejoin) as rejoin:
        rejoin.reserve(answer)
        rejoin.run(answer, "an answer", make())
        readers = [asyncio.create_task(read(seen)) for seen in (0, 1)]
        await asyncio.sleep(0)
        assert (["r1"], "reading") == ([*server.requests], answer.context.state)
        assert ({"key": answer}, 0) == (rejoin.background, rejoin.kept_bytes)
        go_on.set()
        assert [b"one two three", b"two three"] == await asyncio.gather(*readers)
        await ended(answer)
        assert (State.OVER, {}, {}) == (answer.state, server.requests, rejoin.background)


async def test_places_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller has a part of the places, and whoever finds none is told so; an answer that never began gives its place back."""
    monkeypatch.setattr(inflight, "most_background", lambda: 4)
    server = Server()
    answers = [Answer(n, Context(request_id=f"r{n}", caller=f"caller{n}")) for n in range(4)]
    other = Answer("other", Context(caller="caller0"))
    async with aclosing(server.rejoin) as rejoin:
        rejoin.reserve(answers[0])
        with pytest.raises(RateLimited, match="1 of yours"):
            rejoin.reserve(other)
        for answer in answers[1:]:
            rejoin.reserve(answer)
        rejoin.finish(answers[0])
        rejoin.reserve(other)
        with pytest.raises(RateLimited, match="4 are being made"):
            rejoin.reserve(Answer("fifth", Context(caller="caller4")))


async def test_the_end_of_the_background() -> None:
    """Ending what is in the background leaves what clients read alone."""
    server = Server()
    read, answer = server.ask("r1"), Answer("key", Context(request_id="r2"))
    async with aclosing(server.rejoin) as rejoin:
        rejoin.reserve(answer)
        rejoin.run(answer, "an answer", asyncio.sleep(LATE_S))
        await rejoin.end_background()
        assert (State.OVER, True, False) == (answer.state, answer.is_over, read.is_over)
        assert ["r1"] == list(server.requests)


class Clients(RuleBasedStateMachine):
    """Clients that ask, read, leave and come back, and answers that grow, end, fail and expire, in every order."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(self._server())
        self.answers: list[Answer] = []
        self.readers: dict[int, bytes] = {}  # what each reader has, by the answer's number
        self.told: dict[int, bytes] = {}  # what was written
        self.ends: dict[int, asyncio.Event] = {}
        self.number = 0

    async def _server(self) -> Server:
        return Server(held=3, held_of_caller=2, joins=3, answer_bytes=40, all_bytes=90)

    def teardown(self) -> None:
        """Nothing is left when the owner is closed."""
        self.loop.run_until_complete(self.server.rejoin.aclose())
        assert (0, 0) == (self.server.rejoin.held, sum(not a.task.done() for a in self.answers))
        listed = {a.context.request_id for a in self.answers if a.context.held}
        assert set() == listed
        self.loop.close()

    def _settle(self) -> None:
        async def turns() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def _in_loop(self, call: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return call()

        return self.loop.run_until_complete(run())

    def _some(self, pick: int, *states: State) -> int | None:
        found = [n for n, one in enumerate(self.answers) if one.state in states]
        return found[pick % len(found)] if found else None

    @rule(caller=st.sampled_from("ab"), size=st.integers(0, 30))
    def ask(self, caller: str, size: int) -> None:
        """A request comes, or comes again."""
        found = self._in_loop(lambda: self.server.joins(caller))
        if found is not None:
            self.readers[self.answers.index(found)] = b""
            return
        number, self.number = self.number, self.number + 1
        event = self.ends[number] = asyncio.Event()

        async def make(answer: Answer) -> None:
            await event.wait()
            if self.told[number].endswith(b"!"):
                raise BackendError("broken")
            answer.end(b".")
            self.told[number] += b"."

        self.told[number] = self.readers[number] = b""
        self.answers.append(
            self._in_loop(lambda: self.server.ask(f"r{number}", caller, size, make))
        )
        self._settle()

    @precondition(lambda self: self.answers)
    @rule(pick=st.integers(0, 99), data=st.sampled_from([b"a", b"bcd", b"efghijklmnopq", b"!"]))
    def write(self, pick: int, data: bytes) -> None:
        """An answer grows."""
        number = self._some(pick, State.JOINED, State.HELD)
        if number is None or self.answers[number].task.done() or self.ends[number].is_set():
            return
        self.told[number] += data
        self._in_loop(lambda: self.answers[number].write(data))
        self._settle()

    @precondition(lambda self: self.answers)
    @rule(pick=st.integers(0, 99))
    def end(self, pick: int) -> None:
        """An answer is made to its end, or fails."""
        number = self._some(pick, State.JOINED, State.HELD)
        if number is not None:
            self.ends[number].set()
            self._settle()

    @precondition(lambda self: self.answers)
    @rule(pick=st.integers(0, 99))
    def take(self, pick: int) -> None:
        """A reader takes what is there; with the end of it, it has exactly what was written."""
        number = self._some(pick, State.JOINED)
        if number is None:
            return
        answer = self.answers[number]
        if not (answer.unread or answer.task.done()):
            return
        try:
            data, is_last = self.loop.run_until_complete(answer.take())
        except BackendError:
            assert self.told[number].endswith(b"!")
            self._in_loop(lambda: self.server.rejoin.finish(answer))
            self.server.requests.pop(answer.context.request_id, None)
            return
        self.readers[number] += data
        assert self.told[number].startswith(self.readers[number])
        if is_last:
            assert self.told[number] == self.readers[number]
            self._in_loop(lambda: self.server.rejoin.finish(answer))
            self.server.requests.pop(answer.context.request_id, None)

    @precondition(lambda self: self.answers)
    @rule(pick=st.integers(0, 99))
    def leave(self, pick: int) -> None:
        """A reader leaves."""
        number = self._some(pick, State.JOINED)
        if number is not None:
            self._in_loop(lambda: self.server.leaves(self.answers[number]))
            self._settle()

    @precondition(lambda self: self.answers)
    @rule(pick=st.integers(0, 99))
    def expire(self, pick: int) -> None:
        """A window ends."""
        number = self._some(pick, State.HELD)
        if number is not None:
            self._in_loop(lambda: self.server.rejoin._drop(self.answers[number]))
            self._settle()

    @precondition(lambda self: self.answers)
    @rule(pick=st.integers(0, 99))
    def cancel(self, pick: int) -> None:
        """A request is ended from outside: whoever reads it is told."""
        number = self._some(pick, State.HELD)
        if number is not None and not self.answers[number].task.done():
            self._in_loop(lambda: self.answers[number].context.end(RequestCancelled("enough")))
            self._settle()
            assert State.OVER is self.answers[number].state

    @invariant()
    def counts_are_true(self) -> None:
        """What is held and kept is what the answers say, within the bounds; what nobody reads or may read does not run."""
        rejoin = self.server.rejoin
        held = [one for one in self.answers if one.state is State.HELD]
        assert len(held) == rejoin.held <= 3
        assert all([one.context.caller for one in held].count(c) <= 2 for c in "ab")
        assert sum(one.size for one in self.answers if one.kept) == rejoin.kept_bytes <= 90
        for one in self.answers:
            is_listed = one.context.request_id in self.server.requests
            if one.state is State.OVER:
                assert one.task.done()
                assert not one.kept
                assert not is_listed
            if one.state is State.HELD:
                assert one.context.held is not one.task.done() is not is_listed
                assert one.timer is not None


TestClients = Clients.TestCase


async def test_a_piece_that_passes_a_bound() -> None:
    """A piece with which an answer grows too large to be kept reaches the reader that waits for it."""
    server, go_on = Server(answer_bytes=100), asyncio.Event()

    async def make(answer: Answer) -> None:
        answer.begin(200, {})
        answer.write(b"a" * 10)
        await go_on.wait()
        answer.write(b"b" * 100)
        await answer.drain()
        answer.end(b"c")

    answer = server.ask("one", make=make)
    assert (b"a" * 10, False) == await answer.take()
    waiting = asyncio.ensure_future(answer.take())
    await asyncio.sleep(0)
    go_on.set()

    assert (b"b" * 100, False) == await asyncio.wait_for(waiting, 10)
    assert (b"c", True) == await asyncio.wait_for(answer.take(), 10)
