"""What clients and operators of chatglm.cpp's server rely on, with the library itself on tiny models."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.models import tiny_chatglm
from support.models.tiny_chatglm import AGAIN, OBSERVATION, need_library
from support.servers.appserver import HI, App, chunks, serving
from unilect.config.server import Config, ModelConfig
from unilect.core.requests import ChatRequest
from unilect.dialects.openai import chat as openai_chat
from unilect.engines.chatglm._request import turns
from unilect.engines.chatglm.engine import ChatglmEngine

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "Get the current weather in a given location",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["location"],
        },
    },
}  # fmt: skip
SYSTEM_TEXT = """\
Answer the following questions as best as you can. You have access to the following tools:
[
    {
        "type": "function",
        "function": {
            "description": "Get the current weather in a given location",
            "name": "get_current_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "location": {
                        "type": "string",
                        "description": "The city and state, e.g. San Francisco, CA"
                    },
                    "unit": {
                        "type": "string",
                        "enum": [
                            "celsius",
                            "fahrenheit"
                        ]
                    }
                },
                "required": [
                    "location"
                ]
            }
        }
    }
]"""
CALL = ["get_current_weather", "\n ```python\ntool_call(", "location='北京', ", "unit='celsius'", ")\n```"]  # fmt: skip
PROGRAM = ["interpreter", "\n ```python\nprint(", "1 + 1", ")\n```"]


@asynccontextmanager
async def app(
    folder: Path,
    says: list[Any],
    end: str = tiny_chatglm.EOS,
    dialect: Any = "openai",
    **model: Any,
) -> AsyncIterator[tuple[App, ChatglmEngine]]:
    """A server of a model that says this."""
    need_library()
    settings = model.pop("settings", {})
    path = tiny_chatglm.write(folder / "model.bin", says, end, **model)
    engine = ChatglmEngine("m", path, ModelConfig(**settings))
    async with serving(engine, Config(dialect=dialect)) as running:
        yield running, engine


async def ask(running: App, **body: Any) -> Any:
    """A whole answer's first choice, beside its usage."""
    async with running.chat(stream=False, **body) as response:
        assert 200 == response.status, await response.text()
        answer = await response.json()
    return answer["choices"][0] | {"usage": answer["usage"]}


async def test_case_08_model_threads_and_length(tmp_path: Path) -> None:
    """The model's file, the threads and the longest length are settings of the engine, and all three are in force."""
    settings = {"threads": 1, "context": 48}
    async with app(tmp_path, ["\n", "a"], AGAIN, settings=settings) as (running, engine):
        choice = await ask(running)
        status = Path(f"/proc/{engine._child.process.pid}/environ").read_bytes().split(b"\0")

    assert b"OMP_NUM_THREADS=1" in status
    assert ("length", 48) == (choice["finish_reason"], choice["usage"]["total_tokens"])


async def test_case_09_the_system_text(tmp_path: Path) -> None:
    """Tools are told in exactly the system text that ChatGLM3 was trained with, as the first turn."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [WEATHER]}
    chat = openai_chat.decode(json.dumps(body).encode()).request
    assert isinstance(chat, ChatRequest)
    async with app(tmp_path, ["\n", "a"], context=4096) as (running, _):
        system = {"role": "system", "content": SYSTEM_TEXT}
        told = await ask(running, tools=[WEATHER], max_tokens=0)
        by_hand = await ask(running, messages=[system, *HI], max_tokens=0)
        none = await ask(running, tools=[WEATHER], tool_choice="none", max_tokens=0)
        plain = await ask(running, max_tokens=0)

    assert [{"role": "system", "content": SYSTEM_TEXT}, *body["messages"]] == turns(
        chat, "ChatGLM3"
    )
    assert by_hand["usage"] == told["usage"]
    assert plain["usage"] == none["usage"]
    assert plain["usage"]["prompt_tokens"] < told["usage"]["prompt_tokens"]


async def test_case_09_a_tool_call(tmp_path: Path) -> None:
    """What the model writes as a call comes as a tool call with an id, whole and streamed alike."""
    async with app(tmp_path, CALL, OBSERVATION, context=4096) as (running, _):
        choice = await ask(running, tools=[WEATHER])
        async with running.chat(tools=[WEATHER]) as response:
            *frames, done = await chunks(response)

    (call,) = choice["message"]["tool_calls"]
    arguments = {"location": "北京", "unit": "celsius"}
    assert ("tool_calls", None) == (choice["finish_reason"], choice["message"]["content"])
    assert ("function", "get_current_weather") == (call["type"], call["function"]["name"])
    assert call["id"]
    assert arguments == json.loads(call["function"]["arguments"])
    deltas = [frame["choices"][0]["delta"] for frame in frames]
    (streamed,) = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert call["function"] == streamed["function"]
    assert ("tool_calls", "[DONE]") == (frames[-1]["choices"][0]["finish_reason"], done)


async def test_case_09_the_older_finish_reason(tmp_path: Path) -> None:
    """A client of the older server gets its finish reason by the dialect, one that sends `functions` the older call, too."""
    async with app(tmp_path, CALL, OBSERVATION, "chatglm", context=4096) as (running, _):
        choice = await ask(running, tools=[WEATHER])
        legacy = await ask(running, functions=[WEATHER["function"]])
        async with running.chat(tools=[WEATHER]) as response:
            frames = await chunks(response)

    assert "function_call" == choice["finish_reason"] == frames[-2]["choices"][0]["finish_reason"]
    assert "get_current_weather" == choice["message"]["tool_calls"][0]["function"]["name"]
    assert "get_current_weather" == legacy["message"]["function_call"]["name"]
    assert "function_call" == legacy["finish_reason"]


async def test_case_09_the_code_interpreter(tmp_path: Path) -> None:
    """A program for the code interpreter comes as a call of it, which was a status 500 of the older server."""
    async with app(tmp_path, PROGRAM, OBSERVATION, context=4096) as (running, _):
        choice = await ask(running, tools=[WEATHER])

    (call,) = choice["message"]["tool_calls"]
    assert "interpreter" == call["function"]["name"]
    assert {"code": "print(1 + 1)"} == json.loads(call["function"]["arguments"])


async def test_case_09_the_answer_to_a_tool(tmp_path: Path) -> None:
    """A call and its result are told to the model as it was trained: a named turn, and an observation."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    history = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
    ]
    async with app(tmp_path, ["\n", "It is", " 7"], context=4096) as (running, engine):
        choice = await ask(running, messages=history, tools=[WEATHER])
        without = await ask(running, messages=[*HI, history[2]], max_tokens=0)
        turn = await ask(running, messages=history, max_tokens=0)
        written = "f\n" + "```python\ntool_call(a=1)\n```"
        tokens = [await engine.tokenize(part) for part in written.partition("\n")[::2]]

    assert "It is 7" == choice["message"]["content"]
    assert (
        1 + len(tokens[0]) + 1 + len(tokens[1])
        == turn["usage"]["prompt_tokens"] - without["usage"]["prompt_tokens"]
    )


async def test_case_09_code_is_never_run(tmp_path: Path) -> None:
    """An answer that would have run on the older server is handed on as the text that it is."""
    pwned = tmp_path / "pwned"
    code = f"tool_call(a=open({str(pwned)!r}, 'w'))"
    says = ["get_current_weather", f"\n```python\n{code}\n```"]
    async with app(tmp_path, says, OBSERVATION, context=4096) as (running, _):
        choice = await ask(running, tools=[WEATHER])

    assert code == choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert not pwned.exists()


async def test_case_10_temperature_0_is_greedy(tmp_path: Path) -> None:
    """At temperature 0 the likeliest token is taken every time, and above it another one, too."""
    async with app(tmp_path, ["heads"], instead="tails") as (running, _):
        greedy = {(await ask(running, temperature=0))["message"]["content"] for _ in range(12)}
        one = {(await ask(running, top_k=1))["message"]["content"] for _ in range(12)}
        sampled = {
            (await ask(running, temperature=1, top_p=1))["message"]["content"] for _ in range(30)
        }

    assert {"heads"} == greedy
    assert len(one) == 1
    assert {"heads", "tails"} == sampled


async def test_case_11_langchain(tmp_path: Path) -> None:
    """LangChain's ChatGLM class gets its answer at `POST /`, with the length that it sends to every model."""
    body = {
        "prompt": "你好",
        "temperature": 0.1,
        "history": [["a", "b"]],
        "max_length": 20000,
        "top_p": 0.7,
    }
    async with app(tmp_path, ["\n", "你", "好"]) as (running, _):
        async with running.post("/", **body) as response:
            answer = await response.json()

    assert (200, 200) == (response.status, answer["status"])
    assert "你好" == answer["response"]
    assert [["a", "b"], ["你好", "你好"]] == answer["history"]
    assert {"response", "history", "status", "time"} == answer.keys()
