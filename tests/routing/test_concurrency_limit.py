"""Tests of unilect.routing._concurrency_limit, in front of a scripted server."""

import asyncio
from contextlib import aclosing

from appserver import upstream
from engine import answer, chat
from scripted import HELLO, Exchange, delta, frames, scripted, stream_of
from unilect.context import IN_HAND, Context
from unilect.routing._concurrency_limit import ConcurrencyLimit


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
        backend = ConcurrencyLimit(upstream(server.url), 1)
        answers = await asyncio.gather(
            *(answer(backend.generate(chat(f"number {n}"))) for n in range(5))
        )
        asked = [exchange.json()["messages"][0]["content"] for exchange in server.requests]
        await backend._backend.aclose()

    assert ["Hello"] * 5 == [one.choices[0].text for one in answers]
    assert ([f"number {n}" for n in range(5)], 1) == (asked, most)


async def test_who_leaves_the_queue_is_never_sent() -> None:
    """A request that is given up while it waits reaches no backend, and the next one has its turn."""
    go_on = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.send(stream_of(HELLO))
        exchange.close()

    async with scripted(script) as server:
        backend = ConcurrencyLimit(upstream(server.url), 1)
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


async def test_nothing_is_kept_of_who_has_left_the_queue() -> None:
    """While one request runs for long, the many that came and left take no memory."""

    async def never(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    async with scripted(never) as server:
        backend = ConcurrencyLimit(upstream(server.url), 1)
        first = asyncio.create_task(answer(backend.generate(chat("first"))))
        while not server.requests:
            await asyncio.sleep(0)
        left = [asyncio.create_task(answer(backend.generate(chat()))) for _ in range(50)]
        await asyncio.sleep(0)
        kept = sum(map(len, backend._waiting.values()))
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await backend._backend.aclose()

    assert (50, {}) == (kept, backend._waiting)


async def test_leaving_in_the_middle_frees_the_place() -> None:
    """A stream that is given up gives its place back."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(content="Hel"))))
        await exchange.client_gone()

    async with scripted(script) as server:
        backend = ConcurrencyLimit(upstream(server.url), 1)
        for _ in range(3):
            async with aclosing(backend.generate(chat())) as batches:
                async for _batch in batches:
                    break
        await backend._backend.aclose()

    assert 3 == len(server.requests)


async def test_the_highest_priority_goes_first() -> None:
    """Of those that wait the request of the highest priority goes first, and of one priority the first that came."""
    go_on = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.send(stream_of(HELLO))
        exchange.close()

    async def ask(priority: int, text: str) -> None:
        IN_HAND.set(Context(priority=priority))
        await answer(backend.generate(chat(text)))

    async with scripted(script) as server:
        backend = ConcurrencyLimit(upstream(server.url), 1)
        tasks = [asyncio.create_task(ask(0, "running"))]
        while not server.requests:
            await asyncio.sleep(0)
        for text, priority in (("batch", -1), ("second", 0), ("third", 0), ("first", 1)):
            tasks.append(asyncio.create_task(ask(priority, text)))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*tasks)
        asked = [exchange.json()["messages"][0]["content"] for exchange in server.requests]
        await backend._backend.aclose()

    assert ["running", "first", "second", "third", "batch"] == asked
