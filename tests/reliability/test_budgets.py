"""Budgets and the ledger together, on a real server that is killed again and again: nothing is lost, and no budget is exceeded."""

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

import aiohttp
import pytest
from ledger_clients import Seen, client, rows_of, stream, whole

from serving import Server, serve
from unilect.gateway.secret import digest, id_of, new_secret
from unilect.store.database import Database
from unilect.store.keys import StoredKeys

KILLS = int(os.environ.get("UNILECT_KILLS", "2"))
REQUESTS = 1000  # before each kill
KEYS, AT_ONCE = 20, 3
RETRY_S = 0.02
#: Two thirds of what the requests of a key would use, which are of 48 tokens in the mean.
BUDGET = REQUESTS * KILLS // KEYS * 32
CONFIG = """
[store]
url = "{url}"
[models.e]
source = "echo:"
max_in_flight = 40
[models.e.options]
tokens_per_s = 2000.0
"""


async def keys(url: str) -> dict[str, str]:
    """Keys with a budget; the id of each by its secret."""
    database = Database(url)
    found = {}
    for number in range(KEYS):
        secret = new_secret()
        id = id_of(secret) or ""
        limits = {"tokens_per_day": float(BUDGET)}
        key = await StoredKeys(database).create(f"key{number}", id, digest(secret), limits=limits)
        found[secret] = key.id
    await database.aclose()
    return found


class Clients:
    """
    Clients of all keys, each of which asks one request after the other.

    Attributes:
        seen: What they have seen, by the id of the key.
    """

    def __init__(self, secrets: dict[str, str]) -> None:
        self.seen: dict[str, list[Seen]] = {id: [] for id in secrets.values()}
        self._secrets = secrets
        self._random = random.Random(1)

    async def ask(self, server: Server, most: int | None) -> None:
        """
        Ask one request after the other, with each key a few at once.

        Args:
            most: How many; the server is killed under the last ones. None until every key was refused for good.
        """
        asked = ended = 0

        async def one(secret: str, id: str) -> None:
            nonlocal asked, ended
            async with client(secret) as session:
                while most is None or asked < most:
                    asked += 1
                    seen = await self._one(session, server)
                    self.seen[id].append(seen)
                    if seen.status == 429 and not seen.final:  # others of the key hold the rest
                        asked -= 1
                        await asyncio.sleep(RETRY_S)
                        continue
                    ended += 1
                    if most is None and seen.final:
                        return
                    if most is not None and ended == most - KEYS:  # while others run
                        os.kill(server.pid, signal.SIGKILL)

        everybody = [one(*key) for key in self._secrets.items() for _ in range(AT_ONCE)]
        await asyncio.gather(*everybody)

    async def _one(self, session: aiohttp.ClientSession, server: Server) -> Seen:
        length = self._random.randint(5, 43)
        ask = stream if self._random.random() < 0.7 else whole
        limit = length if self._random.random() < 0.9 else None
        if ask is stream:
            return await stream(session, server, "x" * length, lambda: None, limit)
        return await whole(session, server, "x" * length, limit)


@pytest.mark.timeout(900)
async def test_killed_at_the_edge(tmp_path: Path) -> None:
    """Keys use up their budgets while the server is killed: whole answers are in the ledger to the token, and no budget is exceeded, or left unused."""
    url = f"sqlite:///{tmp_path / 'unilect.db'}"
    secrets = await keys(url)
    clients = Clients(secrets)
    for number in range(KILLS + 1):
        kills = number < KILLS
        env = {"XDG_DATA_HOME": str(tmp_path)}
        with serve(config=CONFIG.format(url=url), env=env, killed=kills) as server:
            await clients.ask(server, REQUESTS if kills else None)

    rows = rows_of(url)
    assert len(rows) == len({row["id"] for row in rows})
    by_id = {row["id"].partition(".")[0]: row for row in rows}
    used, told = Counter[str](), Counter[str]()
    for row in rows:
        used[row["key"]] += row["prompt"] + row["completion"]
    answered, refused, unseen = 0, 0, len(rows)
    for key, seen in clients.seen.items():
        for one in seen:
            refused += one.status == 429
            if one.whole:
                assert one.usage is not None
                answered += 1
                row = by_id[one.id]
                mine = one.usage["prompt_tokens"], one.usage["completion_tokens"]
                assert (200, key, *mine) == tuple(row[n] for n in ("status", "key", "prompt", "completion"))  # fmt: skip
                told[key] += sum(mine)
            if one.id in by_id:
                unseen -= 1
    assert KILLS * KEYS < answered
    assert refused
    for key in secrets.values():
        assert told[key] <= used[key] <= BUDGET, (key, told[key], used[key])
        # the rest is less than the smallest request that was refused, and what a killed server had begun
        assert used[key] >= BUDGET - 2 * 43, (key, used[key])
    # whose ids nobody has seen: the server was killed before their first byte
    assert unseen <= KILLS * KEYS * AT_ONCE
    print(
        f"{answered} whole answers, {refused} refused, {len(rows)} rows, {unseen} of them unseen; {KILLS} kills"
    )
