"""Several gateways of one cluster, one PostgreSQL database and one Redis server: real processes, as behind a load balancer."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import aiohttp
import pytest
import pytest_asyncio
from inprocess import Site, until
from ledger_clients import rows_of

from support.servers.fleet_load import STREAMS, seen_so_many, stories, story
from support.servers.postgresql import PostgreSQL
from support.servers.ray_cluster import Node, cluster, engines_of, is_at_work
from support.servers.redis_server import RedisServer
from support.servers.serving import Server, serve
from unilect.auth.keys import digest
from unilect.auth.secret import id_of, new_secret
from unilect.demo import MODEL
from unilect.store.database import Database
from unilect.store.keys import KeyStore

TOKENS, LONG, LONGS = 120, 4000, 4
BUDGET, EACH = 700, 12
SOON_S = 1.0
TIMED = "UNILECT_TEST_TIMED" in os.environ  # the machine is quiet
CONFIG = """
api_keys = ["sk-of-the-file"]
[store]
url = "{store}"
ledger = "required"
[limits]
url = "{redis}"
[fleet]
address = "{head}"
token_file = "{token}"
[models.demo]
source = "{model}"
replicas = 2
resources = {{ cpu = 0.1 }}
threads = 1
parallel = 4
"""
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]


@dataclass
class Shared:
    """
    What the gateways of a cluster share.

    Attributes:
        node: The cluster's only node.
        url: Of the store.
        config: Of each gateway.
    """

    node: Node
    url: str
    config: str

    async def key(self, secret: str = "", **limits: float) -> str:
        """A key that is made in the store, and not through a gateway."""
        secret = secret or new_secret()
        database = Database(self.url)
        try:
            await KeyStore(database).create(secret, id_of(secret) or "", digest(secret), limits=limits, require=True)  # fmt: skip
        finally:
            await database.aclose()
        return secret

    def rows(self, secret: str) -> list[dict[str, Any]]:
        """What the ledger has of a key."""
        return [row for row in rows_of(self.url) if row["key"] == f"key_{id_of(secret)}"]

    def replicas(self) -> dict[int, list[int]]:
        """The processes of the replicas, each with its engines."""
        return {replica: engines_of(replica) for replica in self.node.replicas("demo")}


Gateways = tuple[Server, Server, dict[int, list[int]]]


@pytest.fixture(scope="module")
def shared(server_of_postgresql: PostgreSQL, server_of_redis: RedisServer) -> Iterator[Shared]:
    """A cluster of one node, a new database, and an empty Redis server."""
    server_of_redis.flush()
    url = server_of_postgresql.new_database()
    with cluster(2) as (node,):
        config = CONFIG.format(store=url, redis=server_of_redis.url, head=node.head, token=node.token, model=MODEL)  # fmt: skip
        yield Shared(node, url, config)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where the second gateway keeps what it was doing, as on a machine of its own."""
    return {"XDG_DATA_HOME": str(tmp_path_factory.mktemp("second"))}


@pytest.fixture(scope="module")
def gateways(shared: Shared, home: dict[str, str]) -> Iterator[Gateways]:
    """Two gateways, and the replicas that there were before the second one started, which is killed in the end."""
    with serve(config=shared.config) as first:
        before = shared.replicas()
        with serve(config=shared.config, env=home, killed=True) as second:
            yield first, second, before
            os.kill(second.pid, signal.SIGKILL)  # which the last test has done, if it was asked for


@asynccontextmanager
async def asking(server: Server, secret: str) -> AsyncIterator[Site]:
    """A client of a gateway with a key."""
    headers = {"Authorization": f"Bearer {secret}"}
    async with aiohttp.ClientSession(headers=headers) as client:
        yield Site(server.root, *cast(Any, (None, client, None)))


Clients = Callable[[str], Any]


@pytest_asyncio.fixture(loop_scope="module")
async def clients(gateways: Gateways) -> Clients:
    """Clients of both gateways with a key."""

    @asynccontextmanager
    async def of(secret: str) -> AsyncIterator[tuple[Site, Site]]:
        async with asking(gateways[0], secret) as first, asking(gateways[1], secret) as second:
            yield first, second

    return of


async def said(of: Awaitable[Any], status: int = 200) -> Any:
    """The JSON of an answer with this status."""
    async with cast(Any, of) as response:
        assert status == response.status, await response.text()
        return await response.json()


async def statuses(*running: Site) -> list[int]:
    """The status of an answer of each gateway."""
    found = []
    for one in running:
        async with one.post(max_tokens=1) as response:
            found.append(response.status)
    return found


async def works(running: Site) -> bool:
    """Whether a gateway answers."""
    return [200] == await statuses(running)


async def test_one_deployment(shared: Shared, gateways: Gateways, clients: Clients) -> None:
    """A second gateway replaces no replica and adds none, and both have the same answers from them at the same time."""
    _, _, before = gateways
    async with clients("sk-of-the-file") as (first, second):
        told = await asyncio.gather(stories(first, TOKENS), stories(second, TOKENS))

    assert told[0] == told[1]
    assert (2, before) == (len(before), shared.replicas())


async def test_a_key_works_at_both(shared: Shared, clients: Clients) -> None:
    """A key that both gateways have refused works at both within a second of its being made, and a limit of a minute counts across both."""
    secret = new_secret()
    async with clients(secret) as (first, second):
        assert [401, 401] == await statuses(first, second)
        await shared.key(secret, requests_per_minute=3)
        made = time.monotonic()
        await asyncio.gather(until(lambda: works(first)), until(lambda: works(second)))
        assert time.monotonic() - made < SOON_S or not TIMED
        assert [200, 429, 429] == await statuses(first, second, first)
        answer = await said(second.post(max_tokens=1), 429)
        assert "rate_limit_exceeded" == answer["error"]["code"]


async def test_a_budget_of_both(shared: Shared, clients: Clients) -> None:
    """Requests at both gateways at once use a day's budget up and do not pass it; the ledger has the tokens of both."""
    secret = await shared.key(tokens_per_day=BUDGET)
    used: dict[str, list[int]] = {}

    async def spend(running: Site) -> None:
        while True:
            async with running.post(max_tokens=EACH, ignore_eos=True) as response:
                answer = await response.json()
            if response.status == 200:
                used.setdefault(running.url, []).append(answer["usage"]["total_tokens"])
                continue
            assert (429, "insufficient_quota") == (response.status, answer["error"]["code"])
            if response.headers.get("x-should-retry") == "false":
                return
            await asyncio.sleep(float(response.headers["Retry-After"]))

    async with clients(secret) as both:
        await asyncio.gather(*(spend(one) for one in both for _ in range(4)))

    assert 2 == len(used)
    each = {tokens for of in used.values() for tokens in of}
    total = sum(map(sum, used.values()))
    assert BUDGET - max(each) < total <= BUDGET
    assert total == sum(row["prompt"] + row["completion"] for row in shared.rows(secret))


async def test_a_conversation_through_both(shared: Shared, clients: Clients) -> None:
    """A stored answer of one gateway is continued through the other, by the replica that has it in its cache, with the same text."""
    secret, body = await shared.key(), {"temperature": 0, "max_output_tokens": 24}
    async with clients(secret) as (first, second):
        for number in range(4):
            told = f"Tell me a story about {number} cats and a sea. " + "It is about the sea. " * 10
            begun = await said(first.post("/v1/responses", input=told, **body))
            more = body | {"input": "Go on.", "previous_response_id": begun["id"]}
            there = await said(second.post("/v1/responses", **more))
            here = await said(first.post("/v1/responses", **more))

            assert text_of(there) == text_of(here) != text_of(begun)
            cached = there["usage"]["input_tokens_details"]["cached_tokens"]
            assert cached >= begun["usage"]["input_tokens"] - 4
    async with clients(await shared.key()) as (_, second):
        await said(second.post("/v1/responses", **more), 400)


def text_of(response: dict[str, Any]) -> str:
    """What a response says."""
    return str(response["output"][0]["content"][0]["text"])


async def test_a_gateway_that_is_killed(
    shared: Shared, gateways: Gateways, home: dict[str, str]
) -> None:
    """A kill -9 of one gateway disturbs no answer of another, no replica and no engine; started again it answers, and the ledger has what both gave."""
    first, second, before = gateways
    here, there = await shared.key(), await shared.key()
    got, seen = list[int](), list[int]()
    async with asking(first, here) as running, asking(second, there) as dying:
        expected = await stories(running, TOKENS)
        assert expected[1] == await story(dying, 1, TOKENS, [])
        lost = [asyncio.ensure_future(story(dying, one, LONG, got)) for one in range(LONGS)]
        await seen_so_many(got, 50)
        streams = asyncio.ensure_future(stories(running, TOKENS, seen))
        await seen_so_many(seen, 200)
        os.kill(second.pid, signal.SIGKILL)
        failed = await asyncio.gather(*lost, return_exceptions=True)
        assert not streams.done()
        assert expected == await streams
    assert all(isinstance(one, aiohttp.ClientError) for one in failed)
    await until(lambda: _are_idle(shared))
    with serve(config=shared.config, env=home) as again:
        async with asking(again, there) as back:
            assert expected[2] == await story(back, 2, TOKENS, [])

    assert before == shared.replicas()
    assert [("length", TOKENS)] * 2 * STREAMS == ends(shared.rows(here))
    whole, cut = ends(shared.rows(there))[:2], ends(shared.rows(there))[2:]
    assert [("length", TOKENS)] * 2 == whole
    assert LONGS == len(cut)
    assert all(finish == "lost" and tokens < LONG for finish, tokens in cut)
    assert sum(tokens for _, tokens in cut) >= len(got) - LONGS  # the first frame has a role alone


def ends(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """How answers ended, and with how many tokens."""
    return sorted((row["finish"], row["completion"]) for row in rows)


async def _are_idle(shared: Shared) -> bool:
    """Whether no engine does anything: nobody waits for what a gateway that is gone has asked for."""
    engines = list(chain(*shared.replicas().values()))
    works = await asyncio.gather(*map(is_at_work, engines))
    return 2 == len(engines) and not any(works)
