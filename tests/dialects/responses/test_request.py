"""Tests of unilect.dialects.responses._request: what becomes of the fields of a body."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from support.backends.engine import ENGINES_IN_CI, engine
from support.backends.scripted import HELLO, scripted, small
from support.clients.responses_client import client, events, says
from support.servers.appserver import App, serving, upstream
from unilect.dialects.responses._request import PromptRequest, items_of, place_items, prompt_of
from unilect.web.decode import BodyDecoder

in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES_IN_CI)
async def model(request: pytest.FixtureRequest) -> AsyncIterator[App]:
    """An application in front of the bundled model."""
    async with engine(request.param) as backend, serving(backend) as app:
        yield app


def ignored(response: Any) -> set[str]:
    """What an answer's header names."""
    return set(response.headers.get("X-Unilect-Ignored", "").split(", ")) - {""}


async def test_what_is_repeated() -> None:
    """A response repeats what it was asked, as its clients' types require, and its defaults where it was not."""
    told = {
        "metadata": {"a": "b"},
        "user": "u",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "instructions": "i",
        "temperature": 0.5,
        "top_p": 0.9,
        "truncation": "auto",
        "max_output_tokens": 9,
        "max_tool_calls": 3,
    }
    quiet: dict[str, Any] = {"client_metadata": {"x": "y"}, "service_tier": "flex", "prompt_cache_retention": "24h", "stream_options": {"include_obfuscation": True}}  # fmt: skip
    async with client(says(HELLO)) as one:
        status, headers, body = await one.ask("POST", "/responses", {"input": "x"} | told | quiet)
        plain = await one.create()
        stream = await one.stream("x", stream_options={"include_obfuscation": True})

    assert (200, told) == (status, {name: body[name] for name in told})
    assert ("default", "max_tool_calls") == (body["service_tier"], headers["X-Unilect-Ignored"])
    assert {
        "background": False, "conversation": None, "error": None, "incomplete_details": None, "instructions": None,
        "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True, "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None}, "service_tier": "default", "store": True, "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto", "tools": [], "top_logprobs": 0,
        "top_p": 1.0, "truncation": "disabled", "user": None,
    }.items() <= plain.items()  # fmt: skip
    assert {"cached_tokens", "cache_write_tokens"} == plain["usage"]["input_tokens_details"].keys()
    assert ["reasoning_tokens"] == list(plain["usage"]["output_tokens_details"])
    assert not any("obfuscation" in event for event in stream)


async def test_what_is_named() -> None:
    """What nobody here can do, and changes little, is named; an effort that a chat does not have is its highest."""
    fields = {
        "max_tool_calls": 2,
        "context_management": [{"type": "compaction"}],
        "moderation": {"model": "m"},
        "access_programs": ["x"],
        "image": {},
        "background_options": {"x": 1},
        "reasoning": {"effort": "max", "summary": "auto", "context": "all", "mode": "deep"},
        "no_such_field": 1,
    }
    async with client(says(HELLO)) as one:
        _, headers, _ = await one.ask("POST", "/responses", {"input": "x"} | fields)
        asked = one.server.requests[-1].json()

    named = fields.keys() - {"reasoning"} | {"reasoning.context", "reasoning.mode"}
    assert named == set(headers["X-Unilect-Ignored"].split(", "))
    assert "xhigh" == asked["reasoning_effort"]
    assert not fields.keys() & asked.keys()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"truncation": "some"}, "truncation"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"conversation": {}}, "conversation.id"),
        ({"stream": "yes"}, "stream"),
    ],
)
async def test_what_is_wrong(fields: dict[str, Any], param: str) -> None:
    """A value that is none is refused by the name of its field."""
    async with client(says(HELLO)) as one:
        status, _, body = await one.ask("POST", "/responses", {"input": "x"} | fields)

    assert 400 == status
    assert param in (body["error"]["param"] or "")


@pytest.mark.parametrize("stream", [False, True])
async def test_too_large_a_limit_for_a_server(stream: bool) -> None:
    """A limit that a server refuses, since the prompt leaves less room, is lowered to that, and named; in the background too."""
    async with scripted(small(4096, 1000)) as server, serving(upstream(server.url)) as app:
        fields: dict[str, Any] = {"input": "x", "max_output_tokens": 128_000, "stream": stream}
        async with app.post("/v1/responses", **fields) as response:
            data = await response.read()
            assert 200 == response.status, data
        async with app.post(
            "/v1/responses", **fields | {"stream": True, "background": True}
        ) as later:
            last = events(await later.read())[-1]

    assert [128_000, 3096] * 2 == [one.json()["max_completion_tokens"] for one in server.requests]
    assert {"max_output_tokens"} == ignored(response)
    assert b"Hello" in data
    assert "response.completed" == last["type"]


async def test_too_long_a_prompt_for_a_server() -> None:
    """A prompt that leaves no room is refused once, by the code at which agents shorten it."""
    async with scripted(small(4096, 5000)) as server, serving(upstream(server.url)) as app:
        async with app.post("/v1/responses", input="x", max_output_tokens=128_000) as response:
            error = (await response.json())["error"]

    assert (400, "context_length_exceeded", "input") == (response.status, error["code"], error["param"])  # fmt: skip
    assert 1 == len(server.requests)


@in_one_loop
async def test_what_agents_ask_of_every_model(model: App) -> None:
    """A limit beyond any context, brevity, and work that a model cannot do are lowered or left out, and named."""
    fields = {"max_output_tokens": 128_000, "temperature": 0, "text": {"verbosity": "low"}}
    async with model.post("/v1/responses", input="Hello!", **fields) as response:
        body = await response.json()

    assert (200, "completed", 128_000) == (response.status, body["status"], body["max_output_tokens"])  # fmt: skip
    assert {"max_output_tokens", "text.verbosity"} == ignored(response)


@in_one_loop
async def test_log_probabilities(model: App) -> None:
    """Log probabilities stand in the deltas, when the text is done, and in the part."""
    include = ["message.output_text.logprobs"]
    fields: dict[str, Any] = {"max_output_tokens": 3, "temperature": 0, "top_logprobs": 2, "include": include}  # fmt: skip
    async with model.post("/v1/responses", input="Hello!", stream=True, **fields) as response:
        found = events(await response.read())
    async with model.post("/v1/responses", input="Hello!", **fields) as response:
        (item,) = (await response.json())["output"]

    told = [one for event in found if event["type"].endswith("text.delta") for one in event["logprobs"]]  # fmt: skip
    (done,) = [event for event in found if event["type"] == "response.output_text.done"]
    (part,) = [e["part"] for e in found if e["type"] == "response.content_part.done"]
    assert 3 == len(told)
    assert told == done["logprobs"] == part["logprobs"] == item["content"][0]["logprobs"]
    assert [2] * 3 == [len(one["top_logprobs"]) for one in told]
    assert "".join(one["token"] for one in told) == part["text"]


@in_one_loop
async def test_counting_the_input(model: App) -> None:
    """The tokens that are counted are those that an answer's usage tells, with tools, instructions and turns before it."""
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}  # fmt: skip
    fields: dict[str, Any] = {"instructions": "Be brief.", "tools": [tool]}
    async with model.post("/v1/responses", input="Hello!", max_output_tokens=4) as response:
        before = (await response.json())["id"]
    for more in (fields, fields | {"previous_response_id": before}):
        async with model.post("/v1/responses/input_tokens", input="And?", **more) as response:
            counted = await response.json()
        async with model.post("/v1/responses", input="And?", max_output_tokens=1, **more) as response:  # fmt: skip
            usage = (await response.json())["usage"]
        assert {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]} == counted


def test_what_changes_a_template() -> None:
    """The prompt whose tokens are counted is made with what a client tells the template, as the answer's is."""
    fields = {"chat_template_kwargs": {"a": 1}, "enable_thinking": False, "add_generation_prompt": False, "continue_final_message": True}  # fmt: skip
    asked = BodyDecoder(PromptRequest).decode(json.dumps({"input": "x", "max_tokens": 5} | fields).encode())  # fmt: skip
    chat, _ = prompt_of(asked, place_items(asked, [], items_of(asked)))

    assert fields == {name: getattr(chat, name) for name in fields}
    assert chat.max_tokens is None
