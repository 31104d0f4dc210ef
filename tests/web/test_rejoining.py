"""Tests of unilect.web.rejoining: requests that come again after their connection was lost, on real sockets."""

import asyncio
import json
import re
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientResponse, web
from openai import AsyncOpenAI

from unilect import dialects
from unilect.accounting.ledger import LedgerEntry
from unilect.answers.inflight import Answers, Bounds
from unilect.api.backend import Batches
from unilect.auth import key_cache
from unilect.auth.keys import digest
from unilect.auth.secret import id_of, new_secret
from unilect.config.limits import LimitsConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.core.errors import LedgerUnavailable, RequestCancelled
from unilect.core.events import Finish, Progress, TextDelta, Usage
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.context import Context
from unilect.server.app import GUARD, SITE
from unilect.server.listener import Listener
from unilect.store.database import Database
from unilect.store.keys import KeyStore
from unilect.store.records import LedgerRow
from unilect.testing.echo import Echo
from unilect.web.rejoining import ENDPOINTS, IDENTITY, REJOINED

ANN, BOB, METRICS = "sk-ann", "sk-bob", "sk-metrics"
HI = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT = "/v1/chat/completions"
LONG_S, SHORT_S = 60.0, 0.05


class Dictated(Echo):
    """
    Says what it is dictated, a token at a time, until it is told to end.

    Attributes:
        asked: How many answers were begun.
        stopped: How many of them were stopped before their end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked = self.stopped = 0
        self._words: list[asyncio.Queue[str | None]] = []

    def say(self, *words: str | None, answer: int = -1) -> None:
        """Dictate to the last answer, or another one; None is its end."""
        for word in words:
            self._words[answer].put_nowait(word)

    @property
    def waiting(self) -> int:
        """How many words of the last answer nobody has asked for yet."""
        return self._words[-1].qsize()

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """The prompt is 3 tokens, and each word is one."""
        words = asyncio.Queue[str | None]()
        self._words.append(words)
        self.asked += 1
        said, whole = 0, False
        try:
            yield [Progress(3, 3)]
            while (word := await words.get()) is not None:
                said += 1
                yield [TextDelta(word)]
            whole = True
            yield [Finish("stop"), Usage(3, said)]
        finally:
            self.stopped += not whole


class Site:
    """A server on a free port in front of a dictated model, and its clients."""

    def __init__(self, listener: Listener, url: str, session: aiohttp.ClientSession) -> None:
        self.listener, self.url, self.session = listener, url, session
        self.backend: Dictated
        self.file: Path

    @property
    def rejoin(self) -> Answers:
        """The owner of its answers."""
        return self.listener._inflight

    @property
    def requests(self) -> dict[str, Context]:
        """What it lists as running."""
        return self.listener._requests

    async def post(
        self, body: Any = HI, key: str | None = ANN, path: str = CHAT, **headers: str
    ) -> ClientResponse:
        """Send a request, until the head of its answer."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        return await self.session.post(self.url + path, json=body, headers=sent)

    async def begin(self, body: Any = HI, **more: Any) -> "asyncio.Task[ClientResponse]":
        """Send a request, and wait until the model is asked."""
        asked = self.backend.asked
        task = asyncio.create_task(self.post(body, **more))
        await until(lambda: self.backend.asked > asked)
        return task

    async def usage(self, key: str = ANN) -> dict[str, Any]:
        """What a key has used."""
        headers = {"Authorization": f"Bearer {key}"}
        async with self.session.get(f"{self.url}/v1/usage?by=key", headers=headers) as response:
            (row,) = (await response.json())["data"]
        return {
            name: row[name] for name in ("requests", "prompt_tokens", "completion_tokens", "cost")
        }

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of the ledger: the request's id, its backend, its tokens and its status."""
        columns = "id, backend, prompt, completion, status"
        with closing(sqlite3.connect(f"{self.file.as_uri()}?mode=ro", uri=True)) as file:
            found = file.execute(f"SELECT {columns} FROM ledger ORDER BY at, rowid").fetchall()
        return [(one[0].partition(".")[2], *one[1:]) for one in found]


async def until(holds: Callable[[], Any]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def serving(folder: Path, rejoin_s: float = LONG_S, **config: Any) -> AsyncIterator[Site]:
    """A server with a ledger, on which two keys are known unless the configuration says otherwise."""
    backend, file = Dictated(), folder / "unilect.db"
    given = {"api_keys": [ANN, BOB], "metrics_keys": [METRICS]} | config
    store = StoreConfig(url=f"sqlite:///{file}", ledger="required")
    registry = Registry([Model("m", backend)])
    listener = Listener(Config(port=0, store=store, rejoin_s=rejoin_s, **given), registry)
    url = (await listener.listen())[0]
    try:
        async with aiohttp.ClientSession() as session:
            site = Site(listener, url, session)
            site.backend, site.file = backend, file
            yield site
    finally:
        await listener.aclose()
        await registry.aclose()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """A server on which an answer is held as long as a test may take."""
    async with serving(tmp_path) as running:
        yield running


async def drop(site: Site, asking: "asyncio.Task[ClientResponse]") -> None:
    """Leave before the answer begins, and wait until it is held."""
    held = site.rejoin.held
    asking.cancel()
    await asyncio.wait([asking])
    await until(lambda: site.rejoin.held > held)


async def leave(site: Site, response: ClientResponse) -> bytes:
    """Read what has come of a stream, leave, and wait until its answer is held."""
    held, data = site.rejoin.held, await response.content.readany()
    response.close()
    await until(lambda: site.rejoin.held > held)
    return data


def chunks(told: bytes) -> list[Any]:
    """The chunks of a stream that has ended as it should."""
    frames = told.decode().split("\n\n")
    assert ["data: [DONE]", ""] == frames[-2:]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


def text(told: bytes) -> str:
    """The text of a stream's chunks."""
    choices = [choice for chunk in chunks(told) for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def raw(body: Any) -> bytes:
    """A request of HTTP/1.0, whose answer ends with the connection."""
    sent = json.dumps(body)
    head = f"POST {CHAT} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {ANN}\r\n"
    return f"{head}Content-Length: {len(sent)}\r\n\r\n{sent}".encode()


async def test_a_stream_that_was_cut(site: Site) -> None:
    """Its client comes back and gets all of it, with the same id and time; the model was asked once, and the tokens are counted once."""
    body = HI | {"stream": True}
    asking = await site.begin(body)
    site.backend.say("One ", "two ")
    first = await asking
    begun = await leave(site, first)
    assert begun
    assert ["held"] == [one.state for one in site.requests.values()]
    site.backend.say("three ")

    again = await site.post(body)
    site.backend.say("four.", None)
    told = await again.read()

    assert told.startswith(begun)
    assert "One two three four." == text(told)
    assert 1 == len({(chunk["id"], chunk["created"]) for chunk in chunks(told)})
    assert (1, 0) == (site.backend.asked, site.backend.stopped)
    ids = [response.headers["X-Request-Id"] for response in (first, again)]
    assert ids[0] == again.headers[REJOINED] != ids[1]
    assert REJOINED not in first.headers
    assert "text/event-stream; charset=utf-8" == again.headers["Content-Type"]
    used = {"requests": 2, "prompt_tokens": 3, "completion_tokens": 4, "cost": 0}
    assert used == await site.usage()
    assert [(ids[0], 3, 4, 200), (ids[1], 0, 0, 200)] == [(r[0], *r[2:]) for r in site.rows()]
    assert f"rejoined:{ids[0]}" == site.rows()[1][1]
    assert ({}, 0) == (site.requests, site.rejoin.kept_bytes)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("ends", ["before", "after"])
async def test_cut_before_its_first_token(site: Site, stream: bool, ends: str) -> None:
    """A client that left before the answer began gets it when it comes back, also where the answer has ended meanwhile."""
    body = HI | {"stream": stream}
    await drop(site, await site.begin(body))
    if ends == "before":
        site.backend.say("Yes", None)
        await until(lambda: not site.requests)
    again = asyncio.create_task(site.post(body))
    await until(lambda: site.rejoin.counts["joined"])
    if ends == "after":
        site.backend.say("Yes", None)
    response = await again
    told = await response.read()

    assert (200, 1) == (response.status, site.backend.asked)
    if stream:
        assert "Yes" == text(told)
    else:
        assert "Yes" == json.loads(told)["choices"][0]["message"]["content"]
        assert "application/json" == response.content_type
    assert response.headers[REJOINED]
    rows = site.rows()
    assert [(3, 1, 200), (0, 0, 200)] == [row[2:] for row in rows]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        pytest.param(HI, {"key": BOB}, id="another key"),
        pytest.param(HI | {"seed": 1}, {}, id="another body"),
        pytest.param(HI, {"path": "/chat/completions"}, id="another path"),
        pytest.param(HI, {"Cache_Control": "no-cache"}, id="a new answer is asked for"),
        pytest.param(HI, {"Idempotency_Key": "2"}, id="another key of idempotency"),
    ],
)
async def test_another_request(site: Site, body: Any, headers: dict[str, str]) -> None:
    """What is not the same request of the same key gets an answer of its own, and the held one stays for its client."""
    await drop(site, await site.begin(HI))
    other = await site.begin(body, **headers)
    site.backend.say("Other", None)
    response = await other
    assert "Other" == (await response.json())["choices"][0]["message"]["content"]
    assert (2, 1) == (site.backend.asked, site.rejoin.held)
    assert REJOINED not in response.headers

    site.backend.say("Mine", None, answer=0)
    mine = await site.post(HI)
    assert "Mine" == (await mine.json())["choices"][0]["message"]["content"]


async def test_callers_without_a_key(tmp_path: Path) -> None:
    """Where no key is required nobody knows whether the same client asks: its answer ends with its connection."""
    async with serving(tmp_path, api_keys=[]) as site:
        asking = await site.begin(key=None)
        asking.cancel()
        await until(lambda: site.backend.stopped)
        assert 0 == site.rejoin.held
        again = await site.begin(key=None)
        site.backend.say("New", None)
        assert REJOINED not in (await again).headers


async def test_nobody_comes_back(tmp_path: Path) -> None:
    """When its window is over an answer is stopped, and recorded with what was made and status 499; the same request is a new one."""
    async with serving(tmp_path, SHORT_S) as site:
        body = HI | {"stream": True}
        asking = await site.begin(body)
        site.backend.say("One ", "two ")
        first = await asking
        await first.content.readany()
        first.close()
        await until(lambda: site.backend.stopped)
        await until(site.rows)
        assert [(first.headers["X-Request-Id"], 3, 2, 499)] == [(r[0], *r[2:]) for r in site.rows()]
        assert ({}, 0) == (site.requests, site.rejoin.held)

        again = await site.begin(body)
        site.backend.say("New", None)
        assert "New" == text(await (await again).read())


async def test_limits(tmp_path: Path) -> None:
    """A held answer keeps its place among the parallel requests of its key; the same request needs no other, and is not counted."""
    limits = LimitsConfig(parallel=1, tokens_per_day=1000)
    async with serving(tmp_path, limits=limits) as site:
        body = HI | {"max_tokens": 500}
        await drop(site, await site.begin(body))
        other = await site.post(HI | {"max_tokens": 1})
        assert (429, 1) == (other.status, site.rejoin.held)

        joined = asyncio.create_task(site.post(body))
        await until(lambda: site.rejoin.counts["joined"])
        site.backend.say("Yes", None)
        assert 200 == (await joined).status
        await (await joined).read()
        rest = await site.post(HI | {"max_tokens": 995})  # 996 are left, and its prompt takes 2
        assert (429, 1) == (rest.status, site.backend.asked)
        last = await site.begin(HI | {"max_tokens": 994})
        site.backend.say(None)
        assert 200 == (await last).status


async def test_a_row_before_the_last_frame(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who came back gets the end of the answer once its row is committed, and not before."""
    book = site.listener._ledger
    assert book is not None
    write, begun, goes_on = book.writer._write, asyncio.Event(), asyncio.Event()

    async def held_up(rows: Sequence[LedgerRow]) -> None:
        begun.set()
        await goes_on.wait()
        await write(rows)

    body = HI | {"stream": True}
    asking = await site.begin(body)
    site.backend.say("One ")
    await leave(site, await asking)
    again = await site.post(body)
    monkeypatch.setattr(book.writer, "_write", held_up)
    site.backend.say("two.", None)
    await begun.wait()
    told = b""
    while b"two." not in told:
        told += await again.content.readany()
    assert b"[DONE]" not in told
    assert [] == site.rows()
    goes_on.set()
    assert "One two." == text(told + await again.read())
    assert 2 == len(site.rows())


async def test_a_ledger_that_cannot_be_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes back is refused where that has to be recorded, and may come again; once it is let in, the answer is not broken by its row."""
    book = site.listener._ledger
    assert book is not None
    probe, goes_on = book.writer._probe, asyncio.Event()

    async def held_up() -> None:
        await goes_on.wait()
        await probe()

    monkeypatch.setattr(book.writer, "_probe", held_up)
    await drop(site, await site.begin())
    book.writer._fail("the disk is full")
    refused = await site.post()
    assert (503, 1) == (refused.status, site.rejoin.held)
    goes_on.set()
    await until(lambda: book.writer.writable)

    joined = asyncio.create_task(site.post())
    await until(lambda: site.rejoin.counts["joined"] == 2)
    site.backend.say("Yes", None)
    monkeypatch.setattr(LedgerEntry, "close", _unavailable_after(LedgerEntry.close))
    assert 200 == (await joined).status


def _unavailable_after(close: Any) -> Any:
    """The end of a row, which says of those without tokens that they cannot be written."""

    async def closed(self: LedgerEntry, usage: Usage, status: int) -> None:
        if (closing := close(self, usage, status)) is not None:
            await closing
        if not usage.prompt_tokens:
            raise LedgerUnavailable("The row cannot be written.")

    return closed


async def test_two_come_back(site: Site) -> None:
    """One answer has one reader: the second of two same requests gets an answer of its own."""
    await drop(site, await site.begin())
    joined = asyncio.create_task(site.post())
    await until(lambda: site.rejoin.counts["joined"])
    other = await site.begin()
    site.backend.say("one", None, answer=0)
    site.backend.say("two", None, answer=1)
    answers = [await (await task).json() for task in (joined, other)]
    assert ["one", "two"] == [answer["choices"][0]["message"]["content"] for answer in answers]
    assert answers[0]["id"] != answers[1]["id"]


async def test_a_request_beside_one_that_runs(site: Site) -> None:
    """Where no client has left, the same request twice is two answers."""
    first, second = await site.begin(), await site.begin()
    site.backend.say("one", None, answer=0)
    site.backend.say("two", None, answer=1)
    assert [200, 200] == [(await task).status for task in (first, second)]
    assert 2 == site.backend.asked


async def test_who_came_back_leaves_too(site: Site) -> None:
    """The answer is held again, and the next one gets all of it."""
    body = HI | {"stream": True}
    asking = await site.begin(body)
    site.backend.say("One ")
    await leave(site, await asking)
    second = await site.post(body)
    site.backend.say("two ")
    await leave(site, second)
    third = await site.post(body)
    site.backend.say("three.", None)

    assert "One two three." == text(await third.read())
    assert 1 == site.backend.asked
    rows = {row[0]: row[2:] for row in site.rows()}
    assert (0, 0, 499) == rows[second.headers["X-Request-Id"]]
    assert (0, 0, 200) == rows[third.headers["X-Request-Id"]]
    assert 4 == sum(row[0] + row[1] for row in rows.values()) - 2  # 3 + 3 tokens, once


async def test_an_operator_ends_it(site: Site) -> None:
    """A held answer ends at once, with its reason in the ledger; who joined one is told in the stream, whichever request is ended."""
    await drop(site, await site.begin())
    (held,) = site.requests.values()
    held.end(RequestCancelled("Ended by an operator."))
    await until(lambda: site.backend.stopped)
    await until(site.rows)
    assert (0, {}, 403) == (site.rejoin.held, site.requests, site.rows()[0][-1])

    body = HI | {"stream": True}
    for ended in (0, 1):  # the answer's own request, or the one that has joined
        asking = await site.begin(body)
        site.backend.say("One ")
        await leave(site, await asking)
        again = await site.post(body)
        await again.content.readany()
        list(site.requests.values())[ended].end(RequestCancelled("Ended by an operator."))
        assert b"Ended by an operator." in await again.read()
        await until(lambda: not site.requests)
        assert 0 == site.rejoin.held
    assert 3 == site.backend.stopped


async def test_an_operator_ends_it_before_it_begins(site: Site) -> None:
    """Who joined an answer that has not begun gets an ordinary error."""
    await drop(site, await site.begin())
    again = asyncio.create_task(site.post())
    await until(lambda: len(site.requests) == 2)
    list(site.requests.values())[1].end(RequestCancelled("Ended by an operator."))
    response = await again
    assert (403, "Ended by an operator.") == (
        response.status,
        (await response.json())["error"]["message"],
    )
    await until(lambda: site.backend.stopped)


async def test_an_answer_that_fails_before_it_begins(site: Site) -> None:
    """The row of a request that came back to an answer that has failed says what its client was told."""
    await drop(site, await site.begin())
    (first,) = site.requests.values()
    again = asyncio.create_task(site.post())
    await until(lambda: len(site.requests) == 2)
    first.end(RequestCancelled("Ended by an operator."))
    assert 403 == (await again).status
    await until(lambda: len(site.rows()) == 2)
    assert [403, 403] == [row[-1] for row in site.rows()]


async def test_a_held_stream_that_fails(site: Site) -> None:
    """A stream that has failed while it was held, or while its reader left, is not sent to the same request, which is a new one."""
    body = HI | {"stream": True}
    asking = await site.begin(body)
    site.backend.say("One ")
    await leave(site, await asking)
    (first,) = site.requests.values()
    first.end(RequestCancelled("Ended by an operator."))
    await until(lambda: site.backend.stopped)
    await until(lambda: not site.requests)
    again = await site.begin(body)
    site.backend.say("Two ", None)
    response = await again
    assert "Two " == text(await response.read())
    assert "X-Unilect-Rejoined" not in response.headers


async def test_ended_while_its_client_leaves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of an answer is not taken for the reason why its client has left: each task gets its own cancellation."""
    caplog.set_level("INFO", logger="unilect.access")
    async with serving(tmp_path) as site:
        asking = await site.begin(HI | {"stream": True})
        site.backend.say("One ")
        response = await asking
        (context,) = site.requests.values()
        (reading,) = [
            task
            for task in asyncio.all_tasks()
            if "RequestHandler.start" in repr(task.get_coro()) and task.cancelling() == 0
        ]
        context.end(RequestCancelled("Ended by an operator."))
        reading.cancel()  # as aiohttp does where a connection is lost
        await until(lambda: site.backend.stopped and not site.requests)
        await until(site.rows)
        response.close()
        assert (0, 403) == (site.rejoin.held, site.rows()[0][-1])
    assert [True] == [f"{CHAT}' 499 " in line for line in caplog.messages if "POST" in line]


async def test_a_key_that_is_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held for a key ends with it."""
    monkeypatch.setattr(key_cache, "LOOK_S", 0.01)
    secret = new_secret()
    async with serving(tmp_path, api_keys=[BOB]) as site:
        database = Database(f"sqlite:///{site.file}")
        try:
            stored = KeyStore(database)
            await stored.create("ann", id_of(secret) or "", digest(secret))
            known = site.listener._known
            assert known is not None
            await until(lambda: known._number)
            await drop(site, await site.begin(key=secret))
            await stored.revoke("ann")
            await until(lambda: site.backend.stopped)
            await until(lambda: not site.requests)
            assert (0, 401) == (site.rejoin.held, (await site.post(key=secret)).status)
        finally:
            await database.aclose()


async def test_a_server_that_stops(site: Site) -> None:
    """It waits for clients that read, and for no answer without one."""
    await drop(site, await site.begin())
    reading = await site.begin(HI | {"seed": 1})
    draining = asyncio.create_task(site.listener.drain(asyncio.Event()))
    await until(lambda: site.backend.stopped)
    assert not draining.done()
    site.backend.say("Whole", None)
    assert 200 == (await (await reading).read() and reading.result().status)
    await asyncio.wait_for(draining, 10)
    assert [499, 200] == [row[-1] for row in site.rows()]


async def test_an_answer_that_is_too_large(site: Site) -> None:
    """It is sent whole, and cannot be joined any more: its client stops it by leaving."""
    site.rejoin._bounds = Bounds(answer_bytes=2000)
    body = HI | {"stream": True}
    asking = await site.begin(body)
    words = [f"word {number} " for number in range(20)]
    site.backend.say(*words)
    first = await asking
    await until(lambda: site.rejoin.kept_bytes == 0)
    site.backend.say(None)
    assert "".join(words) == text(await first.read())

    asking = await site.begin(body)
    site.backend.say(*words)
    first = await asking
    await until(lambda: site.rejoin.kept_bytes == 0)
    first.close()
    await until(lambda: site.backend.stopped)


async def test_a_slow_client_and_a_long_answer(site: Site) -> None:
    """A model is not read further than its client reads, and the client gets every byte."""
    words = ["x" * 2000] * 5000
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", int(site.url.rpartition(":")[2])))
        await loop.sock_sendall(client, raw(HI | {"stream": True}))
        await until(lambda: site.backend.asked)
        site.backend.say(*words, None)
        unread, turns = site.backend.waiting, 0
        while turns < 200:  # until the model stands still
            await asyncio.sleep(0.001)
            turns = turns + 1 if unread == site.backend.waiting else 0
            unread = site.backend.waiting
        assert 0 < unread < len(words)

        reader, writer = await asyncio.open_connection(sock=client)
        answer = await reader.read()
        writer.close()
    assert "".join(words) == text(answer.partition(b"\r\n\r\n")[2])


async def test_an_error(site: Site) -> None:
    """An error is told as without it, with the request's own id."""
    response = await site.post(HI | {"temperature": "hot"})
    told = await response.json()
    assert (400, "temperature") == (response.status, told["error"]["param"])
    assert 404 == (await site.post(HI | {"model": "nobody"})).status
    assert ({}, 0) == (site.requests, site.rejoin.kept_bytes)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi", "stream": True}),
        ("/v1/messages", HI | {"max_tokens": 99, "stream": True}),
        ("/v1/responses", {"input": "Hi", "stream": True}),
        ("/api/chat", HI | {"model": "m"}),
        ("/completion", {"prompt": "Hi", "stream": True}),
    ],
)
async def test_every_api(site: Site, path: str, body: Any) -> None:
    """A stream of every API goes on where it was, byte for byte."""
    asking = await site.begin(body, path=path)
    site.backend.say("One ", "two ")
    begun = await leave(site, await asking)
    again = await site.post(body, path=path)
    site.backend.say("three.", None)
    told = await again.read()
    assert told.startswith(begun)
    assert len(told) > len(begun) > 0
    assert b"three." in told
    assert 1 == site.backend.asked


async def test_a_stored_response(site: Site) -> None:
    """A response that was joined is stored once, under the id that both clients have seen."""
    body = {"input": "Hi"}
    await drop(site, await site.begin(body, path="/v1/responses"))
    site.backend.say("Yes", None)
    again = await (await site.post(body, path="/v1/responses")).json()
    async with site.session.get(
        f"{site.url}/v1/responses/{again['id']}", headers={"Authorization": f"Bearer {ANN}"}
    ) as found:
        assert again["output"] == (await found.json())["output"]


async def test_http_1_0(site: Site) -> None:
    """A client of HTTP/1.0 joins a stream that is not chunked, and ends with the connection."""
    body = HI | {"stream": True}
    asking = await site.begin(body)
    site.backend.say("One ")
    await leave(site, await asking)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
    writer.write(raw(body))
    await until(lambda: site.rejoin.counts["joined"])
    site.backend.say("two.", None)
    answer = await reader.read()
    writer.close()
    lines, _, told = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in lines.lower()
    assert "One two." == text(told)


@pytest.mark.heavy
@pytest.mark.parametrize("stream", [False, True])
async def test_the_official_client(site: Site, stream: bool) -> None:
    """openai-python, with its two retries, gets the answer through a proxy that cuts its first two connections; the model is asked once."""
    cuts = 0

    async def pass_on(request: web.Request) -> web.StreamResponse:
        nonlocal cuts
        body = await request.read()
        headers = {k: v for k, v in request.headers.items() if k.lower() != "host"}
        if cuts < 2:
            asked = site.session.post(site.url + request.path, data=body, headers=headers)
            asking = asyncio.ensure_future(asked.__aenter__())
            await until(lambda: site.backend.asked and site.rejoin.counts["joined"] == cuts)
            asking.cancel()
            await until(lambda: site.rejoin.held)
            cuts += 1
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        site.backend.say("Whole", None)
        async with site.session.post(site.url + request.path, data=body, headers=headers) as answer:
            return web.Response(body=await answer.read(), headers={"Content-Type": answer.content_type})  # fmt: skip

    app = web.Application()
    app.router.add_post("/{path:.*}", pass_on)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        client = AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=ANN, max_retries=2)
        async with client:
            asked: Any = {"model": "m", **HI}
            if stream:
                found = await client.chat.completions.create(**asked, stream=True)
                told = "".join([c.choices[0].delta.content or "" async for c in found if c.choices])
            else:
                told = (await client.chat.completions.create(**asked)).choices[0].message.content
    finally:
        await runner.cleanup()
    assert ("Whole", 2, 1) == (told, cuts, site.backend.asked)
    assert 4 == (await site.usage())["prompt_tokens"] + (await site.usage())["completion_tokens"]


async def test_metrics(site: Site) -> None:
    """What was held, and what became of it, is counted."""
    await drop(site, await site.begin())
    headers = {"Authorization": f"Bearer {METRICS}"}

    async def counted() -> dict[str, float]:
        async with site.session.get(f"{site.url}/metrics", headers=headers) as response:
            lines = (await response.text()).splitlines()
        names = ("unilect_held_answers_total{", 'unilect_requests_in_flight{state="held"}')
        return {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith(names)}

    outcomes = [f'unilect_held_answers_total{{outcome="{o}"}}' for o in ("joined", "ended")]
    held = 'unilect_requests_in_flight{state="held"}'
    assert {outcomes[0]: 0, outcomes[1]: 0, held: 1} == await counted()
    site.backend.say("Yes", None)
    await (await site.post()).read()
    assert {outcomes[0]: 1, outcomes[1]: 0, held: 0} == await counted()


async def test_off_by_default(tmp_path: Path) -> None:
    """Without the option the handlers of the dialects are called as they are; with it only those that ask a model are stood in front of."""
    for rejoin_s in (0.0, 1.0):
        async with serving(tmp_path, rejoin_s) as site:
            app = site.listener._doors[0]._app
            behind = {
                route.endpoint
                for route in app[GUARD]._routes.values()
                if "rejoining.py" in str(getattr(route.handler, "__code__", ""))
            }
            assert (ENDPOINTS if rejoin_s else set()) == behind
            assert rejoin_s == site.listener._inflight.window_s
            assert app[SITE].service.ready


def test_headers_that_change_an_answer() -> None:
    """A header that a dialect reads is one that tells requests apart, but for those of FastChat's controller, which are no answers."""
    folder = Path(dialects.__file__).parent
    reads = re.compile(r"headers(?:\.get\(|\[)\s*\"([^\"]+)\"|needs_header=\"([^\"]+)\"")
    found = {
        name.lower()
        for file in folder.rglob("*.py")
        if not file.name.startswith(("_controller", "_admission"))
        for match in reads.findall(file.read_text())
        for name in match
        if name
    }
    assert {"anthropic-version"} == found <= {name.lower() for name in IDENTITY}
