"""Tests of unilect.web.bodies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from unilect.core.bounds import SMALL_BYTES
from unilect.core.errors import BackendUnavailable, BodyTooLarge, RequestTimeout, TooManyWaiting
from unilect.web.bodies import Bodies

LARGE = 8 * SMALL_BYTES


class Sender:
    """A client that sends pieces of a body when a test says so."""

    def __init__(self, bodies: Bodies, announced: int | None = None, caller: str = "a") -> None:
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self.lease = bodies.lease(caller)
        self.reading = asyncio.ensure_future(bodies.read(self._pieces.get, announced, self.lease))

    async def send_all(self, size: int) -> bytes:
        """Send a body of so many bytes, and return what was read; errors as `Bodies.read`."""
        self._pieces.put_nowait(b"x" * size)
        self._pieces.put_nowait(b"")
        return await self.reading

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


async def test_half_sent_bodies(sender: Callable[..., Sender]) -> None:
    """Half-sent large bodies share a bound, and beyond it a large one is refused, to come again, while small ones always pass."""
    bodies = Bodies(LARGE, total_bytes=4 * LARGE, pace_s=5)
    halves = [sender(bodies) for _ in range(2)]
    for half in halves:
        await half.send(LARGE)
    assert 3 * SMALL_BYTES == len(await sender(bodies).send_all(3 * SMALL_BYTES))

    with pytest.raises(TooManyWaiting, match="max_total_body_bytes") as told:
        await sender(bodies).send_all(LARGE)
    assert (429, 5) == (told.value.status, told.value.retry_after_s)
    assert SMALL_BYTES == len(await sender(bodies).send_all(SMALL_BYTES))


async def test_a_share_lasts_as_long_as_the_request(sender: Callable[..., Sender]) -> None:
    """A body that was read counts until its request ends, so that what waits is bounded in bytes."""
    bodies = Bodies(LARGE, total_bytes=4 * LARGE)
    held = [sender(bodies), sender(bodies)]
    for each in held:
        await each.send_all(LARGE)
    with pytest.raises(TooManyWaiting):
        await sender(bodies).send_all(LARGE)

    held[0].lease.release()
    held[0].lease.release()
    assert LARGE == len(await sender(bodies).send_all(LARGE))


async def test_one_caller_leaves_room_for_others(sender: Callable[..., Sender]) -> None:
    """One caller has half of the bound at most, and another one still as much as is left free after it."""
    bodies = Bodies(LARGE, total_bytes=8 * LARGE)
    for _ in range(4):
        await sender(bodies).send_all(LARGE)
    with pytest.raises(TooManyWaiting):
        await sender(bodies).send_all(LARGE)
    for _ in range(2):
        await sender(bodies, None, "b").send_all(LARGE)
    for name in "cd":
        assert LARGE == len(await sender(bodies, None, name).send_all(LARGE))

    with pytest.raises(BackendUnavailable) as told:
        await sender(bodies, None, "e").send_all(LARGE)
    assert (503, True) == (told.value.status, told.value.retry_after_s is not None)


async def test_a_body_without_room_is_not_read(sender: Callable[..., Sender]) -> None:
    """A body whose announced length has no room now is refused before its first byte."""

    async def never() -> bytes:
        raise AssertionError("it was read")

    bodies = Bodies(LARGE, total_bytes=2 * LARGE)
    await sender(bodies).send_all(LARGE)
    with pytest.raises(TooManyWaiting):
        await bodies.read(never, LARGE, bodies.lease("a"))


@pytest.mark.parametrize("end", ["whole", "left", "refused", "slow"])
async def test_a_share_comes_back(sender: Callable[..., Sender], end: str) -> None:
    """A lease gives back what its body took, however its reading ended."""
    bodies = Bodies(LARGE, timeout_s=60, pace_s=0.01 if end == "slow" else 60)
    for _ in range(3):
        each = sender(bodies)
        await each.send(LARGE)
        if end == "whole":
            await each.send(0)
            assert LARGE == len(await each.reading)
        elif end == "left":
            each.reading.cancel()
        elif end == "slow":
            with pytest.raises(RequestTimeout):
                await asyncio.wait_for(each.reading, 60)
        else:
            await each.send(1)
            with pytest.raises(BodyTooLarge):
                await each.reading
        assert LARGE - SMALL_BYTES == bodies.held.total()
        each.lease.release()

    assert not bodies.held


async def test_other_bounds() -> None:
    """After a change new bodies go by the new bounds, and two of the longest always fit."""
    bodies = Bodies(LARGE, total_bytes=0)
    bodies.lease("a").grow(LARGE)
    with pytest.raises(TooManyWaiting):
        bodies.lease("a").grow(LARGE)
    bodies.change(2 * LARGE, 0)
    bodies.lease("a").grow(LARGE)


async def test_a_body_that_is_too_large_is_known_at_once() -> None:
    """A body whose announced length is over the limit is refused before it is read."""

    async def never() -> bytes:
        raise AssertionError("it was read")

    with pytest.raises(BodyTooLarge, match="1024 bytes"):
        bodies = Bodies(1024)
        await bodies.read(never, 1025, bodies.lease("a"))


async def test_a_large_body_keeps_a_pace(sender: Callable[..., Sender]) -> None:
    """A large body that stands still is given up long before its whole time is over; a small one has that time."""
    bodies = Bodies(LARGE, timeout_s=60, pace_s=0.01)
    large, small = sender(bodies), sender(bodies)
    await small.send(SMALL_BYTES)
    await large.send(2 * SMALL_BYTES)

    with pytest.raises(RequestTimeout, match=r"64 kB in 0\.01 s"):
        await asyncio.wait_for(large.reading, 60)
    assert not small.reading.done()


def paced(
    monkeypatch: pytest.MonkeyPatch, size: int, piece: int, gap_s: float
) -> Callable[[], Awaitable[bytes]]:
    """A body of a size, of which a piece comes each so many seconds by the event loop's clock."""
    loop, now, left = asyncio.get_running_loop(), [0.0], [size]
    monkeypatch.setattr(loop, "time", lambda: now[0])

    async def more() -> bytes:
        now[0] += gap_s
        await asyncio.sleep(0)  # what is due by now ends it here
        came = min(piece, left[0])
        left[0] -= came
        return b"x" * came

    return more


@pytest.mark.parametrize(("piece", "gap_s"), [(SMALL_BYTES, 9.9), (48 * 1024, 7.4), (1024, 0.15)])
async def test_a_steady_body(monkeypatch: pytest.MonkeyPatch, piece: int, gap_s: float) -> None:
    """A body that keeps the promised pace is read to its end, however long that takes and in whatever pieces it comes."""
    bodies = Bodies(LARGE)
    more = paced(monkeypatch, LARGE, piece, gap_s)
    assert LARGE == len(await bodies.read(more, LARGE, bodies.lease("a")))
    assert asyncio.get_running_loop().time() > 60


@pytest.mark.parametrize(("piece", "gap_s"), [(SMALL_BYTES, 11), (48 * 1024, 8), (1024, 0.2)])
async def test_a_body_below_the_pace(
    monkeypatch: pytest.MonkeyPatch, piece: int, gap_s: float
) -> None:
    """A body that comes slower than the pace is given up, in whatever pieces it comes."""
    bodies = Bodies(2**24)
    with pytest.raises(RequestTimeout):
        await bodies.read(paced(monkeypatch, 2**24, piece, gap_s), None, bodies.lease("a"))


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

    bodies = Bodies(2**20)
    assert b"".join(pieces) == await bodies.read(reader(pieces), None, bodies.lease("a"))
