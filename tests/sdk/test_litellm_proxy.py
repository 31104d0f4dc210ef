"""LiteLLM's proxy as an upstream: unilect in front of it, and a unilect of the bundled model behind it."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from test_client_libraries import LITELLM

import environments
from loopback import free_port
from serving import KEY, Server, serve

MASTER_KEY = "sk-0123456789abcdef0123456789abcdef"
START_TIMEOUT_S = 120.0
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


@contextmanager
def proxy(behind: Server, folder: Path) -> Iterator[str]:
    """Run LiteLLM's proxy in front of a server; its base URL."""
    python = environments.python("litellm", LITELLM)
    params = {"model": "openai/demo", "api_base": behind.url, "api_key": KEY, "max_retries": 0}
    config = {"model_list": [{"model_name": "demo", "litellm_params": params}]}
    (folder / "config.yaml").write_text(json.dumps(config))
    port = free_port()
    command = [python.with_name("litellm"), "--config", "config.yaml", "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--telemetry", "False"],
        cwd=folder,
        env=os.environ | {"LITELLM_MASTER_KEY": MASTER_KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        _wait_until_up(process)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.communicate()


def _wait_until_up(process: "subprocess.Popen[str]") -> None:
    """Read the proxy's log until it says that it listens, and leave the rest to a thread: a full pipe would stop it."""
    assert process.stdout is not None
    too_late = threading.Timer(START_TIMEOUT_S, process.kill)
    too_late.start()
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Uvicorn running on" in line:
            break
    too_late.cancel()
    assert process.poll() is None, "".join(lines[-20:])
    threading.Thread(target=process.stdout.read, daemon=True).start()


@pytest.fixture(scope="module")
def client(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of a unilect in front of the proxy."""
    with proxy(server, tmp_path_factory.mktemp("litellm")) as url:
        config = f'[models.far]\nsource = "{url}"\napi_key = "{MASTER_KEY}"\n[models.wrong]\nsource = "{url}"\nmodel = "none"\napi_key = "{MASTER_KEY}"\n'
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
