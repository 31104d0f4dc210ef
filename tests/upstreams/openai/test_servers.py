"""Tests of unilect.upstreams.openai._servers: what each kind of server is handed, and what is refused for it."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.backends.engine import chat, completion
from support.backends.scripted import HELLO, Exchange, answer, scripted, stream_of
from unilect.adapt.emulation import generate
from unilect.adapt.tools import ToolEmulation, plan
from unilect.api.backend import BackendSpec, Capabilities, Description
from unilect.api.parameters.rules import CONSTRAINTS, resolve_parameters
from unilect.config.server import ModelConfig
from unilect.core.errors import InvalidRequest, UnsupportedParameter
from unilect.core.events import Answer, fold
from unilect.core.requests import Request
from unilect.upstreams.openai._servers import KINDS, UNKNOWN, ServerKind, capabilities, description
from unilect.upstreams.openai.backend import OpenAIUpstream, backend

NAMED = {kind.name: kind for kind in KINDS}
LIST = {
    "vLLM": {"id": "m", "owned_by": "vllm"},
    "llama-server": {"id": "m", "owned_by": "llamacpp"},
    "llama-cpp-python": {"id": "m", "owned_by": "me", "permissions": []},
    "Ollama": {"id": "m", "owned_by": "library"},
    "FastChat": {"id": "m", "owned_by": "fastchat"},
    "chatglm.cpp": {"id": "gpt-3.5-turbo", "owned_by": "owner"},
    "unknown": {"id": "m", "owned_by": "openai", "x": 1},
}
PATHS = {"/load_model": {}, "/v1/chat/completions": {}, "/v1/completions": {}}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
OTHER = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}
NAMED_TOOL = {"type": "function", "function": {"name": "f"}}


async def asked(kind: str, request: Any) -> tuple[list[dict[str, Any]], Answer, tuple[str, ...]]:
    """The bodies that a server of this kind gets for a request, the answer, and what was ignored."""

    async def script(exchange: Exchange) -> None:
        path = exchange.head.split(b" ")[1]
        if path == b"/v1/models" and kind in LIST:
            await exchange.send(answer(msgspec.json.encode({"data": [LIST[kind]]})))
        elif path == b"/openapi.json":
            await exchange.send(answer(msgspec.json.encode({"paths": PATHS})))
        elif exchange.head.startswith(b"GET"):
            await exchange.send(answer(b"", "404 Not Found"))
        else:
            await exchange.send(stream_of(HELLO))
        exchange.close()

    async with scripted(script) as server:
        model = "gpt-3.5-turbo" if kind == "chatglm.cpp" else "m"
        spec = BackendSpec("x", "http", server.url.removeprefix("http:"), ModelConfig(source="x", model=model, whole_answers="stream"), 1, lambda *_: None)  # fmt: skip
        upstream = backend(spec)
        await upstream.start()
        assert kind == upstream.kind.name
        request, ignored = resolve_parameters(request, upstream.capabilities)
        batches = [
            batch
            async for batch in (
                generate if upstream.capabilities.fans_out else type(upstream).generate
            )(upstream, request)
        ]
        bodies = [item.json() for item in server.requests if item.body]
        return bodies, fold(batches), ignored


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ("unknown", {"best_of": 2, "x": 1}, {"best_of": 2, "x": 1, **STREAM}),
        ("vLLM", {"min_p": 0.1, "repetition_penalty": 1.1, "x": 1}, {"min_p": 0.1, "repetition_penalty": 1.1, "x": 1, **STREAM}),
        ("llama-server", {"repetition_penalty": 1.1, "max_completion_tokens": 5}, {"repeat_penalty": 1.1, "max_completion_tokens": 5, "return_progress": True, **STREAM}),
        ("llama-server", {"enable_thinking": False, "stop": "x"}, {"chat_template_kwargs": {"enable_thinking": False}, "stop": "x", "verbose": True, "response_fields": ["stopping_word"], "return_progress": True, **STREAM}),
        ("llama-server", {"reasoning_effort": "high"}, {"chat_template_kwargs": {"reasoning_effort": "high", "enable_thinking": True}, "return_progress": True, **STREAM}),
        ("vLLM", {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False, "a": 1}}, {"chat_template_kwargs": {"enable_thinking": False, "a": 1}, **STREAM}),
        ("vLLM", {"thinking_budget_tokens": 9, "reasoning_effort": "high"}, {"thinking_token_budget": 9, "reasoning_effort": "high", **STREAM}),
        ("llama-server", {"tools": [TOOL, OTHER], "tool_choice": NAMED_TOOL}, {"tools": [TOOL], "tool_choice": "required", "return_progress": True, **STREAM}),
        ("vLLM", {"tools": [TOOL, OTHER], "tool_choice": NAMED_TOOL}, {"tools": [TOOL, OTHER], "tool_choice": NAMED_TOOL, **STREAM}),
        ("Ollama", {"max_completion_tokens": 5, "tools": [TOOL]}, {"max_tokens": 5, "tools": [TOOL], **STREAM}),
        ("Ollama", {"max_completion_tokens": 5, "max_tokens": 7}, {"max_tokens": 7, **STREAM}),
        ("FastChat", {"max_completion_tokens": 5, "user": "u", "metadata": {"a": "b"}}, {"max_tokens": 5, "user": "u", "stream": True}),
        ("chatglm.cpp", {"max_tokens": None, "user": "u", "n": 1}, {"stream": True}),
        ("transformers serve", {"max_completion_tokens": 5, "user": "u", "store": False, "stop": "x"}, {"max_completion_tokens": 5, "stop": "x", "stream": True}),
    ],
)  # fmt: skip
async def test_what_is_sent(kind: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """A server gets what it knows, by the name that it knows it by; an unknown one gets everything."""
    (body,), told, _ = await asked(kind, chat(**fields))

    assert expected == {
        k: v for k, v in body.items() if k not in ("model", "messages", "temperature")
    }
    assert "Hello" == told.choices[0].text


REFUSED = [
    ("vLLM", {"repeat_penalty": 1.1}),
    ("vLLM", {"mirostat": 2}),
    ("vLLM", {"grammar": "root ::= x"}),
    ("SGLang", {"mirostat": 1}),
    ("llama-server", {"verbosity": "low"}),
    ("llama-cpp-python", {"n": 2}),
    ("Ollama", {"logit_bias": {"1": 5}}),
    ("Ollama", {"top_k": 5}),
    ("FastChat", {"seed": 1}),
    ("chatglm.cpp", {"stop": "x"}),
    ("chatglm.cpp", {"n": 2}),
    ("transformers serve", {"logprobs": True}),
    ("transformers serve", {"presence_penalty": 1}),
]


@pytest.mark.parametrize(("kind", "fields"), REFUSED)
def test_what_is_refused(kind: str, fields: dict[str, Any]) -> None:
    """What a server is known to drop is refused by its name, and ignored by its name where the model is set so."""
    can = capabilities(NAMED[kind], {})
    with pytest.raises(UnsupportedParameter) as raised:
        resolve_parameters(chat(**fields), can)

    name = next(iter(fields))
    assert name == raised.value.param
    if name not in CONSTRAINTS:
        assert name in resolve_parameters(chat(**fields), can, "report")[1]


@pytest.mark.parametrize(
    ("kind", "fields", "made"),
    [
        ("Ollama", {"tools": [TOOL]}, None),
        ("Ollama", {"tool_choice": "required", "tools": [TOOL]}, ToolEmulation(True, "schema")),
        ("Ollama", {"parallel_tool_calls": False, "tools": [TOOL]}, ToolEmulation(single=True)),
        ("FastChat", {"tools": [TOOL]}, ToolEmulation(True)),
        ("FastChat", {"response_format": {"type": "json_object"}}, ToolEmulation(formed=True)),
        ("chatglm.cpp", {"tools": [TOOL], "tool_choice": "required"}, ToolEmulation(True, "retry")),
        ("transformers serve", {"tools": [TOOL]}, None),
        (
            "transformers serve",
            {"response_format": {"type": "json_object"}},
            ToolEmulation(formed=True),
        ),
        (
            "transformers serve",
            {"tool_choice": "required", "tools": [TOOL]},
            ToolEmulation(forced="retry"),
        ),
        ("vLLM", {"tool_choice": "required", "tools": [TOOL]}, None),
    ],
)
def test_what_is_made_up_for(kind: str, fields: dict[str, Any], made: ToolEmulation | None) -> None:
    """What a server drops of tools and formats is made up for, with the best that the server has."""
    can = capabilities(NAMED[kind], {})
    request = chat(**fields)

    assert (request, ()) == resolve_parameters(request, can)
    assert made == plan(request, can)


@pytest.mark.parametrize("kind", ["FastChat", "chatglm.cpp", "transformers serve"])
def test_unknown_fields_are_reported(kind: str) -> None:
    """A field that nobody knows is reported where the server would drop it or fail."""
    assert ("x",) == resolve_parameters(chat(x=1), capabilities(NAMED[kind], {}))[1]


@pytest.mark.parametrize("kind", ["llama-server", "Ollama", "transformers serve"])
async def test_choices_are_asked_for_one_by_one(kind: str) -> None:
    """A server that makes one choice, or counts one, is asked for each, and the usage is added up."""
    bodies, told, _ = await asked(kind, chat(n=3, seed=5))

    assert ([5, 6, 7], [True] * 3) == (sorted(b["seed"] for b in bodies), ["n" not in b for b in bodies])  # fmt: skip
    assert ["Hello"] * 3 == [choice.text for choice in told.choices]
    assert (3, 6) == (told.usage.prompt_tokens, told.usage.completion_tokens)


async def test_prompts_are_asked_for_one_by_one() -> None:
    """transformers serve takes one prompt, and gets each by itself."""
    bodies, told, _ = await asked("transformers serve", completion(["a", "b"]))

    assert ["a", "b"] == sorted(body["prompt"] for body in bodies)
    assert 2 == len(told.choices)


@pytest.mark.parametrize(
    ("kind", "request_", "param"),
    [
        ("FastChat", chat(logprobs=True), "logprobs"),
        ("chatglm.cpp", chat(max_tokens=0), "max_tokens"),
        ("chatglm.cpp", chat(max_completion_tokens=0), "max_tokens"),
        ("chatglm.cpp", chat(messages=[{"role": "system", "content": "x"}]), "messages"),
        ("llama-cpp-python", completion(["a", "b"]), "prompt"),
    ],
)
async def test_what_harms(kind: str, request_: Request, param: str) -> None:
    """What would kill a server, or be dropped in this one place, is refused before it is sent."""
    with pytest.raises(InvalidRequest) as raised:
        await asked(kind, request_)

    assert param == raised.value.param


async def test_log_probabilities_of_fastchat() -> None:
    """What FastChat drops in a chat only, its completions are given."""
    (body,), _, _ = await asked("FastChat", completion("a", logprobs=1))

    assert 1 == body["logprobs"]


def test_an_unknown_server() -> None:
    """An unknown server refuses nothing."""
    can = capabilities(UNKNOWN, {})

    assert Capabilities(passes_unknown=True, vision=True, rerank=True) == can


def test_images() -> None:
    """A model that says that it reads text only is given no images."""
    card = {"architecture": {"input_modalities": ["text"]}}

    assert not capabilities(NAMED["llama-server"], card).vision
    card["architecture"]["input_modalities"].append("image")
    assert capabilities(NAMED["llama-server"], card).vision


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_table(kind: ServerKind) -> None:
    """Every kind can be recognised, and contradicts itself nowhere."""
    can = capabilities(kind, {})
    assert kind.owner or kind.paths
    if kind.takes is not None:
        assert not kind.takes & kind.refused
        assert set(kind.renamed.values()) <= kind.takes
    assert not kind.refused & set(kind.renamed)
    assert set(can.parameters) >= kind.refused


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_documentation(kind: ServerKind) -> None:
    """Every kind has its line in docs/backends/openai.md."""
    page = Path(__file__).parents[3] / "docs" / "backends" / "openai.md"

    assert f"\n| {kind.name}" in page.read_text()


async def test_a_server_is_asked_once() -> None:
    """What was learnt is kept, also by requests that come at the same time."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(answer(b'{"data":[{"id":"m","owned_by":"vllm"}]}'))
        exchange.close()

    async with scripted(script) as server:
        spec = BackendSpec("x", "http", server.url.removeprefix("http:"), ModelConfig(source="x"), 1, lambda *_: None)  # fmt: skip
        upstream: OpenAIUpstream = backend(spec)
        await asyncio.gather(*(upstream.start() for _ in range(5)))
        await upstream.start()

    asked = [exchange.head.split(b" ")[1] for exchange in server.requests]
    assert ([b"/v1/models", b"/version"], "vLLM") == (asked, upstream.kind.name)


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ({}, Description()),
        ({"meta": None, "unilect": 1}, Description()),
        ({"meta": {"n_params": 7, "ftype": "Q8_0", "n_ctx_train": 9}}, Description(None, 7, "Q8_0", 9)),
        ({"meta": {"n_params": "many"}}, Description()),
        ({"unilect": {"details": {"family": "llama"}}, "meta": {"n_params": 7}}, Description("llama")),
    ],
)  # fmt: skip
def test_what_a_model_is(card: dict[str, Any], expected: Description) -> None:
    """What llama-server or another unilect lists of a model is known; what is of another form is not."""
    assert expected == description(card)
