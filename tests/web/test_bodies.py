"""Tests of unilect.web.bodies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from unilect.bounds import SMALL_BYTES
from unilect.errors import BackendUnavailable, BodyTooLarge, RequestTimeout
from unilect.web.bodies import Bodies

LARGE = 8 * SMALL_BYTES


class Sender:
    """A client that sends pieces of a body when a test says so."""

    def __init__(self, bodies: Bodies, announced: int | None = None) -> None:
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self.reading = asyncio.ensure_future(bodies.read(self._pieces.get, announced))

    async def send(self, size: int) -> None:
        """Send so many bytes, and wait until they are read; 0 ends the body."""
        self._pieces.put_nowait(b"x" * size)
        while not self._pieces.empty():
            await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.fixture
async def sender() -> AsyncIterator[Callable[..., Sender]]:
    """Makes senders, which end with the test."""
    made: list[Sender] = []

    def make(*arguments: object) -> Sender:
        made.append(Sender(*arguments))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.reading.cancel()
    await asyncio.gather(*(each.reading for each in made), return_exceptions=True)


async def test_the_budget(sender: Callable[..., Sender]) -> None:
    """Half-sent large bodies share a budget, and beyond it a large one is refused, to come again, while small ones always pass."""
    bodies = Bodies(LARGE, budget_bytes=2 * LARGE, pace_s=5)
    halves = [sender(bodies) for _ in range(2)]
    for half in halves:
        await half.send(LARGE)
    last = sender(bodies)
    await last.send(3 * SMALL_BYTES)
    await last.send(0)
    assert 3 * SMALL_BYTES == len(await last.reading)

    third = sender(bodies)
    await third.send(LARGE)
    with pytest.raises(BackendUnavailable) as told:
        await third.reading
    assert (503, 5) == (told.value.status, told.value.retry_after_s)
    small = sender(bodies)
    await small.send(SMALL_BYTES)
    await small.send(0)
    assert SMALL_BYTES == len(await small.reading)


@pytest.mark.parametrize("end", ["whole", "left", "refused"])
async def test_the_budget_comes_back(sender: Callable[..., Sender], end: str) -> None:
    """What a body took of the budget comes back, however its reading ended."""
    bodies = Bodies(LARGE, budget_bytes=LARGE)
    for _ in range(3):
        each = sender(bodies)
        await each.send(LARGE)
        if end == "whole":
            await each.send(0)
            assert LARGE == len(await each.reading)
        elif end == "left":
            each.reading.cancel()
        else:
            await each.send(1)
            with pytest.raises(BodyTooLarge):
                await each.reading
        await asyncio.sleep(0)

    assert LARGE == bodies._free_bytes


async def test_a_body_that_is_too_large_is_known_at_once() -> None:
    """A body whose announced length is over the limit is refused before it is read."""

    async def never() -> bytes:
        raise AssertionError("it was read")

    with pytest.raises(BodyTooLarge, match="1024 bytes"):
        await Bodies(1024).read(never, 1025)


async def test_a_large_body_keeps_a_pace(sender: Callable[..., Sender]) -> None:
    """A large body that stands still is given up long before its whole time is over; a small one has that time."""
    bodies = Bodies(LARGE, timeout_s=60, pace_s=0.01)
    large, small = sender(bodies), sender(bodies)
    await small.send(SMALL_BYTES)
    await large.send(2 * SMALL_BYTES)

    with pytest.raises(RequestTimeout, match=r"64 kB in 0\.01 s"):
        await asyncio.wait_for(large.reading, 60)
    assert not small.reading.done()


async def test_a_body_has_a_time(sender: Callable[..., Sender]) -> None:
    """A body that does not come to its end is given up."""
    one = sender(Bodies(LARGE, timeout_s=0.01))
    with pytest.raises(RequestTimeout):
        await asyncio.wait_for(one.reading, 60)


def reader(pieces: list[bytes]) -> Callable[[], Awaitable[bytes]]:
    """Pieces, one for each call."""
    left = iter([*pieces, b""])

    async def more() -> bytes:
        return next(left)

    return more


async def test_the_body_is_whole() -> None:
    """A body is what was sent, in its order, however it was cut."""
    pieces = [bytes([number % 256]) * (number + 1) for number in range(1000)]

    assert b"".join(pieces) == await Bodies(2**20).read(reader(pieces), None)
