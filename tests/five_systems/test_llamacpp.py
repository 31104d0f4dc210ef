"""What clients of llama.cpp's and PowerInfer's `api_like_OAI.py` and native servers must find again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from support.backends.scripted import Scripted, frames, scripted, stream_of
from support.backends.wires import replay
from support.servers.appserver import HI, App, serving
from unilect.api.backend import BackendSpec
from unilect.config.server import ModelConfig
from unilect.upstreams.llamacpp.backend import backend

PROMPT = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant follows the given rules no matter what.\n\nUSER: Hi\nASSISTANT:"
)
TEXT = ", there was a little"
IDS = [403, 407, 261, 378]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K"}}


@asynccontextmanager
async def in_front_of(name: str, **instead: bytes) -> AsyncIterator[tuple[App, Scripted]]:
    """unilect in front of a server that plays a conversation."""
    async with scripted(replay(name, **instead)) as server:
        spec = BackendSpec(
            "m", "llamacpp+http", f"//127.0.0.1:{server.port}", ModelConfig(), 1, print
        )  # type: ignore[arg-type]
        async with serving(backend(spec)) as app:
            yield app, server


async def post(app: App, path: str, **body: Any) -> Any:
    """The answer to a POST: the object, or the frames of a stream."""
    async with app.post(path, **body) as response:
        assert 200 == response.status, await response.read()
        data = await response.read()
    if not body.get("stream"):
        return msgspec.json.decode(data)
    return [
        msgspec.json.decode(frame.removeprefix(b"data: "))
        for frame in data.split(b"\n\n")
        if frame.startswith(b"data: {")
    ]


def sent(server: Scripted) -> Any:
    """The body of the last /completion."""
    return [r.json() for r in server.requests if r.head.startswith(b"POST /completion ")][-1]


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("stream", [False, True])
async def test_case_01_four_routes(prefix: str, stream: bool) -> None:
    """Chat and plain completions are answered with /v1 before them and without, streamed and whole."""
    async with in_front_of("powerinfer") as (app, server):
        chat = await post(app, f"{prefix}/chat/completions", stream=stream, messages=HI)
        chat_sent = sent(server)["prompt"]
        plain = await post(app, f"{prefix}/completions", stream=stream, prompt="Once upon a time")
        plain_sent = sent(server)["prompt"]

    assert (PROMPT, "Once upon a time") == (chat_sent, plain_sent)
    if stream:
        chat_text = "".join(c["choices"][0]["delta"].get("content", "") for c in chat)
        plain_text = "".join(c["choices"][0]["text"] for c in plain)
        reasons = chat[-1]["choices"][0]["finish_reason"], plain[-1]["choices"][0]["finish_reason"]
    else:
        chat_text, plain_text = (
            chat["choices"][0]["message"]["content"],
            plain["choices"][0]["text"],
        )
        reasons = chat["choices"][0]["finish_reason"], plain["choices"][0]["finish_reason"]
        usage = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
        assert usage == {name: chat["usage"][name] for name in usage}
    assert (TEXT, TEXT, ("length", "length")) == (chat_text, plain_text, reasons)


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/chat/completions", {"messages": HI}, PROMPT),
        ("/completions", {"prompt": "Once"}, "Once"),
    ],
)
async def test_case_02_tokenize(path: str, body: dict[str, Any], text: str) -> None:
    """With `tokenize: true` an answer has the prompt's ids as `promptToken`, a stream in its first chunk; else none has."""
    async with in_front_of("powerinfer") as (app, server):
        whole = await post(app, path, tokenize=True, max_tokens=4, **body)
        asked = [r.json() for r in server.requests if r.head.startswith(b"POST /tokenize ")][-1]
        stream = await post(app, path, tokenize=True, stream=True, max_tokens=4, **body)
        without = await post(app, path, max_tokens=4, **body)

    assert (IDS, {"content": text}) == (whole["promptToken"], asked)
    assert IDS == stream[0]["promptToken"]
    assert not any("promptToken" in chunk for chunk in [*stream[1:], without])
    assert "tokenize" not in sent(server)


@pytest.mark.parametrize("truncated", [False, True])
async def test_case_03_truncated(truncated: bool) -> None:
    """Every whole answer says `truncated`, as the server behind says it."""
    last = {"content": "a", "stop": True, "stopped_eos": True, "truncated": truncated}
    async with in_front_of("powerinfer", completion=stream_of(frames(last))) as (app, _):
        chat = await post(app, "/v1/chat/completions")
        plain = await post(app, "/v1/completions", prompt="a")
        native = await post(app, "/completion", prompt="a")

    assert [truncated] * 3 == [answer["truncated"] for answer in (chat, plain, native)]


@pytest.mark.parametrize("name", ["powerinfer", "llamacpp-2025"])
@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
async def test_case_04_sampling(name: str, path: str) -> None:
    """Mirostat, `repeat_penalty` and the others keep their names; a map of biases becomes pairs, false among them."""
    same = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.5,
        "repeat_penalty": 1.25,
        "mirostat": 2,
        "mirostat_tau": 4.5,
        "mirostat_eta": 0.25,
    }
    about = {"prompt": "a"} if path == "/completions" else {"messages": HI}
    async with in_front_of(name) as (app, server):
        bias = {"15043": 1.5, "29991": -100, "2": False}
        await post(app, path, max_tokens=4, logit_bias=bias, **same, **about)

    body = sent(server)
    assert same == {name: body[name] for name in same}
    assert [[15043, 1.5], [29991, -100], [2, False]] == body["logit_bias"]
    assert body["logit_bias"][2][1] is False
    assert 4 == body["n_predict"]


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (None, ["</s>"]),
        ("\n\nHuman:", ["</s>", "\n\nHuman:"]),
        (["\n\nHuman:", "###"], ["</s>", "\n\nHuman:", "###"]),
        (["</s>", "###"], ["</s>", "###"]),
    ],
)
async def test_case_06_stop(stop: Any, expected: list[str]) -> None:
    """A request's stop words come after the template's own, and a string is one word."""
    async with in_front_of("powerinfer") as (app, server):
        await post(app, "/chat/completions", stop=stop)

    assert expected == sent(server)["stop"]


async def test_case_07_cache_prompt() -> None:
    """The prompt's cache is on unless the client turns it off, and nothing of the prompt is kept when the context is full."""
    async with in_front_of("powerinfer") as (app, server):
        await post(app, "/chat/completions")
        default = sent(server)
        await post(app, "/chat/completions", cache_prompt=False, n_keep=-1)
        off = sent(server)

    assert (True, False) == (default["cache_prompt"], off["cache_prompt"])
    assert ("n_keep" not in default, 0) == (True, off["n_keep"])


@pytest.mark.parametrize("name", ["powerinfer", "llamacpp-2025"])
async def test_case_25_native(name: str) -> None:
    """A native client gets what the server behind said, by the names of both generations."""
    settings = {
        "n_keep": 2,
        "tfs_z": 0.5,
        "penalize_nl": False,
        "samplers": ["top_k"],
        "id_slot": 1,
    }
    async with in_front_of(name) as (app, server):
        prompt = "Once upon a time"
        whole = await post(app, "/completion", prompt=prompt, n_predict=16, **settings)
        body = sent(server)
        stream = await post(app, "/completion", prompt=prompt, n_predict=16, stream=True)
        tokens = await post(app, "/tokenize", content="Once")
        text = await post(app, "/detokenize", tokens=IDS) if name == "powerinfer" else None

    slot = body.pop("slot_id" if name == "powerinfer" else "id_slot")
    assert (1, 16, True, 2, 0.5, False, ["top_k"]) == (
        slot,
        body["n_predict"],
        body["stream"],
        body["n_keep"],
        body["tfs_z"],
        body["penalize_nl"],
        body["samplers"],
    )
    assert "stop" not in body
    assert whole["content"] == "".join(frame["content"] for frame in stream)
    assert [False] * (len(stream) - 1) + [True] == [frame["stop"] for frame in stream]
    for answer in (whole, stream[-1]):
        assert answer["id_slot"] == answer["slot_id"] >= 0
        assert answer["stop_type"] in ("limit", "eos")
        assert (answer["stop_type"] == "eos") == answer["stopped_eos"]
        assert answer["generation_settings"]["temp"] == answer["generation_settings"]["temperature"]
        assert answer["timings"]["prompt_n"] > 0
        assert "m" == answer["model"] == answer["generation_settings"]["model"]
    if text is not None:
        assert ({"tokens": IDS}, {"content": " Once upon a time"}) == (tokens, text)


async def test_case_26_images() -> None:
    """An `image_url` becomes `image_data`, with its mark in the prompt."""
    content = [{"type": "text", "text": "What is in the image?"}, IMAGE]
    messages = [{"role": "user", "content": content}]
    async with in_front_of("llamacpp-2023") as (app, server):
        await post(app, "/v1/chat/completions", messages=messages, max_tokens=8)

    body = sent(server)
    assert [{"data": "iVBORw0K", "id": 10}] == body["image_data"]
    assert PROMPT.replace("Hi", "What is in the image?\n[img-10]") == body["prompt"]
