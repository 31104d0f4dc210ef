"""A real llama-server as an upstream, over its OpenAI routes: `unilect serve` in front of it, and OpenAI's client in front of that."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from support.servers.serving import serve
from unilect.demo import MODEL

SCRIPT = Path(__file__).parents[3] / "bench" / "llama_server.py"
SLOTS, CONTEXT = 2, 512
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    """A client of a unilect in front of llama-server."""
    numbers = [str(number) for number in (0, SLOTS, CONTEXT, 1)]
    command = [sys.executable, str(SCRIPT), str(MODEL), *numbers]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "llama-server did not start"
        with serve(f"m={address}/v1") as front, openai.OpenAI(base_url=front.url, api_key="x", max_retries=0) as made:  # fmt: skip
            yield made
    finally:
        process.kill()
        process.communicate()


def chat(client: openai.OpenAI, text: str = "Hello!", **fields: Any) -> Any:
    """A greedy chat of at most 32 tokens."""
    fields = {"messages": [{"role": "user", "content": text}], "max_tokens": 32} | fields
    return client.chat.completions.create(model="m", temperature=0, **fields)


def complete(client: openai.OpenAI, prompt: Any = "Once upon a", **fields: Any) -> Any:
    """A greedy completion of four tokens."""
    return client.completions.create(model="m", prompt=prompt, temperature=0, max_tokens=4, **fields)  # fmt: skip


def test_what_is_learnt(client: openai.OpenAI) -> None:
    """The server's kind, context and abilities are learnt at the start."""
    card = client.models.retrieve("m").to_dict()["unilect"]
    assert isinstance(card, dict)

    assert (CONTEXT, False) == (card["context"], card["vision"])
    can = card["parameters"]
    assert ("emulated", "refused") == (can["n"], can["suffix"])


def test_a_chat_and_its_stream(client: openai.OpenAI) -> None:
    """A stream and a whole answer say the same, with the same usage."""
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))

    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert whole.choices[0].message.content == text
    assert "stop" == whole.choices[0].finish_reason
    assert whole.usage.total_tokens == chunks[-1].usage.total_tokens > 0


def test_more_choices_than_slots(client: openai.OpenAI) -> None:
    """More choices than the server has slots, which it refuses, are made all the same, and all are counted."""
    one, many = chat(client), chat(client, n=SLOTS + 1)

    assert [one.choices[0].message.content] * 3 == [c.message.content for c in many.choices]
    assert one.usage.prompt_tokens == many.usage.prompt_tokens
    assert 3 * one.usage.completion_tokens == many.usage.completion_tokens


def test_tools(client: openai.OpenAI) -> None:
    """A tool call has an id, a name and arguments, whole and streamed."""
    question = "What is the weather in Paris?"
    with client.chat.completions.stream(model="m", temperature=0, max_tokens=64, tools=[WEATHER], messages=[{"role": "user", "content": question}]) as stream:  # fmt: skip
        streamed = stream.get_final_completion().choices[0]
    whole = chat(client, question, tools=[WEATHER], max_tokens=64).choices[0]

    for choice in (whole, streamed):
        (call,) = choice.message.tool_calls or ()
        assert ("get_weather", {"city": "Paris"}) == (call.function.name, json.loads(call.function.arguments))  # fmt: skip
        assert call.id
        assert "tool_calls" == choice.finish_reason


def test_completions(client: openai.OpenAI) -> None:
    """Several prompts, the echo that the server drops, and log probabilities in the completions' own form."""
    several = complete(client, ["Once upon a", "The capital of"])
    echoed = complete(client, echo=True)
    probable = complete(client, logprobs=1)

    assert [0, 1] == [choice.index for choice in several.choices]
    assert "Once upon a" + several.choices[0].text == echoed.choices[0].text
    assert 4 == len(probable.choices[0].logprobs.tokens)
    assert probable.choices[0].text == "".join(probable.choices[0].logprobs.tokens)


def test_schemas_and_sampling(client: openai.OpenAI) -> None:
    """Schemas and llama.cpp's own parameters reach the server; a penalty does by the name that the server knows."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    # a model may write blanks, of which llama.cpp's grammar allows twenty between two tokens
    asked = chat(client, response_format=wanted, max_tokens=256)
    filled = json.loads(asked.choices[0].message.content)
    plain = chat(client, "Tell me a story.")
    penalized = chat(client, "Tell me a story.", extra_body={"repetition_penalty": 5.0})

    assert isinstance(filled["a"], bool)
    assert plain.choices[0].message.content != penalized.choices[0].message.content


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"messages": [{"role": "user", "content": "a " * 900}]}, "context_length_exceeded"),
        ({"extra_body": {"verbosity": "low"}}, "unsupported_parameter"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]}, "invalid_value"),
        ({"extra_body": {"grammar": "root ::= ("}}, "invalid_value"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(
    client: openai.OpenAI, fields: dict[str, Any], code: str, stream: bool
) -> None:
    """What the server cannot do is the request's fault, by its name, before the first byte."""
    with pytest.raises(openai.BadRequestError) as raised:
        chat(client, stream=stream, **fields)

    assert code == raised.value.code


def test_embeddings_that_the_server_does_not_make(client: openai.OpenAI) -> None:
    """A server that was started without embeddings says so."""
    with pytest.raises(openai.InternalServerError, match="embeddings") as raised:
        client.embeddings.create(model="m", input="a")

    assert 501 == raised.value.status_code
