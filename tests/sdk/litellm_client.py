"""LiteLLM as a client of a running server."""

import asyncio
import importlib.metadata
import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would be fetched from the network

import litellm
from checks import check, dialect, equal, main, raises

litellm.suppress_debug_info = True  # it prints to our stdout
HELLO = [{"role": "user", "content": "Hello!"}]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
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


def place(base: str, key: str) -> dict[str, Any]:
    """Where the server is, for every call."""
    return {"model": "openai/demo", "api_base": base, "api_key": key, "max_retries": 0}


def chat(base: str, key: str, **rest: Any) -> Any:
    """A chat completion of at most 64 tokens, greedy."""
    fields = place(base, key) | {"messages": HELLO, "max_tokens": 64, "temperature": 0} | rest
    return litellm.completion(**fields)


@check
def chats(base: str, key: str) -> None:
    """A chat has text, a finish reason and usage."""
    answer = chat(base, key)

    assert answer.choices[0].message.content
    equal("stop", answer.choices[0].finish_reason)
    assert answer.usage.completion_tokens > 0


@check
def streams(base: str, key: str) -> None:
    """A stream gives the text and the usage of the whole answer, synchronously and not."""

    async def later() -> list[Any]:
        fields = place(base, key) | {"messages": HELLO, "max_tokens": 64, "temperature": 0}
        stream: Any = await litellm.acompletion(**fields, **options)
        return [chunk async for chunk in stream]

    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    whole = chat(base, key)
    for chunks in (list(chat(base, key, **options)), asyncio.run(later())):
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        equal(whole.choices[0].message.content, "".join(pieces))
        equal(whole.usage.total_tokens, chunks[-1].usage.total_tokens)


@check
def calls_tools(base: str, key: str) -> None:
    """A named tool is called, whole and streamed, and the finish reason is the dialect's."""
    choice = {"type": "function", "function": {"name": "get_weather"}}
    fields: dict[str, Any] = {"messages": ASK, "tools": [WEATHER], "tool_choice": choice}
    word = "function_call" if dialect(base) == "chatglm" else "tool_calls"
    (whole,) = chat(base, key, **fields).choices
    (call,) = whole.message.tool_calls
    rebuilt: Any = litellm.stream_chunk_builder(list(chat(base, key, stream=True, **fields)))
    (streamed,) = rebuilt.choices[0].message.tool_calls

    for item in (call, streamed):
        equal(("get_weather", {"city": "Paris"}), (item.function.name, json.loads(item.function.arguments)))  # fmt: skip
    equal([word, word], [whole.finish_reason, rebuilt.choices[0].finish_reason])


@check
def completes(base: str, key: str) -> None:
    """Plain completions, whole and streamed."""
    fields = place(base, key) | {"model": "text-completion-openai/demo", "prompt": "Once", "max_tokens": 8, "temperature": 0}  # fmt: skip
    whole: Any = litellm.text_completion(**fields)
    stream: Any = litellm.text_completion(**fields, stream=True)

    assert whole.choices[0].text
    equal(whole.choices[0].text, "".join(chunk.choices[0].text or "" for chunk in stream))


@check
def embeds(base: str, key: str) -> None:
    """Embeddings of several texts."""
    answer = litellm.embedding(**place(base, key), input=["a cat", "a dog"])

    equal([0, 1], [item["index"] for item in answer.data])


@check
def tells_errors(base: str, key: str) -> None:
    """What is wrong is told by an exception of the right kind, in our words."""
    long = [{"role": "user", "content": "a " * 9000}]
    raises(litellm.NotFoundError, lambda: chat(base, key, model="openai/none"), "`none`")
    raises(litellm.AuthenticationError, lambda: chat(base, "sk-wrong"))
    raises(litellm.BadRequestError, lambda: chat(base, key, temperature=9), "temperature")
    raises(litellm.ContextWindowExceededError, lambda: chat(base, key, messages=long))


if __name__ == "__main__":
    main(importlib.metadata.version("litellm"))
