"""Budgets with each of: a server that is killed, a Redis server that is away for longer than its marks live."""

import asyncio
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis

from support.common.ledger_rows import DIFFERENCES
from support.common.waiting import until
from support.servers.metered import PROMPT, WHOLE, metered
from support.servers.redis_server import redis_server
from support.servers.serving import Server, serve
from unilect.auth.keys import digest
from unilect.auth.secret import id_of, new_secret
from unilect.limits import redis as _redis
from unilect.limits.redis import RedisCounters
from unilect.runtime.context import Context
from unilect.store.database import Database
from unilect.store.keys import KeyStore

CONFIG = """
[store]
url = "sqlite:///{file}"
[models.m]
source = "echo:"
options = {{ text = "{text}", tokens_per_s = {tokens_per_s}, context = 4096 }}
"""


@asynccontextmanager
async def asked(server: Server, secret: str, **body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    """Ask a server's model for 80 tokens, unless said otherwise."""
    sent = {"max_tokens": 80, "messages": [{"role": "user", "content": PROMPT}]} | body
    headers = {"Authorization": f"Bearer {secret}"}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.post(f"{server.url}/chat/completions", json=sent) as answer,
    ):
        yield answer


async def used(server: Server, secret: str) -> int:
    """Ask how many tokens a key has used."""
    headers = {"Authorization": f"Bearer {secret}"}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.get(f"{server.url}/usage?by=key") as answer,
    ):
        (line,) = (await answer.json())["data"]
        return int(line["total_tokens"])


@pytest.mark.heavy
async def test_a_server_that_is_killed(tmp_path: Path) -> None:
    """What a stream had sent when its server was killed is in the ledger of the next one, in its totals, and off the budget, once."""
    file, secret = tmp_path / "x.db", new_secret()
    database = Database(f"sqlite:///{file}")
    stored = KeyStore(database)
    await stored.create("ann", id_of(secret) or "", digest(secret), limits={"tokens_per_day": 300.0})  # fmt: skip
    await database.aclose()

    def config(tokens_per_s: float) -> str:
        return CONFIG.format(file=file, text="y" * 80, tokens_per_s=tokens_per_s)

    with serve(config=config(20), killed=True) as server:
        async with asked(server, secret, stream=True) as answer:
            seen = b""
            while seen.count(b'"content":"y') < 5:
                seen += await answer.content.readany()
            os.kill(server.pid, signal.SIGKILL)
            with pytest.raises(aiohttp.ClientPayloadError):
                while True:
                    seen += await answer.content.readany()
    lost = len(PROMPT) + seen.count(b'"content":"y')
    with serve(config=config(10_000)) as server:
        before = await used(server, secret)
        assert lost <= before <= lost + 2  # it was made, and did not arrive
        statuses = []
        for _ in range(3):
            async with asked(server, secret) as answer:
                statuses.append(answer.status)
                await answer.read()
        assert [200, 200, 429] == statuses
        assert before + 2 * WHOLE == await used(server, secret)
    with closing(sqlite3.connect(file)) as opened:
        assert [] == opened.execute(DIFFERENCES).fetchall()
        assert (3,) == opened.execute("SELECT count(*) FROM ledger").fetchone()


@pytest.mark.heavy
async def test_redis_that_is_away_for_longer_than_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends while a Redis server is away counts once when that is back: with what it had, after its marks have gone, and without its data."""
    monkeypatch.setattr(_redis, "ALIVE_S", 0.05)
    with redis_server() as redis:
        async with metered(f"sqlite:///{tmp_path / 'x.db'}", redis.url, 400.0) as server:
            limits = {"tokens_per_day": 1000.0, "money_per_month": 5.0}
            ann = await server.create("ann", **limits)
            counters = server.listener._limits._counters
            assert isinstance(counters, RedisCounters)
            known = server.listener._known
            assert known is not None
            key = (await known.key(ann, digest(ann))).id
            context = Context(caller=key, model="m", limits=limits)

            async def counts(tokens: int) -> None:
                """Wait until so much is counted, and nothing held."""
                async with asyncio.timeout(20):
                    while True:
                        found = await asyncio.gather(server.listener._limits.look(context), return_exceptions=True)  # fmt: skip
                        if isinstance(found[0], list) and (tokens, 0, 0) == found[0][0][2]:
                            return
                        await asyncio.sleep(0.02)

            assert 200 == await server.status(ann)
            await counts(WHOLE)
            async with server.chat(ann, stream=True) as answer:
                await answer.content.readline()
                redis.freeze()
                await answer.read()
            assert 1 == len(counters._unsettled)
            late = counters._unsettled[0]
            redis.freeze(False)
            await until(lambda: not counters._unsettled)
            await counts(2 * WHOLE)
            async with Redis.from_url(redis.url) as other:
                marks = await other.keys("{unilect}:settled:*")
                assert marks
                await other.delete(*marks)
            await counters._settle_surely(late)
            await counts(2 * WHOLE)

            async with server.chat(ann, stream=True) as answer:
                await answer.content.readline()
                redis.save()
                redis.stop()
                await answer.read()
            redis.start()
            async with asyncio.timeout(20):
                while 200 != await server.status(ann):
                    await asyncio.sleep(0.02)
            await until(lambda: not counters._unsettled)
            await counts(4 * WHOLE)
