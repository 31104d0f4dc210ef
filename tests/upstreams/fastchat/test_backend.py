"""Tests of unilect.upstreams.fastchat.backend: a controller is asked for a worker, and the worker for an answer."""

import asyncio
import base64
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from support.backends.engine import answer, chat, completion, events_of
from support.backends.fastchat import CONV, HELLO, FakeFastChat, fake_fastchat, frame
from support.backends.scripted import answer as answered
from support.backends.scripted import chunked, scripted
from unilect.api.backend import BackendSpec
from unilect.config.server import ModelConfig
from unilect.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
    OutOfMemory,
    UnilectError,
    UnsupportedOperation,
    UnsupportedParameter,
)
from unilect.core.events import TextDelta, Usage
from unilect.core.requests import EmbeddingRequest
from unilect.http.client import HttpServer
from unilect.upstreams.fastchat import backend as fastchat
from unilect.upstreams.fastchat.backend import Controller, FastChatUpstream, backend


@pytest.fixture
async def fake() -> AsyncIterator[FakeFastChat]:
    """A controller and its worker."""
    async with fake_fastchat() as running:
        yield running


def upstream(fake: FakeFastChat, name: str = "m", **config: Any) -> FastChatUpstream:
    """The backend for it."""
    return FastChatUpstream(Controller(HttpServer(fake.url)), ModelConfig(**config), name)


async def started(fake: FakeFastChat, **config: Any) -> FastChatUpstream:
    """The same, started."""
    backend = upstream(fake, **config)
    await backend.start()
    return backend


async def test_streamed_and_whole(fake: FakeFastChat) -> None:
    """A stream tells the text piece by piece, and a whole answer is the same text."""
    worker = await started(fake)

    pieces = [
        event.text
        for event in await events_of(worker.generate(chat(stream=True)))
        if isinstance(event, TextDelta)
    ]
    whole = await answer(worker.generate(chat()))

    assert "Hello" == "".join(pieces) == whole.choices[0].text
    assert ("stop", Usage(3, 2)) == (whole.choices[0].finish_reason, whole.usage)


async def test_what_a_worker_is_sent(fake: FakeFastChat) -> None:
    """A chat becomes the template's prompt; stop words join the template's, and parameters have the worker's names."""
    worker = await started(fake)

    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "repeat_penalty": 1.1}
    penalties = {"presence_penalty": 0.1, "frequency_penalty": 0.2}
    await answer(worker.generate(chat("Hi", stop="END", max_tokens=7, **sampling, **penalties)))

    assert {
        "model": "m",
        "prompt": "\nUser: Hi\nBot:",
        "max_new_tokens": 7,
        "echo": False,
        "stop": ["END", "###"],
        "stop_token_ids": [2],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
    } == fake.params


async def test_a_raw_prompt(fake: FakeFastChat) -> None:
    """A plain completion's prompt goes as it is, and without max_tokens as much is asked for as fits and is not cut."""
    worker = await started(fake)

    await answer(worker.generate(completion("Once", use_beam_search=True)))

    assert ("Once", 100 - 10 - 1, True) == (
        fake.params["prompt"],
        fake.params["max_new_tokens"],
        fake.params["use_beam_search"],
    )


@pytest.mark.parametrize(("count", "asked", "sent"), [(60, 90, 39), (98, None, 1), (0, None, 512)])
async def test_room(fake: FakeFastChat, count: int, asked: Any, sent: int) -> None:
    """More than fits is cut to what does; a worker that does not count is asked for 512."""
    fake.answers["/count_token"] = {"count": count, "error_code": 0}
    worker = await started(fake)

    await answer(worker.generate(completion("Once", max_tokens=asked)))

    assert sent == fake.params["max_new_tokens"]


async def test_nothing_is_counted_that_must_fit(fake: FakeFastChat) -> None:
    """A token is at least a byte, so a short prompt with few tokens asked for is not counted first."""
    worker = await started(fake)

    await answer(worker.generate(completion("Once", max_tokens=5)))

    assert "/count_token" not in fake.asked


@pytest.mark.parametrize("count", [99, 100, 5000])
async def test_too_long(fake: FakeFastChat, count: int) -> None:
    """A prompt that does not fit is refused with both numbers, and the worker is not asked."""
    fake.answers["/count_token"] = {"count": count, "error_code": 0}
    worker = await started(fake)

    with pytest.raises(ContextLengthExceeded, match=f"100 tokens, and the prompt has {count}"):
        await answer(worker.generate(chat()))

    assert "/worker_generate_stream" not in fake.asked


async def test_usage_that_is_not_told(fake: FakeFastChat) -> None:
    """A worker that tells no usage counts the prompt and the answer."""
    fake.pieces = [frame("Hello", finish_reason="stop")]
    worker = await started(fake)

    assert Usage(10, 10) == (await answer(worker.generate(completion("Once")))).usage
    assert ["Once", "Once", "Hello"] == [body["prompt"] for body in fake.asked["/count_token"]]


async def test_a_lost_worker(fake: FakeFastChat) -> None:
    """A worker that is gone before it said anything is dropped, and the controller is asked for another one."""
    worker = await started(fake)
    fake.addresses = ["http://127.0.0.1:1", fake.url]

    assert "Hello" == (await answer(worker.generate(chat()))).choices[0].text
    assert 1 == len(fake.asked["/refresh_all_workers"])


async def test_a_worker_that_dies_at_once(fake: FakeFastChat) -> None:
    """So is one that breaks off before its first frame, whose template was known already."""

    async def dies(exchange: Any) -> None:
        if b"/worker_generate_stream" in exchange.head:
            exchange.reset()
        else:
            await fake.script(exchange)

    async with scripted(dies) as dying:
        worker = await started(fake)
        fake.addresses = [f"http://127.0.0.1:{dying.port}", fake.url]

        assert "Hello" == (await answer(worker.generate(chat()))).choices[0].text


async def test_all_workers_are_lost(fake: FakeFastChat) -> None:
    """The controller is asked once more and not again."""
    worker = await started(fake)
    fake.addresses = ["http://127.0.0.1:1"]

    with pytest.raises(BackendUnavailable):
        await answer(worker.generate(chat()))

    assert 3 == len(fake.asked["/get_worker_address"])


async def test_a_torn_answer(fake: FakeFastChat) -> None:
    """A worker that dies in the middle of a stream is an error, and no other is asked."""
    worker = await started(fake)
    fake.pieces = HELLO[:2]
    found = []

    with pytest.raises(BackendError, match="broke off"):
        async with aclosing(worker.generate(chat(stream=True))) as batches:
            async for batch in batches:
                found += batch

    assert "Hello" == "".join(event.text for event in found if isinstance(event, TextDelta))
    assert 1 == len(fake.asked["/worker_generate_stream"])


async def test_an_error_frame(fake: FakeFastChat) -> None:
    """An error in a frame is ours, and no reason to ask another worker."""
    fake.pieces = [frame("no memory", error_code=50002)]
    worker = await started(fake)

    with pytest.raises(OutOfMemory):
        await answer(worker.generate(chat()))

    assert 1 == len(fake.asked["/worker_generate_stream"])


async def test_what_a_worker_says_is_remembered(
    fake: FakeFastChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template and the context are asked for once a minute, since another worker may start at the same address."""
    worker = await started(fake)
    await answer(worker.generate(chat()))
    assert 1 == len(fake.asked["/worker_get_conv_template"])

    monkeypatch.setattr(fastchat, "KNOWN_FOR_S", -1.0)
    fresh = await started(fake)
    fake.answers["/worker_get_conv_template"] = {"conv": CONV | {"roles": ["Q", "A"]}}
    await answer(fresh.generate(chat("Hi")))

    assert "\nQ: Hi\nA:" == fake.params["prompt"]


async def test_a_template_of_our_own(fake: FakeFastChat) -> None:
    """`chat_template` stands instead of the worker's template."""
    worker = await started(fake, chat_template="chatml")

    await answer(worker.generate(chat("Hi")))

    assert "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" == fake.params["prompt"]
    assert ["<|im_end|>"] == fake.params["stop"]


async def test_a_template_known_by_name(fake: FakeFastChat) -> None:
    """A template whose name is a named format's is that format, and ends where both end."""
    fake.answers["/worker_get_conv_template"] = {"conv": CONV | {"name": "chatml"}}
    worker = await started(fake)

    await answer(worker.generate(chat("Hi")))

    assert "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" == fake.params["prompt"]
    assert ["###", "<|im_end|>"] == fake.params["stop"]


async def test_the_name(fake: FakeFastChat) -> None:
    """The configured model is taken, else the one of this name, else the only one; else the operator is told the names, and no client."""
    fake.answers["/list_models"] = {"models": ["a", "b"]}
    for name, config, expected in [("b", {}, "b"), ("x", {"model": "a"}, "a")]:
        backend = upstream(fake, name, **config)
        await backend.start()
        await answer(backend.generate(chat()))
        assert expected == fake.params["model"]

    with pytest.raises(BackendUnavailable, match="No worker of the FastChat") as raised:
        await upstream(fake, "x").start()
    assert "no model `x`; it has a, b." in raised.value.for_operator
    fake.answers["/list_models"] = {"models": []}
    with pytest.raises(BackendUnavailable, match="no worker"):
        await upstream(fake).start()


async def test_capabilities(fake: FakeFastChat) -> None:
    """The context is the worker's, and images are read where the controller says so; old ones know no such call."""
    assert (100, False) == (
        (await started(fake)).capabilities.context,
        (await started(fake)).capabilities.vision,
    )
    fake.answers["/list_multimodal_models"] = {"models": ["m"]}
    assert (await started(fake)).capabilities.vision
    del fake.answers["/list_multimodal_models"]
    assert not (await started(fake)).capabilities.vision


async def test_images(fake: FakeFastChat) -> None:
    """An image goes beside the prompt; one by URL is refused, since the worker would fetch it."""
    worker = await started(fake)

    def asked(url: str) -> Any:
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}]
        return chat(messages=[{"role": "user", "content": parts}])

    await answer(worker.generate(asked("data:image/png;base64,AAAA")))
    assert ["AAAA"] == fake.params["images"]
    with pytest.raises(InvalidRequest, match="URLs are not fetched"):
        await answer(worker.generate(asked("http://169.254.169.254/x.png")))


async def test_refused(fake: FakeFastChat) -> None:
    """Token ids, and alternatives of log probabilities, are refused by name."""
    worker = await started(fake)

    with pytest.raises(InvalidRequest, match="check_embedding_ctx_length") as caught:
        await answer(worker.generate(completion([1, 2, 3])))
    assert "prompt" == caught.value.param
    with pytest.raises(UnsupportedParameter):
        await answer(worker.generate(completion("a", logprobs=5)))
    for call in (worker.tokenize("a"), worker.detokenize([1])):
        with pytest.raises(UnsupportedOperation):
            await call


async def test_count(fake: FakeFastChat) -> None:
    """A chat is counted as its prompt; token ids count themselves."""
    worker = await started(fake)

    assert (10, 2) == (await worker.count_tokens(chat("Hi")), await worker.count_tokens([5, 6]))
    assert "\nUser: Hi\nBot:" == fake.asked["/count_token"][-1]["prompt"]


async def test_no_embeddings(fake: FakeFastChat) -> None:
    """A worker without that call (vLLM's) is told as an operation that the backend lacks."""
    worker = await started(fake)

    with pytest.raises(UnsupportedOperation):
        await worker.embed(EmbeddingRequest(input=["a"]))


async def test_embeddings_in_base64(fake: FakeFastChat) -> None:
    """Vectors that come as base64 unasked are read."""
    vector = base64.b64encode(array("f", [1.0, -2.0]).tobytes()).decode()
    fake.answers["/worker_get_embeddings"] = {"embedding": [vector], "token_num": 1}
    worker = await started(fake)

    assert [[1.0, -2.0]] == (await worker.embed(EmbeddingRequest(input="a"))).vectors


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/list_models", {"models": 1}),
        ("/get_worker_address", None),
        ("/worker_get_conv_template", {"conv": None}),
        ("/model_details", []),
    ],
)
async def test_another_protocol(fake: FakeFastChat, path: str, told: Any) -> None:
    """A server that does not speak FastChat's protocol is told as such."""
    fake.answers[path] = told
    if path == "/get_worker_address":
        fake.addresses = ["ftp://x"]

    with pytest.raises(UnilectError):
        await started(fake)


async def test_silence(fake: FakeFastChat) -> None:
    """A worker that is silent for `timeout_s` is given up."""

    async def silent(exchange: Any) -> None:
        if b"/worker_generate_stream" in exchange.head:
            await exchange.send(chunked(HELLO[:1])[:-5])
            await exchange.client_gone()
        else:
            await fake.script(exchange)

    async with scripted(silent) as server:
        fake.addresses = [f"http://127.0.0.1:{server.port}"]
        worker = await started(fake, timeout_s=1.0)
        with pytest.raises(BackendTimeout):
            await answer(worker.generate(chat(stream=True)))


async def test_leaving_closes_the_connection(fake: FakeFastChat) -> None:
    """A client that leaves closes the worker's stream, at which FastChat's workers stop."""

    async def endless(exchange: Any) -> None:
        if b"/worker_generate_stream" in exchange.head:
            await exchange.send(chunked(HELLO[:1])[:-5])
            await exchange.client_gone()
        else:
            await fake.script(exchange)

    async with scripted(endless) as server:
        fake.addresses = [f"http://127.0.0.1:{server.port}"]
        worker = await started(fake)
        seen = server.connections
        batches = worker.generate(chat(stream=True))
        await anext(batches)
        await batches.aclose()
        for _ in range(seen + 1):
            await server.until_gone()


@pytest.mark.parametrize("refused", [b"", b"/model_details"])
async def test_no_connection_stays_open(fake: FakeFastChat, refused: bytes) -> None:
    """Requests that meet a worker at the same time leave no connection behind, nor does one that it does not tell all."""

    async def keeps(exchange: Any) -> None:
        path = exchange.head.split(b" ")[1]
        told = msgspec.json.encode(fake.answers.get(path.decode()))
        await exchange.send(answered(told, "500 Oops" if path == refused else "200 OK"))

    async with scripted(keeps) as server:
        fake.addresses = [f"http://127.0.0.1:{server.port}"]
        worker = upstream(fake, reuse_connections=True)
        counts = (worker.count_tokens("Hi") for _ in range(3))
        found = await asyncio.gather(*counts, return_exceptions=True)
        assert bool(refused) == (10 not in found)
        await worker.aclose()
        for _ in range(server.connections):
            await server.until_gone()


async def test_the_source(fake: FakeFastChat) -> None:
    """`fastchat+http://controller` is such a backend."""
    spec = BackendSpec(
        "m", "fastchat+http", f"//127.0.0.1:{fake.server.port}", ModelConfig(), 1, print
    )
    found = backend(spec)
    await found.start()
    await found.check()

    assert "Hello" == (await answer(found.generate(chat()))).choices[0].text
    fake.answers["/list_models"] = {"models": []}
    with pytest.raises(BackendUnavailable):
        await found.check()
    await found.aclose()
