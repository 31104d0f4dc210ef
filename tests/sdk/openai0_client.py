"""The `openai` package of 2023, 0.28.1, against a running server: applications of that year still use it."""

import asyncio
import json
from typing import Any

import openai
from checks import check, equal, main, raises

HELLO = [{"role": "user", "content": "Hello!"}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
        "required": ["city"],
    },
}


def chat(base: str, key: str, **rest: Any) -> Any:
    """A chat completion of at most 16 tokens, greedy."""
    openai.api_base, openai.api_key = base, key
    fields = {"model": "demo", "messages": HELLO, "max_tokens": 16, "temperature": 0} | rest
    return openai.ChatCompletion.create(**fields)


@check
def chats(base: str, key: str) -> None:
    """A chat has text, a finish reason and usage, as attributes and as items."""
    answer = chat(base, key)

    assert answer.choices[0].message.content
    equal("assistant", answer["choices"][0]["message"]["role"])
    assert answer.choices[0].finish_reason in ("stop", "length")
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)


@check
def streams(base: str, key: str) -> None:
    """A stream gives the text of the whole answer."""
    whole = chat(base, key).choices[0].message.content
    chunks = list(chat(base, key, stream=True))

    equal(whole, "".join(chunk.choices[0].delta.get("content", "") for chunk in chunks))
    equal([None] * (len(chunks) - 1), [c.choices[0].finish_reason for c in chunks[:-1]])
    assert chunks[-1].choices[0].finish_reason


@check
def streams_asynchronously(base: str, key: str) -> None:
    """The asynchronous client reads the same stream."""

    async def text() -> str:
        openai.api_base, openai.api_key = base, key
        stream: Any = await openai.ChatCompletion.acreate(
            model="demo", messages=HELLO, max_tokens=16, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].delta.get("content", "") async for chunk in stream])

    equal(chat(base, key).choices[0].message.content, asyncio.run(text()))


@check
def completes(base: str, key: str) -> None:
    """Plain completions, whole and streamed, of a text and of several."""
    openai.api_base, openai.api_key = base, key
    fields = {"model": "demo", "max_tokens": 8, "temperature": 0}
    whole = openai.Completion.create(prompt="Once upon a time", **fields)
    stream = openai.Completion.create(prompt="Once upon a time", stream=True, **fields)
    both = openai.Completion.create(prompt=["Once upon a time", "The"], n=2, **fields)

    equal(whole.choices[0].text, "".join(chunk.choices[0].text for chunk in stream))
    equal([0, 1, 2, 3], [choice.index for choice in both.choices])


@check
def embeds(base: str, key: str) -> None:
    """Embeddings of several texts."""
    openai.api_base, openai.api_key = base, key
    answer = openai.Embedding.create(model="demo", input=["a cat", "a dog"])

    equal([0, 1], [item.index for item in answer.data])
    assert len(answer.data[0].embedding) > 8


@check
def calls_functions(base: str, key: str) -> None:
    """A named function is called in the older form, whole and streamed."""
    fields = {"functions": [WEATHER], "function_call": {"name": "get_weather"}, "max_tokens": 64}
    message = chat(base, key, **fields).choices[0].message
    deltas = [c.choices[0].delta.get("function_call", {}) for c in chat(base, key, stream=True, **fields)]  # fmt: skip

    equal("get_weather", message.function_call.name)
    assert json.loads(message.function_call.arguments)["city"] in ("Paris", "Oslo")
    equal("get_weather", "".join(part.get("name", "") for part in deltas))
    equal(message.function_call.arguments, "".join(part.get("arguments", "") for part in deltas))


@check
def lists_models(base: str, key: str) -> None:
    """The models are listed, and one is described."""
    openai.api_base, openai.api_key = base, key

    assert "demo" in [model.id for model in openai.Model.list().data]
    equal("demo", openai.Model.retrieve("demo").id)


@check
def tells_errors(base: str, key: str) -> None:
    """What is wrong is told by an exception of the right kind, in our words."""
    error: Any = raises(
        openai.error.InvalidRequestError, lambda: chat(base, key, model="none"), "`none`"
    )
    equal(("model", "model_not_found"), (error.param, error.code))
    error = raises(openai.error.InvalidRequestError, lambda: chat(base, key, temperature=9))
    equal("temperature", error.param)
    raises(openai.error.AuthenticationError, lambda: chat(base, "sk-wrong"))
    raises(
        openai.error.InvalidRequestError,
        lambda: chat(base, key, messages=[{"role": "user", "content": "a " * 9000}]),
        "context",
    )


if __name__ == "__main__":
    main(openai.version.VERSION)
