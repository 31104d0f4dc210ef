"""Tests of unilect.dialects.fastchat._api: the routes that FastChat's API server has beside OpenAI's."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.backends.engine import Spy, engine
from support.servers.appserver import App, chunks, serving
from unilect.config.server import Config
from unilect.core.errors import ContextLengthExceeded, WrongType
from unilect.dialects.fastchat._api import TokenCheckRequest
from unilect.dialects.fastchat._worker import decode_call


@pytest.fixture
async def app() -> AsyncIterator[App]:
    """The bundled model, for FastChat's clients."""
    async with engine() as backend, serving(backend, Config(dialect="fastchat")) as running:
        yield running


@pytest.mark.parametrize("body", [b"", b"{}", b'{"prompts":[{"model":"m"}]}', b"\xff"])
def test_bad_checks(body: bytes) -> None:
    """A token check without its fields is refused."""
    with pytest.raises(WrongType):
        decode_call(body, TokenCheckRequest)


async def test_a_raw_prompt_is_answered_as_a_chat(app: App) -> None:
    """The answer to a raw prompt is a chat completion, whole and streamed."""
    body: dict[str, Any] = {"messages": "The capital of France", "max_tokens": 4, "temperature": 0}
    async with app.post("/api/v1/chat/completions", **body) as response:
        whole = await response.json()
    async with app.post("/api/v1/chat/completions", **body, stream=True) as response:
        streamed = await chunks(response)

    text = whole["choices"][0]["message"]["content"]
    assert ("chat.completion", "length") == (whole["object"], whole["choices"][0]["finish_reason"])
    assert text.startswith(" is")
    assert "[DONE]" == streamed[-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed[:-1]]
    assert "assistant" == deltas[0]["role"]
    assert text == "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"messages": 1}, 40001),
        ({"messages": "a", "n": "x"}, 40001),
        ({"messages": "a", "n": 0}, 40302),
    ],
)
async def test_bad_bodies(app: App, body: dict[str, Any], code: int) -> None:
    """A body that cannot be right is refused, and a wrong type tells itself from a wrong value."""
    async with app.post("/api/v1/chat/completions", **body) as response:
        assert (400, code) == (response.status, (await response.json())["code"])


async def test_every_error_is_400(app: App) -> None:
    """For FastChat's clients every error has the status 400 and FastChat's number, but a refused key."""
    async with app.post("/v1/chat/completions", model="nope") as response:
        unknown = response.status, (await response.json())["code"]
    async with app.post("/v1/chat/completions", temperature=3) as response:
        wrong = response.status, (await response.json())["code"]
    status, body = await app.get("/v1/nowhere")

    assert ((400, 40301), (400, 40302)) == (unknown, wrong)
    assert (400, 40001) == (status, json.loads(body)["code"])


async def test_other_dialects_have_their_statuses() -> None:
    """Other clients get an error's own status."""
    async with engine() as backend, serving(backend) as app:
        async with app.post("/v1/chat/completions", model="nope") as response:
            assert 404 == response.status


async def test_engine_embeddings(app: App) -> None:
    """The model of the URL is taken where the body names none; the body's is stronger, as FastChat has it."""
    for body, status in (({}, 200), ({"model": "m"}, 200), ({"model": "x"}, 400)):
        async with app.post("/v1/engines/m/embeddings", input="a", **body) as response:
            assert status == response.status
    async with app.post("/v1/engines/x/y/embeddings", input="a") as response:
        assert (400, 40301) == (response.status, (await response.json())["code"])


async def test_ignored_parameters_are_named() -> None:
    """What an engine ignores is named here too."""
    async with engine() as backend, serving(Spy(backend)) as app:
        async with app.post("/v1/engines/m/embeddings", input="a", odd=1) as response:
            assert "odd" == response.headers["X-Unilect-Ignored"]


async def test_token_check_of_a_long_prompt(app: App) -> None:
    """A prompt that is longer than the context does not fit, and is no error."""
    item = {"model": "m", "prompt": "cat " * 3000, "max_tokens": 1}
    async with app.post("/api/v1/token_check", prompts=[item]) as response:
        found = (await response.json())["prompts"][0]

    assert (False, True) == (found["fits"], found["tokenCount"] > found["contextLength"])
    assert ContextLengthExceeded.number == 40303
