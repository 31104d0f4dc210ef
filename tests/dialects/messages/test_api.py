"""Tests of unilect.dialects.messages._api: requests on the wire, in front of scripted servers and of the bundled model."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import ClientResponse

from support.backends.engine import ENGINES_IN_CI, engine
from support.backends.scripted import (
    DONE,
    HELLO,
    USAGE,
    Exchange,
    answer,
    delta,
    frames,
    says,
    scripted,
    small,
    stream_of,
)
from support.clients.messages_bodies import HEAD, TOOLS
from support.servers.appserver import App, serving, upstream
from unilect.adapt.images import Images
from unilect.api.backend import Backend, Capabilities
from unilect.config.server import Config
from unilect.core.errors import ContextLengthExceeded, EngineOverloaded
from unilect.core.events import Finish, TextDelta, Usage
from unilect.core.requests import ChatRequest, ImagePart
from unilect.web import streaming

in_one_loop = pytest.mark.asyncio(loop_scope="module")
PATH = "/v1/messages"
PNG = b"\x89PNG\r\n\x1a\n"
AS_PNG = "data:image/png;base64,iVBORw0KGgo="
HI: dict[str, Any] = {"max_tokens": 16, "messages": [{"role": "user", "content": "hi"}]}
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
        "required": ["city"],
    },
}


def frames_of(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream."""
    lines = [line for line in data.decode().split("\n") if line.startswith("data: ")]
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines]


async def error_of(response: ClientResponse) -> dict[str, Any]:
    """The error of an answer that must be in Anthropic's form, with the request's id in the header of both families."""
    body = await response.json()
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"] == response.headers["X-Request-Id"]
    error: dict[str, Any] = body["error"]
    return error


def asks(app: App, method: str, path: str, **options: Any) -> Any:
    """A request to the application."""
    return app.session.request(method, f"http://127.0.0.1:{app.port}{path}", **options)


@pytest.mark.parametrize("path", [PATH, "/messages", f"{PATH}?beta=true", f"{PATH}/"])
async def test_a_message(path: str) -> None:
    """A whole message has its text, its end and its usage, with and without /v1."""
    async with scripted(says(stream_of(HELLO))) as server, serving(upstream(server.url)) as app:
        async with app.post(path, **HI) as response:
            body = await response.json()

    assert (200, "message", "assistant", "m") == (
        response.status,
        body["type"],
        body["role"],
        body["model"],
    )
    assert body["content"] == [{"type": "text", "text": "Hello"}]
    assert ("end_turn", 3, 2) == (
        body["stop_reason"],
        body["usage"]["input_tokens"],
        body["usage"]["output_tokens"],
    )
    assert response.headers["request-id"] == response.headers["X-Request-Id"]


async def test_both_forms_of_keys() -> None:
    """A key may come as `x-api-key`, or as a bearer with the newest version; a wrong one is an authentication error."""
    config = Config(api_keys=["sk-test"])
    async with (
        scripted(says(stream_of(HELLO))) as server,
        serving(upstream(server.url), config) as app,
    ):
        for headers in (
            {"x-api-key": "sk-test", "anthropic-version": "2023-06-01"},
            {"Authorization": "Bearer sk-test", "anthropic-version": "2026-10-21"},
        ):
            async with asks(app, "POST", PATH, json=HI, headers=headers) as response:
                assert 200 == response.status
        async with asks(app, "POST", PATH, json=HI, headers={"x-api-key": "sk-no"}) as response:
            assert 401 == response.status
            assert (await error_of(response))["type"] == "authentication_error"


async def test_the_head_of_claude_code_on_the_wire() -> None:
    """The server behind sees one system message and the user's, and the client a stream that ends with `message_stop`."""
    async with scripted(says(stream_of(HELLO))) as server, serving(upstream(server.url)) as app:
        async with app.post(f"{PATH}?beta=true", **HEAD | {"model": "m"}) as response:
            told = frames_of(await response.read())

    assert 200 == response.status
    assert "X-Unilect-Ignored" not in response.headers
    assert server.requests[-1].json()["messages"] == [
        {"role": "system", "content": "S\n\n# Environment"},
        {"role": "user", "content": "hi"},
    ]
    assert [event["type"] for event in told] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_the_billing_header_changes_no_byte_of_the_prompt() -> None:
    """Two bodies that differ in the billing header only are the same to the server behind, so that its cache holds."""
    other = msgspec.json.decode(msgspec.json.encode(HEAD).replace(b"cch=ab12c", b"cch=0000f"))
    async with scripted(says(stream_of(HELLO))) as server, serving(upstream(server.url)) as app:
        for body in (HEAD, other):
            async with app.post(PATH, **body | {"model": "m"}) as response:
                await response.read()

    assert HEAD != other
    assert server.requests[0].body == server.requests[1].body


async def test_what_is_left_out_is_in_the_header() -> None:
    """A hosted tool is not sent to the server behind, and named in the answer's header."""
    async with scripted(says(stream_of(HELLO))) as server, serving(upstream(server.url)) as app:
        async with app.post(PATH, **HI, tools=TOOLS) as response:
            await response.read()

    assert response.headers["X-Unilect-Ignored"] == "tools%5B2%5D%3Aweb_search"
    (tool,) = server.requests[-1].json()["tools"]
    assert tool["function"]["name"] == "A"


async def test_calls_are_streamed() -> None:
    """A call of the server behind begins with an empty input, and its pieces join to an object."""
    pieces = ('{"ci', 'ty":', '"Oslo"}')
    script = says(
        stream_of(
            frames(
                delta(
                    tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]
                ),
                *(
                    delta(tool_calls=[{"index": 0, "function": {"arguments": piece}}])
                    for piece in pieces
                ),
                delta(finish="tool_calls"),
                USAGE,
                DONE,
            )
        )
    )
    async with scripted(script) as server, serving(upstream(server.url)) as app:
        choice = {"type": "any", "disable_parallel_tool_use": True}
        async with app.post(
            PATH, **HI, stream=True, tools=TOOLS[:1], tool_choice=choice
        ) as response:
            told = frames_of(await response.read())

    asked = server.requests[-1].json()
    assert ("required", False) == (asked["tool_choice"], asked["parallel_tool_calls"])
    assert told[1]["content_block"] == {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    assert "".join(
        e["delta"]["partial_json"] for e in told if e["type"] == "content_block_delta"
    ) == "".join(pieces)
    assert told[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", PATH, b"{nope", 400, "invalid_request_error"),
        ("POST", PATH, b"[]", 400, "invalid_request_error"),
        ("POST", PATH, b'{"model":"none","messages":[{"role":"user","content":"x"}]}', 404, "not_found_error"),
        ("POST", f"{PATH}/count_tokens", b'{"model":"none","messages":[{"role":"user","content":"x"}]}', 404, "not_found_error"),
        ("POST", f"{PATH}/count_tokens", b"{", 400, "invalid_request_error"),
        ("POST", f"{PATH}/batches", b"{}", 404, "not_found_error"),
        ("GET", PATH, None, 405, "invalid_request_error"),
        ("POST", PATH, b"x" * 2**17, 413, "request_too_large"),
    ],
)  # fmt: skip
async def test_errors(method: str, path: str, body: bytes | None, status: int, kind: str) -> None:
    """Every error of these URLs and below them is in Anthropic's form, those of the guard included."""
    async with (
        scripted(says(b"")) as server,
        serving(upstream(server.url), Config(max_body_bytes=2**16)) as app,
    ):
        async with asks(app, method, path, data=body) as response:
            assert status == response.status
            assert (await error_of(response))["type"] == kind


async def test_errors_elsewhere() -> None:
    """Who sends `anthropic-version` gets errors in Anthropic's form at any path, and others in OpenAI's."""
    config = Config(api_keys=["sk-a"])
    async with scripted(says(b"")) as server, serving(upstream(server.url), config) as app:
        for method, path, key, status, kind in (
            ("GET", "/v1/files", "sk-a", 404, "not_found_error"),
            ("POST", "/v1/complete", "sk-a", 404, "not_found_error"),
            ("POST", "/v1/chat/completions", "sk-a", 400, "invalid_request_error"),
            ("POST", "/v1/chat/completions", "no", 401, "authentication_error"),
            ("DELETE", "/v1/models", "sk-a", 405, "invalid_request_error"),
        ):
            headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
            async with asks(app, method, path, headers=headers) as response:
                assert status == response.status
                assert kind == (await error_of(response))["type"]
            async with asks(app, method, path, headers={"x-api-key": key}) as response:
                assert status == response.status
                assert "type" not in await response.json()


@pytest.mark.parametrize(
    ("told", "status", "kind", "headers"),
    [
        (answer(b"", "429 Slow", retry_after="7"), 429, "rate_limit_error", {"Retry-After": "7"}),
        (answer(b"", "503 Busy", retry_after="7"), 503, "api_error", {"Retry-After": "7"}),
        (answer(b"{", "200 OK"), 502, "api_error", {}),
    ],
)
async def test_errors_of_the_server_behind(
    told: bytes, status: int, kind: str, headers: dict[str, str]
) -> None:
    """What the server behind says is told in Anthropic's form, with the time after which to try again."""
    async with scripted(says(told)) as server, serving(upstream(server.url)) as app:
        async with app.post(PATH, **HI) as response:
            assert status == response.status
            assert (await error_of(response))["type"] == kind
            assert headers.items() <= response.headers.items()


class Sees(Backend):
    """
    A backend that is shown images, and counts what it is shown.

    Attributes:
        urls: The URLs of the images, in order.
    """

    def __init__(self, image_urls: bool) -> None:
        self.capabilities = Capabilities(vision=True, image_urls=image_urls)
        self.urls: list[str] = []

    async def start(self) -> None:
        """Nothing to do."""

    async def aclose(self) -> None:
        """Nothing to do."""

    async def generate(self, request: Any) -> AsyncIterator[Any]:
        """Look."""
        self._look(request)
        yield [TextDelta("a cat"), Finish("stop"), Usage(1, 1)]

    async def count_tokens(self, request: Any) -> int:
        """Look."""
        self._look(request)
        return 7

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Nothing to tell."""
        return []

    async def detokenize(self, tokens: list[int]) -> str:
        """Nothing to tell."""
        return ""

    def _look(self, request: ChatRequest) -> None:
        for part in request.messages[-1].content or ():
            if isinstance(part, ImagePart):
                self.urls.append(part.image_url.url)


class Fails(Backend):
    """A backend that fails with an error."""

    def __init__(self, error: Exception) -> None:
        self.capabilities = Capabilities()
        self.error = error

    async def start(self) -> None:
        """Nothing to do."""

    async def aclose(self) -> None:
        """Nothing to do."""

    async def generate(self, request: Any) -> AsyncIterator[Any]:
        """Fail."""
        raise self.error
        yield []


async def test_an_overloaded_engine() -> None:
    """An overloaded engine is Anthropic's 529, with a time after which to try again."""
    async with serving(Fails(EngineOverloaded("full"))) as app:  # type: ignore[arg-type]
        async with app.post(PATH, **HI) as response:
            assert 529 == response.status
            assert (await error_of(response))["type"] == "overloaded_error"
            assert response.headers["Retry-After"] == "1"


async def test_too_long_a_prompt_without_numbers() -> None:
    """Where the server behind says no numbers, the message still begins with the words that clients look for."""
    async with serving(Fails(ContextLengthExceeded("too many"))) as app:  # type: ignore[arg-type]
        async with app.post(PATH, **HI) as response:
            assert 400 == response.status
            assert (await error_of(response))["message"] == "prompt is too long: too many"


async def test_counts_need_a_tokenizer() -> None:
    """Where the server behind tells no tokens, counting is not supported, and clients are told not to try again."""
    async with scripted(says(b"")) as server, serving(upstream(server.url)) as app:
        async with app.post(f"{PATH}/count_tokens", messages=HI["messages"]) as response:
            assert 501 == response.status
            assert (await error_of(response))["type"] == "api_error"
            assert response.headers["x-should-retry"] == "false"


async def test_a_server_that_dies() -> None:
    """A server that dies after a piece of the answer ends the stream with an `error` event, and no `message_stop`."""
    script = says(stream_of(frames(delta(content="Hel"))), "reset")
    async with scripted(script) as server, serving(upstream(server.url)) as app:
        async with app.post(PATH, **HI, stream=True) as response:
            told = frames_of(await response.read())

    assert 200 == response.status
    assert "error" == told[-1]["type"]
    assert "message_stop" not in [event["type"] for event in told]


async def test_a_silent_prompt_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long silence is broken by pings, and an error after one is an event of the stream."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.01)
    go_on = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.send(answer(b"", "503 Busy"))
        exchange.close()

    async with scripted(script) as server, serving(upstream(server.url)) as app:
        async with app.post(PATH, **HI, stream=True) as response:
            first = await response.content.readany()
            go_on.set()
            told = frames_of(first + await response.read())

    assert first.startswith(b'event: ping\ndata: {"type":"ping"}\n\n')
    assert ("ping", "error") == (told[0]["type"], told[-1]["type"])


async def test_too_large_a_limit_is_lowered() -> None:
    """`max_tokens` that only the server behind knows to be too large is lowered to what fits beside the prompt, and named."""
    async with scripted(small(4096, 1000)) as server, serving(upstream(server.url)) as app:
        async with app.post(PATH, **HI | {"max_tokens": 4000}, stream=True) as response:
            told = frames_of(await response.read())

    assert [4000, 3096] == [request.json()["max_tokens"] for request in server.requests]
    assert "message_stop" == told[-1]["type"]
    assert response.headers["X-Unilect-Ignored"] == "max_tokens"


async def test_too_long_a_prompt_of_a_server() -> None:
    """A prompt that is too long for the server behind is told with the numbers of that server, and not sent twice."""
    async with scripted(small(4096, 5000)) as server, serving(upstream(server.url)) as app:
        async with app.post(PATH, **HI) as response:
            assert 400 == response.status
            message = (await error_of(response))["message"]

    assert message == "prompt is too long: 5000 tokens > 4096 maximum"
    assert 1 == len(server.requests)


async def test_names_of_the_clients_parameters() -> None:
    """What the server behind refuses is named as the client wrote it."""
    body = {
        "error": {
            "message": "`stop` is bad",
            "type": "invalid_request_error",
            "param": "stop",
            "code": None,
        }
    }
    script = says(answer(msgspec.json.encode(body), "400 Bad Request"))
    async with scripted(script) as server, serving(upstream(server.url)) as app:
        async with app.post(PATH, **HI, stop_sequences=["x"]) as response:
            error = await error_of(response)

    assert "stop_sequences" == error["param"]
    assert "`stop_sequences` is bad" in error["message"]


def seeing(*urls: str) -> list[Any]:
    """A turn that shows images by their URLs."""
    images = [{"type": "image", "source": {"type": "url", "url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *images]}]


async def test_images_by_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image is fetched from an allowed host for a backend that takes data alone, to answer and to count; others get its URL."""
    monkeypatch.setattr("unilect.server.app.Images", partial(Images, public=lambda address: True))
    here, given = Sees(image_urls=False), Sees(image_urls=True)
    async with scripted(says(answer(PNG, kind="image/png"))) as server:
        url = f"http://127.0.0.1:{server.port}/a.png"
        config = Config(image_hosts=[f"127.0.0.1:{server.port}"])
        for backend in (here, given):
            async with serving(backend, config) as app:
                body = {"messages": seeing(url), "max_tokens": 8}
                async with app.post(PATH, **body) as response:
                    assert 200 == response.status, await response.text()
                async with app.post(f"{PATH}/count_tokens", **body) as response:
                    assert {"input_tokens": 7} == await response.json()

    assert [[AS_PNG] * 2, [url] * 2] == [here.urls, given.urls]
    assert 2 == len(server.requests)


async def test_images_that_are_not_fetched() -> None:
    """An image of a host that the operator does not allow is refused by its place, with what to do."""
    async with serving(Sees(image_urls=False)) as app:
        messages = [{"role": "user", "content": "Hi"}, *seeing("http://x/a")]
        async with app.post(PATH, messages=messages, max_tokens=8) as response:
            assert 400 == response.status
            error = await error_of(response)

    assert "messages[1].content[1].source" == error["param"]
    assert "`messages[1].content[1].source`: this server fetches no images" in error["message"]
    assert "`image_hosts`" in error["message"]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES_IN_CI)
async def model(request: pytest.FixtureRequest) -> AsyncIterator[App]:
    """An application in front of the bundled model."""
    async with engine(request.param) as backend, serving(backend) as app:
        yield app


@in_one_loop
async def test_claude_code_on_the_bundled_model(model: App) -> None:
    """Claude Code's first body is answered; its count of tokens is that of its usage, and the limit that cannot fit is named."""
    body = HEAD | {"model": "m"}
    async with model.post(PATH, **body) as response:
        told = frames_of(await response.read())
    async with model.post(f"{PATH}/count_tokens", **body) as counted:
        count = (await counted.json())["input_tokens"]

    usage = told[-2]["usage"]
    assert "message_stop" == told[-1]["type"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count
    assert "max_tokens" in response.headers["X-Unilect-Ignored"].split(", ")


@in_one_loop
async def test_a_forced_call_of_the_bundled_model(model: App) -> None:
    """A forced call is one block whose pieces join to what the schema says, streamed and whole; its result is answered."""
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    fields: dict[str, Any] = {
        "max_tokens": 64,
        "temperature": 0,
        "tools": [WEATHER],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    }
    async with model.post(PATH, messages=messages, **fields) as response:
        whole = await response.json()
    async with model.post(PATH, messages=messages, **fields, stream=True) as response:
        told = frames_of(await response.read())
    (call,) = whole["content"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny, 21 degrees"}
    messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    async with model.post(
        PATH, messages=messages, **fields | {"tool_choice": {"type": "auto"}}
    ) as response:
        last = await response.json()

    pieces = "".join(e["delta"]["partial_json"] for e in told if e["type"] == "content_block_delta")
    assert call["input"]["city"] == "Paris"
    assert msgspec.json.decode(pieces) == call["input"]
    assert ("tool_use", "tool_use") == (whole["stop_reason"], told[-2]["delta"]["stop_reason"])
    assert last["content"][0]["text"]


@in_one_loop
async def test_too_long_a_prompt_of_the_bundled_model(model: App) -> None:
    """Too long a prompt is told with the numbers of its tokens and of the context."""
    async with model.post(
        PATH, **HI | {"messages": [{"role": "user", "content": "hello " * 5000}]}
    ) as response:
        assert 400 == response.status
        message = (await error_of(response))["message"]

    words, _, maximum = message.removeprefix("prompt is too long: ").partition(" tokens > ")
    assert int(words) >= 5000
    assert maximum == f"{model.service.registry.get('m').capabilities.context} maximum"


@in_one_loop
async def test_limits_and_stop_words_of_the_bundled_model(model: App) -> None:
    """A limit and a stop word end a message each by its own name."""
    hello = HI | {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}
    async with model.post(PATH, **hello | {"max_tokens": 3}) as response:
        cut = await response.json()
    async with model.post(PATH, **hello) as response:
        [whole] = (await response.json())["content"]
    word = whole["text"].split()[1]
    async with model.post(PATH, **hello, stop_sequences=[word]) as response:
        stopped = await response.json()

    assert ("max_tokens", 3) == (cut["stop_reason"], cut["usage"]["output_tokens"])
    assert ("stop_sequence", word) == (stopped["stop_reason"], stopped["stop_sequence"])
    assert whole["text"].partition(word)[0] == stopped["content"][0]["text"]


@in_one_loop
async def test_an_answer_of_no_tokens(model: App) -> None:
    """A limit of 0 reads the prompt only."""
    async with model.post(PATH, **HI | {"max_tokens": 0}) as response:
        body = await response.json()

    assert ("max_tokens", [], 0) == (body["stop_reason"], body["content"], body["usage"]["output_tokens"])  # fmt: skip


@in_one_loop
@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
async def test_an_image_for_a_model_that_reads_text(model: App, path: str) -> None:
    """It is refused by its place, also where tokens are counted, in words at which Claude Code goes on without it."""
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
    }
    body = HI | {"messages": [{"role": "user", "content": [image]}]}
    async with model.post(path, **body) as response:
        error = await error_of(response)

    assert (400, "messages[0].content[0]") == (response.status, error["param"])
    assert error["message"].startswith("Could not process image: `messages[0].content[0]` holds")


@in_one_loop
async def test_an_effort_that_the_template_does_not_know(model: App) -> None:
    """It is ignored and named, in the client's words."""
    body = HI | {"output_config": {"effort": "high"}}
    async with (
        model.post(PATH, **body) as message,
        model.chat(reasoning_effort="high", max_tokens=1) as chat,
    ):
        assert (200, "output_config.effort") == (
            message.status,
            message.headers["X-Unilect-Ignored"],
        )
        assert (200, "reasoning_effort") == (chat.status, chat.headers["X-Unilect-Ignored"])


@in_one_loop
async def test_a_second_turn_is_read_from_the_cache(model: App) -> None:
    """The tokens of an earlier turn that were in the cache are told apart from those that were not."""
    first = {"role": "user", "content": "Tell me about Paris, and about Oslo, and about Rome."}
    async with model.post(PATH, max_tokens=8, temperature=0, messages=[first]) as response:
        said = await response.json()
    later = [
        first,
        {"role": "assistant", "content": said["content"]},
        {"role": "user", "content": "And?"},
    ]
    async with model.post(PATH, max_tokens=1, messages=later) as response:
        usage = (await response.json())["usage"]
    async with model.post(f"{PATH}/count_tokens", messages=later) as response:
        count = (await response.json())["input_tokens"]

    assert usage["cache_read_input_tokens"] > 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count


async def test_a_last_turn_of_the_assistant_on_a_gguf() -> None:
    """A GGUF model goes on with a last turn of the assistant; where that cannot be, the turn is refused by name."""
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    async with engine("gguf") as backend, serving(backend) as app:
        async with app.post(PATH, max_tokens=8, temperature=0, messages=messages) as response:
            (block,) = (await response.json())["content"]
    async with scripted(says(b"")) as server, serving(upstream(server.url)) as app:
        async with app.post(PATH, max_tokens=8, messages=messages) as response:
            error = await error_of(response)

    assert "Paris" in block["text"]
    assert "The" not in block["text"]
    assert (400, "messages[1]") == (response.status, error["param"])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, ["thinking.budget_tokens"]),
        ({"thinking": {"type": "adaptive"}}, []),
        ({"thinking": {"type": "disabled"}}, []),
    ],
)
async def test_thinking_on_a_model_that_cannot(body: dict[str, Any], named: list[str]) -> None:
    """Thinking is accepted silently on a model that cannot think: Claude Code asks every model for it."""
    async with engine("gguf") as backend, serving(backend) as app:
        async with app.post(PATH, **HI, **body) as response:
            assert 200 == response.status
            ignored = response.headers.get("X-Unilect-Ignored", "")

    assert [name for name in ignored.split(", ") if name] == named
