"""Tests of unilect.dialects.responses._background: how a response ends that is made in the background, whatever happens meanwhile."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.backends.scripted import HELLO, Exchange, delta, frames, stream_of
from support.clients.responses_client import Client, client, events, in_memory, says
from support.servers.appserver import serving, upstream
from unilect.answers import inflight
from unilect.answers.inflight import Answer, Answers
from unilect.core.errors import StoreUnavailable
from unilect.dialects.responses import _background
from unilect.dialects.responses._output import ResponseEncoder, ResponseOptions
from unilect.dialects.responses._request import PromptRequest
from unilect.runtime.context import Context
from unilect.runtime.tasks import Tasks
from unilect.store.records import StoredResponse
from unilect.testing.echo import Echo, Options
from unilect.web import streaming


async def ended(one: Client, id: str) -> dict[str, Any]:
    """A response once nobody makes it any more."""
    while True:
        _, _, found = await one.ask("GET", f"/responses/{id}")
        if found["status"] not in ("queued", "in_progress"):
            body: dict[str, Any] = found
            return body
        await asyncio.sleep(0)


def failing(times: int, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A store's `update` that fails so often, and the pauses between attempts left out."""
    store = in_memory()
    assert store.answers is not None
    update, left = store.answers.update, times

    async def tried(*args: Any, **kwargs: Any) -> bool:
        nonlocal left
        left -= 1
        if left >= 0:
            raise StoreUnavailable("away")
        return await update(*args, **kwargs)

    monkeypatch.setattr(store.answers, "update", tried)
    monkeypatch.setattr(_background, "_STORE_AGAIN_S", (0.0, 0.0))
    return lambda: store


async def test_numbered_keep_alives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events come in the order of their numbers, though a keep-alive, which has one, falls due at any moment."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.0)
    backend = Echo(Options(text="word " * 20, tokens_per_s=2000))
    async with serving(backend) as app:
        async with app.post("/v1/responses", input="Hi", stream=True, store=False) as response:
            told = events(await response.read())

    assert list(range(len(told))) == [event["sequence_number"] for event in told]
    assert {"keepalive", "response.completed"} < {event["type"] for event in told}


async def test_a_cancelled_stream_ends() -> None:
    """Who reads the events of a response that is cancelled is told its end, with the text so far."""
    begun = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(role="assistant", content="Hel"))))
        begun.set()
        await exchange.client_gone()

    async with client(script) as one:
        first = await one.create("count", background=True)
        await begun.wait()
        path = f"/responses/{first['id']}"
        url = f"http://127.0.0.1:{one.app.port}/v1{path}?stream=true"
        async with one.app.session.get(url) as live:
            while b"output_text.delta" not in await live.content.readuntil(b"\n\n"):
                pass
            _, _, cancelled = await one.ask("POST", f"{path}/cancel")
            last = events(await live.read())[-1]

    assert ("response.incomplete", "cancelled") == (last["type"], last["response"]["status"])
    assert "Hel" == last["response"]["output"][0]["content"][0]["text"]
    assert cancelled["output"] == last["response"]["output"]


async def test_the_store_is_away_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is not lost because the store could not be written when it ended."""
    async with client(says(HELLO), failing(2, monkeypatch)()) as one:
        first = await one.create("x", background=True)
        found = await ended(one, first["id"])

    assert ("completed", "Hello") == (found["status"], found["output"][0]["content"][0]["text"])


async def test_the_end_cannot_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response whose end could not be stored is told as failed by the server that made it, and does not run forever."""
    async with client(says(HELLO), failing(3, monkeypatch)()) as one:
        first = await one.create("x", background=True)
        while (await one.ask("GET", f"/responses/{first['id']}"))[2]["status"] == "completed":
            await asyncio.sleep(0)  # as long as it is in memory
        found = await ended(one, first["id"])

    assert ("failed", "server_error") == (found["status"], found["error"]["code"])


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("ended_before", [False, True])
async def test_the_server_stops_while_the_store_is_away(
    hangs: bool,
    ended_before: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that stops tries once more to store the end of a response, for a bounded time, and its log tells what is lost."""
    store, begun, tried = in_memory(), asyncio.Event(), list[int]()
    waiting = asyncio.Event()
    assert store.answers is not None

    async def away(*args: Any, **kwargs: Any) -> bool:
        tried.append(1)
        waiting.set()
        if hangs and len(tried) > ended_before:
            await asyncio.Event().wait()
        raise StoreUnavailable("away")

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(HELLO if ended_before else frames(delta(content="Hel"))))
        begun.set()
        if not ended_before:
            await exchange.client_gone()
        exchange.close()

    monkeypatch.setattr(store.answers, "update", away)
    monkeypatch.setattr(_background, "_STORE_AGAIN_S", (3600.0,))
    monkeypatch.setattr(_background, "_STORE_AT_LAST_S", 0.01)
    async with client(script, store) as one:
        first = await one.create("count", background=True)
        await begun.wait()
        if ended_before:
            await waiting.wait()

    assert 1 + ended_before == len(tried)
    (told,) = [one.getMessage() for one in caplog.records if first["id"] in one.getMessage()]
    assert ("completed" if ended_before else "failed") in told
    assert ("does not answer" if hangs else "away") in told


async def test_a_flaw(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flaw of ours ends the response, and those who read its events."""

    def broken(self: ResponseEncoder, batch: object) -> bytes:
        raise KeyError("flaw")

    monkeypatch.setattr(ResponseEncoder, "encode", broken)
    async with client(says(HELLO)) as one:
        first = await one.create("x", background=True)
        url = f"http://127.0.0.1:{one.app.port}/v1/responses/{first['id']}?stream=true"
        async with one.app.session.get(url) as live:
            last = events(await live.read())[-1]
        found = await ended(one, first["id"])

    assert ("response.failed", "server_error") == (last["type"], last["response"]["error"]["code"])
    assert "failed" == found["status"]


async def test_its_end_is_told_once_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither who asks for it nor who reads its events is told the end before it is stored, so that who has it can go on from it."""
    store, storing, go_on = in_memory(), asyncio.Event(), asyncio.Event()
    assert store.answers is not None
    update = store.answers.update

    async def late(*args: Any, **kwargs: Any) -> bool:
        storing.set()
        await go_on.wait()
        return await update(*args, **kwargs)

    monkeypatch.setattr(store.answers, "update", late)
    async with client(says(HELLO), store) as one:
        first = await one.create("x", background=True)
        path = f"/responses/{first['id']}"
        url = f"http://127.0.0.1:{one.app.port}/v1{path}?stream=true"
        await storing.wait()
        asked = asyncio.create_task(one.ask("GET", path))
        async with one.app.session.get(url) as live:
            data = b""
            while b"output_item.done" not in data:
                data += await live.content.readuntil(b"\n\n")
            end = asyncio.create_task(live.content.readuntil(b"\n\n"))
            await one.ask("GET", "/models")
            assert not asked.done()
            assert not end.done()
            go_on.set()
            data += await end
        _, _, found = await asked
        after = await one.create("y", previous_response_id=first["id"])

    assert ("response.completed", "completed") == (events(data)[-1]["type"], found["status"])
    assert "completed" == after["status"]


async def test_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads the events of a response that waits for its model is told its id at once, and that it still waits."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.01)
    go_on = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.send(stream_of(HELLO))
        exchange.close()

    async with client(script) as one, one.app.post("/v1/responses", input="x", stream=True, background=True) as live:  # fmt: skip
        data = b""
        while b"keepalive" not in data:
            data += await live.content.readuntil(b"\n\n")
        id = events(data)[0]["response"]["id"]
        _, _, found = await one.ask("GET", f"/responses/{id}")
        go_on.set()
        told = events(data + await live.read())
        url = f"http://127.0.0.1:{one.app.port}/v1/responses/{id}?stream=true"
        async with one.app.session.get(url) as stored:
            again = events(await stored.read())

    assert "queued" == found["status"]
    kinds = [event["type"] for event in told]
    assert ["response.created", "response.queued", "keepalive"] == kinds[:3]
    assert ("response.in_progress", "response.completed") == (kinds[kinds.count("keepalive") + 2], kinds[-1])  # fmt: skip
    assert told == again


async def test_it_fails_before_it_begins() -> None:
    """A response that fails before it begins is told as queued, and then as failed."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}")

    async with client(script) as one:
        told = await one.stream("x", background=True)

    kinds = [event["type"] for event in told]
    assert ["response.created", "response.queued", "response.failed"] == kinds
    assert ["queued", "queued", "failed"] == [event["response"]["status"] for event in told]


async def test_events_that_are_lost() -> None:
    """Who asks for the events of a response whose server ended is told that they are lost, and not that it was none in the background."""
    store = in_memory()
    assert store.answers is not None
    body = b'{"id":"resp_1","status":"failed","background":true}'
    await store.answers.save(StoredResponse("resp_1", "anonymous", "failed", body, [], [], None, None, time.time()))  # fmt: skip
    async with client(says(HELLO), store) as one:
        status, _, body = await one.ask("GET", "/responses/resp_1?stream=true&starting_after=4")

    assert (400, "stream") == (status, body["error"]["param"])
    assert "are lost" in body["error"]["message"]


async def test_it_is_stopped_before_its_first_step() -> None:
    """Who reads the events of a response whose task never began does not wait for ever."""
    store, tasks = in_memory(), Tasks()
    owner = Answers(0.0, {})
    kept = _background.ResponseService(store.answers, owner, tasks)
    encoder = ResponseEncoder("resp_1", ResponseOptions({}, {}), "queued")
    await kept.begin(PromptRequest(), [], encoder, lambda: pytest.fail("never asked"))
    owner.background["", "resp_1"].task.cancel()
    async with asyncio.timeout(10):
        told = b"".join([piece async for piece in await kept.events("", "resp_1", -1)])
    await owner.aclose()
    await tasks.aclose()
    await store.aclose()

    assert b"response.queued" in told


async def test_an_end_that_cannot_be_stored_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads the events of a response whose end could not be stored is told that it has failed, as it is told from then on."""
    go_on = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.send(stream_of(HELLO))
        exchange.close()

    async with client(script, failing(3, monkeypatch)()) as one:
        first = await one.create("x", background=True)
        url = f"http://127.0.0.1:{one.app.port}/v1/responses/{first['id']}?stream=true"
        async with one.app.session.get(url) as live:
            go_on.set()
            told = events(await live.read())
        found = await ended(one, first["id"])

    last = told[-1]["response"]
    assert ("response.failed", "failed") == (told[-1]["type"], found["status"])
    assert ("Hello", "server_error") == (last["output"][0]["content"][0]["text"], last["error"]["code"])  # fmt: skip


@pytest.mark.parametrize("ends", ["cancelled", "deleted"])
async def test_two_addresses(ends: str) -> None:
    """A response that is made at one address of a server is told, streamed, cancelled and stopped by its deletion at another one."""
    store, begun = in_memory(), asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(role="assistant", content="Hel"))))
        begun.set()
        await exchange.client_gone()

    async with client(script, store) as one, serving(upstream(one.server.url), store=store, inflight=one.app.inflight) as app:  # fmt: skip
        other = Client(app, one.server)
        path = f"/responses/{(await one.create('count', background=True))['id']}"
        await begun.wait()
        async with app.session.get(f"http://127.0.0.1:{app.port}/v1{path}?stream=true") as live:
            while b"output_text.delta" not in await live.content.readuntil(b"\n\n"):
                pass
            _, _, during = await other.ask("GET", path)
            if ends == "cancelled":
                _, _, found = await other.ask("POST", f"{path}/cancel")
                assert "cancelled" == found["status"]
            else:
                await other.ask("DELETE", path)
            await one.server.until_gone()
            last = events(await live.read())[-1]

    assert ("in_progress", "cancelled") == (during["status"], last["response"]["status"])


async def test_the_others_of_a_server_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for a response of a server that was killed does not wait for all others that it has left."""
    monkeypatch.setattr(_background, "_STALE_S", 0.0)
    store = in_memory()
    assert store.answers is not None
    for number in range(3):
        id = f"resp_{number}"
        body = b'{"id":"%s","background":true}' % id.encode()
        await store.answers.save(StoredResponse(id, "anonymous", "queued", body, [], [], None, None, time.time(), instance="dead"))  # fmt: skip
    async with client(says(HELLO), store) as one:
        _, _, found = await one.ask("GET", "/responses/resp_1")
        other = await store.answers.get("anonymous", "resp_0")
        _, _, later = await one.ask("GET", "/responses/resp_0")

    assert other is not None
    assert ("failed", "queued", "failed") == (found["status"], other.status, later["status"])


async def test_too_many_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one caller and of all so many responses are made in the background at a time, more are 429, and one that ends makes room."""
    monkeypatch.setattr(inflight, "most_background", lambda: 8)
    store, go_on = in_memory(), asyncio.Event()
    assert store.answers is not None

    async def script(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.send(stream_of(HELLO))
        exchange.close()

    async with client(script, store) as one:
        asked = {"input": "x", "background": True}
        at_once = await asyncio.gather(*(one.ask("POST", "/responses", asked) for _ in range(5)))
        refused = [answer for answer in at_once if answer[0] != 200]
        begun = [body["id"] for status, _, body in at_once if status == 200]
        await one.ask("POST", f"/responses/{begun[0]}/cancel")
        again = await one.create("x", background=True)
        others = [Answer(n, Context(caller=f"other{n}")) for n in range(7)]
        made = one.app.inflight
        made.background |= {other.key: other for other in others}
        await one.ask("POST", f"/responses/{begun[1]}/cancel")
        full = await one.ask("POST", "/responses", asked)
        for other in others:
            del made.background[other.key]
        go_on.set()
        assert "completed" == (await ended(one, again["id"]))["status"]

    assert 2 == len(begun)
    assert [(429, "rate_limit_exceeded")] * 3 == [(s, body["error"]["code"]) for s, _, body in refused]  # fmt: skip
    assert all(int(headers["Retry-After"]) > 0 for _, headers, _ in refused)
    assert "2 of yours are being made" in refused[0][2]["error"]["message"]
    assert (429, True) == (full[0], "the most of all callers" in full[2]["error"]["message"])


async def test_a_response_that_cannot_be_stored_takes_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A response that could not begin, as the store was away, is none of those that are being made."""
    store = in_memory()
    assert store.answers is not None

    async def away(*args: Any) -> None:
        raise StoreUnavailable("away")

    async with client(says(HELLO), store) as one:
        with monkeypatch.context() as patch:
            patch.setattr(store.answers, "save", away)
            status, _, _ = await one.ask("POST", "/responses", {"input": "x", "background": True})
        assert 503 == status
        assert not one.app.inflight.background
