"""Tests of unilect.upstreams.llamacpp.backend: on a real llama-server, and on conversations of servers that cannot run here."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import openai
import pytest

from support.backends.engine import answer, chat, completion, events_of
from support.backends.llama_server import CONTEXT, llama_server
from support.backends.scripted import Scripted, chunked, frames, says, scripted, stream_of
from support.backends.wires import replay
from support.models.strict_templates import STYLES, TALK, missing
from support.servers.appserver import serving
from unilect.api.backend import BackendSpec
from unilect.config.server import ModelConfig
from unilect.core.errors import (
    BackendError,
    BackendUnavailable,
    ConfigError,
    ContextLengthExceeded,
    InvalidRequest,
    UnilectError,
    UnsupportedOperation,
    UnsupportedParameter,
)
from unilect.core.events import Finish, TextDelta, Usage
from unilect.core.requests import EmbeddingRequest
from unilect.http.client import HttpServer
from unilect.templates.chat import ChatTemplate
from unilect.upstreams.llamacpp import backend as llamacpp
from unilect.upstreams.llamacpp.backend import LlamaCppUpstream, backend
from unilect.wire.llamacpp import Busy, FrameDecoder
from unilect.wire.stream import stream

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SEES = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, IMAGE]}]


def upstream(url: str, **config: Any) -> LlamaCppUpstream:
    """The upstream for a server, as the configuration makes it."""
    spec = BackendSpec(
        "m", "llamacpp+http", url.removeprefix("http:"), ModelConfig(**config), 1, print
    )  # type: ignore[arg-type]
    return backend(spec)


@asynccontextmanager
async def playing(
    name: str, prefix: str = "", config: dict[str, Any] | None = None, **instead: bytes
) -> AsyncIterator[tuple[LlamaCppUpstream, Scripted]]:
    """A started upstream of a server that plays a conversation; what it was asked to start is forgotten."""
    async with scripted(replay(name, prefix, **instead)) as server:
        running = upstream(f"http://127.0.0.1:{server.port}{prefix}", **config or {})
        await running.start()
        server.requests.clear()
        yield running, server


def asked(server: Scripted) -> Any:
    """The last request's body."""
    return server.requests[-1].json()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A real llama-server."""
    with llama_server() as running:
        yield running


@pytest.fixture
async def real(url: str) -> LlamaCppUpstream:
    """An upstream of it, started."""
    running = upstream(url)
    await running.start()
    return running


async def test_what_a_real_server_is(real: LlamaCppUpstream) -> None:
    """The context, the template and the abilities of a server are learned at start."""
    can = real.capabilities

    assert (CONTEXT, None, False) == (can.context, can.max_in_flight, can.vision)
    assert ("native", "native") == (can.parameters["seed"], can.parameters["response_format"])
    assert can.fans_out
    assert can.passes_unknown


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hello!"}],
        [{"role": "system", "content": "Your name is 小明."}, {"role": "user", "content": "{{ 1 }}"}],
        [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "a\nb"}],
        [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": ""},
        ],
    ],
)  # fmt: skip
async def test_the_prompt_is_the_servers(real: LlamaCppUpstream, messages: Any) -> None:
    """A conversation becomes the prompt that the server itself would make of it."""
    request = chat(messages=messages, max_tokens=1)
    ours = await answer(real.generate(request))
    body = msgspec.json.encode({"messages": messages})
    theirs = msgspec.json.decode(await real._server.post("/apply-template", body))["prompt"]

    assert theirs == msgspec.json.decode(ours.choices[0].native["prompt"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_through_the_official_client(url: str, stream: bool) -> None:
    """The official client gets the answer that the server's own chat endpoint gives, streamed and whole."""
    messages: Any = [{"role": "user", "content": "What is the capital of France?"}]
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        theirs = await client.chat.completions.create(
            model="m", messages=messages, temperature=0, max_tokens=16
        )
    async with serving(upstream(url)) as app:
        base = f"http://127.0.0.1:{app.port}/v1"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            ours: Any = await client.chat.completions.create(
                model="m", messages=messages, temperature=0, max_tokens=16, stream=stream
            )
            if stream:
                text, reason = "", None
                async for chunk in ours:
                    text += chunk.choices[0].delta.content or ""
                    reason = chunk.choices[0].finish_reason or reason
            else:
                text, reason = ours.choices[0].message.content, ours.choices[0].finish_reason
                assert theirs.usage is not None
                assert theirs.usage.completion_tokens == ours.usage.completion_tokens

    assert (theirs.choices[0].message.content, theirs.choices[0].finish_reason) == (text, reason)


async def test_token_ids_as_a_prompt(real: LlamaCppUpstream) -> None:
    """A prompt of token ids is continued as its text is."""
    ids = await real.tokenize("The capital of")
    by_ids = await answer(real.generate(completion(ids, max_tokens=4)))
    by_text = await answer(real.generate(completion("The capital of", max_tokens=4)))

    assert by_text.choices[0].text == by_ids.choices[0].text
    assert "The capital of" == await real.detokenize(ids)
    assert len(ids) == by_ids.usage.prompt_tokens == await real.count_tokens(completion(ids))


async def test_log_probabilities(real: LlamaCppUpstream) -> None:
    """Each token comes with its log probability and as many alternatives as were asked for."""
    whole = await answer(real.generate(chat(max_tokens=3, logprobs=True, top_logprobs=2)))
    none = await answer(real.generate(chat(max_tokens=3, logprobs=True)))

    tokens = whole.choices[0].logprobs or []
    assert whole.choices[0].text == "".join(token.token for token in tokens)
    assert [2, 2, 2] == [len(token.top_logprobs) for token in tokens]
    assert [0, 0, 0] == [len(token.top_logprobs) for token in none.choices[0].logprobs or []]
    assert all(-1 < token.logprob <= 0 for token in tokens)


async def test_a_schema(real: LlamaCppUpstream) -> None:
    """An answer follows the schema of `response_format`."""
    schema = {"type": "object", "properties": {"a": {"enum": [5]}}, "required": ["a"], "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    whole = await answer(real.generate(chat(response_format=form, max_tokens=64)))

    assert {"a": 5} == msgspec.json.decode(whole.choices[0].text or "")


async def test_a_token_that_is_forbidden(real: LlamaCppUpstream) -> None:
    """A token with the bias false is never chosen, with another form of the same wish too."""
    [first] = await real.tokenize("Hello")
    texts = [
        (await answer(real.generate(chat(max_tokens=1, logit_bias={str(first): bias})))).choices[0].text
        for bias in (0, False, -100)
    ]  # fmt: skip

    assert "Hello" == texts[0]
    assert "Hello" not in texts[1:]


@pytest.mark.parametrize(
    ("request_", "expected", "param"),
    [
        (completion("word " * 2000), ContextLengthExceeded, None),
        (completion([5] * CONTEXT), ContextLengthExceeded, None),
        (completion("a", suffix="b"), UnsupportedParameter, "suffix"),
        (completion([5], suffix="b"), InvalidRequest, "prompt"),
        (completion([99_999]), InvalidRequest, None),
        (chat(grammar="root ::= ((("), InvalidRequest, None),
        (chat(grammar="root ::= [a]", response_format={"type": "json_object"}), InvalidRequest, "grammar"),
        (chat(logit_bias={"-1": 1}), InvalidRequest, "logit_bias"),
        (chat(logit_bias={"1": True}), InvalidRequest, "logit_bias"),
        (chat(messages=SEES), InvalidRequest, "messages"),
    ],
)  # fmt: skip
async def test_requests_that_cannot_work(
    real: LlamaCppUpstream, request_: Any, expected: type[UnilectError], param: str | None
) -> None:
    """What a server refuses, or would do badly, is the request's fault, by name."""
    with pytest.raises(UnilectError) as raised:
        await events_of(real.generate(request_))

    assert (expected, param) == (type(raised.value), raised.value.param)


async def test_calls_that_a_server_lacks(real: LlamaCppUpstream) -> None:
    """Embeddings of a server that was not started for them are refused as such, and unknown ids by name."""
    with pytest.raises(UnsupportedOperation):
        await real.embed(EmbeddingRequest(input="a"))
    with pytest.raises(InvalidRequest, match="token id"):
        await real.detokenize([2**30])


async def test_a_client_that_leaves(real: LlamaCppUpstream) -> None:
    """A server stops when its answer is not wanted any more."""
    async with aclosing(real.generate(completion("a", stream=True, ignore_eos=True))) as batches:
        async for batch in batches:
            if isinstance(batch[-1], TextDelta):
                break

    async with asyncio.timeout(60):
        while b'"is_processing":true' in await real._server.get("/slots"):
            await asyncio.sleep(0)
    await real.check()


async def test_powerinfer() -> None:
    """A chat becomes a prompt in the form of 2023, and everything is sent as a server of that year reads it."""
    async with playing("powerinfer") as (running, server):
        request = chat("Once", max_tokens=4, stop="\n\n", top_k=-1, repetition_penalty=1.2)
        whole = await answer(running.generate(request))

    preamble = (
        "A chat between a curious user and an artificial intelligence assistant. "
        "The assistant follows the given rules no matter what.\n"
    )
    expected = {
        "prompt": f"{preamble}\nUSER: Once\nASSISTANT:",
        "temperature": 0.0,
        "cache_prompt": True,
        "n_predict": 4,
        "top_k": 0,
        "repeat_penalty": 1.2,
        "stop": ["</s>", "\n\n"],
        "stream": True,
        "return_progress": True,
    }
    assert expected == asked(server)
    assert [b"POST /completion HTTP/1.1"] == [r.head.split(b"\r\n")[0] for r in server.requests]
    assert (", there was a little", "length") == (
        whole.choices[0].text,
        whole.choices[0].finish_reason,
    )
    assert Usage(5, 4, 0) == whole.usage


async def test_what_powerinfer_is() -> None:
    """A server of 2023 takes one request at a time, and neither seed nor schema."""
    async with playing("powerinfer") as (running, _):
        can = running.capabilities

    assert (512, 1) == (can.context, can.max_in_flight)
    assert ("refused", "refused") == (can.parameters["seed"], can.parameters["response_format"])


async def test_the_rest_of_the_context() -> None:
    """Where the context would be shifted for ever, an answer without a limit gets what is left, counted."""
    async with playing("powerinfer") as (running, server):
        await events_of(running.generate(completion("Once upon")))
        limit = asked(server)["n_predict"]
        await events_of(running.generate(completion("Once upon", max_tokens=10_000)))

    assert [b"/tokenize", b"/completion"] * 2 == [r.head.split(b" ")[1] for r in server.requests]
    assert 512 - 5 - 2 == limit == asked(server)["n_predict"]


async def test_a_prompt_that_is_too_long_is_never_sent() -> None:
    """A prompt that a server would cut silently is refused with both numbers."""
    tokens = msgspec.json.encode({"tokens": [1] * 600})
    told = b"HTTP/1.1 200 OK\r\n\r\n" + tokens
    async with playing("powerinfer", tokenize=told) as (running, server):
        with pytest.raises(ContextLengthExceeded, match=r"512.* 601"):
            await events_of(running.generate(chat("word " * 600, max_tokens=5)))

    assert [b"/tokenize"] == [r.head.split(b" ")[1] for r in server.requests]


@pytest.mark.parametrize(
    "busy",
    [
        stream_of(b""),
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\n\r\nslot unavailable",
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\n\r\nFile Not Found",
    ],
)
async def test_a_busy_server(busy: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without a free slot is asked a few times, then unavailable; it is still the server that it was."""
    monkeypatch.setattr(llamacpp, "BUSY_PAUSES_S", (0.0, 0.0))
    async with playing("powerinfer", completion=busy) as (running, server):
        with pytest.raises(BackendUnavailable) as raised:
            await events_of(running.generate(completion(max_tokens=1)))
        await running.start()

    assert 1 == raised.value.retry_after_s
    assert isinstance(raised.value, Busy)
    assert 3 == len(server.requests)


async def test_a_slot_that_becomes_free() -> None:
    """A server whose slot is given free late answers all the same, and nothing is told twice."""
    play, refusals = replay("powerinfer"), [stream_of(b"")]

    async def script(exchange: Any) -> None:
        if refusals and exchange.head.startswith(b"POST /completion "):
            await exchange.send(refusals.pop())
            exchange.close()
        else:
            await play(exchange)

    async with scripted(script) as server:
        running = upstream(f"http://127.0.0.1:{server.port}")
        await running.start()
        whole = await answer(running.generate(completion(max_tokens=4)))

    assert ", there was a little" == whole.choices[0].text


@pytest.mark.parametrize(
    "broken",
    [
        stream_of(frames({"content": "a", "stop": False})),
        stream_of(frames({"content": "a", "stop": False}) + b'error: {"code":500,"message":"x"}\n\n'),
        stream_of(frames({"content": "a"}) + b'data: {"content":"","stop":tr'),
    ],
)  # fmt: skip
async def test_an_answer_that_breaks(broken: bytes) -> None:
    """An answer without its last frame is an error after what came, and the server is looked at anew."""
    async with playing("powerinfer", completion=broken) as (running, server):
        got: list[Any] = []
        with pytest.raises(BackendError):
            async with aclosing(running.generate(completion(max_tokens=1, stream=True))) as batches:
                async for batch in batches:
                    got += batch
        await running.start()

    assert [TextDelta("a")] == got
    assert b"GET /props" == server.requests[1].head[:10]


@pytest.mark.parametrize("reuse", [False, True])
async def test_a_connection_that_stays_open_after_the_last_frame(
    reuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer whose last frame has come is not held up by a server that keeps the connection open without an end."""
    monkeypatch.setattr("unilect.wire.stream.END_TIMEOUT_S", 0.02)
    last = {"content": "a", "stop": True, "tokens_evaluated": 3, "tokens_predicted": 1}
    data = chunked([frames(last)]).removesuffix(b"0\r\n\r\n")

    async with scripted(says(data, "keep")) as server, asyncio.timeout(60):
        http = HttpServer(server.url, reuse_connections=reuse)
        batches = stream(http.stream, "/completion", b"{}", FrameDecoder())
        events = [event async for batch in batches for event in batch]
        await server.until_gone()

    assert [TextDelta, Finish, Usage] == [type(event) for event in events]


async def test_a_parser_that_throws() -> None:
    """What a server of 2023 cannot parse is the request's fault, in its parser's words."""
    told = b"HTTP/1.1 500 Error\r\n\r\n500 Internal Server Error\n[json.exception.type_error.302] must be number"
    async with playing("powerinfer", completion=told) as (running, _):
        with pytest.raises(InvalidRequest, match="must be number"):
            await events_of(running.generate(completion(max_tokens=1, tfs_z="x")))


async def test_images_of_2023() -> None:
    """Images stand in the prompt by number, and beside it as base64; the server was asked once whether it sees."""
    async with playing("llamacpp-2023") as (running, server):
        await events_of(running.generate(chat(messages=SEES, max_tokens=1)))
        await events_of(running.generate(chat(messages=SEES, max_tokens=1)))

    body = asked(server)
    assert "\nUSER: What is it?\n[img-10]\nASSISTANT:" in body["prompt"]
    assert [{"data": "AAAA", "id": 10}] == body["image_data"]
    assert 3 == len(server.requests)


async def test_a_server_of_2023_that_does_not_see() -> None:
    """A server that would leave the image out is not asked about it."""
    async with playing("powerinfer") as (running, server):
        with pytest.raises(InvalidRequest, match="--mmproj"):
            await events_of(running.generate(chat(messages=SEES, max_tokens=1)))

    assert " " == asked(server)["prompt"]


async def test_images_of_2025() -> None:
    """A newer server gets its own mark in the prompt, and the images beside it."""
    async with playing("llamacpp-2025") as (running, server):
        running._sees = True
        await events_of(running.generate(chat(messages=SEES, max_tokens=1)))

    prompt = asked(server)["prompt"]
    assert ["AAAA"] == prompt["multimodal_data"]
    assert "What is it?\n<__media_" in prompt["prompt_string"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,$$"}},
        {"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}},
    ],
)
async def test_parts_that_are_not_read(part: Any) -> None:
    """What is no text and no image as data is refused, with its place."""
    async with playing("llamacpp-2023") as (running, _):
        with pytest.raises(InvalidRequest, match="messages"):
            await events_of(running.generate(chat(messages=[{"role": "user", "content": [part]}])))


async def test_embeddings_of_2023() -> None:
    """Each text is embedded by itself, and counted."""
    async with playing("llamacpp-2023") as (running, server):
        embeddings = await running.embed(EmbeddingRequest(input=["a", "b"]))

    assert [[0.25, -0.5, 0.125]] * 2 == embeddings.vectors
    assert 2 * (4 + 1) == embeddings.prompt_tokens
    assert [{"content": "a"}, {"content": "b"}] == [
        r.json() for r in server.requests if b"/embedding" in r.head
    ]


async def test_embeddings_that_are_zeros() -> None:
    """A server without `--embedding` says zeros as if they were an answer; it is refused."""
    async with playing("powerinfer") as (running, _):
        with pytest.raises(UnsupportedOperation, match="--embedding"):
            await running.embed(EmbeddingRequest(input="a"))


async def test_embeddings_of_a_busy_server() -> None:
    """A busy server says so where the vector should be."""
    told = b'HTTP/1.1 200 OK\r\n\r\n{"content":"slot unavailable"}'
    async with playing("powerinfer", embedding=told) as (running, _):
        with pytest.raises(Busy):
            await running.embed(EmbeddingRequest(input="a"))


async def test_embeddings_of_2025() -> None:
    """A newer server embeds by its OpenAI endpoint, one text a request."""
    told = b'HTTP/1.1 200 OK\r\n\r\n{"data":[{"index":0,"embedding":[0.5]}],"usage":{"prompt_tokens":2}}'
    async with scripted(replay("llamacpp-2025", **{"v1/embeddings": told})) as server:
        running = upstream(f"http://127.0.0.1:{server.port}")
        await running.start()
        embeddings = await running.embed(EmbeddingRequest(input=["a", "b"]))

    assert ([[0.5], [0.5]], 4) == (embeddings.vectors, embeddings.prompt_tokens)


async def test_a_path_before_the_urls() -> None:
    """A path of the server's URL is kept before every path."""
    async with playing("powerinfer", "/any/prefix") as (running, server):
        await events_of(running.generate(completion(max_tokens=1)))

    assert b"POST /any/prefix/completion HTTP/1.1" == server.requests[0].head.split(b"\r\n")[0]


async def test_the_key_and_the_model() -> None:
    """A configured key is sent with every request, and a configured model with those that write."""
    async with playing("powerinfer", config={"api_key": "k", "model": "theirs"}) as (
        running,
        server,
    ):
        await events_of(running.generate(completion(max_tokens=1)))

    assert b"Authorization: Bearer k" in server.requests[0].head
    assert "theirs" == asked(server)["model"]


async def test_a_configured_template() -> None:
    """A configured template stands instead of any other, with its stop words before the request's."""
    async with playing("llamacpp-2025", config={"chat_template": "chatml"}) as (running, server):
        await events_of(running.generate(chat("Hi", stop=["x", "<|im_end|>"])))

    assert "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" == asked(server)["prompt"]
    assert ["<|im_end|>", "x"] == asked(server)["stop"]


def test_a_template_that_is_none() -> None:
    """A template that cannot be read is a mistake in the configuration."""
    with pytest.raises(ConfigError, match="chat_template"):
        upstream("http://h", chat_template="chatmll")


@pytest.mark.parametrize(
    "template", ["/etc/hostname", "tests/conftest.py", "{% if %}", "no such name"]
)
async def test_a_servers_template_that_cannot_be_read(template: str) -> None:
    """A server's template is Jinja or a name and never a file of this machine; else the server renders each chat."""
    props = {"default_generation_settings": {"n_ctx": 512}, "chat_template": template}
    told = {"/props": props, "/tokenize": {"tokens": [1]}, "/apply-template": {"prompt": "<U>Hi"}}
    frame = b'data: {"content": "Ho", "stop": true, "stop_type": "eos"}\n\n'

    async def script(exchange: Any) -> None:
        path = exchange.head.split()[1].decode()
        body = msgspec.json.encode(told[path]) if path in told else frame
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + body)
        exchange.close()

    async with scripted(script) as server:
        backend = upstream(f"http://127.0.0.1:{server.port}")
        await backend.start()
        texts = [
            (await answer(backend.generate(asking))).choices[0].text
            for asking in (completion("Once"), chat("Hi"))
        ]

    assert ["Ho", "Ho"] == texts
    prompts = [e.json()["prompt"] for e in server.requests if b"/completion" in e.head]
    assert ["Once", "<U>Hi"] == prompts


async def test_embeddings_that_are_too_long() -> None:
    """A text that is longer than the context is refused before it is sent."""
    async with playing("powerinfer") as (running, _):
        with pytest.raises(ContextLengthExceeded) as raised:
            await running.embed(EmbeddingRequest(input=[[5] * 512]))

    assert "input" == raised.value.param


async def test_a_server_that_is_another() -> None:
    """A server that speaks something else is told as such at start."""
    told = b"HTTP/1.1 404 Not Found\r\n\r\nFile Not Found"

    async def script(exchange: Any) -> None:
        await exchange.send(told)
        exchange.close()

    async with scripted(script) as server:
        with pytest.raises(BackendError, match="/props"):
            await upstream(f"http://127.0.0.1:{server.port}").start()


async def test_a_server_that_loads() -> None:
    """A server that is loading its model is unavailable, and learned once it is there."""
    loading = [b"HTTP/1.1 503 No\r\n\r\n" + b'{"error":{"code":503,"message":"Loading model"}}']
    play = replay("llamacpp-2025")

    async def script(exchange: Any) -> None:
        if loading:
            await exchange.send(loading.pop())
            exchange.close()
        else:
            await play(exchange)

    async with scripted(script) as server:
        running = upstream(f"http://127.0.0.1:{server.port}")
        with pytest.raises(BackendUnavailable):
            await running.start()
        await asyncio.gather(running.start(), running.start())

    assert 512 == running.capabilities.context
    assert 1 + 2 == len(server.requests)


async def test_check() -> None:
    """A look at the server costs its model nothing, whatever its generation."""
    for name, path in (("powerinfer", b"/props"), ("llamacpp-2025", b"/health")):
        async with playing(name) as (running, server):
            await running.check()
        assert path == server.requests[0].head.split(b" ")[1]


async def test_the_ids_of_a_prompt() -> None:
    """With `tokenize` the prompt's ids are told before the answer, as the server's own call gives them."""
    async with playing("powerinfer") as (running, server):
        request = chat("Once", max_tokens=4, tokenize=True)
        whole = await answer(running.generate(request))

    assert [403, 407, 261, 378] == whole.extra["promptToken"]
    assert {"content": server.requests[1].json()["prompt"]} == server.requests[0].json()


async def test_a_model_without_a_gap(url: str) -> None:
    """That a model cannot fill a gap is learned from its first refusal, and told with its abilities."""
    running = upstream(url)
    await running.start()
    before = running.capabilities.parameters["suffix"]
    with pytest.raises(UnsupportedParameter):
        await events_of(running.generate(completion("a", suffix="b")))

    assert ("native", "refused") == (before, running.capabilities.parameters["suffix"])


async def test_infill() -> None:
    """A completion with a suffix is the gap between two texts."""
    filled = stream_of(frames({"content": "x", "stop": True, "stop_type": "eos"}))
    async with playing("llamacpp-2025", infill=filled) as (running, server):
        events = await events_of(running.generate(completion("a", suffix="b", max_tokens=5)))

    assert [TextDelta("x"), Finish("stop")] == [events[0], Finish(events[1].reason)]  # type: ignore[union-attr]
    assert ("a", "b") == (asked(server)["input_prefix"], asked(server)["input_suffix"])
    assert "prompt" not in asked(server)


async def test_one_at_a_time() -> None:
    """A server of 2023 is asked for one answer at a time, also where a request wants several."""
    play, under_way, most = replay("powerinfer"), 0, 0

    async def script(exchange: Any) -> None:
        nonlocal under_way, most
        under_way += exchange.head.startswith(b"POST /completion ")
        most = max(most, under_way)
        await asyncio.sleep(0)
        await play(exchange)
        under_way -= exchange.head.startswith(b"POST /completion ")

    async with scripted(script) as server:
        async with serving(upstream(f"http://127.0.0.1:{server.port}")) as app:

            async def ask() -> int:
                async with app.chat(n=3, max_tokens=4, stream=False) as response:
                    return len((await response.json())["choices"])

            assert [3, 3, 3] == await asyncio.gather(ask(), ask(), ask())

    assert 1 == most
    assert 9 == sum(r.head.startswith(b"POST /completion ") for r in server.requests)


@pytest.mark.parametrize("style", STYLES)
async def test_conversations_of_agents(style: str) -> None:
    """What agents send is in the prompt of every template, each word once."""
    server = LlamaCppUpstream(HttpServer("http://127.0.0.1:1"), ChatTemplate(STYLES[style][0]))

    assert [] == missing(await server.render(chat(messages=TALK)))
