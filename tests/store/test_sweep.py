"""Tests of what is too old or too much in unilect.store.responses, on every kind of database."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from support.common.clock import Clock
from unilect.core.errors import InvalidRequest
from unilect.store.database import Database
from unilect.store.records import Item, StoredResponse
from unilect.store.responses import ResponseStore

ME = "me"
AGE_S = 1000.0


@pytest.fixture
async def answers(database: Database, clock: Clock) -> AsyncIterator[ResponseStore]:
    """A store on a new database."""
    store = ResponseStore(database, max_age_s=AGE_S, clock=clock)
    yield store
    await store.aclose()


def stored(id: str, parent: str | None = None, size: int = 0) -> StoredResponse:
    """A response of a size."""
    return StoredResponse(
        id, ME, "completed", b"x" * size, [Item(f"{id}-in", b"")], [], parent, None, 0.0
    )


async def there(answers: ResponseStore, ids: list[str]) -> list[str]:
    """Those responses and conversations that are there."""
    return [
        id
        for id in ids
        if await answers.get(ME, id) is not None or await answers.conversation(ME, id) is not None
    ]


async def test_what_is_too_old(answers: ResponseStore, clock: Clock) -> None:
    """What has expired is not there for any method, even before it is deleted."""
    await answers.save(stored("r"))
    conversation = await answers.create_conversation(ME, b"{}", [Item("a", b"")])
    clock.now += AGE_S - 1
    assert ["r", conversation] == await there(answers, ["r", conversation])
    clock.now += 1

    assert [] == await there(answers, ["r", conversation])
    assert await answers.chain(ME, "r") is None
    assert {} == await answers.items(ME, ["r-in", "a"])
    assert not await answers.update(ME, "r", status="failed", body=b"", output=[])
    assert not await answers.delete(ME, "r")
    assert not await answers.add_items(ME, conversation, [Item("b", b"")])
    assert await answers.list_items(ME, conversation) is None
    assert await answers.item(ME, conversation, "a") is None
    assert not await answers.delete_item(ME, conversation, "a")
    assert not await answers.update_conversation(ME, conversation, b"")
    assert not await answers.delete_conversation(ME, conversation)


async def test_a_chain_lives_as_long_as_its_youngest(answers: ResponseStore, clock: Clock) -> None:
    """A response that is continued lives on, with all that stand before it; its other branches do not."""
    await answers.save(stored("1"))
    await answers.save(stored("2", "1"))
    await answers.save(stored("branch", "1"))
    clock.now += AGE_S - 1
    await answers.save(stored("3", "2"))
    clock.now += AGE_S - 1

    assert 3 == len(await answers.chain(ME, "3") or [])
    assert ["1", "2", "3"] == await there(answers, ["1", "2", "3", "branch"])
    clock.now += 1
    assert "3" not in await there(answers, ["1", "2", "3"])
    clock.now += AGE_S / 100  # ancestors are kept ahead
    assert [] == await there(answers, ["1", "2", "3"])


async def test_a_long_chain_lives_as_long_as_its_youngest(
    answers: ResponseStore, clock: Clock
) -> None:
    """Ancestors that are kept ahead, and so are not kept again by each turn, are there as long as the last turn."""
    for turn in range(100):
        await answers.save(stored(str(turn), str(turn - 1) if turn else None))
        clock.now += AGE_S / 1000 * (turn % 30)
    clock.now += AGE_S - AGE_S / 1000 * (99 % 30) - 1

    assert 100 == len(await answers.chain(ME, "99") or [])
    clock.now += 1 + AGE_S / 100
    assert [] == await there(answers, [*map(str, range(100))])


async def test_nothing_comes_back_from_the_dead(answers: ResponseStore, clock: Clock) -> None:
    """A response that continues an expired one does not bring it back."""
    await answers.save(stored("1"))
    clock.now += AGE_S
    await answers.save(stored("2", "1"))

    assert await answers.get(ME, "1") is None
    assert await answers.chain(ME, "2") is None


async def test_a_conversation_lives_as_long_as_it_changes(
    answers: ResponseStore, clock: Clock
) -> None:
    """Each change of a conversation keeps it."""
    conversation = await answers.create_conversation(ME, b"{}", [Item("a", b"")])
    clock.now += AGE_S - 1
    assert await answers.add_items(ME, conversation, [Item("b", b"")])
    clock.now += AGE_S - 1
    assert await answers.update_conversation(ME, conversation, b"")
    clock.now += AGE_S - 1
    assert await answers.delete_item(ME, conversation, "a")
    clock.now += AGE_S - 1
    assert await answers.conversation(ME, conversation) is not None
    clock.now += 1
    assert await answers.conversation(ME, conversation) is None


@pytest.mark.heavy(but=1)
async def test_expired_rows_are_deleted(answers: ResponseStore, clock: Clock) -> None:
    """A sweep deletes what has expired, also where it is more than one transaction's, and nothing else."""
    for number in range(250):
        await answers.save(stored(str(number)))
    clock.now += AGE_S / 2
    await answers.save(stored("young"))
    clock.now += AGE_S / 2
    await answers.sweep()
    clock.now -= AGE_S / 2  # what is not deleted would be there again

    assert ["young"] == await there(answers, [*map(str, range(250)), "young"])


async def test_the_sweep_in_the_background(database: Database, clock: Clock) -> None:
    """A store that is used deletes by itself what has expired, and what is too much."""
    old = ResponseStore(database, max_age_s=AGE_S, clock=clock)
    await old.save(stored("old"))
    await old.aclose()
    clock.now += AGE_S
    answers = ResponseStore(database, max_age_s=AGE_S, max_count=20, clock=clock)
    await answers.save(stored("new"))
    watch = ResponseStore(database, max_age_s=10 * AGE_S, clock=clock)
    while await watch.get(ME, "old") is not None:
        assert await watch.get(ME, "new") is not None
    for number in range(30):
        clock.now += 1
        await answers.save(stored(str(number)))
    while await watch.get(ME, "0") is not None:
        assert await watch.get(ME, "29") is not None
    await answers.aclose()
    await watch.aclose()


@pytest.mark.heavy
async def test_the_oldest_go_first(database: Database, clock: Clock) -> None:
    """Of too many responses and conversations those that were used least lately are deleted, and their ancestors live with the young."""
    answers = ResponseStore(database, max_age_s=AGE_S, max_count=200, clock=clock)
    names = list[str]()
    for number in range(150):
        clock.now += 1
        await answers.save(stored(f"r{number}", "r0" if number % 40 == 39 else None))
        await answers.create_conversation(ME, b"{}", id=f"c{number}")
        names += [f"r{number}", f"c{number}"]
    await answers.sweep()
    left = await there(answers, names)

    assert "r0" == left.pop(0)
    assert names[-len(left) :] == left
    assert 150 <= len(left) <= 200
    await answers.aclose()


@pytest.mark.heavy(but=1)
async def test_a_chain_that_nobody_continues(database: Database, clock: Clock) -> None:
    """Of too many responses a chain goes from its end to its beginning, although it was kept for longer, and none that came since goes before it."""
    answers = ResponseStore(database, max_age_s=AGE_S * 1000, max_count=40, clock=clock)
    for number in range(20):
        clock.now += 1
        await answers.save(stored(f"a{number}", f"a{number - 1}" if number else None))
    for number in range(100):
        clock.now += 1
        await answers.save(stored(f"b{number}"))
        await answers.save(stored(f"c{number}", f"c{number - 1}" if number % 10 else None))
        await answers.sweep()
        chain = await answers.chain(ME, f"c{number}", 100)
        assert chain is not None
        assert number % 10 + 1 == len(chain)
        assert [f"b{number}"] == await there(answers, [f"b{number}"])

    assert [] == await there(answers, [f"a{number}" for number in range(20)])
    await answers.aclose()


async def test_what_is_worked_on_goes_last(database: Database, clock: Clock) -> None:
    """Of too many responses those that a server still works on are deleted when there are no others."""
    answers = ResponseStore(database, max_age_s=AGE_S, max_count=10, clock=clock)
    running = [f"q{number}" for number in range(5)]
    for id in running:
        clock.now += 1
        await answers.save(replace(stored(id), status="in_progress"))
    for number in range(20):
        clock.now += 1
        await answers.save(stored(f"r{number}"))
    await answers.sweep()
    assert running == await there(answers, running)

    for number in range(5, 20):
        clock.now += 1
        await answers.save(replace(stored(f"q{number}"), status="queued"))
    await answers.sweep()
    left = await there(answers, [f"q{number}" for number in range(20)])
    assert [f"q{number}" for number in range(20 - len(left), 20)] == left
    assert 5 < len(left) <= 10
    await answers.aclose()


async def test_what_is_too_large(database: Database, clock: Clock) -> None:
    """Of too many bytes the oldest are deleted; conversations that grow count, and what is changed or deleted counts as it is now."""
    answers = ResponseStore(database, max_age_s=AGE_S, max_bytes=100_000, clock=clock)
    await answers.save(stored("old", size=30_000))
    clock.now += 1
    conversation = await answers.create_conversation(ME, b"{}")
    clock.now += 1
    await answers.save(stored("young", size=30_000))
    await answers.sweep()
    assert ["old", "young"] == await there(answers, ["old", "young"])
    clock.now += 1
    assert await answers.add_items(ME, conversation, [Item(str(n), b"x" * 15_000) for n in (1, 2)])
    assert await answers.delete_item(ME, conversation, "2")
    await answers.sweep()
    assert ["old", "young"] == await there(answers, ["old", "young"])
    assert await answers.update(ME, "young", status="completed", body=b"x" * 60_000, output=[])
    await answers.sweep()
    assert ["young", conversation] == await there(answers, ["old", "young", conversation])
    with pytest.raises(InvalidRequest, match="Send `store: false`") as error:
        await answers.save(stored("huge", size=100_001))
    assert "store" == error.value.param
    assert ["young", conversation] == await there(answers, ["young", conversation])
    await answers.aclose()


@pytest.mark.parametrize("bound", ["count", "bytes"])
async def test_who_has_most_loses_first(database: Database, clock: Clock, bound: str) -> None:
    """Of too many, and of too many bytes, the oldest of whoever has the most go, though another's are older: responses and conversations."""
    limits = {"max_count": 20} if bound == "count" else {"max_bytes": 100_000}
    size = 100 if bound == "count" else 9_000
    answers = ResponseStore(database, max_age_s=AGE_S, clock=clock, **limits)
    await answers.save(replace(stored("quiet", size=size), owner="quiet"))
    talk = await answers.create_conversation("quiet", b"{}", [Item("a", b"x" * size)])
    for number in range(40):
        clock.now += 1
        if number % 2:
            await answers.save(replace(stored(f"r{number}", size=size), owner="loud"))
        else:
            await answers.create_conversation("loud", b"x" * size, id=f"c{number}")
        if number % 10 == 9:
            await answers.sweep()
    await answers.sweep()

    assert await answers.get("quiet", "quiet") is not None
    assert 1 == len(await answers.whole("quiet", talk, 9) or [])
    assert await answers.get("loud", "r1") is None
    assert await answers.conversation("loud", "c0") is None
    assert await answers.get("loud", "r39") is not None
    await answers.aclose()


async def test_who_runs_most_loses_first(database: Database, clock: Clock) -> None:
    """What a server works on for whoever has the most goes before what another has finished."""
    answers = ResponseStore(database, max_age_s=AGE_S, max_count=10, clock=clock)
    for number in range(3):
        await answers.save(replace(stored(f"r{number}"), owner="quiet"))
    for number in range(20):
        clock.now += 1
        await answers.save(replace(stored(f"q{number}"), owner="loud", status="in_progress"))
    await answers.sweep()

    assert all([await answers.get("quiet", f"r{number}") is not None for number in range(3)])
    await answers.aclose()


async def test_equals_lose_alike(database: Database, clock: Clock) -> None:
    """Of owners who have as much each keeps a share."""
    answers = ResponseStore(database, max_age_s=AGE_S, max_count=40, clock=clock)
    for number in range(120):
        clock.now += 1
        await answers.save(replace(stored(f"r{number}"), owner=f"o{number % 4}"))
    await answers.sweep()
    left = [
        number
        for number in range(120)
        if await answers.get(f"o{number % 4}", f"r{number}") is not None
    ]

    shares = [sum(number % 4 == owner for number in left) for owner in range(4)]
    assert 36 <= len(left) <= 40
    assert max(shares) - min(shares) <= 2, shares
    await answers.aclose()


async def test_a_file_gives_its_space_back(tmp_path: Path, clock: Clock) -> None:
    """An SQLite file shrinks when what was in it is deleted, and does not hold deleted texts."""
    path = tmp_path / "x.db"
    database = Database(f"sqlite:///{path}")
    answers = ResponseStore(database, max_age_s=AGE_S, clock=clock)
    secret = b"a secret that nobody may keep"
    for number in range(50):
        response = stored(str(number))
        response.body = secret * 4000
        await answers.save(response)
    clock.now += AGE_S
    await answers.sweep()
    await answers.aclose()
    await database.aclose()

    assert path.stat().st_size < 300_000
    assert secret not in path.read_bytes()
    assert {"x.db", "x.db.lock"} == {file.name for file in tmp_path.iterdir()}
