"""Tests of unilect.store.batches: responses that come while a transaction runs share the next one."""

import asyncio
from collections.abc import Sequence

import pytest

from unilect.core.errors import InvalidRequest, StoreUnavailable
from unilect.store.batches import MOST, Outcome, ResponseBatchWriter
from unilect.store.records import Item, StoredResponse


def stored(id: str, size: int = 1) -> StoredResponse:
    """A response with so long an output."""
    output = [Item(f"{id}-out", b"x" * size)]
    return StoredResponse(id, "me", "completed", b"{}", [], output, None, None, 0.0)


class Disk:
    """Takes what is written, once it is let go on; refuses what it is told to."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.goes_on = asyncio.Event()
        self.begun = asyncio.Event()
        self.refused: set[str] = set()
        self.error: Exception | None = None

    def write(self, some: Sequence[StoredResponse]) -> "asyncio.Future[Sequence[Outcome]]":
        """The number of each, as its size."""
        return asyncio.ensure_future(self._write(some))

    async def _write(self, some: Sequence[StoredResponse]) -> Sequence[Outcome]:
        self.groups.append([one.id for one in some])
        self.begun.set()
        await self.goes_on.wait()
        if self.error is not None and (not self.refused or self.refused & {one.id for one in some}):
            raise self.error
        return [InvalidRequest("too large") if one.id == "large" else len(one.id) for one in some]


def begun(writer: ResponseBatchWriter, *some: StoredResponse) -> "list[asyncio.Future[int]]":
    """What is waited for of these."""
    return [writer.save(one) for one in some]


async def test_those_that_come_meanwhile_share_a_transaction() -> None:
    """The first is written at once; all that come until it is written are written together, in their order."""
    disk = Disk()
    writer = ResponseBatchWriter(disk.write)
    first = begun(writer, stored("a"))
    await disk.begun.wait()
    rest = begun(writer, *map(stored, ["bb", "ccc", "dddd"]))
    await asyncio.sleep(0)
    disk.goes_on.set()

    assert [1, 2, 3, 4] == await asyncio.gather(*first, *rest)
    assert [["a"], ["bb", "ccc", "dddd"]] == disk.groups


async def test_those_that_come_soon_after_one_another() -> None:
    """Where responses come close together the next transaction waits a moment for more, also while none runs; a single one does not wait."""
    disk = Disk()
    disk.goes_on.set()
    writer = ResponseBatchWriter(disk.write)
    writer.pending = 3
    await writer.save(stored("a"))
    rest = begun(writer, stored("bb"))
    await asyncio.sleep(0)
    rest += begun(writer, stored("ccc"))

    assert [["a"]] == disk.groups
    assert [2, 3] == await asyncio.gather(*rest)
    assert [["a"], ["bb", "ccc"]] == disk.groups
    writer.pending = 2
    rest = begun(writer, stored("d"))
    assert 2 == len(disk.groups)
    rest += begun(writer, stored("e"))  # and no more are to come
    await asyncio.sleep(0)
    assert ["d", "e"] == disk.groups[-1]
    await asyncio.gather(*rest)


async def test_a_wrong_one_is_alone_told() -> None:
    """A response that cannot be stored fails; those that it shares a transaction with do not."""
    disk = Disk()
    disk.goes_on.set()
    writer = ResponseBatchWriter(disk.write)

    ended = await asyncio.gather(
        *begun(writer, *map(stored, ["a", "large", "b"])), return_exceptions=True
    )

    assert [1, 1] == [ended[0], ended[2]]
    assert isinstance(ended[1], InvalidRequest)


async def test_the_database_refuses_all_for_one() -> None:
    """Where a transaction fails for the sake of one response, the others are written without it."""
    disk = Disk()
    disk.goes_on.set()
    disk.refused, disk.error = {"b"}, ValueError("string or blob too big")
    writer = ResponseBatchWriter(disk.write)

    ended = await asyncio.gather(
        *begun(writer, *map(stored, ["a", "b", "c"])), return_exceptions=True
    )

    assert [1, disk.error, 1] == ended
    assert ["b"] in disk.groups


async def test_the_store_is_away() -> None:
    """Where the store cannot be written, all are told at once, and the next is tried again."""
    disk = Disk()
    disk.goes_on.set()
    disk.error = StoreUnavailable("away")
    writer = ResponseBatchWriter(disk.write)

    ended = await asyncio.gather(*begun(writer, *map(stored, "abc")), return_exceptions=True)
    assert [disk.error] * 3 == ended
    assert len(disk.groups) <= 2
    disk.error = None
    assert 1 == await writer.save(stored("d"))


async def test_who_leaves_stops_nothing() -> None:
    """A caller that leaves loses nothing that it has put, and holds up nobody."""
    disk = Disk()
    writer = ResponseBatchWriter(disk.write)
    first, second = begun(writer, stored("a"), stored("b"))
    await disk.begun.wait()
    first.cancel()
    second.cancel()
    disk.goes_on.set()

    assert 1 == await writer.save(stored("c"))
    assert ["a", "b", "c"] == sorted(id for group in disk.groups for id in group)


async def test_the_end_of_a_server() -> None:
    """Who still waits when the work is ended is told, instead of waiting forever."""
    disk = Disk()
    writer = ResponseBatchWriter(disk.write)
    first = begun(writer, stored("a"))
    await disk.begun.wait()
    second = begun(writer, stored("b"))
    writer.close()

    for one in (*first, *second, writer.save(stored("c"))):
        with pytest.raises(StoreUnavailable, match="stopping"):
            await one


async def test_a_transaction_has_bounds() -> None:
    """What waits is written in groups of bounded number and size."""
    disk = Disk()
    writer = ResponseBatchWriter(disk.write)
    first = begun(writer, stored("first"))
    await disk.begun.wait()
    many = begun(writer, *(stored(str(number)) for number in range(MOST + 1)))
    large = begun(writer, *(stored(f"l{number}", 9 * 1024**2) for number in range(3)))
    await asyncio.sleep(0)
    disk.goes_on.set()
    await asyncio.gather(*first, *many, *large)

    assert [1, MOST, 2] == [len(group) for group in disk.groups[:3]]
    assert [1, 1] == [len(group) for group in disk.groups[3:]]
