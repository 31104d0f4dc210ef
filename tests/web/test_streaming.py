"""Tests of unilect.web.streaming: an answer on its way from a scripted upstream to a real client."""

import asyncio
import gc
from contextlib import AsyncExitStack

import pytest

from support.backends.scripted import (
    DONE,
    HELLO,
    STREAM_HEAD,
    USAGE,
    Exchange,
    answer,
    delta,
    frames,
    says,
    scripted,
    stream_of,
)
from support.servers.appserver import chunks, serving, upstream
from unilect.api.backend import Backend, Batches, Capabilities
from unilect.core.errors import RateLimited
from unilect.core.events import Finish, TextDelta, Usage
from unilect.core.requests import ChatRequest
from unilect.scheduling.fair_queue import QueueSettings
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.server._connections import Limits
from unilect.testing.echo import Echo, Options
from unilect.web import streaming

BEGUN = stream_of(frames(delta(role="assistant", content=""), delta(content="Hel")))


class AtOnce(Backend):
    """A backend that says `Hello` in one batch."""

    capabilities = Capabilities(parameters={})

    async def start(self) -> None:
        """Nothing is needed."""

    async def generate(self, request: ChatRequest) -> Batches:
        """Say `Hello`."""
        yield [TextDelta("Hello"), Finish("stop"), Usage(3, 2)]

    async def check(self) -> None:
        """It is always well."""

    async def aclose(self) -> None:
        """Nothing is left behind."""


async def test_a_stream() -> None:
    """A streamed answer is an event stream that no proxy buffers or caches, and ends with `[DONE]`."""
    async with scripted(says(stream_of(HELLO))) as server, serving(upstream(server.url)) as app:
        async with app.chat() as response:
            told = await chunks(response)

    assert (200, "text/event-stream; charset=utf-8", "no-cache", "no") == (
        response.status,
        response.headers["Content-Type"],
        response.headers["Cache-Control"],
        response.headers["X-Accel-Buffering"],
    )
    assert response.headers["X-Request-Id"].startswith("req_")
    assert "[DONE]" == told[-1]
    assert "Hello" == "".join(
        choice["delta"].get("content", "") for chunk in told[:-1] for choice in chunk["choices"]
    )


async def test_a_stream_in_one_piece() -> None:
    """A stream of which nothing was sent before its end is told to be as long as it is."""
    async with serving(AtOnce()) as app, app.chat() as response:  # type: ignore[arg-type]
        told = await response.read()

    assert ("text/event-stream; charset=utf-8", "no-cache", str(len(told))) == tuple(
        response.headers[name] for name in ("Content-Type", "Cache-Control", "Content-Length")
    )
    assert b'"Hello"' in told
    assert told.endswith(b"data: [DONE]\n\n")


async def test_a_whole_answer() -> None:
    """A whole answer is one JSON object, though the upstream streams it."""
    async with scripted(says(stream_of(HELLO))) as server, serving(upstream(server.url)) as app:
        async with app.chat(stream=False) as response:
            body = await response.json()

    assert (200, "application/json") == (response.status, response.headers["Content-Type"])
    assert "Hello" == body["choices"][0]["message"]["content"]
    assert 5 == body["usage"]["total_tokens"]


async def test_events_are_sent_as_they_come() -> None:
    """A piece of an answer reaches the client before the upstream makes the next."""
    more = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(BEGUN)
        await more.wait()
        await exchange.send(frames(delta(finish="stop"), DONE))
        exchange.close()

    async with scripted(script) as server, serving(upstream(server.url)) as app:
        async with app.chat() as response:
            seen = b""
            while b'"Hel"' not in seen:
                seen += await response.content.readany()
            more.set()
            rest = await response.read()

    assert rest.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (answer(b"<html>", kind="text/html"), 502),
        (answer(b"{}", "429 Slow", retry_after="7"), 429),
        (answer(b'{"error":{"message":"no"}}', "400 Bad"), 400),
        (b"", 502),
        (STREAM_HEAD, 502),
    ],
)
async def test_errors_before_the_first_event(stream: bool, data: bytes, expected: int) -> None:
    """An error before the first event has a status of its own, streamed or not."""
    async with scripted(says(data)) as server, serving(upstream(server.url)) as app:
        async with app.chat(stream=stream) as response:
            body = await response.json()

    assert expected == response.status
    assert {"message", "type", "param", "code"} == set(body["error"])
    assert response.headers.get("Retry-After") == ("7" if expected == 429 else None)


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_errors_after_the_first_event(end: str) -> None:
    """A stream that breaks ends with one error frame, without a finish reason or `[DONE]`, and its body ends in order."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(BEGUN)
        await read.wait()
        getattr(exchange, end)()

    read = asyncio.Event()
    async with scripted(script) as server, serving(upstream(server.url)) as app:
        async with app.chat() as response:
            seen = b""
            while b'"Hel"' not in seen:
                seen += await response.content.readany()
            read.set()
            told = seen + await response.read()

    *_, last = told.removesuffix(b"\n\n").split(b"\n\n")
    assert last.startswith(b'data: {"error":{"message":')
    assert 1 == told.count(b'"error"')
    assert b"[DONE]" not in told
    assert b'"finish_reason":"' not in told


async def test_a_whole_answer_that_breaks() -> None:
    """A whole answer that breaks midway is an error, and nothing of it is shown."""
    async with scripted(says(BEGUN)) as server, serving(upstream(server.url)) as app:
        async with app.chat(stream=False) as response:
            body = await response.text()

    assert 502 == response.status
    assert "Hel" not in body


async def test_keep_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long silence before and within an answer is broken by comments, which change nothing of it."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.01)
    first, second = asyncio.Event(), asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await first.wait()
        await exchange.send(BEGUN)
        await second.wait()
        await exchange.send(frames(delta(content="lo"), delta(finish="stop"), USAGE, DONE))
        exchange.close()

    async with scripted(script) as server, serving(upstream(server.url)) as app:
        async with app.chat() as response:
            seen = b""
            for go_on in (first, second):
                before = seen.count(b": keep-alive\n\n")
                while seen.count(b": keep-alive\n\n") < before + 2:
                    seen += await response.content.readany()
                go_on.set()
            seen += await response.read()

    told = [frame for frame in seen.split(b"\n\n") if frame and not frame.startswith(b":")]
    assert (200, b"data: [DONE]") == (response.status, told[-1])
    assert [1, 1] == [seen.count(piece) for piece in (b'"Hel"', b'"lo"')]


async def test_the_head_of_a_stream_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream whose head goes out while it waits for its turn tells its place, and the wait once an answer has shown it."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.01)
    backend = PooledBackend(Echo(Options(tokens_per_s=100)), queue=QueueSettings(max_in_flight=1))
    names = ("X-Unilect-Queue-Position", "X-Unilect-Queue-Wait-S")
    async with serving([backend]) as app:

        async def heads(*texts: str) -> list[list[str | None]]:
            """What the heads of streams say that were asked for one after the other."""
            async with AsyncExitStack() as stack:
                found = []
                for text in texts:
                    messages = [{"role": "user", "content": text}]
                    response = await stack.enter_async_context(app.chat(messages=messages))
                    found.append(response)
                for response in found:
                    assert (await response.text()).endswith("data: [DONE]\n\n")
                return [[response.headers.get(name) for name in names] for response in found]

        first = await heads(*["Hello there"] * 3)
        second = await heads(*["Hello there"] * 3)

    assert [[None, None], ["1", None], ["2", None]] == first
    assert [None, "1", "2"] == [position for position, _ in second]
    assert [True, False, False] == [wait_s is None for _, wait_s in second]
    assert 1 <= int(second[1][1] or 0) <= int(second[2][1] or 0)


@pytest.mark.heavy
async def test_no_keep_alive_behind_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is written behind the end of an answer, though a keep-alive falls due at that very moment."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.0)  # due in every round of the loop

    async with scripted(says(stream_of(HELLO))) as server, serving(upstream(server.url)) as app:
        async with app.chat() as response:
            told = await response.read()
        gc.collect()  # tells of tasks that failed

    assert told.endswith(b"data: [DONE]\n\n")
    assert [] == [record.getMessage() for record in caplog.records if record.name == "asyncio"]


async def test_errors_after_a_keep_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails after a first comment is told in the stream: its status is gone."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.01)
    read = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await read.wait()
        await exchange.send(answer(b"", "503 Busy"))
        exchange.close()

    async with scripted(script) as server, serving(upstream(server.url)) as app:
        async with app.chat() as response:
            first = await response.content.readany()
            read.set()
            rest = await response.read()

    assert first.startswith(b": keep-alive\n\n")
    assert b'data: {"error":' in rest
    assert b"[DONE]" not in rest
    assert 200 == response.status


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("begun", [b"", BEGUN])
async def test_a_client_that_leaves(stream: bool, begun: bytes) -> None:
    """The upstream's connection ends with the client's, in every phase, streamed or not."""
    asked = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(begun)
        asked.set()
        await exchange.client_gone()

    async with scripted(script) as server, serving(upstream(server.url)) as app:
        task = asyncio.ensure_future(app.chat(stream=stream).__aenter__())
        await asked.wait()
        if begun and stream:
            response = await task
            response.close()
        else:
            task.cancel()
            await asyncio.wait({task})

        await server.until_gone()
        while app.guard.requests:
            await asyncio.sleep(0)
        assert 1 == app.counted("chat.completions", 499)


async def test_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read makes the upstream wait, and is let go in the end."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.02)
    sent = 0

    async def script(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.send(BEGUN)
        piece = frames(delta(content="x" * 65536))
        while True:
            await exchange.send(piece)
            sent += len(piece)

    limits = Limits(slow_client_s=0.1, sweep_s=0.02)
    async with scripted(script) as server, serving(upstream(server.url), limits=limits) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port, limit=1024)
        body = b'{"stream":true,"messages":[{"role":"user","content":"Hi"}]}'
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        )
        writer.write(head % len(body) + body)
        async with asyncio.timeout(60):
            await server.gone.acquire()
        while app.guard.requests:
            await asyncio.sleep(0)
        writer.transport.abort()
        assert 1 == app.counted("chat.completions", 499)
        del reader

    assert sent < 64 * 1024 * 1024


@pytest.mark.parametrize("stream", [True, False])
async def test_what_was_ignored(stream: bool) -> None:
    """A wish to store, which nobody keeps, is named in a header, streamed or not."""
    async with scripted(says(stream_of(HELLO))) as server, serving(upstream(server.url)) as app:
        async with app.chat(stream=stream, store=True) as response:
            await response.read()

    assert "store" == response.headers["X-Unilect-Ignored"]


async def test_the_usage_chunk() -> None:
    """The usage is told at the end of a stream that asked for it, and not else."""
    async with scripted(says(stream_of(HELLO))) as server, serving(upstream(server.url)) as app:
        async with app.chat(stream_options={"include_usage": True}) as response:
            *_, usage, done = await chunks(response)
        async with app.chat() as response:
            without = await chunks(response)

    assert (5, [], "[DONE]") == (usage["usage"]["total_tokens"], usage["choices"], done)
    assert all("usage" not in chunk for chunk in without[:-1])


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_request_that_is_ended(stream: bool) -> None:
    """A request that the server ends tells its client why: in its stream where that has begun, and else as its answer."""
    silent = says(BEGUN if stream else b"", "keep")
    async with scripted(silent) as server, serving(upstream(server.url)) as app:
        asked = asyncio.ensure_future(app.chat(stream=stream).__aenter__())
        while not server.requests or (stream and not asked.done()):
            await asyncio.sleep(0)
        (context,) = app.guard.requests.values()
        context.end(RateLimited("Your key was revoked."))
        context.end(RateLimited("It is told once."))
        response = await asked
        text = await response.text()

    assert (200 if stream else 429) == response.status
    assert "Your key was revoked." in text
    assert "[DONE]" not in text
    assert not app.guard.requests
