"""Tests of unilect.dialects.fastchat._worker: the calls that a FastChat server makes to our worker."""

import asyncio
import base64
import json
import math
from array import array
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from support.backends.engine import Spy, engine, made
from support.servers.appserver import App, serving
from unilect.config.server import Config
from unilect.core.events import Answer, Choice, Finish, TextDelta, Usage
from unilect.core.requests import ChatRequest, CompletionRequest, Message
from unilect.dialects.fastchat._worker import FRAMES, FrameEncoder, WorkerState
from unilect.upstreams.fastchat._conversation import Conv, chat_prompt

CONFIG = Config(api_keys=["sk"], fastchat_register="http://127.0.0.1:1")


@pytest.fixture
async def spied() -> AsyncIterator[tuple[App, Spy]]:
    """The bundled model as a worker, and what its engine is asked; the OpenAI routes want a key."""
    async with engine() as backend:
        spy = Spy(backend)
        async with serving(spy, CONFIG) as running:
            yield running, spy


@pytest.fixture
def app(spied: tuple[App, Spy]) -> App:
    """The worker alone."""
    return spied[0]


async def frames(app: App, **params: Any) -> list[dict[str, Any]]:
    """The frames of an answer."""
    async with app.post("/worker_generate_stream", **params) as response:
        assert (200, FRAMES) == (response.status, response.content_type)
        *found, rest = (await response.read()).split(b"\0")
    assert b"" == rest
    return [json.loads(frame) for frame in found]


async def call(app: App, path: str, **body: Any) -> Any:
    """A call that answers with JSON."""
    async with app.post(path, **body) as response:
        assert 200 == response.status, await response.text()
        return await response.json(content_type=None)


async def test_a_stream(app: App) -> None:
    """All of the text so far is in every frame; the last comes twice, the second time with the finish and the usage."""
    found = await frames(
        app, prompt="Once upon a time", max_new_tokens=6, temperature=0, echo=False, top_k=-1
    )

    texts = [frame["text"] for frame in found]
    assert all(b.startswith(a) for a, b in pairwise(texts))
    assert texts[-1] == texts[-2]
    assert [0] * len(found) == [frame["error_code"] for frame in found]
    assert [None, "length"] == [frame["finish_reason"] for frame in found[-2:]]
    used = {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}
    assert used == found[-1]["usage"]
    assert found[-1] == await call(
        app,
        "/worker_generate",
        prompt="Once upon a time",
        max_new_tokens=6,
        temperature=0,
        echo=False,
    )


async def test_echo_is_the_default(app: App) -> None:
    """A worker says its prompt again unless it is told not to."""
    found = await call(app, "/worker_generate", prompt="Once upon", max_new_tokens=1)

    assert found["text"].startswith("Once upon")


async def test_a_conversation(spied: tuple[App, Spy]) -> None:
    """A prompt that was made with the template that we give is a chat for the model's own template."""
    app, spy = spied
    conv = (await call(app, "/worker_get_conv_template", model="m"))["conv"]
    conv.pop("offset")
    messages = [
        Message("system", "Your name is Bob."),
        Message("user", "Hi"),
        Message("assistant", "Hello!"),
        Message("user", "What is your name?"),
    ]
    prompt = chat_prompt(Conv(**conv), messages).text

    found = await call(
        app,
        "/worker_generate",
        prompt=prompt,
        temperature=0,
        max_new_tokens=20,
        echo=False,
        stop=[],
    )

    asked = spy.asked[-1]
    assert isinstance(asked, ChatRequest)
    assert messages == asked.messages
    assert ("My name is Bob.", "stop") == (found["text"], found["finish_reason"])
    count = await call(app, "/count_token", model="m", prompt=prompt)
    assert {"count": found["usage"]["prompt_tokens"], "error_code": 0} == count


async def test_parameters(spied: tuple[App, Spy]) -> None:
    """A worker's parameters have OpenAI's names behind the border; neutral ones ask for nothing."""
    app, spy = spied
    await call(
        app,
        "/worker_generate",
        model="m",
        prompt="a",
        max_new_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=5.0,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        repetition_penalty=1.2,
        stop=["x", ""],
        stop_token_ids=[2],
        logprobs=1,
        echo=False,
        best_of=1,
        use_beam_search=False,
        unknown=1,
    )

    asked = spy.asked[-1]
    assert isinstance(asked, CompletionRequest)
    assert ("a", 2, 0.5, 0.9, 5, 0.1, 0.2, 1.2, ["x"], 1) == (
        asked.prompt,
        asked.max_tokens,
        asked.temperature,
        asked.top_p,
        asked.top_k,
        asked.presence_penalty,
        asked.frequency_penalty,
        asked.repetition_penalty,
        asked.stop,
        asked.logprobs,
    )


async def test_logprobs(app: App) -> None:
    """Log probabilities come in the form of completions, for all of the text so far."""
    found = await frames(app, prompt="The capital of", max_new_tokens=3, logprobs=1, echo=False)

    assert 3 == len(found[-1]["logprobs"]["tokens"])
    assert found[-1]["text"] == "".join(found[-1]["logprobs"]["tokens"])
    assert {"tokens", "token_logprobs", "top_logprobs", "text_offset"} == set(found[-1]["logprobs"])


@pytest.mark.parametrize(
    ("params", "number"),
    [
        ({"prompt": "a", "temperature": 9}, 40302),
        ({"prompt": 1}, 40001),
        ({}, 40001),
        ({"prompt": "a", "model": "x"}, 40301),
        ({"prompt": "cat " * 3000, "echo": False}, 40303),
        ({"prompt": "a", "use_beam_search": True}, 40302),
        ({"prompt": "a", "images": ["AAAA"]}, 40302),
    ],
)
async def test_errors(app: App, params: dict[str, Any], number: int) -> None:
    """An error is one frame with FastChat's number, and the status 200."""
    (streamed,) = await frames_or_error(app, **params)

    assert number == streamed["error_code"]
    assert streamed == await call(app, "/worker_generate", **params)


async def frames_or_error(app: App, **params: Any) -> list[dict[str, Any]]:
    """The frames of an answer, also where they are announced as an error's."""
    async with app.post("/worker_generate_stream", **params) as response:
        assert 200 == response.status
        return [json.loads(frame) for frame in (await response.read()).split(b"\0")[:-1]]


async def test_a_name_that_no_model_has() -> None:
    """A listener that takes the default model for an unknown name does so for a worker's calls too."""
    config = Config(on_unknown_model="default", fastchat_register="http://127.0.0.1:1")
    async with engine() as backend, serving(backend, config) as app:
        found = await frames(app, model="other", prompt="Once", max_new_tokens=1)

    assert [0] * len(found) == [frame["error_code"] for frame in found]


async def test_embeddings(app: App) -> None:
    """Embeddings have length one, and the tokens of all inputs are counted."""
    found = await call(app, "/worker_get_embeddings", model="m", input=["a", "a b"])

    assert [1.0, 1.0] == [
        pytest.approx(math.sqrt(sum(x * x for x in vector))) for vector in found["embedding"]
    ]
    assert found["token_num"] > 2
    packed = await call(app, "/worker_get_embeddings", input="a", encoding_format="base64")
    numbers = list(array("f", base64.b64decode(packed["embedding"][0])))
    assert found["embedding"][0] == pytest.approx(numbers, abs=1e-4)
    error = await call(app, "/worker_get_embeddings", model="x", input="a")
    assert 40301 == error["error_code"]
    mixed = await call(app, "/worker_get_embeddings", model="m", input=["a", 1])
    assert "token ids are mixed" in mixed["text"]


async def test_details_and_status(app: App) -> None:
    """The context, and the models with all their names, which are gone once the server stops."""
    assert {"context_length": 2048} == await call(app, "/model_details", model="m")
    status = {"model_names": ["m"], "speed": 1, "queue_length": 0}
    async with app.session.post(f"http://127.0.0.1:{app.port}/worker_get_status") as response:
        assert status == await response.json()
    app.service.ready = False
    assert [] == (await call(app, "/worker_get_status"))["model_names"]


async def test_details_of_a_model_that_does_not_run() -> None:
    """What a worker tells of a model without a key does not start it."""
    spy = Spy(made("gguf"))
    async with serving(spy, CONFIG) as idle:
        assert {"context_length": 2048} == await call(idle, "/model_details", model="m")
        assert (await call(idle, "/worker_get_conv_template", model="m"))["conv"]

    assert 0 == spy.starts


async def test_the_other_routes_want_a_key(app: App) -> None:
    """Only the worker's routes are open, and only where a controller is named."""
    async with app.post("/v1/chat/completions") as response:
        assert 401 == response.status
    async with engine() as backend, serving(backend) as plain:
        async with plain.post("/worker_generate_stream", prompt="a") as response:
            assert 404 == response.status


async def test_the_queue() -> None:
    """So many requests as allowed run at a time, the others wait, and all are told as the queue's length."""
    work = WorkerState(None, 1)  # type: ignore[arg-type]
    entered: list[int] = []
    leave = asyncio.Event()

    async def one(number: int) -> None:
        async with work.place():
            entered.append(number)
            await leave.wait()

    tasks = [asyncio.create_task(one(number)) for number in (1, 2)]
    while not entered:
        await asyncio.sleep(0)
    assert ([1], 2) == (entered, work._waiting)
    leave.set()
    await asyncio.gather(*tasks)
    assert ([1, 2], 0) == (entered, work._waiting)


def test_an_answer_that_ends_with_tools_ends() -> None:
    """Every finish but `length` is `stop` for FastChat, streamed and whole."""
    encoder = FrameEncoder()
    encoder.encode([TextDelta("a"), Finish("content_filter"), Usage(1, 1)])

    assert "stop" == json.loads(encoder.end()[:-1])["finish_reason"]
    whole = Answer([Choice(0, "a", finish_reason="length")], Usage(1, 1))
    assert "length" == json.loads(FrameEncoder().whole(whole, ()))["finish_reason"]
