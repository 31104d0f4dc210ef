"""Tests of unilect.upstreams.openai._again: requests that a server refuses as they are, in front of servers with strict templates."""

from typing import Any

import msgspec
import pytest

from support.backends.scripted import HELLO, Exchange, Script, answer, scripted, stream_of
from support.models.strict_templates import STYLES, TALK, missing
from support.servers.appserver import serving, upstream
from unilect.api.backend import BackendSpec
from unilect.config.server import ModelConfig
from unilect.core.errors import InvalidRequest
from unilect.templates.chat import ChatTemplate
from unilect.upstreams.openai.backend import backend

_TOO_LARGE = (
    "'max_tokens' or 'max_completion_tokens' is too large: {0}. This model's maximum context length is 4096 tokens "
    "and your request has {1} input tokens ({0} > 4096 - {1})."
)


def renders(style: str, prompts: list[str], prompt_tokens: int = 0) -> Script:
    """A script that renders each chat with a template, as vLLM does: a refusal of the template's is a 400 with its words."""
    template = ChatTemplate(STYLES[style][0])

    async def script(exchange: Exchange) -> None:
        body = exchange.json()
        try:
            prompt = template.render_turns(body["messages"])
        except InvalidRequest as error:
            words = error.message.partition("refuses them: ")[2]
            await exchange.send(refusal(words))
        else:
            limit = body.get("max_tokens", 0)
            if limit > 4096 - prompt_tokens:
                await exchange.send(refusal(_TOO_LARGE.format(limit, prompt_tokens)))
            else:
                prompts.append(prompt)
                await exchange.send(stream_of(HELLO))
        exchange.close()

    return script


def refusal(words: str) -> bytes:
    """An answer of vLLM's of status 400."""
    error = {"message": words, "type": "BadRequestError", "param": None, "code": 400}
    return answer(msgspec.json.encode({"error": error}), "400 Bad Request")


MESSAGES = {"system": "s1", "messages": [*TALK[2:4], *TALK[5:]], "max_tokens": 16}
ITEMS = [{"type": "message", **turn} for turn in TALK]
APIS = {
    "/v1/chat/completions": ({"messages": TALK}, ("s1", "s2", "s3", "s4", "u1", "u2", "u3", "a1")),
    "/v1/responses": ({"input": ITEMS, "store": False}, ("s1", "s2", "s3", "s4", "u1", "u2", "u3", "a1")),
    "/v1/messages": (MESSAGES, ("s1", "s4", "u1", "u2", "u3", "a1")),
    "/api/chat": ({"messages": TALK}, ("s1", "s2", "s3", "s4", "u1", "u2", "u3", "a1")),
}  # fmt: skip


@pytest.mark.parametrize("style", [style for style in STYLES if style != "gpt-oss"])
async def test_every_api_in_front_of_a_strict_template(style: str) -> None:
    """A conversation that the server's template refuses is sent as it takes it, with all that was said; the next one has that form at once."""
    prompts: list[str] = []
    async with scripted(renders(style, prompts)) as server, serving(upstream(server.url)) as app:
        for stream in (False, True):
            for path, (body, words) in APIS.items():
                async with app.post(path, **body, model="m", stream=stream) as response:
                    assert 200 == response.status, await response.text()
                    assert b"lo" in await response.read()
                assert [] == missing(prompts[-1], words)

    # as it was sent, and in the forms that were tried for the first
    assert len(server.requests) - 2 * len(APIS) <= 2


async def test_what_a_client_has_written_is_kept() -> None:
    """Fields of messages that nobody knows are sent in another form, too."""
    prompts: list[str] = []
    talk: list[dict[str, Any]] = [{**turn, "x_new": turn["content"]} for turn in TALK]
    async with (
        scripted(renders("qwen-3.5", prompts)) as server,
        serving(upstream(server.url)) as app,
    ):
        async with app.chat(messages=talk) as response:
            assert 200 == response.status

    assert TALK == [
        {k: v for k, v in turn.items() if k != "x_new"}
        for turn in server.requests[0].json()["messages"]
    ]
    assert all("x_new" in turn for turn in server.requests[-1].json()["messages"])


async def test_tokens_are_counted_in_the_form_that_was_taken() -> None:
    """The prompt of a chat is counted as it would be sent."""
    prompts: list[str] = []
    chats = renders("qwen-3.5", prompts)

    async def script(exchange: Exchange) -> None:
        told = {
            b"/v1/models": {"data": [{"id": "m", "owned_by": "vllm"}]},
            b"/tokenize": {"count": 7, "tokens": []},
        }.get(exchange.head.split(b" ")[1])
        if told is None:
            await chats(exchange)
        else:
            await exchange.send(answer(msgspec.json.encode(told)))
            exchange.close()

    async with scripted(script) as server:
        config = ModelConfig(source="x", model="m", whole_answers="stream")
        spec = BackendSpec(
            "m", "http", server.url.removeprefix("http:"), config, 1, lambda *_: None
        )
        async with serving(backend(spec), runs_locally=False) as app:
            async with app.chat(messages=TALK) as response:
                assert 200 == response.status
            sent = server.requests[-1].json()["messages"]
            async with app.post("/v1/chat/completions/input_tokens", messages=TALK) as response:
                assert 7 == (await response.json())["input_tokens"]

    assert sent == server.requests[-1].json()["messages"] != TALK


async def test_other_refusals_are_told_at_once() -> None:
    """What is refused for another reason is asked once; what no form mends is told with the first reason."""

    async def script(exchange: Exchange) -> None:
        words = (
            "temperature is wrong"
            if "temperature" in exchange.json()
            else f"role {len(server.requests)}"
        )
        await exchange.send(refusal(words))
        exchange.close()

    async with scripted(script) as server, serving(upstream(server.url)) as app:
        async with app.chat(messages=TALK, temperature=2) as response:
            assert 400 == response.status
        assert 1 == len(server.requests)
        async with app.chat(messages=TALK) as response:
            assert 400 == response.status
            assert "role 2" in (await response.json())["error"]["message"]
    assert 4 == len(server.requests)


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/chat/completions", {"max_tokens": 32000}, "max_tokens"),
        ("/v1/responses", {"input": TALK[:3], "max_output_tokens": 32000, "store": False}, "max_output_tokens"),
        ("/v1/messages", {"messages": TALK[2:3], "max_tokens": 32000}, "max_tokens"),
        ("/api/chat", {"messages": TALK[2:3], "options": {"num_predict": 32000}}, "options.num_predict"),
    ],
)  # fmt: skip
async def test_too_large_a_limit(path: str, body: dict[str, Any], name: str) -> None:
    """A limit for which the prompt leaves no room is lowered to what it leaves, and named by the client's name for it."""
    prompts: list[str] = []
    script = renders("mistral", prompts, prompt_tokens=96)
    if path == "/v1/responses":
        body = body | {"max_output_tokens": 32000}
    async with scripted(_by_either_name(script)) as server, serving(upstream(server.url)) as app:
        async with app.post(path, **body, model="m", stream=False) as response:
            assert 200 == response.status, await response.text()
            told = response.headers["X-Unilect-Ignored"]

    asked = server.requests[-1].json()
    assert 4000 == (asked.get("max_tokens") or asked["max_completion_tokens"])
    assert name == told


def _by_either_name(script: Script) -> Script:
    """A script for a server that takes `max_completion_tokens`, too."""

    async def renamed(exchange: Exchange) -> None:
        exchange.body = exchange.body.replace(b"max_completion_tokens", b"max_tokens")
        await script(exchange)

    return renamed
