"""
What a gateway in front of another server loses: a client gets from it, through each API, what it gets from that server itself.

The servers are another unilect with the bundled model, llama.cpp's own server with it, and one that says what vLLM says.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from support.backends.llama_server import CONTEXT, llama_server
from support.backends.scripted import Exchange, answer, says, scripted
from support.servers.appserver import App, serving_models
from support.servers.serving import KEY, Server
from unilect.api.backend import BackendSpec
from unilect.config.server import Config, ModelConfig
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.upstreams.openai.backend import OpenAIUpstream, backend

in_one_loop = pytest.mark.asyncio(loop_scope="module")
CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"  # fmt: skip
#: What differs from one answer to the next: ids, times, and what says how long something took.
_OWN = frozenset(
    {"id", "item_id", "response_id", "call_id", "created", "created_at", "completed_at", "time_ms", "signature", "request_id", "system_fingerprint"}
    | {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "timings"}
)  # fmt: skip
HI = [{"role": "user", "content": "What is 2 + 2?"}]
TALK = [{"role": "system", "content": "Be brief."}, *HI]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
ABOUT = {"name": "get_weather", "description": "Get the weather."}
TOOL = {"type": "function", "function": {**ABOUT, "parameters": SCHEMA}}
FLAT = {"type": "function", **ABOUT, "parameters": SCHEMA}
OF_MESSAGES = {**ABOUT, "input_schema": SCHEMA}
RESULT = "21 degrees and sunny"
FORM = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
LIMIT = {"max_tokens": 24}

#: What is asked, by a name: the path and the body.
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "a chat": (CHAT, {"messages": TALK, **LIMIT}),
    "a chat's tool": (CHAT, {"messages": ASK, "tools": [TOOL], **LIMIT}),
    "a chat's stop word": (CHAT, {"messages": HI, "stop": ["="], **LIMIT}),
    "a chat's log probabilities": (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 2, **LIMIT}),
    "a chat that is too long for its limit": (CHAT, {"messages": HI, "max_completion_tokens": 32000}),
    "two choices": (CHAT, {"messages": HI, "n": 2, "seed": 7, **LIMIT}),
    "a response": (RESPONSES, {"input": HI, "instructions": "Be brief."}),
    "a response's tool": (RESPONSES, {"input": ASK, "tools": [FLAT], "tool_choice": "required"}),
    "a response's named tool": (RESPONSES, {"input": HI, "tools": [FLAT], "tool_choice": {"type": "function", "name": "get_weather"}}),
    "a response after a tool": (
        RESPONSES,
        {
            "input": [
                *ASK,
                {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Paris"}'},
                {"type": "function_call_output", "call_id": "c1", "output": RESULT},
            ],
            "tools": [FLAT],
        },
    ),
    "a response in a form": (RESPONSES, {"input": ASK, "text": {"format": FORM}, "temperature": 0}),
    "a response that is cut": (RESPONSES, {"input": HI, "max_output_tokens": 3}),
    "a response with too large a limit": (RESPONSES, {"input": HI, "max_output_tokens": 32000}),
    "a response with effort": (RESPONSES, {"input": HI, "reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"}}),
    "a response of likely tokens": (RESPONSES, {"input": HI, "include": ["message.output_text.logprobs"], "top_logprobs": 2}),
    "a response from few tokens": (RESPONSES, {"input": HI, "top_k": 1, "stop": ["="]}),
    "a message": (MESSAGES, {"system": "Be brief.", "messages": HI, **LIMIT}),
    "a message's tool": (MESSAGES, {"messages": ASK, "tools": [OF_MESSAGES], **LIMIT}),
    "a message's one tool": (
        MESSAGES,
        {"messages": ASK, "tools": [OF_MESSAGES], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, **LIMIT},
    ),
    "a message after a tool": (
        MESSAGES,
        {
            "messages": [
                *ASK,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Paris"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": RESULT}]},
            ],
            "tools": [OF_MESSAGES],
            **LIMIT,
        },
    ),
    "a message's stop word": (MESSAGES, {"messages": HI, "stop_sequences": ["=", "x"], **LIMIT}),
    "a message from few tokens": (MESSAGES, {"messages": HI, "top_k": 1, "top_p": 0.5, "temperature": 1, **LIMIT}),
    "a message that is cut": (MESSAGES, {"messages": HI, "max_tokens": 3}),
    "a message with too large a limit": (MESSAGES, {"messages": HI, "max_tokens": 32000}),
    "a message that thinks": (
        MESSAGES,
        {"messages": HI, "thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "high"}, **LIMIT},
    ),
    "a message in a form": (
        MESSAGES,
        {"messages": ASK, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, **LIMIT},
    ),
    "a message that goes on": (MESSAGES, {"messages": [*HI, {"role": "assistant", "content": "2 + 2 ="}], **LIMIT}),
    "Ollama": (OLLAMA, {"messages": TALK, "options": {"num_predict": 24, "temperature": 0}}),
    "Ollama's tool": (OLLAMA, {"messages": ASK, "tools": [TOOL], "options": {"temperature": 0}}),
    "Ollama's form": (OLLAMA, {"messages": ASK, "format": SCHEMA, "options": {"temperature": 0}}),
    "Ollama's stop word": (OLLAMA, {"messages": HI, "options": {"stop": ["="], "num_predict": 24}}),
    "Ollama's generate": ("/api/generate", {"prompt": "What is 2 + 2?", "options": {"num_predict": 9}}),
}  # fmt: skip
#: Limits for which the context has no room, by what is asked.
LOWERED = {
    "a chat that is too long for its limit": "max_completion_tokens",
    "a response with too large a limit": "max_output_tokens",
    "a message with too large a limit": "max_tokens",
}
#: What is not streamed.
TOLD: dict[str, tuple[str, dict[str, Any]]] = {
    "a message's tokens": (f"{MESSAGES}/count_tokens", {"system": "Be brief.", "messages": HI, "tools": [OF_MESSAGES]}),
    "a response's tokens": (f"{RESPONSES}/input_tokens", {"input": HI, "tools": [FLAT]}),
    "a chat's tokens": (f"{CHAT}/input_tokens", {"messages": TALK}),
    "a text's tokens": ("/tokenize", {"content": "What is 2 + 2?", "add_special": True}),
    "tokens' text": ("/detokenize", {"tokens": [300, 301, 302]}),
    "embeddings": ("/v1/embeddings", {"input": ["a", "b"]}),
    "Ollama's embeddings": ("/api/embed", {"input": "a"}),
}  # fmt: skip
#: What is refused, or answered with an error.
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "too long a chat": (CHAT, {"messages": [{"role": "user", "content": "word " * 12000}]}),
    "too long a response": (RESPONSES, {"input": "word " * 12000}),
    "too long a message": (MESSAGES, {"messages": [{"role": "user", "content": "word " * 12000}], "max_tokens": 5}),
    "an image for a model without eyes": (
        MESSAGES,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}],
                }
            ],
            "max_tokens": 5,
        },
    ),
    "documents for a model that does not rank": ("/v1/rerank", {"query": "a", "documents": ["a", "b"]}),
    "Ollama's thoughts": (OLLAMA, {"messages": HI, "think": True}),
}  # fmt: skip


def same(value: Any) -> Any:
    """What two answers to one question have in common."""
    if isinstance(value, dict):
        return {name: same(item) for name, item in value.items() if name not in _OWN}
    return [same(item) for item in value] if isinstance(value, list) else value


def frames(text: str) -> list[Any]:
    """The events or rows of a stream; choices that are made side by side one after the other."""
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    found = [json.loads(line) for line in lines if line[:1] == "{"]
    return sorted(found, key=lambda one: [choice["index"] for choice in one.get("choices", ())])


class Two:
    """
    A server, and a gateway in front of it.

    Args:
        root: The server's address.
        app: The gateway.
    """

    def __init__(self, root: str, app: App, key: str) -> None:
        self._roots = (root, f"http://127.0.0.1:{app.port}")
        self._session = app.session
        self._headers = {"Authorization": f"Bearer {key}", "anthropic-version": "2023-06-01"}

    async def asked(self, path: str, body: dict[str, Any], stream: bool) -> list[Any]:
        """What each answers: status, what was ignored, and the body or the events."""
        found = []
        for root in (self._roots[0], *self._roots):  # the first fills the cache
            fields = body | {"model": "demo", "stream": stream}
            if path == RESPONSES:
                fields |= {"store": False}
            async with self._session.post(
                root + path, json=fields, headers=self._headers
            ) as response:
                text = await response.text()
                told = frames(text) if stream and response.status == 200 else json.loads(text)
                found.append(
                    (response.status, response.headers.get("X-Unilect-Ignored"), same(told))
                )
        return found[1:]


@asynccontextmanager
async def gateway(
    url: str, key: str | None = None, **config: Any
) -> AsyncIterator[tuple[App, OpenAIUpstream]]:
    """A gateway to the model `demo` of a server with OpenAI's API."""
    settings = ModelConfig(source="x", model="demo", api_key=key, **config)
    made = backend(
        BackendSpec("demo", "http", url.removeprefix("http:"), settings, 1, lambda *_: None)
    )
    async with serving_models(Config(), Registry([Model("demo", made, runs_locally=False)])) as app:
        yield app, made


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def two(server_on: Callable[[str], Server]) -> AsyncIterator[Two]:
    """Another unilect with the bundled model, and a gateway."""
    server = server_on("gguf")
    async with gateway(f"{server.root}/v1", KEY) as (app, _):
        yield Two(server.root, app, KEY)


@in_one_loop
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", ASKED)
async def test_the_same_answer(two: Two, name: str, stream: bool) -> None:
    """The answer through a gateway is the server's own, but for ids and times: texts, calls, usage, reasons, what was ignored."""
    direct, through = await two.asked(*ASKED[name], stream)

    assert 200 == direct[0], direct
    assert direct == through
    assert LOWERED.get(name) in (None, direct[1])


@in_one_loop
@pytest.mark.parametrize("name", [*TOLD, *REFUSED])
async def test_the_same_words(two: Two, name: str) -> None:
    """Counts, embeddings and refusals through a gateway are the server's own."""
    direct, through = await two.asked(*(TOLD | REFUSED)[name], False)

    assert (200 if name in TOLD else 400) == direct[
        0
    ] or name == "documents for a model that does not rank"
    assert direct == through


#: What llama.cpp's own server is asked, with the most likely tokens.
OF_LLAMA_SERVER = (
    "a response",
    "a response's named tool",
    "a response after a tool",
    "a message",
    "a message's tool",
    "a message's one tool",
    "a message after a tool",
    "a message's stop word",
    "a message that is cut",
)


def facts(told: Any) -> dict[str, Any]:
    """What a response or a message says, whoever has written it: texts, calls, and tokens."""
    told = told[-1]["response"] if isinstance(told, list) else told
    usage, items = told["usage"], told.get("output", told.get("content"))
    parts = [part for item in items for part in item.get("content", [item])]
    calls = [item for item in items if item["type"] in ("function_call", "tool_use")]
    return {
        "text": "".join(part["text"] for part in parts if part["type"] in ("text", "output_text")),
        "calls": [
            (call["name"], call.get("input") or json.loads(call["arguments"])) for call in calls
        ],
        "prompt": usage["input_tokens"] + usage.get("cache_read_input_tokens", 0),
        "tokens": usage["output_tokens"],
        "word": told.get("stop_sequence"),
    }


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    """The address of llama.cpp's own server."""
    with llama_server() as root:
        yield root


@in_one_loop
@pytest.mark.parametrize("name", OF_LLAMA_SERVER)
async def test_what_llama_server_says_itself(real: str, name: str) -> None:
    """llama-server's own Responses and Messages say nothing that a gateway in front of it does not say; it drops a tool's name, and is told to call one."""
    path, body = ASKED[name]
    forced = {"tool_choice": "required"} if name == "a response's named tool" else {}
    async with gateway(f"{real}/v1") as (app, _):
        found = []
        for root, more in ((real, forced), (f"http://127.0.0.1:{app.port}", {})):
            limit = {"max_output_tokens": 24, "store": False} if path == RESPONSES else {}
            fields = body | more | limit | {"model": "demo", "temperature": 0, "top_k": 1}
            headers = {"Connection": "close"}
            async with app.session.post(root + path, json=fields, headers=headers) as response:
                assert 200 == response.status, await response.text()
                found.append(facts(await response.json()))

    assert found[0] == found[1]


@in_one_loop
async def test_what_llama_server_counts(real: str) -> None:
    """Tokens are counted as llama-server counts them; its context is known, and told where a prompt is too long."""
    async with gateway(f"{real}/v1") as (app, made):
        for name in ("a message's tokens", "a chat's tokens", "a text's tokens", "tokens' text"):
            path, body = TOLD[name]
            told = []
            for root in (real, f"http://127.0.0.1:{app.port}"):
                async with app.session.post(
                    root + path, json=body | {"model": "demo"}, headers={"Connection": "close"}
                ) as response:
                    told.append(await response.json())
            assert told[0] == told[0] | told[1], name
        path, body = REFUSED["too long a message"]
        async with app.post(path, **body) as response:
            error = (await response.json())["error"]["message"]
        assert CONTEXT == made.capabilities.context
    assert error.startswith("prompt is too long: 24")
    assert error.endswith(f"> {CONTEXT} maximum")


@in_one_loop
async def test_what_llama_server_is_made_to_tell(real: str) -> None:
    """The stop word of a chat is llama-server's to tell; what else it is made to tell for that does not reach the client."""
    path, body = ASKED["a chat's stop word"]
    async with gateway(f"{real}/v1") as (app, _):
        for stream in (False, True):
            async with app.post(path, **body, temperature=0, stream=stream) as response:
                text = await response.text()
            told = frames(text)[-1] if stream else json.loads(text)
            assert ("stop", "=") == tuple(
                told["choices"][0][name] for name in ("finish_reason", "stop_reason")
            )
            assert "verbose" not in text
            assert "prompt_progress" not in text


#: What vLLM says of a chat whose stop word has come, with what the cache knew.
_OF_VLLM: Any = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "demo",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "reasoning": "Hm.", "content": "4", "tool_calls": []},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": "=",
        }
    ],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 8},
    },
}


async def _vllm(exchange: Exchange) -> None:
    """vLLM, as far as it is asked here."""
    path = exchange.head.split(b" ")[1]
    told = {
        b"/v1/models": {"data": [{"id": "demo", "owned_by": "vllm", "max_model_len": 64}]},
        b"/tokenize": {"count": 9, "max_model_len": 64, "tokens": list(range(9))},
        b"/detokenize": {"prompt": "abc"},
    }.get(path, _OF_VLLM)
    await exchange.send(answer(msgspec.json.encode(told)))
    exchange.close()


async def test_what_vllm_is_asked() -> None:
    """Thoughts, the stop word and cached tokens come back; the prompt is counted, a last message gone on with, thinking switched."""
    begun = [*HI, {"role": "assistant", "content": "2 + 2 ="}]
    fields = {
        "messages": begun,
        "stop_sequences": ["="],
        "thinking": {"type": "disabled"},
        "top_k": 5,
    }
    async with scripted(_vllm) as server, gateway(server.url) as (app, _):
        async with app.post(MESSAGES, **fields, max_tokens=32000) as response:
            message, lowered = await response.json(), response.headers["X-Unilect-Ignored"]
            asked = server.requests[-1].json()
        async with app.post(
            f"{MESSAGES}/count_tokens", messages=HI, tools=[OF_MESSAGES]
        ) as response:
            count, counted = await response.json(), server.requests[-1].json()
        async with app.post("/tokenize", content="abc", add_special=True) as response:
            ids = await response.json()
        async with app.post("/detokenize", tokens=[1]) as response:
            text = await response.json()

    assert ("stop_sequence", "=") == (message["stop_reason"], message["stop_sequence"])
    assert ["Hm.", "4"] == [message["content"][0]["thinking"], message["content"][1]["text"]]
    assert (1, 8, 3) == tuple(
        message["usage"][name]
        for name in ("input_tokens", "cache_read_input_tokens", "output_tokens")
    )
    assert ("max_tokens", 64, 5) == (lowered, asked["max_tokens"], asked["top_k"])
    assert {"enable_thinking": False} == asked["chat_template_kwargs"]
    assert (True, False) == (asked["continue_final_message"], asked["add_generation_prompt"])
    assert ({"input_tokens": 9}, ["get_weather"]) == (
        count,
        [tool["function"]["name"] for tool in counted["tools"]],
    )
    assert ({"tokens": list(range(9))}, {"content": "abc"}) == (ids, text)


async def test_an_overloaded_server() -> None:
    """An engine that has too much to do says so through a gateway, too, in the words of each API."""
    error = {"message": "full", "type": "rate_limit_error", "code": "engine_overloaded"}
    body = msgspec.json.encode({"error": error})
    script = says(answer(body, "429 Too Many Requests", retry_after="7"))
    async with scripted(script) as server, gateway(server.url) as (app, _):
        async with app.post(MESSAGES, messages=HI, max_tokens=5) as response:
            message = (response.status, (await response.json())["error"]["type"])
        async with app.post(CHAT, messages=HI) as response:
            chat = (
                response.status,
                (await response.json())["error"]["code"],
                response.headers["Retry-After"],
            )

    assert (529, "overloaded_error") == message
    assert (429, "engine_overloaded", "7") == chat
