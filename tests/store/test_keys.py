"""Tests of unilect.store.keys, on SQLite, in memory and on PostgreSQL."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import update

from clock import Clock
from unilect.errors import ConfigError
from unilect.store._tables import key_changes
from unilect.store.database import ABSENT, Database
from unilect.store.keys import Key, StoredKeys, is_usable

NOW = 1_800_000_000.0
DAY_S = 86_400.0


@pytest.fixture
def keys(database: Database, clock: Clock) -> StoredKeys:
    """The keys of a new database."""
    return StoredKeys(database, clock)


async def test_create(keys: StoredKeys) -> None:
    """A key is there with all that was said of it, and is found by the public part of its secret, with the digest."""
    assert [] == await keys.all()
    limits = {"tokens_per_day": 1000.0}
    made = await keys.create(
        "ann", "AAAA", b"digest", owner="lab", models=["a", "b"], limits=limits, lasts_s=DAY_S
    )

    assert [made] == await keys.all()
    expected = Key(
        id="key_AAAA",
        name="ann",
        owner="lab",
        models=("a", "b"),
        limits=limits,
        created_at=NOW,
        expires_at=NOW + DAY_S,
    )
    assert expected == made
    found = await keys.find("AAAA")
    assert found is not None
    assert (made, b"digest", None) == (found.key, found.digest, found.expires_at)
    assert await keys.find("BBBB") is None


async def test_a_name_once(keys: StoredKeys, clock: Clock) -> None:
    """A name belongs to one key that can be used; the name of a revoked or expired one can be given again."""
    await keys.create("ann", "AAAA", b"1", lasts_s=DAY_S)
    with pytest.raises(ConfigError, match="ann: a key of this name exists"):
        await keys.create("ann", "BBBB", b"2")
    assert await keys.find("BBBB") is None

    clock.now += DAY_S
    await keys.create("ann", "BBBB", b"2")
    await keys.revoke("ann")
    third = await keys.create("ann", "CCCC", b"3")
    assert [False, False, True] == [is_usable(one, clock.now) for one in await keys.all()]
    assert third == (await keys.all())[-1]


async def test_revoke(keys: StoredKeys, clock: Clock) -> None:
    """A key is revoked by its name or its id, once; its secret is found, and tells it."""
    await keys.create("ann", "AAAA", b"1")
    await keys.create("bob", "BBBB", b"2")
    clock.now += 5
    assert clock.now == (await keys.revoke("ann")).revoked_at
    assert clock.now == (await keys.revoke("key_BBBB")).revoked_at

    found = await keys.find("AAAA")
    assert found is not None
    assert found.key.revoked_at == clock.now
    with pytest.raises(ConfigError, match="ann: this key has been revoked already"):
        await keys.revoke("ann")
    with pytest.raises(ConfigError, match="eve: there is no key of this name"):
        await keys.revoke("eve")


async def test_a_name_that_is_an_id(keys: StoredKeys, clock: Clock) -> None:
    """An id means its key, also where another one is called so, and also once it has been revoked."""
    ann = await keys.create("ann", "AAAA", b"1")
    bob = await keys.create("key_AAAA", "BBBB", b"2")
    assert [ann, bob] == [await keys.named(one) for one in ("key_AAAA", "key_BBBB")]
    assert {"parallel": 2.0} == (await keys.limit("ann", {"parallel": 2.0})).limits
    assert ann.id == (await keys.rotate("key_AAAA", "CCCC", b"3", overlap_s=0)).id
    assert ann.id == (await keys.revoke("key_AAAA")).id
    with pytest.raises(ConfigError, match="key_AAAA: this key has been revoked already"):
        await keys.revoke("key_AAAA")
    assert is_usable(await keys.get("key_BBBB"), clock.now)


@pytest.mark.parametrize("name", ["key_3GqS0bZx", "key-0f8d12ab", "anonymous"])
async def test_names_that_mean_something_else(keys: StoredKeys, name: str) -> None:
    """No new key is called like an id of a key, nor as requests without a key are."""
    with pytest.raises(ConfigError, match=rf"{name}: a NAME may not have the form of a key's id"):
        await keys.create(name, "AAAA", b"1")
    for other in (f"{name}x", f"x{name}", "key_3GqS0bZ", "key-3GqS0bZx"):
        await keys.create(other, f"A{other}", b"1")
    assert f"{name}x" in [key.name for key in await keys.all()]


async def test_rotate(keys: StoredKeys, clock: Clock) -> None:
    """A rotated key has two secrets for a while; its id stays, and one that ends sooner is not kept longer."""
    made = await keys.create("ann", "AAAA", b"1")
    assert made == await keys.rotate("ann", "BBBB", b"2", overlap_s=100)
    old, new = await keys.find("AAAA"), await keys.find("BBBB")
    assert old is not None
    assert new is not None
    assert (made, NOW + 100) == (old.key, old.expires_at)
    assert (made, None) == (new.key, new.expires_at)

    clock.now += 10
    await keys.rotate("key_AAAA", "CCCC", b"3", overlap_s=3600)
    ends = [found.expires_at for id in ("AAAA", "BBBB", "CCCC") if (found := await keys.find(id))]
    assert [NOW + 100, NOW + 10 + 3600, None] == ends


async def test_limit(keys: StoredKeys) -> None:
    """Limits of a key are set, replaced and taken away; the others stay, and servers see that the key has changed."""
    await keys.create("ann", "AAAA", b"1", limits={"parallel": 2.0, "tokens_per_day": 1000.0})
    await keys.create("bob", "BBBB", b"2")
    number, _ = await keys.changed(0)
    made = await keys.limit("ann", {"tokens_per_day": 5.0, "money_per_day": 1.5, "parallel": None})
    assert {"tokens_per_day": 5.0, "money_per_day": 1.5} == made.limits
    assert ["key_AAAA"] == (await keys.changed(number))[1]
    assert made == await keys.limit("key_AAAA", {"requests_per_minute": None})
    found = await keys.find("AAAA")
    assert found is not None
    assert made == found.key

    await keys.revoke("ann")
    for name, why in (("ann", "been revoked already"), ("eve", "there is no key of this name")):
        with pytest.raises(ConfigError, match=why):
            await keys.limit(name, {"parallel": 1.0})


async def test_two_change_limits(url: str) -> None:
    """Of the limits that several processes change at once none is lost."""
    databases = [Database(url) for _ in range(3)]
    every = [StoredKeys(one) for one in databases]
    await every[0].create("ann", "AAAA", b"1")
    names = ("parallel", "tokens_per_day", "money_per_day")
    for number in range(5):
        changes = [one.limit("ann", {n: number + 1.0}) for one, n in zip(every, names, strict=True)]
        await asyncio.gather(*changes)
        assert dict.fromkeys(names, number + 1.0) == (await every[0].get("key_AAAA")).limits
    for one in databases:
        await one.aclose()


async def test_changes(keys: StoredKeys) -> None:
    """A server sees which keys have changed since it looked, and nothing where none has."""
    assert (0, []) == await keys.changed(0)
    await keys.create("ann", "AAAA", b"1")
    await keys.create("bob", "BBBB", b"2")
    number, ids = await keys.changed(0)
    assert ["key_AAAA", "key_BBBB"] == sorted(ids)
    assert (number, []) == await keys.changed(number)

    await keys.rotate("ann", "CCCC", b"3", overlap_s=0)
    later, ids = await keys.changed(number)
    assert later > number
    assert ["key_AAAA"] == ids
    await keys.revoke("bob")
    assert ["key_BBBB"] == (await keys.changed(later))[1]


async def test_a_change_while_a_server_looks(keys: StoredKeys, database: Database) -> None:
    """What another process commits between the two questions of a look is told by the next one, and once."""
    await keys.create("ann", "AAAA", b"1")
    number, _ = await keys.changed(0)
    await keys.create("bob", "BBBB", b"2")
    await database.write(lambda of: of.execute(update(key_changes).values(number=number)))
    assert (number, ["key_AAAA"]) == await keys.changed(0)  # as before bob was there

    await database.write(lambda of: of.execute(update(key_changes).values(number=number + 1)))
    assert (number + 1, ["key_BBBB"]) == await keys.changed(number)


async def test_two_processes(url: str) -> None:
    """What one process changes another one sees; of a file it sees without opening it that something has changed."""
    first, second = Database(url), Database(url)
    ours, theirs = StoredKeys(first), StoredKeys(second)
    await ours.create("ann", "AAAA", b"1")
    number, _ = await theirs.changed(0)
    mark = theirs.mark()
    assert mark == theirs.mark()
    await ours.revoke("ann")

    assert ["key_AAAA"] == (await theirs.changed(number))[1]
    assert (mark is None) == url.startswith("postgresql")
    assert mark is None or mark != theirs.mark()
    await first.aclose()
    await second.aclose()


async def test_a_folder_that_may_not_be_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that may be there has to be asked; in the place of a default one there is memory."""

    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    url = f"sqlite:///{tmp_path}/unilect.db"
    named, default = Database(url), Database(url, is_default=True)
    monkeypatch.setattr("unilect.store._file.os.stat", refuse)
    assert (None, ABSENT) == (named.mark(), default.mark())


async def test_no_file(tmp_path: Path) -> None:
    """A look at a file that is not there makes none."""
    database = Database(f"sqlite:///{tmp_path}/unilect.db")

    assert ABSENT == StoredKeys(database).mark() == Database("sqlite://").mark()
    assert [] == list(tmp_path.iterdir())
    await database.aclose()
