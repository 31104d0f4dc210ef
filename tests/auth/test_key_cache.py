"""Tests of unilect.auth.key_cache."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from support.common.clock import Clock
from support.common.watched import WatchedBytes, WatchedText
from unilect.accounting.ledger import LedgerRecorder
from unilect.auth import key_cache
from unilect.auth.key_cache import KeyCache
from unilect.auth.keys import digest
from unilect.auth.secret import _checksum, id_of, new_secret
from unilect.core.errors import AuthenticationError, StoreUnavailable
from unilect.runtime.context import Context
from unilect.store.database import Database
from unilect.store.keys import KeyStore
from unilect.store.ledger import Ledger
from unilect.store.records import Key, KeyChanges

NOW = 1_800_000_000.0


class Counting(KeyStore):
    """Counts what is looked up, and can be away."""

    found = 0
    looked = 0
    at_once = 0
    most_at_once = 0
    away = False
    goes_on: asyncio.Event | None = None

    async def find(self, secret_id: str):
        """As given, counted."""
        self.found += 1
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            if self.goes_on is not None:
                await self.goes_on.wait()
            if self.away:
                raise StoreUnavailable("away")
            return await super().find(secret_id)
        finally:
            self.at_once -= 1

    async def changes_since(self, since: int) -> KeyChanges | None:
        """As given, counted."""
        self.looked += 1
        if self.away:
            raise StoreUnavailable("away")
        return await super().changes_since(since)


class Rig:
    """What is known of a file, and another process that changes it."""

    def __init__(self, url: str) -> None:
        self.clock = Clock()
        self.url = url
        self.database, self.other = Database(self.url), Database(self.url)
        self.stored = Counting(self.database, self.clock)
        self.theirs = KeyStore(self.other, self.clock)
        self.requests: dict[str, Context] = {}
        self.known = KeyCache(self.stored, self.clock, self.requests)

    async def create(self, name: str, **given: object) -> str:
        """A new key, made by the other process."""
        secret = new_secret()
        await self.theirs.create(name, id_of(secret) or "", digest(secret), **given)  # type: ignore[arg-type]
        return secret

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a look has been taken that shows something."""
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.005)

    async def looked(self) -> None:
        """Wait until changes of before now have been seen."""
        before = self.stored.looked
        await self.until(
            lambda: (
                self.stored.looked > before + 1
                or ((mark := self.stored.mark()) is not None and mark == self.known._mark)
            )
        )


@pytest.fixture
async def rig(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A new store, of each kind; looks come fast."""
    monkeypatch.setattr(key_cache, "LOOK_S", 0.01)
    made = Rig(url)
    await made.known.open()
    yield made
    await close(made)


async def close(rig: Rig) -> None:
    """End a rig."""
    await rig.known.aclose()
    await rig.database.aclose()
    await rig.other.aclose()


async def why(rig: Rig, secret: str) -> str:
    """Why a key is refused."""
    with pytest.raises(AuthenticationError) as raised:
        await rig.known.key(secret, digest(secret))
    assert raised.value.wrong
    assert secret not in raised.value.message
    told = raised.value.message.removeprefix("Incorrect API key provided: ")
    assert told.endswith(" Copy it again, or ask the operator for another one.")
    return told.removesuffix(" Copy it again, or ask the operator for another one.")


async def test_the_first_key(rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a file no key is required, and none is made; a server that has found none goes on so when keys are created, and says so once."""
    assert not rig.known.required
    assert [] == list(tmp_path.iterdir())  # also where the store is a server's

    await rig.create("ann")
    await rig.until(lambda: rig.known.has_keys)
    await rig.create("bob")
    await rig.looked()
    assert not rig.known.required
    (told,) = [line for line in caplog.messages if "goes on without asking for them" in line]
    assert "restart it, reload its file, or run `unilect keys create NAME --require`" in told


async def test_told_to_require(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A server that goes on without keys asks for them once it is told so in its store, also after all are revoked, and says so once."""
    await rig.create("ann")
    await rig.until(lambda: rig.known.has_keys)
    secret = await rig.create("bob", require=True)
    await rig.until(lambda: rig.known.required)
    assert "bob" == (await rig.known.key(secret, digest(secret))).name
    for name in ("ann", "bob"):
        await rig.theirs.revoke(name)
    await rig.create("eve", require=True)
    await rig.looked()
    assert rig.known.required
    assert "it has been revoked." == await why(rig, secret)
    assert 1 == len([line for line in caplog.messages if "needs an API key from now on" in line])


async def test_keys_at_the_start(url: str) -> None:
    """A server that finds keys at its start asks for them, also where all are revoked, and until it stops; one that starts once all are deleted does not, whatever others were told."""
    first = Rig(url)
    await first.create("ann", require=True)
    await first.theirs.revoke("ann")
    await first.known.open()
    assert first.known.required
    assert 0 == await first.known.count()

    await first.theirs.delete("ann")
    await first.known.refresh()
    assert first.known.required
    assert not first.known.has_keys
    second = KeyCache(first.theirs)
    await second.open()
    assert not second.required
    await second.aclose()
    await close(first)


async def test_a_reload(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """At a reload a server begins to ask for keys where its store has any."""
    rig.known.require_if_any("a reload")
    assert not rig.known.required
    await rig.create("ann")
    await rig.known.refresh()
    rig.known.require_if_any("a reload")
    assert rig.known.required
    assert "every request needs an API key from now on: a reload" in caplog.messages


async def test_keys_of_the_configuration(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Where the configuration has keys nothing changes with those of the store, and nothing is said of it."""
    rig.known.configured = True
    await rig.create("ann", require=True)
    await rig.until(lambda: rig.known.has_keys)
    assert [] == [line for line in caplog.messages if "API key" in line]


async def test_open_while_the_store_is_away(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that asks for no keys goes on so while its store cannot be read."""
    monkeypatch.setattr(key_cache, "STALE_S", -1.0)
    assert not rig.known.required
    with pytest.raises(StoreUnavailable):
        assert rig.known.has_keys


async def test_the_ledger_follows(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger is asked about requests while the store has keys, or nobody knows whether it has, and not else; without being asked it finds out."""
    ledger = LedgerRecorder(Ledger(rig.database), known=rig.known)
    assert not ledger.is_on
    monkeypatch.setattr(key_cache, "STALE_S", -1.0)
    await rig.until(lambda: ledger.is_on)
    monkeypatch.setattr(key_cache, "STALE_S", 60.0)
    await rig.until(lambda: not ledger.is_on)
    await rig.create("ann")
    await rig.until(lambda: ledger.is_on)
    await rig.theirs.delete("ann")
    await rig.until(lambda: not ledger.is_on)
    await ledger.aclose()


async def test_what_the_server_changes_itself(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a refresh a change holds: a revoked or deleted key is none, and what ran with it is ended."""
    monkeypatch.setattr(key_cache, "LOOK_S", 60.0)
    secrets = [await rig.create(name) for name in ("ann", "bob", "eve")]
    await rig.known.refresh()
    tasks = [await running(rig, secret) for secret in secrets]
    await rig.stored.revoke("ann")
    await rig.stored.delete("bob")
    await rig.known.refresh()
    assert "it has been revoked." == await why(rig, secrets[0])
    assert "this server does not know it." == await why(rig, secrets[1])
    assert "eve" == (await rig.known.key(secrets[2], digest(secrets[2]))).name
    told = [rig.requests[name].ended for name in ("ann", "bob", "eve")]
    assert [True, True, False] == ["it has been revoked." in str(one) for one in told]
    tasks[2].cancel()


async def test_looked_up_once(rig: Rig) -> None:
    """A key is looked up once, and again after it has changed; other keys' changes make nobody look up again."""
    ann, bob = await rig.create("ann"), await rig.create("bob")
    await rig.looked()
    for _ in range(3):
        assert ["ann", "bob"] == [
            (await rig.known.key(one, digest(one))).name for one in (ann, bob)
        ]
    assert 2 == rig.stored.found

    await rig.theirs.revoke("bob")
    await rig.looked()
    assert "ann" == (await rig.known.key(ann, digest(ann))).name
    assert 2 == rig.stored.found
    assert "it has been revoked." == await why(rig, bob)
    assert 3 == rig.stored.found


async def test_nothing_changed(rig: Rig) -> None:
    """While the file does not change the database is not asked; one of a server always is."""
    if rig.stored.mark() is None:
        before = rig.stored.looked
        await rig.until(lambda: rig.stored.looked > before + 2)
        return
    await rig.create("ann")
    await rig.looked()
    before = rig.stored.looked
    looks = 0

    class Marks:
        def __call__(self) -> object:
            nonlocal looks
            looks += 1
            return rig.known._mark

    rig.stored.mark = Marks()  # type: ignore[method-assign]
    await rig.until(lambda: looks > 5)
    assert before == rig.stored.looked


async def test_refused(rig: Rig) -> None:
    """Who has a wrong key is told whether it is mistyped, unknown, revoked or expired."""
    await rig.create("ann")
    await rig.looked()
    old = await rig.create("bob", lasts_s=60.0)
    assert "bob" == (await rig.known.key(old, digest(old))).name
    rig.clock.now += 60
    assert "it has expired at 2027-01-15 08:01 UTC." == await why(rig, old)

    mistyped = old[:-1] + ("A" if old[-1] != "A" else "B")
    found = rig.stored.found
    assert "it has a typing error, or a part is missing." == await why(rig, mistyped)
    assert "this server does not know it." == await why(rig, "sk-other")
    assert found == rig.stored.found
    assert "this server does not know it." == await why(rig, new_secret())


async def test_the_same_id(rig: Rig) -> None:
    """A key with the id of another one and a secret of its own is not that key."""
    secret = await rig.create("ann")
    await rig.looked()
    other = new_secret()
    forged = f"ul_{secret[3:11]}_{other[12:55]}"
    from unilect.auth.secret import _checksum

    assert "this server does not know it." == await why(rig, f"{forged}_{_checksum(forged)}")
    assert "ann" == (await rig.known.key(secret, digest(secret))).name


async def test_keys_that_are_sql(rig: Rig) -> None:
    """500 keys that are pieces of SQL, in the form of a key too, are unknown, and the keys are what they were."""
    ann = await rig.create("ann")
    await rig.looked()
    before = await rig.theirs.all()
    pieces = ["' OR '1'='1", "'; DROP TABLE keys; --", "\" OR 1=1 --", "' UNION SELECT * FROM keys --", "%' OR id LIKE '%", "\\", "\x00' OR 1=1", "';ATTACH 'x' AS y;--", "') OR ('1'='1", "1; UPDATE keys SET revoked_at=NULL"]  # fmt: skip
    heads = [f"{head}{'x' * number}" for head in ("", "sk-", "ul_", "ul_3GqS0bZx_", ann) for number in range(10)]  # fmt: skip
    for head in heads:
        for piece in pieces:
            await why(rig, head + piece)

    assert 500 == len(heads) * len(pieces)
    assert before == await rig.theirs.all()
    assert "ann" == (await rig.known.key(ann, digest(ann))).name


async def test_rotated(rig: Rig) -> None:
    """After a rotation both secrets are the key, the old one until its time has come."""
    old, new = await rig.create("ann"), new_secret()
    await rig.looked()
    first = await rig.known.key(old, digest(old))
    await rig.theirs.rotate("ann", id_of(new) or "", digest(new), overlap_s=60)
    await rig.looked()
    assert [first.id] * 2 == [(await rig.known.key(one, digest(one))).id for one in (old, new)]

    rig.clock.now += 60
    assert (await why(rig, old)).startswith("it has expired")
    assert first.id == (await rig.known.key(new, digest(new))).id


async def test_revoked_while_it_is_looked_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is revoked while it is looked up lets nobody in: what was read before is not gone by."""
    ann = await rig.create("ann")
    await rig.looked()
    find = rig.stored.find

    async def slow(secret_id: str):
        found = await find(secret_id)
        if rig.stored.found == 1:
            await rig.theirs.revoke("ann")
            await rig.looked()
        return found

    monkeypatch.setattr(rig.stored, "find", slow)
    assert "it has been revoked." == await why(rig, ann)
    assert 2 == rig.stored.found


async def test_an_unknown_key_that_is_made(rig: Rig) -> None:
    """A key that was not known is known once it is made."""
    await rig.create("ann")
    await rig.looked()
    secret = new_secret()
    assert "this server does not know it." == await why(rig, secret)
    await rig.theirs.create("bob", id_of(secret) or "", digest(secret))
    await rig.looked()
    assert "bob" == (await rig.known.key(secret, digest(secret))).name


async def test_a_store_that_is_away(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known is used on while the store is away, for a while; what is not known is an error of the store, and then everything is."""
    ann, bob = await rig.create("ann", require=True), await rig.create("bob")
    await rig.looked()
    await rig.known.key(ann, digest(ann))
    rig.stored.away = True
    rig.stored.mark = lambda: None  # type: ignore[method-assign]
    assert "ann" == (await rig.known.key(ann, digest(ann))).name
    with pytest.raises(StoreUnavailable):
        await rig.known.key(bob, digest(bob))

    monkeypatch.setattr(key_cache, "STALE_S", -1.0)
    with pytest.raises(StoreUnavailable):
        assert rig.known.required
    rig.stored.away = False
    monkeypatch.setattr(key_cache, "STALE_S", 60.0)
    assert "bob" == (await rig.known.key(bob, digest(bob))).name


async def test_a_flood_of_unknown_keys(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many keys come that nobody has, those that are known stay so, also while the store is away."""
    monkeypatch.setattr(key_cache, "_MOST", 8)
    monkeypatch.setattr(key_cache, "_MOST_UNKNOWN", 8, raising=False)
    ann = await rig.create("ann")
    await rig.looked()
    await rig.known.key(ann, digest(ann))
    unknown = [new_secret() for _ in range(20)]
    for one in unknown:
        assert "this server does not know it." == await why(rig, one)
    before = rig.stored.found
    assert "this server does not know it." == await why(rig, unknown[-1])
    rig.stored.away = True
    assert "ann" == (await rig.known.key(ann, digest(ann))).name
    assert before == rig.stored.found


async def test_many_at_once_that_are_not_known(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that are not known are looked up two at a time; others wait, not for ever, and those that are known for nobody."""
    ann, bob = await rig.create("ann"), await rig.create("bob")
    await rig.looked()
    assert "ann" == (await rig.known.key(ann, digest(ann))).name
    before, rig.stored.goes_on = rig.stored.found, asyncio.Event()
    made_up = [asyncio.create_task(why(rig, new_secret())) for _ in range(5)]
    bobs = [asyncio.create_task(rig.known.key(bob, digest(bob))) for _ in range(2)]
    await rig.until(lambda: rig.stored.found == before + 2)
    assert "ann" == (await rig.known.key(ann, digest(ann))).name
    with monkeypatch.context() as patch:
        patch.setattr(key_cache, "_WAIT_S", 0.01)
        with pytest.raises(StoreUnavailable) as raised:
            await rig.known.key(one := new_secret(), digest(one))
    assert "too many" in raised.value.for_operator
    assert rig.stored.found == before + 2
    rig.stored.goes_on.set()
    assert {"this server does not know it."} == set(await asyncio.gather(*made_up))
    assert ["bob", "bob"] == [key.name for key in await asyncio.gather(*bobs)]
    assert rig.stored.most_at_once == 2


async def test_a_backup_without_a_key(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs with a key that is gone, since a backup from before it stands in the place of the store, ends as if it were revoked; the look goes on."""
    secret = await rig.create("ann")
    await rig.looked()
    key = await rig.known.key(secret, digest(secret))
    context = Context(caller=key.id, task=asyncio.create_task(asyncio.sleep(60)))
    rig.requests["r"] = context
    find = rig.stored.get

    async def gone(id: str) -> Key:
        return await find("key_of_later")

    monkeypatch.setattr(rig.stored, "get", gone)
    await rig.theirs.rotate("ann", "abcdefgh", b"x" * 32, 60)
    await rig.until(lambda: context.ended is not None)
    assert "revoked" in str(context.ended)
    del rig.requests["r"]
    bob = await rig.create("bob")
    await rig.looked()
    assert "bob" == (await rig.known.key(bob, digest(bob))).name


async def test_a_backup_in_its_place(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an older database comes into the place of this one, every key is looked up again, and one is still required."""
    secret = await rig.create("ann", require=True)
    await rig.looked()
    await rig.known.key(secret, digest(secret))

    async def older(since: int) -> KeyChanges:
        return KeyChanges(0, [], deleted=False, required=0, has_keys=False)

    monkeypatch.setattr(rig.stored, "changes_since", older)
    monkeypatch.setattr(rig.stored, "mark", lambda: None)
    await rig.until(lambda: rig.known._number == 0)
    assert rig.known.required
    before = rig.stored.found
    await rig.known.key(secret, digest(secret))
    assert before + 1 == rig.stored.found


async def test_never_read(url: str) -> None:
    """A server that could not read its keys lets nobody in, and does not wait."""
    rig = Rig(url)
    rig.stored.away = True
    rig.stored.mark = lambda: None  # type: ignore[method-assign]
    await rig.known.open()
    with pytest.raises(StoreUnavailable):
        assert rig.known.required
    await rig.known.aclose()
    await rig.database.aclose()
    await rig.other.aclose()


async def running(rig: Rig, secret: str) -> asyncio.Task[None]:
    """A request with a key, which is being answered until somebody ends it."""
    key = await rig.known.key(secret, digest(secret))
    task = asyncio.create_task(asyncio.Event().wait())
    rig.requests[key.name] = Context(caller=key.id, task=task)
    return task


async def test_revoked_while_it_runs(rig: Rig) -> None:
    """A running request ends when its key is revoked, with the reason; others go on, also those of a key that was rotated."""
    secrets = [await rig.create(name, lasts_s=1000.0) for name in ("ann", "bob")]
    await rig.looked()
    ann, bob = [await running(rig, secret) for secret in secrets]
    new = new_secret()
    await rig.theirs.rotate("bob", id_of(new) or "", digest(new), 0)
    await rig.theirs.revoke("ann")
    await rig.until(ann.done)
    assert ann.cancelled()
    assert "it has been revoked." in str(rig.requests["ann"].ended)
    await rig.until(lambda: not rig.known._stale)
    assert not bob.done()

    rig.clock.now += 1000
    await rig.until(bob.done)
    assert "it has expired at" in str(rig.requests["bob"].ended)


async def test_other_limits(rig: Rig) -> None:
    """A key has other limits for the next request and for running ones, and who counts is told which keys have changed, but not at first."""
    told: list[str] = []
    rig.known.on_change = told.extend
    secrets = [await rig.create(name, limits={"parallel": 5.0}) for name in ("ann", "bob")]
    await rig.until(lambda: len(told) == 2)
    ann, bob = [await rig.known.key(secret, digest(secret)) for secret in secrets]
    task = await running(rig, secrets[0])
    await rig.theirs.limit("ann", {"tokens_per_day": 7.0, "parallel": None})
    await rig.until(lambda: rig.requests["ann"].limits == {"tokens_per_day": 7.0})
    assert {"tokens_per_day": 7.0} == (await rig.known.key(secrets[0], digest(secrets[0]))).limits
    assert {"parallel": 5.0} == (await rig.known.key(secrets[1], digest(secrets[1]))).limits
    assert sorted([ann.id, ann.id, bob.id]) == sorted(told)
    task.cancel()

    late: list[str] = []
    other = KeyCache(rig.theirs)
    other.on_change = late.extend
    await other.open()
    assert [] == late
    await other.aclose()


async def test_revoked_while_the_store_is_away(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a changed key cannot be read, that is tried again, and the request goes on until it is known."""
    secret = await rig.create("ann")
    await rig.looked()
    task = await running(rig, secret)
    asked = 0

    async def away(id: str) -> None:
        nonlocal asked
        asked += 1
        raise StoreUnavailable("away")

    monkeypatch.setattr(rig.stored, "get", away)
    await rig.theirs.revoke("ann")
    await rig.until(lambda: asked > 2)
    assert not task.done()
    monkeypatch.undo()
    await rig.until(task.done)


async def test_a_wrong_secret_is_compared_in_constant_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text with the ID of a key and another secret is compared in constant time alone, and what is no key with nothing."""
    right = await rig.create("laptop")
    await rig.known.open()
    compared = []
    monkeypatch.setattr(key_cache.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == bytes(b))  # fmt: skip
    for sent in (_with_id_of(right), new_secret(), f"{right}x", "sk-other"):
        secret, hashed = WatchedText(sent), WatchedBytes(digest(sent))
        with pytest.raises(AuthenticationError):
            await rig.known.key(secret, hashed)

        assert {look[0] for look in secret.looks} <= {"startswith"}
        assert {look[0] for look in hashed.looks} <= {"__hash__"}, "compared otherwise"
    assert [digest(right)] == [known for known, _ in compared]


def _with_id_of(secret: str) -> str:
    """A well-formed key that has the ID of another, and a secret of its own."""
    id = id_of(secret)
    text = f"{new_secret()}".replace("ul_", "", 1)
    text = f"ul_{id}_{text.split('_')[1]}"
    return f"{text}_{_checksum(text)}"
