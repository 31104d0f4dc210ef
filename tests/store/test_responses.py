"""Tests of unilect.store.responses, on SQLite, in memory and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.common.clock import Clock
from unilect.core.errors import InvalidRequest
from unilect.store.database import Database
from unilect.store.records import Item, StoredResponse
from unilect.store.responses import MAX_ITEMS, ResponseStore
from unilect.store.sql import responses as statements

ME, YOU = "me", "you"
DAY_S = 86_400.0


@pytest.fixture
async def answers(database: Database, clock: Clock) -> AsyncIterator[ResponseStore]:
    """A store on a new database."""
    store = ResponseStore(database, max_age_s=30 * DAY_S, clock=clock)
    yield store
    await store.aclose()


def stored(id: str, parent: str | None = None, **changes: Any) -> StoredResponse:
    """A response of one item of input and one of output."""
    fields = {
        "id": id,
        "owner": ME,
        "status": "completed",
        "body": b'{"id":"%s"}' % id.encode(errors="replace"),
        "input": [Item(f"{id}-in", b"in of " + id.encode(errors="replace"))],
        "output": [Item(f"{id}-out", b"out of " + id.encode(errors="replace"))],
        "parent": parent,
        "conversation": None,
        "created_at": 1_800_000_000.5,
    }
    return StoredResponse(**fields | changes)


def ids(chain: list[StoredResponse] | None) -> list[str] | None:
    """The ids of a chain."""
    return None if chain is None else [one.id for one in chain]


async def items_of(answers: ResponseStore, conversation: str) -> list[str]:
    """The ids of all items of a conversation, the oldest first."""
    page = await answers.list_items(ME, conversation, limit=1000, newest_first=False)
    assert page is not None
    return [item.id for item in page[0]]


async def test_a_response_comes_back(answers: ResponseStore) -> None:
    """What was put comes back unchanged, also where it is empty, large, or not ASCII."""
    many = [Item(f"i{number}", b"x" * number) for number in range(600)]
    for response in (
        stored("plain"),
        stored("empty", input=[], output=[], body=b""),
        stored("large", input=many, body=bytes(range(256)) * 8000),
        stored("nobody's parent", parent="gone", events=b"", instance="a"),
        stored("中文 🦜", status="失败", output=[Item("项", "内容".encode())], events=b"\0\xff"),
    ):
        await answers.save(response)
        assert response == await answers.get(ME, response.id)


async def test_only_its_owner_sees_it(answers: ResponseStore) -> None:
    """Another owner finds nothing of a response or a conversation, and cannot change, continue or delete it."""
    conversation = await answers.create_conversation(ME, b"{}", [Item("a", b"a")])
    await answers.save(stored("r", status="queued"))

    assert await answers.get(YOU, "r") is None
    assert await answers.chain(YOU, "r") is None
    assert {} == await answers.items(YOU, ["r-in", "a"])
    assert not await answers.update(YOU, "r", status="failed", body=b"", output=[])
    assert not await answers.delete(YOU, "r")
    assert await answers.conversation(YOU, conversation) is None
    assert not await answers.update_conversation(YOU, conversation, b"x")
    assert not await answers.add_items(YOU, conversation, [Item("b", b"b")])
    assert await answers.list_items(YOU, conversation) is None
    assert await answers.item(YOU, conversation, "a") is None
    assert not await answers.delete_item(YOU, conversation, "a")
    assert not await answers.delete_conversation(YOU, conversation)
    await answers.save(stored("s", owner=YOU, parent="r", conversation=conversation))
    assert await answers.chain(YOU, "s") is None
    assert ["a"] == await items_of(answers, conversation)
    assert stored("r", status="queued") == await answers.get(ME, "r")


async def test_two_owners_with_one_id(answers: ResponseStore) -> None:
    """Responses and conversations of two owners with the same id are two."""
    await answers.save(stored("r"))
    await answers.save(stored("r", owner=YOU, body=b"yours"))
    for owner in (ME, YOU):
        await answers.create_conversation(owner, owner.encode(), [], "c")

    assert stored("r") == await answers.get(ME, "r")
    assert await answers.delete(YOU, "r")
    assert await answers.delete_conversation(YOU, "c")
    assert stored("r") == await answers.get(ME, "r")
    assert (b"me", 1_800_000_000.0) == await answers.conversation(ME, "c")


async def test_put_replaces(answers: ResponseStore) -> None:
    """A response that is put again replaces the first with all its items."""
    await answers.save(stored("r", events=b"e"))
    again = stored("r", body=b"new", input=[], output=[Item("o", b"o")])
    await answers.save(again)

    assert again == await answers.get(ME, "r")
    assert {"o": b"o"} == await answers.items(ME, ["r-in", "r-out", "o"])


async def test_a_chain(answers: ResponseStore) -> None:
    """A chain has the oldest first, without events, and branches of it are not in it."""
    await answers.save(stored("1", events=b"events"))
    await answers.save(stored("2", "1"))
    await answers.save(stored("3a", "2"))
    await answers.save(stored("3b", "2"))
    chain = await answers.chain(ME, "3b")

    assert [stored("1"), stored("2", "1"), stored("3b", "2")] == chain
    short = await answers.chain(ME, "3b", with_bodies=False)
    assert [stored("1", body=b""), stored("2", "1", body=b""), stored("3b", "2", body=b"")] == short
    assert ["1"] == ids(await answers.chain(ME, "1"))
    assert await answers.chain(ME, "4") is None


async def test_a_chain_with_a_gap(answers: ResponseStore) -> None:
    """A chain of which one response is missing is none."""
    await answers.save(stored("1"))
    await answers.save(stored("2", "1"))
    await answers.save(stored("3", "2"))
    assert await answers.delete(ME, "2")

    assert await answers.chain(ME, "3") is None
    assert await answers.delete(ME, "2") is False


async def test_a_chain_that_is_too_long(answers: ResponseStore) -> None:
    """A chain of more responses than are asked for is refused, also one that bites its tail."""
    await answers.save(stored("0"))
    for number in range(1, 20):
        await answers.save(stored(str(number), str(number - 1)))

    assert 20 == len(await answers.chain(ME, "19", most=20) or [])
    with pytest.raises(InvalidRequest, match="more than 19 responses") as error:
        await answers.chain(ME, "19", most=19)
    assert "previous_response_id" == error.value.param
    await answers.save(stored("0", "19"))
    with pytest.raises(InvalidRequest, match="more than 1000 responses"):
        await answers.chain(ME, "19")


async def test_a_chain_that_is_too_large(database: Database) -> None:
    """A chain that is larger than what may be read at once is refused, where its events do not count."""
    answers = ResponseStore(database, most_read_bytes=10_000)
    await answers.save(stored("1", body=b"x" * 4000, events=b"x" * 20_000))
    await answers.save(stored("2", "1", body=b"x" * 4000))
    assert ["1", "2"] == ids(await answers.chain(ME, "2"))
    await answers.save(stored("3", "2", body=b"x" * 4000))
    with pytest.raises(InvalidRequest, match="at most 10000") as error:
        await answers.chain(ME, "3")
    assert "previous_response_id" == error.value.param
    await answers.save(stored("4", input=[Item(str(i), b"x" * 4000) for i in range(3)]))
    assert ["0", "1"] == list(await answers.items(ME, ["0", "1"]))
    with pytest.raises(InvalidRequest, match="at most 10000"):
        await answers.items(ME, ["0", "1", "2"])
    await answers.aclose()


async def test_a_chain_that_loses_its_beginning(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of which a response is deleted while it is read is as it was, whole, and missing from then on."""
    database = Database(url)
    answers = ResponseStore(database)
    for id, parent in (("1", None), ("2", "1"), ("3", "2")):
        await answers.save(stored(id, parent))
    read, loop = statements._texts, asyncio.get_running_loop()

    def texts(connection: Any, *values: Any) -> Any:
        deleting = asyncio.run_coroutine_threadsafe(answers.delete(ME, "1"), loop)
        assert deleting.result(20)
        return read(connection, *values)

    monkeypatch.setattr(statements, "_texts", texts)

    chain = await answers.chain(ME, "3", with_bodies=False)
    assert ["1", "2", "3"] == [one.id for one in chain or []]
    assert await answers.chain(ME, "3") is None
    await answers.aclose()
    await database.aclose()


async def test_items_by_id(answers: ResponseStore) -> None:
    """Items are found by their ids in responses and conversations, however many are asked for; of two with one id the latest."""
    many = [Item(f"i{number}", b"%d" % number) for number in range(1200)]
    await answers.save(stored("r", input=many))
    await answers.create_conversation(ME, b"{}", [Item("c", b"of a conversation")])
    wanted = [*(item.id for item in many), "c", "r-out", "missing", "i7"]
    found = await answers.items(ME, wanted)

    assert {item.id: item.body for item in many} == {k: found[k] for k in found if k[0] == "i"}
    assert (b"of a conversation", b"out of r") == (found["c"], found["r-out"])
    assert "missing" not in found
    assert {} == await answers.items(ME, [])


async def test_items_of_the_latest(answers: ResponseStore, clock: Clock) -> None:
    """Of two items with one id the one that was stored last is found."""
    await answers.save(stored("r", input=[Item("x", b"old")], created_at=clock.now))
    clock.now += 1
    await answers.create_conversation(ME, b"{}", [Item("x", b"newer")])
    clock.now += 1
    await answers.save(stored("s", "r", input=[Item("x", b"newest")], created_at=clock.now))

    assert {"x": b"newest"} == await answers.items(ME, ["x"])


async def test_a_background_response(answers: ResponseStore) -> None:
    """A response in the background changes its status, body, output and events, and keeps its input."""
    await answers.save(stored("r", status="queued", output=[], instance="a"))
    assert await answers.update(ME, "r", status="in_progress", body=b"1", output=[], events=b"e1")
    output = [Item("o1", b"1"), Item("o2", b"2")]
    assert await answers.update(ME, "r", status="completed", body=b"2", output=output)

    assert stored(
        "r", status="completed", body=b"2", output=output, events=b"e1", instance="a"
    ) == await answers.get(ME, "r")
    assert not await answers.update(ME, "none", status="failed", body=b"", output=[])


async def test_an_update_that_comes_too_late(answers: ResponseStore) -> None:
    """A response that was cancelled is not completed afterwards."""
    await answers.save(stored("r", status="in_progress", output=[]))
    running = ("queued", "in_progress")
    assert await answers.update(ME, "r", status="cancelled", body=b"c", output=[], only_if=running)
    late = {"status": "completed", "body": b"", "output": [Item("o", b"o")]}

    assert not await answers.update(ME, "r", **late, only_if=running)
    assert stored("r", status="cancelled", body=b"c", output=[]) == await answers.get(ME, "r")


async def test_a_response_of_a_server_that_died(answers: ResponseStore, clock: Clock) -> None:
    """A response is stale whose server was not touched for a while, or which no known server has for so long."""
    died, lives = stored("died", status="queued", instance="a"), stored("lives", instance="b")
    nobodys = stored("nobody's", status="queued", instance="c", created_at=clock.now)
    await answers.save(died)
    clock.now += 30
    await answers.touch("b")
    assert not await answers.is_stale(died, 60)
    assert not await answers.is_stale(nobodys, 60)
    clock.now += 31

    assert [True, False, True] == [await answers.is_stale(one, 60) for one in (died, lives, nobodys)]  # fmt: skip
    await answers.touch("a")
    assert not await answers.is_stale(died, 60)


async def test_a_conversation(answers: ResponseStore, clock: Clock) -> None:
    """A conversation has metadata that can be changed, the time at which it began, and an end."""
    conversation = await answers.create_conversation(ME, b'{"a":"b"}')
    began = clock.now
    clock.now += 5

    assert conversation.startswith("conv_")
    assert (b'{"a":"b"}', began) == await answers.conversation(ME, conversation)
    assert await answers.update_conversation(ME, conversation, b"{}")
    assert (b"{}", began) == await answers.conversation(ME, conversation)
    assert [] == await items_of(answers, conversation)
    assert await answers.delete_conversation(ME, conversation)
    assert await answers.conversation(ME, conversation) is None
    assert not await answers.delete_conversation(ME, conversation)
    assert not await answers.update_conversation(ME, conversation, b"{}")
    assert not await answers.add_items(ME, conversation, [Item("a", b"")])
    assert conversation != await answers.create_conversation(ME, b"{}")


async def test_pages_of_items(answers: ResponseStore) -> None:
    """A conversation's items come in pages, in either order, each item once, and the last page says so."""
    items = [Item(str(number), b"%d" % number) for number in range(7)]
    conversation = await answers.create_conversation(ME, b"{}", items[:3])
    assert await answers.add_items(ME, conversation, items[3:])
    for newest_first, expected in ((False, items), (True, items[::-1])):
        found, after, pages = [], None, []
        more = True
        while more:
            page = await answers.list_items(ME, conversation, after, 3, newest_first)
            assert page is not None
            found, after, more = found + page[0], page[0][-1].id, page[1]
            pages.append(len(page[0]))
        assert expected == found
        assert [3, 3, 1] == pages
    assert ([], False) == await answers.list_items(ME, conversation, "6", 3, newest_first=False)
    with pytest.raises(InvalidRequest, match="no item 'x'") as error:
        await answers.list_items(ME, conversation, "x")
    assert "after" == error.value.param


async def test_a_page_of_large_items(database: Database) -> None:
    """A page ends where its items are too large to be read at once, but has one at least."""
    answers = ResponseStore(database, most_read_bytes=1000)
    items = [Item(str(number), b"x" * size) for number, size in enumerate((5000, 400, 400, 400))]
    conversation = await answers.create_conversation(ME, b"{}", items)
    pages, after = [], None
    for _ in range(3):
        page = await answers.list_items(ME, conversation, after, 10, newest_first=False)
        assert page is not None
        pages.append(([item.id for item in page[0]], page[1]))
        after = page[0][-1].id

    assert [(["0"], True), (["1", "2"], True), (["3"], False)] == pages
    await answers.aclose()


async def test_a_whole_conversation(database: Database) -> None:
    """All items of a conversation are read at once, as many as are asked for, unless they are too large."""
    answers = ResponseStore(database, most_read_bytes=3000)
    items = [Item(str(number), b"x" * 400) for number in range(4)]
    conversation = await answers.create_conversation(ME, b"{}", items)
    whole = await answers.whole(ME, conversation, 10)
    some = await answers.whole(ME, conversation, 2)
    missing = await answers.whole(YOU, conversation, 10)
    await answers.add_items(ME, conversation, [Item("4", b"x" * 400)])
    with pytest.raises(InvalidRequest, match="at most 3000") as error:
        await answers.whole(ME, conversation, 10)
    await answers.aclose()

    assert (items, items[:2], None) == (whole, some, missing)
    assert "conversation" == error.value.param


async def test_items_of_a_conversation(answers: ResponseStore) -> None:
    """One item can be read and deleted, and one whose id is there replaces it in its place."""
    items = [Item("a", b"a"), Item("b", b"b"), Item("c", b"c")]
    conversation = await answers.create_conversation(ME, b"{}", items)
    assert await answers.add_items(ME, conversation, [Item("b", b"new"), Item("d", b"d")])

    assert ["a", "b", "c", "d"] == await items_of(answers, conversation)
    assert Item("b", b"new") == await answers.item(ME, conversation, "b")
    assert await answers.delete_item(ME, conversation, "b")
    assert await answers.item(ME, conversation, "b") is None
    assert not await answers.delete_item(ME, conversation, "b")
    assert ["a", "c", "d"] == await items_of(answers, conversation)
    assert await answers.add_items(ME, conversation, [Item("b", b"again")])
    assert ["a", "c", "d", "b"] == await items_of(answers, conversation)


async def test_a_response_in_a_conversation(answers: ResponseStore) -> None:
    """A response appends its input and output to its conversation once, and one in the background its output when it has it."""
    conversation = await answers.create_conversation(ME, b"{}", [Item("a", b"a")])
    await answers.save(stored("r", conversation=conversation))
    await answers.save(stored("r", conversation=conversation))
    assert ["a", "r-in", "r-out"] == await items_of(answers, conversation)
    await answers.save(stored("s", conversation=conversation, status="queued", output=[]))
    output = [Item("s-out", b"s")]
    assert await answers.update(ME, "s", status="completed", body=b"", output=output)

    assert ["a", "r-in", "r-out", "s-in", "s-out"] == await items_of(answers, conversation)
    assert await answers.delete(ME, "r")
    assert "r-in" in await items_of(answers, conversation)
    assert await answers.delete_conversation(ME, conversation)
    assert conversation == (await answers.get(ME, "s") or stored("")).conversation
    await answers.save(stored("t", conversation=conversation))
    assert stored("t", conversation=conversation) == await answers.get(ME, "t")


async def test_too_many_items(answers: ResponseStore) -> None:
    """More items than the store takes at once are refused, stored or asked for, and nothing of them is stored."""
    many = [Item(f"i{number}", b"") for number in range(MAX_ITEMS + 1)]
    conversation = await answers.create_conversation(ME, b"{}")
    for call, param in (
        (answers.save(stored("r", input=many[1:])), "store"),
        (answers.add_items(ME, conversation, many), "store"),
        (answers.create_conversation(ME, b"{}", many, "c"), "store"),
        (answers.items(ME, [item.id for item in many]), "input"),
    ):
        with pytest.raises(InvalidRequest, match="20001 items are more than the 20000") as error:
            await call
        assert param == error.value.param
    assert await answers.get(ME, "r") is None
    assert await answers.conversation(ME, "c") is None
    assert [] == await items_of(answers, conversation)


@pytest.mark.parametrize("id", ["", "\0", "a\0b", "\ud800", "x" * 257])
async def test_what_is_no_id(answers: ResponseStore, id: str) -> None:
    """A text that not every database takes as an id finds nothing, and nothing is stored by it."""
    conversation = await answers.create_conversation(ME, b"{}")

    assert await answers.get(ME, id) is None
    assert await answers.chain(ME, id) is None
    assert {} == await answers.items(ME, [id])
    assert not await answers.delete(ME, id)
    assert not await answers.update(ME, id, status="failed", body=b"", output=[])
    assert await answers.conversation(ME, id) is None
    assert await answers.item(ME, conversation, id) is None
    assert not await answers.delete_item(ME, conversation, id)
    for bad in (stored(id), stored("r", parent=id or "\0"), stored("r", input=[Item(id, b"")])):
        with pytest.raises(InvalidRequest, match="expected 1 to 256 characters"):
            await answers.save(bad)
    with pytest.raises(InvalidRequest, match="after: expected"):
        await answers.list_items(ME, conversation, after=id)
