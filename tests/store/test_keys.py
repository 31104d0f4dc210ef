"""Tests of unilect.store.keys, on SQLite, in memory and on PostgreSQL."""

import asyncio
from pathlib import Path

import pytest

from support.common.clock import Clock
from unilect.core.errors import ConfigError
from unilect.store.database import ABSENT, Database
from unilect.store.keys import KeyStore
from unilect.store.ledger import Ledger
from unilect.store.records import Key, KeyChanges

NOW = 1_800_000_000.0
DAY_S = 86_400.0


@pytest.fixture
def keys(database: Database, clock: Clock) -> KeyStore:
    """The keys of a new database."""
    return KeyStore(database, clock)


async def changes(keys: KeyStore, since: int) -> KeyChanges:
    """What has changed since a number, where something has."""
    found = await keys.changes_since(since)
    assert found is not None
    return found


async def test_create(keys: KeyStore) -> None:
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


async def test_a_name_once(keys: KeyStore, clock: Clock) -> None:
    """A name belongs to one key that can be used; the name of a revoked or expired one can be given again."""
    await keys.create("ann", "AAAA", b"1", lasts_s=DAY_S)
    with pytest.raises(ConfigError, match="a key named ann exists"):
        await keys.create("ann", "BBBB", b"2")
    assert await keys.find("BBBB") is None

    clock.now += DAY_S
    await keys.create("ann", "BBBB", b"2")
    await keys.revoke("ann")
    third = await keys.create("ann", "CCCC", b"3")
    assert [False, False, True] == [one.is_usable(clock.now) for one in await keys.all()]
    assert third == (await keys.all())[-1]


async def test_revoke(keys: KeyStore, clock: Clock) -> None:
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


async def test_a_name_that_is_an_id(keys: KeyStore, clock: Clock) -> None:
    """An id means its key, also where another one is called so, and also once it has been revoked."""
    ann = await keys.create("ann", "AAAA", b"1")
    bob = await keys.create("key_AAAA", "BBBB", b"2")
    assert [ann, bob] == [await keys.get_by_name(one) for one in ("key_AAAA", "key_BBBB")]
    assert {"parallel": 2.0} == (await keys.limit("ann", {"parallel": 2.0})).limits
    assert ann.id == (await keys.rotate("key_AAAA", "CCCC", b"3", overlap_s=0)).id
    assert ann.id == (await keys.revoke("key_AAAA")).id
    with pytest.raises(ConfigError, match="key_AAAA: this key has been revoked already"):
        await keys.revoke("key_AAAA")
    assert (await keys.get("key_BBBB")).is_usable(clock.now)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("key_3GqS0bZx", "has the form of a key's id"),
        ("key-0f8d12ab0f8d12ab", "has the form of a key's id"),
        ("anonymous", "stands for requests without a key"),
        ("Anonymous", "stands for requests without a key"),
        ("ＡＮＯＮＹＭＯＵＳ", "stands for requests without a key"),
    ],
)
async def test_names_that_mean_something_else(keys: KeyStore, name: str, why: str) -> None:
    """No new key is called like an id of a key, nor as requests without a key are, in any case and width."""
    with pytest.raises(ConfigError, match=f"{name} {why}") as raised:
        await keys.create(name, "AAAA", b"1")
    assert ("name",) == raised.value.path
    for other in (f"{name}x", f"x{name}", "key_3GqS0bZ", "key-3GqS0bZx"):
        await keys.create(other, f"A{other}", b"1")
    assert f"{name}x" in [key.name for key in await keys.all()]


async def test_rotate(keys: KeyStore, clock: Clock) -> None:
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


async def test_limit(keys: KeyStore) -> None:
    """Limits of a key are set, replaced and taken away; the others stay, and servers see that the key has changed."""
    await keys.create("ann", "AAAA", b"1", limits={"parallel": 2.0, "tokens_per_day": 1000.0})
    await keys.create("bob", "BBBB", b"2")
    number = (await changes(keys, 0)).number
    made = await keys.limit("ann", {"tokens_per_day": 5.0, "money_per_day": 1.5, "parallel": None})
    assert {"tokens_per_day": 5.0, "money_per_day": 1.5} == made.limits
    assert ["key_AAAA"] == (await changes(keys, number)).ids
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
    every = [KeyStore(one) for one in databases]
    await every[0].create("ann", "AAAA", b"1")
    names = ("parallel", "tokens_per_day", "money_per_day")
    for number in range(5):
        changes = [one.limit("ann", {n: number + 1.0}) for one, n in zip(every, names, strict=True)]
        await asyncio.gather(*changes)
        assert dict.fromkeys(names, number + 1.0) == (await every[0].get("key_AAAA")).limits
    for one in databases:
        await one.aclose()


async def test_changes(keys: KeyStore) -> None:
    """A server sees which keys have changed since it looked, and nothing where none has."""
    assert await keys.changes_since(0) is None
    await keys.create("ann", "AAAA", b"1")
    await keys.create("bob", "BBBB", b"2")
    first = await changes(keys, 0)
    assert ["key_AAAA", "key_BBBB"] == sorted(first.ids)
    assert (False, 0, True) == (first.deleted, first.required, first.has_keys)
    assert await keys.changes_since(first.number) is None

    await keys.rotate("ann", "CCCC", b"3", overlap_s=0)
    later = await changes(keys, first.number)
    assert later.number > first.number
    assert ["key_AAAA"] == later.ids
    await keys.revoke("bob")
    assert ["key_BBBB"] == (await changes(keys, later.number)).ids


async def test_delete(keys: KeyStore) -> None:
    """A key is deleted with its secrets, also one that has ended, and servers see that one is gone; the last one leaves none."""
    await keys.create("ann", "AAAA", b"1")
    await keys.create("bob", "BBBB", b"2")
    await keys.revoke("ann")
    before = (await changes(keys, 0)).number
    ann, left = await keys.delete("ann")
    assert ("key_AAAA", 1) == (ann.id, left)
    assert [None, None] == [await keys.find("AAAA"), await keys.get_by_name("key_AAAA")]
    seen = await changes(keys, before)
    assert ([], True, True) == (seen.ids, seen.deleted, seen.has_keys)
    with pytest.raises(ConfigError, match="ann: there is no key of this name"):
        await keys.delete("ann")

    assert 0 == (await keys.delete("key_BBBB"))[1]
    assert not (await changes(keys, seen.number)).has_keys
    assert [] == await keys.all()
    await keys.create("ann", "CCCC", b"3")
    assert not (await changes(keys, seen.number + 1)).deleted


async def test_delete_one_of_several(keys: KeyStore) -> None:
    """Of several keys of a name none is deleted by it: their ids are told."""
    for id in ("AAAA", "BBBB"):
        await keys.create("ann", id, b"1")
        await keys.revoke("ann")
    why = r"ann: 2 keys have this name: key_AAAA \(revoked\), key_BBBB \(revoked\)\. Name one by its id"
    with pytest.raises(ConfigError, match=why):
        await keys.delete("ann")
    await keys.delete("key_AAAA")
    assert ["key_BBBB"] == [key.id for key in await keys.all()]


async def test_required(keys: KeyStore) -> None:
    """The key that is created to be required tells servers so, each time with a later number; others do not."""
    await keys.create("ann", "AAAA", b"1")
    await keys.create("bob", "BBBB", b"2", require=True)
    first = await changes(keys, 0)
    assert first.number == first.required
    await keys.create("eve", "CCCC", b"3")
    later = await changes(keys, first.number)
    assert first.required == later.required
    await keys.create("joe", "DDDD", b"4", require=True)
    last = await changes(keys, later.number)
    assert last.number == last.required > first.required


async def test_two_create_one_name(url: str) -> None:
    """Of two processes that create a key of one name at once one is refused."""
    first, second = Database(url), Database(url)
    every = [KeyStore(first), KeyStore(second)]
    for round in range(5):
        name = f"ann{round}"
        creating = [keys.create(name, f"{round}{n}", b"1") for n, keys in enumerate(every * 2)]
        done = await asyncio.gather(*creating, return_exceptions=True)
        assert 1 == len([one for one in done if isinstance(one, Key)])
        refused = [one for one in done if isinstance(one, ConfigError)]
        assert 3 == len(refused)
        assert all("exists" in str(one) for one in refused)
    await first.aclose()
    await second.aclose()


@pytest.mark.parametrize(
    "word",
    [
        "", "a b", "a\u00a0b", "a\u202eb", "a\U000e0041b", "a\u200bb", "a\x1b[31m", "a\ufe0fb", "a\u3164b", "a\u2028b", "a\ud800b",
        "x" * 101,
    ],
)  # fmt: skip
@pytest.mark.parametrize("what", ["name", "owner"])
async def test_words_that_do_not_show(keys: KeyStore, word: str, what: str) -> None:
    """Neither a name nor an owner has blanks, or characters that show nothing, turn the others around or mean something to a terminal."""
    if what == "owner" and not word:
        return
    given = {"name": "ann", "owner": "lab"} | {what: word}
    with pytest.raises(ConfigError, match="expected 1 to 100 visible characters") as raised:
        await keys.create(given["name"], "AAAA", b"1", owner=given["owner"])
    assert (what,) == raised.value.path
    assert str(raised.value).isprintable()


async def test_words_of_any_language(keys: KeyStore) -> None:
    """Names and owners have letters of any language, and signs."""
    for number, word in enumerate(("Zoë", "анна", "小明", "team/a@b.example", "नमस्ते", "🦊")):
        made = await keys.create(word, f"A{number}", b"1", owner=word)
        assert (word, word) == (made.name, made.owner)


async def test_a_change_while_a_server_looks(keys: KeyStore, database: Database) -> None:
    """What another process commits between the two questions of a look is told by the next one, and once."""
    await keys.create("ann", "AAAA", b"1")
    number = (await changes(keys, 0)).number
    await keys.create("bob", "BBBB", b"2")
    await database.write(lambda of: of.run("UPDATE key_changes SET number = ?", number))
    assert (number, ["key_AAAA"]) == (await changes(keys, 0))[:2]  # as before bob was there

    await database.write(lambda of: of.run("UPDATE key_changes SET number = ?", number + 1))
    assert (number + 1, ["key_BBBB"]) == (await changes(keys, number))[:2]


async def test_two_processes(url: str) -> None:
    """What one process changes another one sees; of a file it sees without opening it that something has changed."""
    first, second = Database(url), Database(url)
    ours, theirs = KeyStore(first), KeyStore(second)
    await ours.create("ann", "AAAA", b"1")
    number = (await changes(theirs, 0)).number
    mark = theirs.mark()
    assert mark == theirs.mark()
    await ours.revoke("ann")

    assert ["key_AAAA"] == (await changes(theirs, number)).ids
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
    monkeypatch.setattr("unilect.store.file.os.stat", refuse)
    assert (None, ABSENT) == (named.mark(), default.mark())


@pytest.mark.parametrize("place", ["unilect.db", "new/unilect.db"])
async def test_no_file(tmp_path: Path, place: str) -> None:
    """A look at a file that is not there makes none, nor does reading; once there is one, that is read."""
    database = Database(f"sqlite:///{tmp_path}/{place}", is_default="/" in place)
    stored = KeyStore(database)

    assert ABSENT == stored.mark() == Database("sqlite://").mark()
    assert [] == await stored.all() == await Ledger(database).sums()
    assert await stored.find("AAAA") is await stored.get_by_name("ann") is None
    assert [] == list(tmp_path.iterdir())
    await stored.create("ann", "AAAA", b"x" * 32)
    assert ["ann"] == [key.name for key in await stored.all()]
    await database.aclose()
