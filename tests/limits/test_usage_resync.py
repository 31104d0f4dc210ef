"""Tests of unilect.limits.usage_resync: limits of a key that change while servers run, on real databases, in memory and on Redis."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from support.servers.metered import WHOLE, Metered, create_key, metered
from support.servers.postgresql import POSTGRESQL
from unilect.auth import key_cache
from unilect.config.limits import Limits
from unilect.core.errors import LimitsUnavailable
from unilect.limits import usage_resync
from unilect.limits.usage_resync import EVERY, UsageResync
from unilect.runtime.context import Context
from unilect.store.database import Database
from unilect.store.keys import KeyStore


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come fast."""
    monkeypatch.setattr(key_cache, "LOOK_S", 0.02)
    monkeypatch.setattr(usage_resync, "LOOK_S", 0.02)


class Gateway(Metered):
    """A server of `metered`."""

    async def ask(self, secret: str, **body: Any) -> tuple[int, str]:
        """The status of an answer, and what is told where it is refused."""
        async with self.chat(secret, **body) as answer:
            told = await answer.json()
            return answer.status, told.get("error", {}).get("message", "")

    async def sees(self, keys: "Keys") -> None:
        """Wait until the server has seen what has changed of the keys."""
        changes = await keys.stored.changes_since(0)
        known = self.listener._known
        assert known is not None
        assert changes is not None
        async with asyncio.timeout(1):
            while known._number < changes.number:
                await asyncio.sleep(0.01)

    async def settled(self) -> None:
        """Wait until no key is looked at any more that has changed."""
        follower = self.listener._limits._resync._follower
        if follower is not None:
            async with asyncio.timeout(20):
                await asyncio.shield(follower)

    def reload(self, of: str, **limits: Any) -> None:
        """Go by a configuration with limits of every key, or of the model."""
        config = self.listener._config
        if of == "key":
            changed = structs.replace(config, limits=structs.replace(config.limits, **limits))
        else:
            model = structs.replace(config.models["m"], limits=Limits(**limits))
            changed = structs.replace(config, models={"m": model})
            self.listener._registry.models["m"].limits = model.limits
        self.listener.change(changed, None)

    async def until_told(self, secret: str, words: str) -> None:
        """Wait until a request for more than a budget has is refused with these words."""
        until, told = time.monotonic() + 10, ""
        while words not in told:
            assert time.monotonic() < until, told
            status, told = await self.ask(secret, max_tokens=3000)
            assert status == 429


@asynccontextmanager
async def gateway(url: str, redis: str | None) -> AsyncIterator[Gateway]:
    """A server of a store, whose model is slow in a stream."""
    async with metered(url, redis, tokens_per_s=160.0) as found:
        yield Gateway(found.server)


class Keys:
    """The keys of a store, as another process has them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._database = Database(url)
        self.stored = KeyStore(self._database)

    async def create(self, name: str, **limits: float) -> str:
        """A new key."""
        return await create_key(self.stored, name, **limits)

    async def limit(self, sees: Gateway, **limits: float | None) -> None:
        """Change limits of ann; a server has seen it when this returns."""
        await self.stored.limit("ann", limits)
        await sees.sees(self)

    async def aclose(self) -> None:
        """End."""
        await self._database.aclose()


@pytest.fixture
async def keys(url: str) -> AsyncIterator[Keys]:
    """The keys of a new store, of each kind."""
    made = Keys(url)
    yield made
    await made.aclose()


@pytest.fixture
def redis(keys: Keys, request: pytest.FixtureRequest) -> str | None:
    """The URL of an empty Redis server for what counts with a store on a server; beside a file is counted in memory."""
    if keys.url.startswith("sqlite"):
        return None
    server = request.getfixturevalue("server_of_redis")
    server.flush()
    url: str = server.url
    return url


async def test_a_limit_that_is_new(keys: Keys, redis: str | None) -> None:
    """A new budget has what the key used before without one, and what a stream uses that was begun without it; other keys have their own."""
    async with gateway(keys.url, redis) as one:
        secret, other = [await keys.create(name) for name in ("ann", "bob")]
        await one.sees(keys)
        assert 200 == (await one.ask(secret))[0]
        assert 200 == (await one.ask(other))[0]
        async with one.chat(secret, stream=True) as stream:
            await stream.content.readline()
            await keys.limit(one, tokens_per_day=1000.0)
            await one.until_told(secret, f"is 1000: {WHOLE} are used")
            assert 200 == (await one.ask(secret, max_tokens=1))[0]
            await stream.read()
        used = 2 * WHOLE + 21
        await one.until_told(secret, f"is 1000: {used} are used")
        assert 200 == (await one.ask(other, max_tokens=3000))[0]

        await keys.limit(one, tokens_per_day=300.0)
        assert 429 == (await one.ask(secret))[0]
        await one.until_told(secret, f"is 300: {used} are used")
        await keys.limit(one, tokens_per_day=None)
        assert 200 == (await one.ask(secret))[0]
        used += WHOLE
        await keys.limit(one, tokens_per_month=used, parallel=1.0)
        assert 429 == (await one.ask(secret, max_tokens=1))[0]
        await one.until_told(secret, f"tokens_per_month of this API key is {used}: {used} are used")


@pytest.mark.parametrize("kind", ["sqlite", POSTGRESQL])
async def test_two_gateways(
    kind: str, new_url: Callable[[str], str], request: pytest.FixtureRequest
) -> None:
    """What a stream uses on one gateway that was begun before its key had a budget counts on the other one."""
    server = request.getfixturevalue("server_of_redis")
    server.flush()
    keys = Keys(new_url(kind))
    async with gateway(keys.url, server.url) as one, gateway(keys.url, server.url) as two:
        secret = await keys.create("ann")
        await one.sees(keys)
        await two.sees(keys)
        async with two.chat(secret, stream=True) as stream:
            await stream.content.readline()
            await keys.limit(one, tokens_per_day=1000.0)
            await one.until_told(secret, "is 1000: 0 are used")
            await two.sees(keys)
            await stream.read()
        await one.until_told(secret, f"is 1000: {WHOLE} are used")
    await keys.aclose()


@pytest.mark.heavy
async def test_a_limit_that_is_new_long_before_it_is_used(
    keys: Keys, redis: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new budget has what the key used before also where its next request comes long after the change."""
    monkeypatch.setattr(usage_resync, "SETTLED_S", 0.1)
    async with gateway(keys.url, redis) as one:
        secret = await keys.create("ann")
        other = await keys.create("bob", tokens_per_day=1000.0)
        await one.sees(keys)
        assert 200 == (await one.ask(other))[0]
        assert 200 == (await one.ask(secret))[0]
        await keys.limit(one, tokens_per_day=150.0)
        await one.settled()
        assert 429 == (await one.ask(secret))[0]
        await one.until_told(secret, f"is 150: {WHOLE} are used")


@pytest.mark.parametrize("of", ["key", "model"])
async def test_a_reload_while_streams_run(
    keys: Keys, redis: str | None, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget that a reload brings has what a stream uses that was begun without it, once that has ended."""
    monkeypatch.setattr(usage_resync, "SETTLED_S", 0.1)
    async with gateway(keys.url, redis) as one:
        secret = await keys.create("ann")
        await one.sees(keys)
        await one.settled()
        async with one.chat(secret, stream=True) as stream:
            await stream.content.readline()
            one.reload(of, tokens_per_day=1000)
            await one.until_told(secret, "is 1000: 0 are used")
            await stream.read()
        await one.until_told(secret, f"is 1000: {WHOLE} are used")


class Rig:
    """Changed keys, and what is read of them."""

    def __init__(self) -> None:
        self.requests: dict[str, Context] = {}
        self.reads: list[str] = []
        self.away = False
        self.usage_resync = UsageResync(
            self._read, lambda context: bool(context.limits), self.requests
        )

    async def _read(self, key: str) -> None:
        self.reads.append(key)
        if self.away:
            raise LimitsUnavailable("away")

    async def until_settled(self) -> None:
        """Wait until nothing is looked at any more."""
        follower = self.usage_resync._follower
        assert follower is not None
        async with asyncio.timeout(20):
            await asyncio.shield(follower)


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """Nothing has changed yet."""
    monkeypatch.setattr(usage_resync, "SETTLED_S", 0.1)
    made = Rig()
    yield made
    await made.usage_resync.aclose()


async def test_before_the_next_request(rig: Rig) -> None:
    """A request waits until it is known what its key has used, once; a key that has not changed, or no budget, is not read."""
    rig.usage_resync.note_change(["ann", "eve"])
    rig.away = True
    with pytest.raises(LimitsUnavailable):
        await rig.usage_resync.before("ann")
    rig.away = False
    for key in ("ann", "bob", "ann"):
        await rig.usage_resync.before(key)
    assert ["ann", "ann"] == rig.reads
    await rig.until_settled()
    assert ["ann", "ann", "ann"] == rig.reads


async def test_long_after_it_changed(rig: Rig) -> None:
    """A key that nothing was asked with for long after it changed is read before its next request that has a budget, and once only."""
    rig.usage_resync.note_change(["ann", "eve"])
    await rig.until_settled()
    assert [] == rig.reads
    rig.away = True
    with pytest.raises(LimitsUnavailable):
        await rig.usage_resync.before("ann")
    rig.away = False
    assert "ann" in rig.usage_resync.changed
    await rig.usage_resync.before("ann")
    await rig.usage_resync.before("ann")
    assert ["ann", "ann"] == rig.reads
    assert "ann" not in rig.usage_resync.changed
    assert "eve" in rig.usage_resync.changed


async def test_after_what_ran(rig: Rig) -> None:
    """What ran when a key changed is waited for, and read when it has ended, also once the ledger is back; what has no budget is not."""
    rig.requests |= {
        "1": Context(caller="ann", limits={"tokens_per_day": 1.0}),
        "2": Context(caller="bob"),
        "3": Context(caller="ann", limits={"tokens_per_day": 1.0}),
    }
    rig.usage_resync.note_change(["ann", "bob"])
    rig.away = True
    del rig.requests["1"]
    async with asyncio.timeout(20):
        while len(rig.reads) < 3:
            await asyncio.sleep(0.01)
    rig.away = False
    del rig.requests["2"], rig.requests["3"]
    await rig.until_settled()
    assert {"ann"} == set(rig.reads)


async def test_after_half_of_what_ran(rig: Rig) -> None:
    """What all keys have used is read when half of what ran has ended, and half of the rest, and not each time."""
    limits = {"tokens_per_day": 1.0}
    rig.requests |= {f"{number}": Context(caller="ann", limits=limits) for number in range(8)}
    rig.usage_resync.note_change([EVERY])
    one, reads = rig.usage_resync.changed[EVERY], []
    for number in range(8):
        del rig.requests[f"{number}"]
        await rig.usage_resync._look(EVERY, one)
        reads.append(len(rig.reads))
    assert [0, 0, 0, 1, 1, 2, 3, 4] == reads
    await rig.until_settled()
    assert {EVERY} == set(rig.reads)
    assert EVERY not in rig.usage_resync.changed
