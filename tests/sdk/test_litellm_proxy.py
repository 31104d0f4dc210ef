"""LiteLLM's proxy as an upstream: unilect in front of it, and a unilect of the bundled model behind it."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from litellm_proxy import Proxy

from support.common import environments
from support.servers.serving import KEY, Server, serve

pytestmark = [pytest.mark.heavy, environments.may_install]
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def client(litellm_proxy: Proxy) -> Iterator[openai.OpenAI]:
    """A client of a unilect in front of the proxy."""
    url, key = litellm_proxy.url(), litellm_proxy.key
    place = f'source = "{url}"\napi_key = "{key}"\n'
    config = f'[models.far]\n{place}[models.wrong]\nmodel = "none"\n{place}'
    with serve(config=config) as front, openai.OpenAI(base_url=front.url, api_key="x", max_retries=0) as made:  # fmt: skip
        yield made


@pytest.fixture(scope="module")
def direct(server: Server) -> Iterator[openai.OpenAI]:
    """A client of the server behind the proxy."""
    with openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0) as made:
        yield made


def chat(client: openai.OpenAI, model: str = "far", **fields: Any) -> Any:
    """A greedy chat of at most 64 tokens."""
    fields = {"messages": HELLO, "max_tokens": 64, "temperature": 0} | fields
    return client.chat.completions.create(model=model, **fields)


def test_a_chat(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    """A whole answer through two gateways is the one that the model gives, its usage included."""
    expected, actual = chat(direct, "demo"), chat(client)

    assert expected.choices[0].message.content == actual.choices[0].message.content
    assert expected.choices[0].finish_reason == actual.choices[0].finish_reason
    assert expected.usage.total_tokens == actual.usage.total_tokens


def test_a_stream(client: openai.OpenAI, direct: openai.OpenAI) -> None:
    """A stream through two gateways has the same text, one finish and its usage."""
    expected = chat(direct, "demo")
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]

    text = "".join(choice.delta.content or "" for choice in choices)
    assert expected.choices[0].message.content == text
    assert ["stop"] == [choice.finish_reason for choice in choices if choice.finish_reason]
    assert expected.usage.total_tokens == chunks[-1].usage.total_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: openai.OpenAI, stream: bool) -> None:
    """A tool call comes through whole, with one id, one name and its finish reason."""
    choice = {"type": "function", "function": {"name": "get_weather"}}
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    fields = {"messages": messages, "tools": [WEATHER], "tool_choice": choice}
    if stream:
        with client.chat.completions.stream(model="far", max_tokens=64, temperature=0, **fields) as answer:  # fmt: skip
            told = answer.get_final_completion().choices[0]
    else:
        told = chat(client, **fields).choices[0]

    (call,) = told.message.tool_calls or ()
    assert ("get_weather", {"city": "Paris"}) == (call.function.name, json.loads(call.function.arguments))  # fmt: skip
    assert call.id
    assert "tool_calls" == told.finish_reason


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(client: openai.OpenAI, stream: bool) -> None:
    """The error of the server behind the proxy is told as what it is."""
    with pytest.raises(openai.BadRequestError) as raised:
        chat(client, messages=[{"role": "user", "content": "a " * 9000}], stream=stream)

    assert "context_length_exceeded" == raised.value.code


def test_a_model_that_the_proxy_does_not_have(client: openai.OpenAI) -> None:
    """The proxy's own refusal is told as the request's fault, in its words."""
    with pytest.raises(openai.BadRequestError, match="none"):
        chat(client, "wrong")
