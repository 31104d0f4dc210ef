"""Tests of unilect.dialects.chatglm."""

import re
from typing import Any

import pytest

from support.backends.scripted import HELLO, Scripted, scripted, stream_of
from support.servers.appserver import App, serving, upstream
from unilect.api.backend import Backend, Batches, Capabilities
from unilect.config.server import Config
from unilect.core.events import Finish, TextDelta, Usage
from unilect.core.requests import ChatRequest


class Recorder(Backend):
    """A backend that keeps the request and says `Hello`."""

    def __init__(self, context: int | None = None) -> None:
        self.requests: list[ChatRequest] = []
        self.capabilities = Capabilities(
            parameters={"max_tokens": "native", "temperature": "native", "top_p": "native"},
            context=context,
        )

    async def start(self) -> None:
        """Nothing is needed."""

    async def generate(self, request: ChatRequest) -> Batches:
        """Say `Hello`."""
        self.requests.append(request)
        yield [TextDelta("Hel"), TextDelta("lo")]
        yield [Finish("stop"), Usage(3, 2)]

    async def check(self) -> None:
        """It is always well."""

    async def aclose(self) -> None:
        """Nothing is left behind."""


async def post(app: App, **body: Any) -> tuple[int, Any]:
    """The status and the body of an answer."""
    async with app.post("/", **body) as response:
        return response.status, await response.json()


async def test_the_history_becomes_a_conversation() -> None:
    """The history's pairs and the prompt are the messages, and the answer has them with the new pair."""
    backend = Recorder()
    async with serving(backend) as app:  # type: ignore[arg-type]
        status, body = await post(
            app, prompt="c", history=[["a", "b"]], max_length=9, top_p=0.5, temperature=0.1
        )

    (request,) = backend.requests
    assert [("user", "a"), ("assistant", "b"), ("user", "c")] == [
        (message.role, message.content) for message in request.messages
    ]
    assert (9, 0.5, 0.1) == (request.max_tokens, request.top_p, request.temperature)
    assert (200, "Hello", [["a", "b"], ["c", "Hello"]], 200) == (
        status,
        body["response"],
        body["history"],
        body["status"],
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", body["time"])


@pytest.mark.parametrize(
    ("context", "max_length", "expected"),
    [(None, 20000, 20000), (512, 20000, None), (512, 511, 511), (512, None, None), (512, 0, 0)],
)
async def test_max_length(
    context: int | None, max_length: int | None, expected: int | None
) -> None:
    """A `max_length` that no answer can reach asks for nothing."""
    backend = Recorder(context)
    async with serving(backend) as app:  # type: ignore[arg-type]
        await post(app, prompt="c", max_length=max_length)

    assert expected == backend.requests[0].max_tokens


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 1}, "prompt"),
        ({"prompt": "a", "history": [["a"]]}, "history[0]"),
        ({"prompt": "a", "history": "x"}, "history"),
        ({"prompt": "a", "temperature": 3}, "temperature"),
        ({"prompt": "a", "max_length": -1}, "max_length"),
        ({"prompt": "a", "seed": "x"}, "seed"),
    ],
)
async def test_wrong_bodies(body: Any, param: str) -> None:
    """A wrong field is named, in the same error as everywhere."""
    async with serving(Recorder()) as app:  # type: ignore[arg-type]
        status, answer = await post(app, **body)

    assert (400, param) == (status, answer["error"]["param"])


async def test_other_parameters() -> None:
    """A parameter of a chat beside these is honoured or named."""
    backend = Recorder()
    async with serving(backend, unsupported="report") as app:  # type: ignore[arg-type]
        status, body = await post(app, prompt="c", seed=1, stream=False, n=1, messages=[])

    assert (200, ["seed"]) == (status, body["unilect"]["ignored"])
    assert (None, None) == (backend.requests[0].stream, backend.requests[0].n)


@pytest.mark.parametrize(
    ("name", "value"),
    [("stream", True), ("n", 3), ("messages", [{"role": "user", "content": "b"}])],
)
async def test_what_would_change_the_form(name: str, value: Any) -> None:
    """A parameter of a chat that this form of answer has no place for is refused by name."""
    async with serving(Recorder()) as app:  # type: ignore[arg-type]
        status, answer = await post(app, prompt="c", **{name: value})

    assert (400, name) == (status, answer["error"]["param"])
    assert "unsupported_parameter" == answer["error"]["code"]


async def test_a_name_that_no_model_has() -> None:
    """A listener that takes the default model for an unknown name does so here too."""
    async with serving(Recorder(), Config(dialect="chatglm")) as app:  # type: ignore[arg-type]
        status, body = await post(app, prompt="c", model="chatglm2-6b", max_length=9)

    assert (200, "Hello") == (status, body["response"])


async def test_it_needs_a_key() -> None:
    """Without the key there is no answer."""
    async with serving(Recorder(), Config(api_keys=["sk-x"])) as app:  # type: ignore[arg-type]
        status, _ = await post(app, prompt="c")

    assert 401 == status


async def test_before_an_upstream() -> None:
    """It works before a server elsewhere, which sees an ordinary chat."""

    def check(server: Scripted) -> Any:
        return server.requests[0].json()

    async with scripted(lambda exchange: exchange.send(stream_of(HELLO))) as server:
        async with serving(upstream(server.url)) as app:
            status, body = await post(app, prompt="c", max_length=7)

        assert (200, "Hello") == (status, body["response"])
        assert 7 == check(server)["max_tokens"]
