"""Tests of unilect.scheduling.fair_queue, in front of scripted servers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from support.backends.engine import answer, chat
from support.backends.scripted import HELLO, Exchange, delta, frames, says, scripted, stream_of
from support.backends.scripted import answer as whole
from support.common.clock import Clock
from support.common.properties import given
from support.servers.appserver import upstream
from unilect.core.errors import (
    BackendUnavailable,
    InvalidRequest,
    QueueFull,
    QueueTimeout,
    TooManyWaiting,
    UnilectError,
)
from unilect.core.events import Finish, Progress, TextDelta, Usage
from unilect.core.ranking import RerankRequest
from unilect.core.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from unilect.runtime.context import BATCH, CURRENT_REQUEST, Context
from unilect.scheduling.fair_queue import FairQueue, Parts, QueuedBackend, QueueSettings
from unilect.testing.echo import Echo

EMBEDDED = msgspec.json.encode(
    {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "model": "theirs",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
)


async def test_one_at_a_time_in_order() -> None:
    """Requests are sent one after the other, in the order of their coming."""
    inside, most = 0, 0

    async def script(exchange: Exchange) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        await exchange.send(stream_of(HELLO))
        exchange.close()

    async with scripted(script) as server:
        backend = QueuedBackend(upstream(server.url), FairQueue(1))
        answers = await asyncio.gather(
            *(answer(backend.generate(chat(f"number {n}"))) for n in range(5))
        )
        asked = [exchange.json()["messages"][0]["content"] for exchange in server.requests]
        await backend._backend.aclose()

    assert ["Hello"] * 5 == [one.choices[0].text for one in answers]
    assert ([f"number {n}" for n in range(5)], 1) == (asked, most)


class Compiling(Echo):
    """A backend that compiles constraints when it is told to go on, and then refuses them."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def compile(self, request: ChatRequest | CompletionRequest) -> None:
        """Wait, and refuse."""
        self.begun.set()
        await self.go_on.wait()
        raise InvalidRequest("no", param="grammar")


async def test_a_constraint_takes_no_place() -> None:
    """A request whose constraint is being compiled leaves the only place to others, and one that is refused has never had it."""
    inner = Compiling()
    queue = FairQueue(1)
    backend = QueuedBackend(inner, queue)
    hard = asyncio.create_task(answer(backend.generate(chat("hard", grammar="root ::= ."))))
    await inner.begun.wait()
    assert queue.has_room
    found = await answer(backend.generate(chat("easy")))
    inner.go_on.set()
    with pytest.raises(InvalidRequest):
        await hard

    assert "easy" in (found.choices[0].text or "")
    assert queue.has_room


async def test_who_leaves_the_queue_is_never_sent() -> None:
    """A request that is given up while it waits reaches no backend, and the next one has its turn."""
    go_on = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.send(stream_of(HELLO))
        exchange.close()

    async with scripted(script) as server:
        backend = QueuedBackend(upstream(server.url), FairQueue(1))
        first = asyncio.create_task(answer(backend.generate(chat("first"))))
        while not server.requests:
            await asyncio.sleep(0)
        second = asyncio.create_task(answer(backend.generate(chat("second"))))
        third = asyncio.create_task(answer(backend.generate(chat("third"))))
        await asyncio.sleep(0)
        second.cancel()
        go_on.set()
        await asyncio.gather(first, third)
        asked = [exchange.json()["messages"][0]["content"] for exchange in server.requests]
        await backend._backend.aclose()

    assert ["first", "third"] == asked


async def test_leaving_in_the_middle_frees_the_place() -> None:
    """A stream that is given up gives its place back."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(content="Hel"))))
        await exchange.client_gone()

    async with scripted(script) as server:
        backend = QueuedBackend(upstream(server.url), FairQueue(1))
        for _ in range(3):
            async with aclosing(backend.generate(chat())) as batches:
                async for _batch in batches:
                    break
        await backend._backend.aclose()

    assert 3 == len(server.requests)


async def test_batch_requests_go_last() -> None:
    """Of those that wait a batch request goes last, and all others go as they came."""
    go_on = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.send(stream_of(HELLO))
        exchange.close()

    async def ask(priority: int, text: str) -> None:
        CURRENT_REQUEST.set(Context(priority=priority))
        await answer(backend.generate(chat(text)))

    async with scripted(script) as server:
        backend = QueuedBackend(upstream(server.url), FairQueue(1))
        tasks = [asyncio.create_task(ask(0, "running"))]
        while not server.requests:
            await asyncio.sleep(0)
        for text, priority in (("batch", BATCH), ("first", 0), ("second", 0)):
            tasks.append(asyncio.create_task(ask(priority, text)))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*tasks)
        asked = [exchange.json()["messages"][0]["content"] for exchange in server.requests]
        await backend._backend.aclose()

    assert ["running", "first", "second", "batch"] == asked


# The queue alone


class Client:
    """
    Requests of one caller to a queue, which stay until a test ends them.

    Attributes:
        tasks: Each waits for its turn.
        enter: Waits for the turn of one.
    """

    def __init__(self, queue: FairQueue, caller: str) -> None:
        self.queue, self.caller = queue, caller
        self.enter: Callable[[], Awaitable[Any]] = queue.enter
        self.tasks: list[asyncio.Task[Any]] = []
        self.contexts: list[Context] = []

    async def asks(self, count: int = 1, priority: int = 0) -> list[asyncio.Task[Any]]:
        """So many requests more, each after it has its place or waits."""
        new = [asyncio.create_task(self._ask(priority)) for _ in range(count)]
        self.tasks += new
        await asyncio.sleep(0)
        return new

    async def _ask(self, priority: int) -> Any:
        context = Context(caller=self.caller, priority=priority)
        self.contexts.append(context)
        CURRENT_REQUEST.set(context)
        return await self.enter()

    @property
    def served(self) -> int:
        """How many have had their turn."""
        return sum(
            task.done() and not task.cancelled() and not task.exception() for task in self.tasks
        )

    @property
    def refused(self) -> list[type[BaseException]]:
        """Why the others have not."""
        done = [task.exception() for task in self.tasks if task.done() and not task.cancelled()]
        return [type(error) for error in done if error is not None]

    async def aclose(self) -> None:
        """Give all up."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def ends(ticket: Any, tokens: int) -> None:
    """A request has ended, with an answer of so many tokens."""
    ticket.used.add([Usage(0, tokens)])
    ticket.queue.leave(ticket)


@asynccontextmanager
async def clients(queue: FairQueue, *names: str) -> AsyncIterator[list[Client]]:
    """Clients of a queue, until the block ends."""
    all = [Client(queue, name) for name in names]
    try:
        yield all
    finally:
        for one in all:
            await one.aclose()


async def test_one_caller_cannot_starve_another() -> None:
    """With 32 requests of one caller waiting, another's next one gets the first place that is given back, each time."""
    queue = FairQueue(4)
    async with clients(queue, "greedy", "modest") as (greedy, modest):
        await greedy.asks(36)
        assert 4 == greedy.served
        running = [task.result() for task in greedy.tasks[:4]]
        for turn in range(1, 9):
            (mine,) = await modest.asks()
            assert not mine.done()
            ends(running.pop(), 300)
            await asyncio.sleep(0)
            assert (turn, 3 + turn) == (modest.served, greedy.served)
            ends(mine.result(), 300)
            await asyncio.sleep(0)
            running.append(greedy.tasks[3 + turn].result())


async def test_who_has_filled_the_queue_is_refused() -> None:
    """A caller that has filled the queue is told 429 with a time; another's request takes the place of its newest instead."""
    queue = FairQueue(1, QueueSettings(max_queue=3))
    async with clients(queue, "greedy", "modest") as (greedy, modest):
        await greedy.asks(6)
        assert ([TooManyWaiting] * 2, 3) == (greedy.refused, len(queue))
        await modest.asks()
        await asyncio.sleep(0)
        assert ([TooManyWaiting] * 3, [], 3) == (greedy.refused, modest.refused, len(queue))
        assert greedy.tasks[3].done()
        assert not greedy.tasks[2].done()


async def test_a_queue_of_many_callers() -> None:
    """Where each of many callers has one request in a full queue, one more caller is told 503, and none of them loses its place."""
    queue = FairQueue(1, QueueSettings(max_queue=3))
    async with clients(queue, *"abcde") as all:
        for one in all:
            await one.asks()
        assert [[], [], [], [], [QueueFull]] == [one.refused for one in all]
        await all[1].asks()
        assert [TooManyWaiting] == all[1].refused
        assert 3 == len(queue)


async def test_parts_of_one_request() -> None:
    """Of the parts of one request one waits at a time, and those after the first are admitted to a queue that is full."""
    queue, parts = FairQueue(1, QueueSettings(max_queue=1)), Parts()
    async with clients(queue, "one", "other") as (one, other):
        one.enter = lambda: queue.enter_part(parts)
        await one.asks(3)
        assert ([], 1, 1) == (one.refused, one.served, len(queue))
        await other.asks()
        assert [QueueFull] == other.refused
        for turn in range(3):
            ends(one.tasks[turn].result(), 10)
            await asyncio.gather(*one.tasks[turn + 1 : turn + 2])
        assert ([], 3, 0) == (one.refused, one.served, len(queue))


async def test_a_request_that_has_begun_is_not_pushed_out() -> None:
    """Where all that another caller has in a full queue are parts of requests that have begun, a new request is refused instead."""
    queue = FairQueue(2, QueueSettings(max_queue=2))
    async with clients(queue, "greedy", "modest") as (greedy, modest):
        both = [Parts(), Parts()]
        for parts in (*both, *both):
            greedy.enter = lambda parts=parts: queue.enter_part(parts)  # type: ignore[misc]
            await greedy.asks()
        assert (2, 2) == (greedy.served, len(queue))
        await modest.asks()
        assert ([], [QueueFull], 2) == (greedy.refused, modest.refused, len(queue))


async def test_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Retry-After`, and the wait that is told, follow from how long the last answers took."""
    clock = Clock(0.0)
    queue = FairQueue(2, QueueSettings(max_queue=4))
    monkeypatch.setattr("unilect.scheduling.fair_queue.time.monotonic", clock)
    async with clients(queue, "greedy", "modest") as (greedy, modest):
        await greedy.asks(3)
        assert (1, None) == (greedy.contexts[2].queued.position, greedy.contexts[2].queued.wait_s)  # type: ignore[union-attr]
        clock.now = 12.0
        ends(greedy.tasks[0].result(), 300)
        await asyncio.sleep(0)
        assert greedy.contexts[2].queued is None
        await greedy.asks(4)
        (late,) = await modest.asks()
        told = modest.contexts[0].queued
        assert told is not None
        assert (1, 6.0) == (told.position, told.wait_s)
        assert (4, 24.0) == (greedy.contexts[5].queued.position, greedy.contexts[5].queued.wait_s)  # type: ignore[union-attr]
        await asyncio.sleep(0)
        refused = greedy.tasks[-1].exception()
        assert isinstance(refused, TooManyWaiting)
        assert 6.0 == refused.retry_after_s
        assert not late.done()


async def test_a_request_waits_for_so_long() -> None:
    """A request whose time in the queue is up is told so, and leaves nothing behind."""
    queue = FairQueue(1, QueueSettings(timeout_s=0.01))
    async with clients(queue, "a") as (client,):
        first, second = await client.asks(2)
        with pytest.raises(QueueTimeout, match=r"0\.01 s"):
            await second
        assert (0, 1) == (len(queue), len(queue._running))
        ends(first.result(), 1)
        assert not queue._running


async def test_a_model_that_is_stopped() -> None:
    """Who waits for a model that is stopped is told so."""
    queue = FairQueue(1)
    async with clients(queue, "a", "b") as (one, other):
        await one.asks(3)
        await other.asks(2, BATCH)
        queue.dismiss()
        await asyncio.sleep(0)
        assert ([BackendUnavailable] * 2, [BackendUnavailable] * 2) == (one.refused, other.refused)
        assert 0 == len(queue)


async def test_more_places() -> None:
    """Places that a backend has more than before are used with the next request."""
    queue = FairQueue(1)
    async with clients(queue, "a") as (client,):
        await client.asks(4)
        queue.places = 3
        await client.asks()
        await asyncio.sleep(0)
        assert (3, 2) == (client.served, len(queue))


async def test_nothing_is_kept_of_who_has_left_the_queue() -> None:
    """While one request runs for long, the many that came and left take no memory."""
    queue = FairQueue(1)
    async with clients(queue, *map(str, range(50))) as all:
        for one in all:
            await one.asks(4)
        assert 199 == len(queue)
    assert 0 == len(queue)
    assert {} == queue._order._by_count
    assert not queue._order._unaged
    assert not any(one.count for one in queue._order._callers.values())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("ask", "ask", "end", "cancel", "end and cancel")), st.integers(0, 99)
        ),
        min_size=10,
        max_size=120,
    ),
    st.integers(1, 3),
)
def test_no_place_is_lost_or_given_twice(steps: list[tuple[str, int]], places: int) -> None:
    """Whoever comes, ends, and leaves, in the moment of a turn too, at most so many run, and in the end every place is free."""
    asyncio.run(_scrambled(steps, places))


async def _scrambled(steps: list[tuple[str, int]], places: int) -> None:
    queue = FairQueue(places, QueueSettings(max_queue=8))
    async with clients(queue, *"abc") as all:
        held: list[Any] = []

        for step, number in steps:
            client = all[number % 3]
            if step == "ask":
                await client.asks(1, -(number % 2))
            if step.startswith("end") and held:
                ends(held.pop(number % len(held)), number)
            if step.endswith("cancel") and client.tasks:
                client.tasks[number % len(client.tasks)].cancel()
            await _settled(queue, all, held, places)
        while held:
            ends(held.pop(), 1)
            await _settled(queue, all, held, places)

    assert (set(), 0) == (queue._running, len(queue))


async def _settled(queue: FairQueue, all: list[Client], held: list[Any], places: int) -> None:
    """Gather who has had a turn, and look that nobody else has."""
    for _ in range(3):
        await asyncio.sleep(0)
    for one in all:
        done = [task for task in one.tasks if task.done()]
        one.tasks = [task for task in one.tasks if not task.done()]
        held += [task.result() for task in done if not (task.cancelled() or task.exception())]
    assert set(held) == queue._running
    assert len(held) <= places
    assert len(queue) == sum(len(one.tasks) for one in all) <= 8
    assert not len(queue) or len(held) == places


async def test_embeddings_beside_answers() -> None:
    """With a queue of its own, an embedding waits for no answer; a ranking of a backend that has none is refused without waiting."""
    answers, vectors = FairQueue(1), FairQueue(1)
    async with scripted(says(whole(EMBEDDED))) as server:
        backend = QueuedBackend(upstream(server.url), answers, vectors)
        async with clients(answers, "a") as (client,):
            await client.asks(2)
            found = await backend.embed(EmbeddingRequest(model="m", input="Hi"))
        await backend._backend.aclose()
    with pytest.raises(UnilectError, match="rank"):
        await QueuedBackend(Echo(), answers, FairQueue(1)).rerank(
            RerankRequest(query="a", documents=["b"])
        )

    assert ([[0.5]], set()) == (found.vectors, vectors._running)


async def test_what_an_answer_uses() -> None:
    """Its tokens count more than those of the prompt, of which those that were cached do not; until it has ended as far as is known."""
    queue = FairQueue(1)
    ticket = await queue.enter()
    charged = []
    for batch in (
        [],
        [Progress(100, 300, cached=60)],
        [TextDelta("a"), TextDelta("b")],
        [Finish("stop"), Usage(300, 5, cached_tokens=60)],
    ):
        if batch:
            ticket.used.add(batch)
        queue._charge(ticket)
        charged.append(ticket.charged)

    assert [0, 40, 40 + 4 * 2, 240 + 4 * 5] == charged
