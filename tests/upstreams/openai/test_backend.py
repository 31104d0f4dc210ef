"""Tests of unilect.upstreams.openai.backend against a server that says what it is told, well and badly."""

import asyncio
import itertools
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from support.backends.engine import THOROUGH
from support.backends.scripted import (
    DONE,
    HELLO,
    USAGE,
    Exchange,
    answer,
    chunked,
    delta,
    frames,
    says,
    scripted,
    stream_of,
)
from support.servers.appserver import chunks, serving
from unilect.api.backend import BackendSpec
from unilect.config.server import ModelConfig
from unilect.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
    RateLimited,
    UnilectError,
    UnsupportedOperation,
)
from unilect.core.events import Answer, Event, Extra, Finish, TextDelta, Usage, fold
from unilect.core.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Message
from unilect.http.client import HttpServer
from unilect.upstreams.openai import backend as openai
from unilect.upstreams.openai.backend import OpenAIUpstream, backend
from unilect.wire.whole import decode_whole

CHAT = ChatRequest(messages=[Message("user", "Hi")], stream=True)
BEGUN = frames(delta(role="assistant", content=""), delta(content="Hel"))
WHOLE = [TextDelta("Hel"), TextDelta("lo"), Finish("stop"), Usage(3, 2)]


async def events_of(upstream: OpenAIUpstream, request: Any = CHAT) -> list[Event]:
    """All events of an answer."""
    async with aclosing(upstream.generate(request)) as batches:
        return [event async for batch in batches for event in batch]


async def broken(
    url: str, request: Any = CHAT, **settings: Any
) -> tuple[list[Event], UnilectError]:
    """The events before the error that must end an answer, and the error."""
    events: list[Event] = []
    upstream = OpenAIUpstream(HttpServer(url, **settings), "m")
    with pytest.raises(UnilectError) as raised:
        async with aclosing(upstream.generate(request)) as batches:
            async for batch in batches:
                events += batch
    return events, raised.value


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
async def test_every_cut(line_end: bytes, joined: bool) -> None:
    """A stream cut in two at any byte, with any line ends, gives the same answer."""
    body = HELLO.replace(b"\n", line_end)
    cuts = itertools.count()

    async def script(exchange: Exchange) -> None:
        cut = next(cuts)
        await exchange.send(chunked([piece for piece in (body[:cut], body[cut:]) if piece]))

    request = msgspec.structs.replace(CHAT, stream=not joined)
    async with scripted(script) as server:
        upstream = OpenAIUpstream(HttpServer(server.url, reuse_connections=True), "m")
        for _ in range(len(body) + 1):
            events = await events_of(upstream, request)
            assert fold([WHOLE]) == fold([events])
            assert joined or events == WHOLE
        await upstream.aclose()


async def test_byte_by_byte() -> None:
    """A stream of HTTP chunks of one byte gives the same answer, an emoji that is cut in four included."""
    body = frames(delta(content="中国 😀"), delta(finish="stop"), USAGE, DONE)

    async with scripted(says(chunked([bytes([byte]) for byte in body]))) as server:
        actual = await events_of(OpenAIUpstream(HttpServer(server.url), "m"))

    assert [TextDelta("中国 😀"), Finish("stop"), Usage(3, 2)] == actual


async def test_a_whole_answer_is_asked_for_as_a_stream() -> None:
    """Whatever the client wants, the upstream is asked for a stream with its usage."""
    async with scripted(says(stream_of(HELLO))) as server:
        upstream = OpenAIUpstream(HttpServer(server.url), "m")
        await events_of(upstream, msgspec.structs.replace(CHAT, stream=None))

    expected = {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert expected == server.requests[0].json()
    assert server.requests[0].head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")


async def test_a_completion_has_its_own_path() -> None:
    """A plain completion goes to `/completions`."""
    body = frames({"choices": [{"index": 0, "text": "b", "finish_reason": "length"}]}, DONE)
    async with scripted(says(stream_of(body))) as server:
        actual = await events_of(
            OpenAIUpstream(HttpServer(server.url), "m"), CompletionRequest(prompt="a")
        )

    assert [TextDelta("b"), Finish("length"), Usage(0, 0)] == actual
    assert server.requests[0].head.startswith(b"POST /v1/completions HTTP/1.1\r\n")


async def test_unknown_fields_of_a_request() -> None:
    """Fields of a request go on as they were written, the unknown ones byte for byte."""
    raw_fields = {
        "model": msgspec.Raw(b'"mine"'),
        "messages": msgspec.Raw(b'[{"role":"user","content":"Hi","x_cache":{"ttl":1.50}}]'),
        "x_seed": msgspec.Raw(b"12345678901234567890.10"),
        "temperature": msgspec.Raw(b"1e0"),
    }
    async with scripted(says(stream_of(HELLO))) as server:
        upstream = OpenAIUpstream(HttpServer(server.url), "theirs")
        await events_of(upstream, msgspec.structs.replace(CHAT, raw_fields=raw_fields))

    body = server.requests[0].body
    assert server.requests[0].json()["model"] == "theirs"
    for name in ("messages", "x_seed", "temperature"):
        assert b'"%s":%s' % (name.encode(), bytes(raw_fields[name])) in body


async def test_unknown_fields_of_tool_calls_go_both_ways() -> None:
    """What a server adds to a tool call comes out to the client, and goes back as the client sends it with the history."""
    signed = {"extra_content": {"google": {"thought_signature": "x=="}}}
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}} | signed
    body = frames(delta(tool_calls=[{"index": 0} | call]), delta(finish="tool_calls"), DONE)
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    async with scripted(says(stream_of(body))) as server:
        async with serving(OpenAIUpstream(HttpServer(server.url), "m")) as app:
            whole = await (await app.chat(stream=False)).json()
            streamed = await chunks(await app.chat())
            await (await app.chat(messages=messages, stream=False)).read()

    assert [call] == whole["choices"][0]["message"]["tool_calls"]
    (told,) = [d for c in streamed[:-1] for d in c["choices"][0]["delta"].get("tool_calls", ())]
    assert {"index": 0} | call == told
    assert messages == server.requests[-1].json()["messages"]


async def test_unknown_fields_of_an_answer() -> None:
    """Unknown fields of an answer arrive at their level: chunk, choice, delta."""
    chunk = {
        "provider": {"name": "x"},
        "choices": [{"index": 0, "seed": 7, "delta": {"content": "a", "parsed": [1, None]}}],
    }
    async with scripted(says(stream_of(frames(chunk, delta(finish="stop"), DONE)))) as server:
        actual = await events_of(OpenAIUpstream(HttpServer(server.url), "m"))

    extra = Extra({"provider": {"name": "x"}}, {"seed": 7}, {"parsed": [1, None]})
    assert TextDelta("a", extra=extra) == actual[0]


@pytest.mark.parametrize(
    "body",
    [
        HELLO.removesuffix(frames(DONE)),
        HELLO.removesuffix(b"\n\n"),
        b": ping\n\n" + HELLO.replace(b"data:", b": ping\n\ndata:"),
        HELLO.replace(b"data: ", b"event: message\nid: 1\ndata:"),
        b"\n\n\n" + HELLO + b"\n\n\n: bye\n\n",
    ],
)
async def test_streams_that_are_whole(body: bytes) -> None:
    """An answer that said why it finished is whole, without `[DONE]` and among comments too."""
    async with scripted(says(stream_of(body))) as server:
        actual = await events_of(OpenAIUpstream(HttpServer(server.url), "m"))

    assert actual == WHOLE


async def test_a_server_that_does_not_close() -> None:
    """An answer ends with its `[DONE]`, also where the server leaves the connection open."""
    async with scripted(says(stream_of(HELLO), "keep")) as server:
        actual = await events_of(OpenAIUpstream(HttpServer(server.url), "m"))

    assert fold([WHOLE]) == fold([actual])


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        stream_of(HELLO.removesuffix(frames(DONE))),
        stream_of(HELLO),
        chunked([HELLO.removesuffix(frames(DONE))])[:-5],
        chunked([HELLO])[:-5],
    ],
)
async def test_a_connection_that_stays_open_after_the_answer(
    data: bytes, reuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is finished is not held up by a server that keeps the connection open without an end, or without `[DONE]`."""
    monkeypatch.setattr("unilect.wire.stream.END_TIMEOUT_S", 0.02)
    async with scripted(says(data, "keep")) as server, asyncio.timeout(60):
        upstream = OpenAIUpstream(HttpServer(server.url, reuse_connections=reuse), "m")
        assert await events_of(upstream) == WHOLE
        await server.gone.acquire()  # and the connection is not used again


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("left", [(), (USAGE,), (USAGE, DONE)])
async def test_a_connection_that_breaks_after_the_answer(
    left: tuple[Any, ...], end: str, reuse: bool
) -> None:
    """An answer whose finish reason has come is whole, and is not asked for again, where its connection breaks after that."""
    read = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        body = BEGUN + frames(delta(finish="stop"), *left)
        await exchange.send(chunked([body])[:-5])
        await read.wait()
        getattr(exchange, end)()

    async with scripted(script) as server, asyncio.timeout(60):
        upstream = OpenAIUpstream(HttpServer(server.url, reuse_connections=reuse), "m")
        async with aclosing(upstream.generate(CHAT)) as batches:
            events = await anext(batches)
            read.set()
            events += [event async for batch in batches for event in batch]

    assert ("Hel", "stop") == (fold([events]).choices[0].text, fold([events]).choices[0].finish_reason)  # fmt: skip


async def test_a_connection_that_breaks_within_the_usage() -> None:
    """A frame that is cut after the finish reason takes nothing from the answer."""
    body = chunked([BEGUN + frames(delta(finish="stop")), b'data: {"choices":[],"usa'])[:-5]
    async with scripted(says(body)) as server:
        events = await events_of(OpenAIUpstream(HttpServer(server.url), "m"))

    assert [TextDelta("Hel"), Finish("stop"), Usage(0, 0)] == events


async def test_a_server_whose_finish_reasons_say_nothing() -> None:
    """An answer is cut where its connection breaks, if each of its pieces has a finish reason."""
    pieces = [delta(content=piece, finish="stop") for piece in ("a", "b", "c")]
    read = asyncio.Semaphore(0)

    async def script(exchange: Exchange) -> None:
        await exchange.send(chunked([frames(pieces[0])])[:-5])
        for piece in pieces[1:]:
            await read.acquire()
            await exchange.send(chunked([frames(piece)]).partition(b"\r\n\r\n")[2][:-5])
        await read.acquire()
        exchange.reset()

    async with scripted(script) as server, asyncio.timeout(60):
        upstream = OpenAIUpstream(HttpServer(server.url), "m")
        with pytest.raises(BackendError):
            async with aclosing(upstream.generate(CHAT)) as batches:
                async for _ in batches:
                    read.release()


async def test_comments_after_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is finished is not held up by a server that goes on with comments and never ends."""
    monkeypatch.setattr("unilect.wire.stream.END_TIMEOUT_S", 0.02)

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(HELLO.removesuffix(frames(DONE))))
        while True:
            await exchange.send(b": keep-alive\n\n")
            await asyncio.sleep(0)

    async with scripted(script) as server, asyncio.timeout(60):
        assert await events_of(OpenAIUpstream(HttpServer(server.url), "m")) == WHOLE
        await server.gone.acquire()


async def test_a_choice_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that makes its choices one after the other is waited for between them as ever."""
    monkeypatch.setattr("unilect.wire.stream.END_TIMEOUT_S", 0.0)
    late = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(0, content="a"), delta(0, finish="stop"))))
        await late.wait()
        await exchange.send(frames(delta(1, content="b"), delta(1, finish="stop"), DONE))

    async with scripted(script) as server, asyncio.timeout(60):
        upstream = OpenAIUpstream(HttpServer(server.url), "m")
        async with aclosing(upstream.generate(msgspec.structs.replace(CHAT, n=2))) as batches:
            events = await anext(batches)
            late.set()
            events += [event async for batch in batches for event in batch]

    assert ["a", "b"] == [choice.text for choice in fold([events]).choices]


async def test_a_body_without_a_length() -> None:
    """A whole answer without a length ends with its JSON where the server keeps the connection open."""
    body = b'{"data":[{"embedding":[1.0]}, {"index":1,"embedding":[2.0]}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"

    async def script(exchange: Exchange) -> None:
        for piece in (head + body[:28], body[28:-1], body[-1:]):
            await exchange.send(piece)
            await asyncio.sleep(0)

    async with scripted(script) as server, asyncio.timeout(60):
        upstream = OpenAIUpstream(HttpServer(server.url), "m")
        actual = await upstream.embed(EmbeddingRequest(input=["a", "b"]))

    assert [[1.0], [2.0]] == actual.vectors


@pytest.mark.parametrize(
    ("name", "stream", "end"),
    [
        ("FIN in mid-answer", stream_of(BEGUN), "close"),
        ("RST in mid-answer", stream_of(BEGUN), "reset"),
        ("clean end without finish", chunked([BEGUN]), "close"),
        ("clean end, usage only", chunked([BEGUN + frames(USAGE)]), "close"),
        ("last chunk missing", chunked([BEGUN])[:-5], "close"),
        ("FIN within a frame", stream_of(BEGUN + b'data: {"choices":[{"del'), "close"),
        ("no JSON", stream_of(BEGUN + b"data: <html>\n\n"), "close"),
        ("broken HTTP chunk", chunked([BEGUN])[:-5] + b"zz\r\n", "close"),
        ("error object", stream_of(BEGUN + frames({"error": {"message": "no"}})), "close"),
        ("integer code", stream_of(BEGUN + frames({"error": {"message": "no", "code": 500}})), "close"),
        ("error text", stream_of(BEGUN + frames({"error": "no"})), "close"),
        ("error frame", stream_of(BEGUN + b'error: {"code":500,"message":"no"}\n\n'), "close"),
        ("event: error", stream_of(BEGUN + b'event: error\ndata: {"message":"no"}\n\n'), "close"),
        ("error, then DONE", stream_of(BEGUN + frames({"error": {"message": "no"}}, DONE)), "close"),
        ("error beside choices", stream_of(BEGUN + frames(delta(finish="error") | {"error": {"message": "no"}})), "close"),
        ("finish: error", stream_of(BEGUN + frames(delta(finish="error"), DONE)), "close"),
        ("event: error, text", stream_of(BEGUN + b"event: error\ndata: no\n\n"), "close"),
        ("FastChat", stream_of(BEGUN + frames({"text": "no", "error_code": 50002})), "close"),
        ("giant line", stream_of(BEGUN + b"data: " + b"x" * 2**21), "close"),
        ("bomb", stream_of(BEGUN + b"data: " + b"[" * 500_000 + b"\n\n"), "close"),
    ],
)  # fmt: skip
async def test_streams_that_break(name: str, stream: bytes, end: str) -> None:
    """An answer that breaks off gives what came, then one error, and is never called finished."""
    async with scripted(says(stream, end)) as server:
        events, error = await broken(server.url)

    assert BackendError is type(error)
    assert events in ([TextDelta("Hel")], [])
    assert name in ("RST in mid-answer", "giant line", "broken HTTP chunk") or events == [
        TextDelta("Hel")
    ]


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("HTML", answer(b"<html>", kind="text/html"), BackendError),
        ("JSON error at 200", answer(b'{"error":{"message":"no"}}'), BackendError),
        ("refusal at 200", answer(b'{"error":{"message":"no","code":400}}'), InvalidRequest),
        ("limit at 200", answer(b'{"error":{"message":"no","code":"429"}}'), RateLimited),
        ("text error at 200", answer(b'{"error":"no"}'), BackendError),
        ("FastChat at 200", answer(b'{"object":"error","message":"no","code":40301}'), InvalidRequest),
        ("FastChat's fault at 400", answer(b'{"object":"error","message":"no","code":50002}', "400 Bad"), BackendError),
        ("FastChat's context at 400", answer(b'{"object":"error","message":"no","code":40303}', "400 Bad"), ContextLengthExceeded),
        ("llama-server's 501", answer(b'{"error":{"message":"no","code":501}}', "501 No"), UnsupportedOperation),
        ("whole answer", answer(b'{"choices":[]}'), BackendError),
        ("empty stream", stream_of(b""), BackendError),
        ("nothing", b"", BackendError),
        ("gzip", answer(b"x", kind="text/event-stream", content_encoding="gzip"), BackendError),
        ("endless head", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, BackendError),
        ("307", answer(b"", "307 Go", location="http://127.0.0.1:1/"), BackendError),
        ("401", answer(b"", "401 No"), BackendError),
        ("400", answer(b'{"error":{"message":"no","code":400}}', "400 Bad"), InvalidRequest),
        ("400 HTML", answer(b"<html>", "400 Bad", "text/html"), InvalidRequest),
        ("too long", answer(b'{"error":{"message":"n","code":"context_length_exceeded"}}', "400 Bad"), ContextLengthExceeded),
        ("500", answer(b'{"error":{"message":"no"}}', "500 No"), BackendError),
        ("503", answer(b"", "503 Busy"), BackendUnavailable),
        ("503 early", answer(b"", "503 Busy", retry_after="9"), BackendUnavailable),
        ("429", answer(b"{}", "429 Slow", retry_after="9"), RateLimited),
    ],
)  # fmt: skip
async def test_answers_that_are_none(name: str, data: bytes, expected: type[UnilectError]) -> None:
    """What is no stream is an error before the first event, of the kind that its status says."""
    async with scripted(says(data)) as server:
        events, error = await broken(server.url)

    assert ([], expected) == (events, type(error))
    assert {"429": 9, "503 early": 9, "503": 1}.get(name) == error.retry_after_s


async def test_a_reset_before_the_answer() -> None:
    """A connection that breaks before the answer is the backend's error, and nothing is asked twice."""
    async with scripted(says(b"", "reset")) as server:
        events, error = await broken(server.url)

    assert ([], BackendError, 1) == (events, type(error), len(server.requests))


@pytest.mark.parametrize("begun", [b"", stream_of(b""), stream_of(BEGUN), stream_of(b": ping\n\n")])
async def test_silence(begun: bytes) -> None:
    """An upstream that says nothing for `timeout_s` is given up, before the first byte and later."""
    async with scripted(says(begun, "keep")) as server:
        _, error = await broken(server.url, timeout_s=0.05)
        async with asyncio.timeout(60):
            await server.gone.acquire()

    assert BackendTimeout is type(error)


async def test_redirects_carry_no_prompt_away() -> None:
    """A redirect is an error, and its target gets no connection."""
    async with scripted(says(stream_of(HELLO))) as target:
        away = answer(b"", "307 Temporary Redirect", location=target.url + "/chat/completions")
        async with scripted(says(away)) as server:
            _, error = await broken(server.url)

    assert (BackendError, 0) == (type(error), target.connections)


@pytest.mark.parametrize(
    "data",
    [
        answer(b'{"error":{"message":"cannot open /srv/models/x.gguf"}}', "400 Bad"),
        answer(b'{"error":{"message":"cannot open /srv/models/x.gguf"}}', "500 No"),
        answer(b'{"error":{"message":"cannot open /srv/models/x.gguf"}}'),
        stream_of(frames({"error": {"message": "cannot open /srv/models/x.gguf"}})),
        stream_of(frames({"error": {"message": "at C:\\models\\x.gguf", "code": 400}})),
    ],
)
async def test_paths_are_not_shown(data: bytes) -> None:
    """An upstream's error text never shows its file paths."""
    async with scripted(says(data)) as server:
        _, error = await broken(server.url)

    assert "models" not in error.message


async def test_broken_unicode() -> None:
    """Lone surrogates in an answer become U+FFFD, and the answer goes on."""
    lone = rb'data: {"choices":[{"index":0,"delta":{"content":"a\ud83d"}}]}' + b"\n\n"
    async with scripted(says(stream_of(lone + HELLO))) as server:
        actual = await events_of(OpenAIUpstream(HttpServer(server.url), "m"))

    assert [TextDelta("a�"), *WHOLE] == actual


async def test_repeated_tool_ids() -> None:
    """Ids and names that a server repeats in each delta are told once."""
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "1"}}
    body = frames(*[delta(tool_calls=[call])] * 3, delta(finish="tool_calls"), DONE)
    async with scripted(says(stream_of(body))) as server:
        actual = fold([await events_of(OpenAIUpstream(HttpServer(server.url), "m"))])

    (told,) = actual.choices[0].tool_calls
    assert ("c1", "f", "111") == (told.id, told.name, told.arguments)


async def test_usage_with_the_last_choice() -> None:
    """Usage that comes with the last choice is told after it, once."""
    last = delta(finish="stop") | {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    body = frames(delta(content="Hel"), delta(content="lo"), last, DONE)
    async with scripted(says(stream_of(body))) as server:
        actual = await events_of(OpenAIUpstream(HttpServer(server.url), "m"))

    assert actual == WHOLE


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_of_which_a_choice_is_missing(stream: bool) -> None:
    """An answer that ends after one of two choices was cut, and is not called finished."""
    body = frames(delta(content="a"), delta(finish="stop"))
    request = msgspec.structs.replace(CHAT, n=2, stream=stream)
    async with scripted(says(stream_of(body))) as server:
        with pytest.raises(BackendError, match="ended its answer before it was finished"):
            await events_of(OpenAIUpstream(HttpServer(server.url), "m"), request)
    with pytest.raises(BackendError, match="ended its answer before it was finished"):
        decode_whole(body, choices=2)
    assert Finish("stop") in decode_whole(body)


@pytest.mark.parametrize("begun", [b"", stream_of(BEGUN)])
async def test_closing_the_generator_stops_the_upstream(begun: bytes) -> None:
    """At `aclose()`, or at a cancellation, the upstream sees its connection end."""
    asked = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(begun)
        asked.set()
        await exchange.client_gone()

    async with scripted(script) as server:
        batches = OpenAIUpstream(HttpServer(server.url), "m").generate(CHAT)
        first = asyncio.ensure_future(anext(batches))
        await asked.wait()
        if begun:
            await first
            await batches.aclose()
        else:
            first.cancel()

        await server.until_gone()
        await asyncio.wait({first})


async def test_an_unasked_answer_reaches_nobody() -> None:
    """Of many pairs of requests on kept connections, none gets an answer that nobody asked for."""

    async def script(exchange: Exchange) -> None:
        name = exchange.json()["user"]
        body = frames(delta(content=name, finish="stop"), DONE)
        await exchange.send(chunked([body]))
        await exchange.send(chunked([frames(delta(content="UNASKED", finish="stop"), DONE)]))

    async with scripted(script) as server:
        upstream = OpenAIUpstream(HttpServer(server.url, reuse_connections=True), "m")
        for number in range(1000 if THOROUGH else 200):
            for name in (f"a{number}", f"b{number}"):
                request = msgspec.structs.replace(CHAT, user=name)
                assert await events_of(upstream, request) == [TextDelta(name), Finish("stop"), Usage(0, 0)]  # fmt: skip
        await upstream.aclose()


async def test_many_at_a_time() -> None:
    """Many answers at a time do not mix."""

    async def script(exchange: Exchange) -> None:
        name = exchange.json()["user"]
        for _ in range(5):
            await exchange.send(frames(delta(content=name)) if _ else stream_of(b""))
            await asyncio.sleep(0)
        await exchange.send(frames(delta(finish="stop"), DONE))
        exchange.close()

    async def one(upstream: OpenAIUpstream, name: str) -> Answer:
        return fold([await events_of(upstream, msgspec.structs.replace(CHAT, user=name))])

    async with scripted(script) as server:
        upstream = OpenAIUpstream(HttpServer(server.url), "m")
        answers = await asyncio.gather(*(one(upstream, f"<{n}>") for n in range(50)))

    assert [f"<{n}>" * 4 for n in range(50)] == [item.choices[0].text for item in answers]


# The model's name


async def test_the_only_model() -> None:
    """An upstream without a configured name takes the server's only model."""

    async def script(exchange: Exchange) -> None:
        if exchange.head.startswith(b"GET /v1/models "):
            await exchange.send(answer(b'{"object":"list","data":[{"id":"theirs"}]}'))
        else:
            await exchange.send(stream_of(HELLO))
        exchange.close()

    async with scripted(script) as server:
        upstream = OpenAIUpstream(HttpServer(server.url))
        await upstream.start()
        await upstream.start()
        await events_of(upstream)

    assert len(server.requests) == 2
    assert server.requests[-1].json()["model"] == "theirs"


@pytest.mark.parametrize(
    "body",
    [
        b'{"data":[]}',
        b'{"data":[{"id":"a"},{"id":"b"}]}',
        b"[]",
        b"<html>",
        b"\xff",
        b'{"data":[{"id":"\xff"}]}',
        b'{"x":' * 100_000,
    ],
)
async def test_no_single_model(body: bytes) -> None:
    """A server with several models, none, or no list is an error that says so."""
    async with scripted(says(answer(body))) as server:
        with pytest.raises(BackendError):
            await OpenAIUpstream(HttpServer(server.url)).start()


# Embeddings


async def test_embed() -> None:
    """Embeddings are asked for as numbers, and given in the order of the inputs."""
    items = [{"index": 1, "embedding": [3.0]}, {"index": 0, "embedding": [1.0]}]
    body = msgspec.json.encode({"data": items, "usage": {"prompt_tokens": 7}})
    async with scripted(says(answer(body))) as server:
        upstream = OpenAIUpstream(HttpServer(server.url), "m")
        actual = await upstream.embed(EmbeddingRequest(input=["a", "b"], encoding_format="base64"))

    assert ([[1.0], [3.0]], 7) == (actual.vectors, actual.prompt_tokens)
    assert server.requests[0].json() == {
        "model": "m",
        "input": ["a", "b"],
        "encoding_format": "float",
    }


async def test_fewer_vectors_than_inputs() -> None:
    """An answer that leaves inputs out is the backend's error."""
    async with scripted(says(answer(b'{"data":[{"embedding":[1.0]}]}'))) as server:
        with pytest.raises(BackendError):
            await OpenAIUpstream(HttpServer(server.url), "m").embed(
                EmbeddingRequest(input=["a", "b"])
            )


async def test_calls_that_openai_does_not_have() -> None:
    """Tokens cannot be asked of an OpenAI server of which nothing else is known."""
    upstream = OpenAIUpstream(HttpServer("http://127.0.0.1:1"), "m")
    for asked in (upstream.tokenize("a"), upstream.detokenize([1]), upstream.count_tokens(CHAT)):
        with pytest.raises(UnsupportedOperation, match="does not tell tokens"):
            await asked


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"api_key": "k"}, b"Authorization: Bearer k"),
        ({"api_key": "k", "api_key_header": "api-key"}, b"api-key: k"),
        ({}, b"Connection: close"),
        ({"reuse_connections": True}, b"Connection: keep-alive"),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "openai+http"])
async def test_backend(scheme: str, settings: dict[str, Any], expected: bytes) -> None:
    """A source and its settings become an upstream that sends the configured key."""
    async with scripted(says(stream_of(HELLO))) as server:
        config = ModelConfig(source="x", model="m", **settings)
        location = server.url.removeprefix("http:")
        upstream = backend(BackendSpec("x", scheme, location, config, 1, lambda *_: None))
        await upstream.start()
        assert await events_of(upstream) == WHOLE

    assert expected in server.requests[0].head.split(b"\r\n")


# Whole answers

BODY = {
    "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}
WANTS_WHOLE = msgspec.structs.replace(CHAT, stream=None)


async def either(exchange: Exchange) -> None:
    """Answers as a server does: streams where one is asked for."""
    asked = exchange.json()
    whole = answer(msgspec.json.encode(BODY))
    await exchange.send(chunked([HELLO]) if asked["stream"] else whole)


async def test_a_whole_answer_can_be_asked_for() -> None:
    """With `whole_answers = "whole"` whole answers are asked for as they are, streams as streams, and both say the same."""
    async with scripted(either) as server:
        upstream = OpenAIUpstream(HttpServer(server.url), "m", whole_answers="whole")
        whole, streamed = await events_of(upstream, WANTS_WHOLE), await events_of(upstream)

    assert fold([whole]) == fold([streamed])
    assert {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": False,
    } == server.requests[0].json()
    assert server.requests[1].json()["stream"] is True


def lists(*owners: Any) -> bytes:
    """A list of models of these owners."""
    data = [{"id": "m", "object": "model", "owned_by": owner} for owner in owners]
    return answer(msgspec.json.encode({"object": "list", "data": data}))


@pytest.mark.parametrize(
    ("configured", "models", "streams"),
    [
        ("auto", lists("vllm"), False),
        ("auto", lists("unilect", "unilect"), False),
        ("auto", lists("library"), True),
        ("auto", lists("vllm", "me"), True),
        ("auto", lists(None), True),
        ("auto", lists([1]), True),
        ("auto", lists(), True),
        ("auto", answer(b"", "404 Not Found"), True),
        ("auto", answer(b"<html>"), True),
        ("stream", lists("vllm"), True),
        ("whole", lists("library"), False),
    ],
)
async def test_how_whole_answers_are_asked_for(
    configured: Any, models: bytes, streams: bool
) -> None:
    """A server is asked for whole answers where the operator says so, or where it is one that stops when its client leaves."""

    async def script(exchange: Exchange) -> None:
        if exchange.head.startswith(b"GET"):
            await exchange.send(models)
        else:
            await either(exchange)
        exchange.close()

    async with scripted(script) as server:
        config = ModelConfig(source="x", model="m", whole_answers=configured)
        location = server.url.removeprefix("http:")
        upstream = backend(BackendSpec("x", "http", location, config, 1, lambda *_: None))
        for _ in range(2):
            await upstream.start()
        await events_of(upstream, WANTS_WHOLE)

    assert streams == server.requests[-1].json()["stream"]
    asked = [exchange.head.split()[0] for exchange in server.requests]
    assert (b"POST", 1) == (asked[-1], asked.count(b"POST"))


async def test_a_server_that_is_not_there_yet_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the list of models cannot be had, streams are asked for, and the list is asked for once more later."""
    monkeypatch.setattr(openai, "LEARN_AGAIN_S", 0.0)
    listed = iter([answer(b"", "503 Busy"), lists("vllm")])

    async def script(exchange: Exchange) -> None:
        if exchange.head.startswith(b"GET"):
            await exchange.send(next(listed))
        else:
            await either(exchange)
        exchange.close()

    asked = []
    async with scripted(script) as server:
        http = HttpServer(server.url)
        upstream = OpenAIUpstream(http, "m", root=http, whole_answers=None)
        for _ in range(2):
            await upstream.start()
            await events_of(upstream, WANTS_WHOLE)
            asked.append(server.requests[-1].json()["stream"])

    assert [True, False] == asked


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"<html>", "text/html"), (b'{"error": "x"}', "application/json"), (b"", "")],
)
async def test_a_whole_answer_that_is_none(body: bytes, kind: str) -> None:
    """A 200 that is a page, an error or nothing is the backend's error."""
    async with scripted(says(answer(body, kind=kind))) as server:
        upstream = OpenAIUpstream(HttpServer(server.url), "m", whole_answers="whole")
        with pytest.raises(BackendError):
            await events_of(upstream, WANTS_WHOLE)


@pytest.mark.parametrize("begun", [b"", answer(b'{"choices": []}')[:-5]])
async def test_leaving_a_whole_answer_closes_its_connection(begun: bytes) -> None:
    """Whoever leaves while a whole answer is made ends its connection at once, so that the server can stop."""
    asked = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(begun)
        asked.set()
        await exchange.client_gone()

    async with scripted(script) as server:
        upstream = OpenAIUpstream(HttpServer(server.url), "m", whole_answers="whole")
        async with serving(upstream) as app:
            task = asyncio.create_task(app.chat(stream=False).__aenter__())
            await asked.wait()
            task.cancel()

            await server.until_gone()
