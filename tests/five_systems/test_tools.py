"""
Tools on the backends of the five older systems, and on templates that know none: no matter who serves a model, its calls are calls.

What a scripted server or a tiny model says is given; the bundled model speaks for itself.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from support.backends.engine import TRIES, engine, needs_transformers
from support.backends.fastchat import fake_fastchat, frame, used
from support.backends.llama_server import llama_server
from support.backends.scripted import Exchange, answer, frames, scripted, stream_of
from support.backends.wires import replay
from support.models import tiny_chatglm
from support.servers.appserver import App, chunks, serving
from unilect.api.backend import BackendSpec
from unilect.config.server import ModelConfig
from unilect.engines.chatglm.engine import ChatglmEngine
from unilect.http.client import HttpServer
from unilect.upstreams.fastchat.backend import Controller, FastChatUpstream
from unilect.upstreams.llamacpp.backend import backend as llamacpp
from unilect.upstreams.openai.backend import backend as openai

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
NOW: Any = {"type": "function", "function": {"name": "now", "description": "Tell the time."}}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
PARIS = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
ROME = PARIS.replace("Paris", "Rome")
AT_ONCE = 8
CODE = ["get_weather", "\n```python\n", "tool_call(", "city='Paris'", ")\n```"]


async def asked(app: App, stream: bool = False, **fields: Any) -> tuple[dict[str, Any], str]:
    """The message of an answer, whole or put together from its stream, and its finish reason."""
    body = {"messages": QUESTION, "max_tokens": 100, "tools": [WEATHER, NOW]} | fields
    async with app.chat(stream=stream, **body) as response:
        assert 200 == response.status, await response.read()
        if not stream:
            choice = (await response.json())["choices"][0]
            return choice["message"], choice["finish_reason"]
        *told, done = await chunks(response)
    assert "[DONE]" == done
    text, calls, reason = "", dict[int, Any](), ""
    for choice in (choice for one in told for choice in one["choices"]):
        text += choice["delta"].get("content") or ""
        reason = choice["finish_reason"] or reason
        for call in choice["delta"].get("tool_calls", ()):
            kept = calls.setdefault(call["index"], {"id": call.get("id"), "function": {"name": call["function"].get("name"), "arguments": ""}})  # fmt: skip
            kept["function"]["arguments"] += call["function"]["arguments"]
    return {"content": text or None, "tool_calls": list(calls.values())}, reason


def called(message: dict[str, Any]) -> list[tuple[str, Any]]:
    """The calls of a message, each with an id, their arguments decoded."""
    calls = message.get("tool_calls") or []
    assert len(calls) == len({call["id"] for call in calls} - {None})
    return [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in calls]


Scripted: TypeAlias = tuple[App, Callable[[], str]]


@asynccontextmanager
async def llamacpp_protocol(generation: str, text: str) -> AsyncIterator[Scripted]:
    """A server with llama.cpp's own protocol, which has a grammar and no chats."""
    pieces = [{"content": text[at : at + 5], "slot_id": 0, "stop": False, "multimodal": False} for at in range(0, len(text), 5)]  # fmt: skip
    end = {"content": "", "slot_id": 0, "stop": True, "stopped_eos": True, "stop_type": "eos", "stopped_limit": False, "stopped_word": False, "truncated": False, "tokens_evaluated": 9, "tokens_predicted": 4}  # fmt: skip
    async with scripted(replay(generation, completion=stream_of(frames(*pieces, end)))) as server:
        spec = BackendSpec("m", "llamacpp+http", f"//127.0.0.1:{server.port}", ModelConfig(), 1, print)  # type: ignore[arg-type]  # fmt: skip
        async with serving(llamacpp(spec)) as app:
            yield app, lambda: json.dumps(server.requests[-1].json(), ensure_ascii=False)


@asynccontextmanager
async def fastchat(text: str) -> AsyncIterator[Scripted]:
    """A worker of FastChat, which has neither."""
    async with fake_fastchat() as fake:
        fake.answers["/model_details"] = {"context_length": 4096}
        fake.pieces = [frame(text[: at + 5], usage=used(9, at), finish_reason=None) for at in range(0, len(text), 5)]  # fmt: skip
        fake.pieces = [*fake.pieces, frame(text, usage=used(9, len(text)), finish_reason="stop")]
        backend = FastChatUpstream(Controller(HttpServer(fake.url)), ModelConfig(), "m")
        async with serving(backend) as app:
            yield app, lambda: json.dumps(fake.params)


@asynccontextmanager
async def openai_api(listed: Any, described: Any, text: str) -> AsyncIterator[Scripted]:
    """A server that speaks OpenAI's API and drops what it does not know."""
    pages = {b"/v1/models": listed, b"/openapi.json": described}

    async def script(exchange: Exchange) -> None:
        page = pages.get(exchange.head.split(b" ")[1])
        if exchange.head.startswith(b"POST"):
            assert not {"tools", "tool_choice", "response_format"} & exchange.json().keys()
            told = [{"choices": [{"index": 0, "delta": {"content": text[at : at + 5]}, "finish_reason": None}]} for at in range(0, len(text), 5)]  # fmt: skip
            end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
            await exchange.send(stream_of(frames(*told, end)))
        elif page is not None:
            await exchange.send(answer(msgspec.json.encode(page)))
        else:
            await exchange.send(answer(b"{}", "404 Not Found"))
        exchange.close()

    async with scripted(script) as server:
        spec = BackendSpec("m", "http", f"//127.0.0.1:{server.port}/v1", ModelConfig(model="" if listed else "x"), 1, print)  # type: ignore[arg-type]  # fmt: skip
        async with serving(openai(spec)) as app:
            yield app, lambda: json.dumps(server.requests[-1].json())


def card(id: str, owner: str) -> dict[str, Any]:
    """A list of one model."""
    return {"object": "list", "data": [{"id": id, "object": "model", "owned_by": owner, "permission": []}]}  # fmt: skip


FIELDS = "messages temperature top_p top_k max_tokens num_beams stop stream repetition_penalty user"
#: What the server of Chinese-LLaMA-Alpaca-2 describes, as FastAPI does by itself; it lists no models.
ALPACA = {
    "paths": {"/v1/chat/completions": {"post": {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Chat"}}}}}}},
    "components": {"schemas": {"Chat": {"type": "object", "properties": {name: {} for name in FIELDS.split()}}}},
}  # fmt: skip
SCRIPTED: dict[str, Callable[[str], Any]] = {
    "llama.cpp of 2023": partial(llamacpp_protocol, "llamacpp-2023"),
    "PowerInfer": partial(llamacpp_protocol, "powerinfer"),
    "llama.cpp of 2025": partial(llamacpp_protocol, "llamacpp-2025"),
    "FastChat's worker": fastchat,
    "FastChat's API": partial(openai_api, card("m", "fastchat"), None),
    "chatglm.cpp's server": partial(openai_api, card("gpt-3.5-turbo", "owner"), None),
    "Alpaca's server": partial(openai_api, None, ALPACA),
}
IN_PARIS, IN_ROME = (("get_weather", {"city": city}) for city in ("Paris", "Rome"))
EARLIER: list[Any] = [
    *QUESTION,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}},
            {"id": "d", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "21 degrees"},
    {"role": "tool", "tool_call_id": "d", "content": "noon"},
]  # fmt: skip


CHOICES: list[dict[str, Any]] = [{"tool_choice": "auto"}, {"tool_choice": "required"}, {"tool_choice": NAMED}]  # fmt: skip
IN_OSLO = [EARLIER[0], EARLIER[1] | {"tool_calls": EARLIER[1]["tool_calls"][:1]}, EARLIER[2]]


@pytest.mark.heavy(but=5)
@pytest.mark.parametrize("server", list(SCRIPTED))
@pytest.mark.parametrize("stream", [False, True])
async def test_scripted(server: str, stream: bool) -> None:
    """One call, several, none, a required and a named one, and a turn behind results, through each server's own protocol."""
    inside = SCRIPTED[server]
    async with inside(PARIS) as (app, said):
        for choice in ("auto", "required", NAMED):
            message, reason = await asked(app, stream, tool_choice=choice)
            assert ([IN_PARIS], "tool_calls", None) == (called(message), reason, message["content"])
            assert "Get the weather." in said()
            assert ("Tell the time." in said()) is (choice != NAMED)
        message, _ = await asked(app, stream, messages=EARLIER, tool_choice="required")
        assert [IN_PARIS] == called(message)
    async with inside(f"{PARIS}\n{ROME}") as (app, _):
        message, _ = await asked(app, stream)
        assert [IN_PARIS, IN_ROME] == called(message)
        message, _ = await asked(app, stream, parallel_tool_calls=False)
        assert [IN_PARIS] == called(message)
    async with inside(f"I look.\n<tool_call>\n{PARIS}\n</tool_call>") as (app, _):
        message, _ = await asked(app, stream)  # in the model's own form, whatever it was told
        assert ([IN_PARIS], "I look.") == (called(message), message["content"])
    async with inside("It is sunny.") as (app, said):
        message, reason = await asked(app, stream)
        assert ([], "stop", "It is sunny.") == (called(message), reason, message["content"])
        message, _ = await asked(app, stream, messages=[*EARLIER, *QUESTION])
        assert "It is sunny." == message["content"]
        prompt = said()
        assert prompt.index("Oslo") < prompt.index("21 degrees") < prompt.index("noon")


async def test_what_a_worker_reads() -> None:
    """Tools, earlier calls and their results are in the one text that FastChat's worker gets, in the turns of its template."""
    async with fastchat("Hello") as (app, said):
        await asked(app, messages=EARLIER)
        prompt = json.loads(said())["prompt"]

    assert prompt.startswith("# Tools\n\nYou may call these functions:\n")
    oslo = PARIS.replace("Paris", "Oslo")
    assert f'Bot: {oslo}\n{{"name": "now", "arguments": {{}}}}\n' in prompt
    assert "User: The result of get_weather:\n21 degrees\nThe result of now:\nnoon\nBot:" in prompt


#: What each family's tiny model says, and the token after it.
CHATGLM = {
    3: (CODE, tiny_chatglm.OBSERVATION),
    2: (['{"name"', ": ", '"get_weather"', ",", ' "arguments": ', '{"city":', ' "Paris"', "}}"], tiny_chatglm.EOS),
}  # fmt: skip


@pytest.mark.parametrize("family", list(CHATGLM))
async def test_chatglm(tmp_path: Path, family: int) -> None:
    """ChatGLM3 calls in its own form, and ChatGLM2, which knows no tools, in JSON; also where a call must come, and behind a result."""
    tiny_chatglm.need_library()
    says, end = CHATGLM[family]
    path = tiny_chatglm.write(tmp_path / "m.bin", says, end, context=2048, family=family)
    async with serving(ChatglmEngine("m", path, ModelConfig())) as app:
        for fields in (*CHOICES, {"parallel_tool_calls": False}, {"messages": EARLIER}):
            for stream in (False, True):
                message, reason = await asked(app, stream, **{"tools": [WEATHER, NOW]} | fields)
                assert ([IN_PARIS], "tool_calls") == (called(message), reason), (fields, stream)


async def test_never_called(tmp_path: Path) -> None:
    """A model that will not call a tool that it must is asked three times, and then the request fails by name."""
    tiny_chatglm.need_library()
    path = tiny_chatglm.write(tmp_path / "m.bin", ["\n", "Hello", "."], context=2048)
    async with serving(ChatglmEngine("m", path, ModelConfig())) as app:
        for stream in (False, True):
            async with app.chat(tools=[WEATHER], tool_choice="required", stream=stream) as response:
                error = (await response.json())["error"]
                assert (422, "constraint_violated") == (response.status, error["code"])
                assert "None of 3 answers" in error["message"]
                assert "no tool is called" in error["message"]


@asynccontextmanager
async def bundled(kind: str) -> AsyncIterator[App]:
    """The bundled model where nobody gives it its own template, or where a real llama-server serves it by its native protocol."""
    async with AsyncExitStack() as stack:
        if kind == "llama-server":
            url = stack.enter_context(llama_server())
            settings = ModelConfig(chat_template="chatml")
            spec = BackendSpec("m", "llamacpp+http", url.removeprefix("http:"), settings, 1, print)  # type: ignore[arg-type]
            backend: Any = llamacpp(spec)
        else:
            name, _, template = kind.partition(" ")
            backend = await stack.enter_async_context(
                engine(name, chat_template=template, parallel=AT_ONCE)
            )
        yield await stack.enter_async_context(serving(backend))


BUNDLED = [
    "llama-server",
    "gguf chatml",
    pytest.param("gguf alpaca-zh", marks=pytest.mark.heavy),
    pytest.param("hf chatml", marks=needs_transformers),
    pytest.param("hf alpaca-zh", marks=[needs_transformers, pytest.mark.heavy]),
]


@pytest.mark.heavy(but=1)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", BUNDLED)
async def test_the_bundled_model(kind: str) -> None:
    """With a template that knows no tools the bundled model calls, answers from the result, and makes no forced call but a valid one."""
    taught = "alpaca" not in kind
    fields = [*CHOICES, {"parallel_tool_calls": False}] if taught else CHOICES[1:]
    zone = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"], "additionalProperties": False}  # fmt: skip
    tools = [WEATHER, NOW | {"function": NOW["function"] | {"parameters": zone}}]
    async with bundled(kind) as app:
        card = json.loads((await app.get("/v1/models/m"))[1])["unilect"]["parameters"]
        assert "emulated" == card["tools"]
        for stream in (False, True):
            for one in fields:
                message, reason = await asked(app, stream, temperature=0, **one)
                assert ([IN_PARIS], "tool_calls") == (called(message), reason), (stream, one)
            if taught:  # the answer is made of the result
                message, reason = await asked(app, stream, temperature=0, messages=IN_OSLO)
                assert ([], "stop") == (called(message), reason)
                assert "21" in (message["content"] or "")
        turns = asyncio.Semaphore(AT_ONCE)  # answers of one batch cost little more than one

        async def forced(seed: int) -> tuple[dict[str, Any], str]:
            async with turns:
                return await asked(app, tools=tools, tool_choice="required", temperature=1, seed=seed, max_tokens=400)  # fmt: skip

        for message, reason in await asyncio.gather(*map(forced, range(TRIES))):
            ((name, given),) = called(message)
            assert "tool_calls" == reason
            if name == "now":
                assert given["zone"] in ("UTC", "CET")
            else:
                assert isinstance(given["city"], str)
