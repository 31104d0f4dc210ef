"""LlamaIndex's classes for servers that speak OpenAI's API against a running server."""

import asyncio
import importlib.metadata
from typing import Any, Literal

import openai
from checks import check, equal, follow, main, raises
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field


class Verdict(BaseModel):
    """A verdict."""

    likes_it: bool
    stars: int = Field(ge=1, le=5)


def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """Get the weather."""
    return f"sunny in {city}"


def model(base: str, key: str, **rest: Any) -> OpenAILike:
    """A greedy chat model of at most 64 tokens."""
    fields = {
        "model": "demo",
        "max_tokens": 64,
        "temperature": 0,
        "max_retries": 0,
        "is_chat_model": True,
        "is_function_calling_model": True,
    } | rest
    return OpenAILike(api_base=base, api_key=key, **fields)


HELLO = [ChatMessage(role="user", content="Hello!")]


@check
def chats(base: str, key: str) -> None:
    """A chat has text, and the raw answer its usage."""
    answer = model(base, key).chat(HELLO)

    assert answer.message.content
    assert answer.raw.usage.completion_tokens > 0


@check
def streams(base: str, key: str) -> None:
    """A stream gives the text of the whole answer, synchronously and not."""

    async def later() -> Any:
        last = None
        async for piece in await model(base, key).astream_chat(HELLO):
            last = piece
        return last

    whole = model(base, key).chat(HELLO).message.content
    for last in (list(model(base, key).stream_chat(HELLO))[-1], asyncio.run(later())):
        equal(whole, last.message.content)


@check
def completes(base: str, key: str) -> None:
    """Plain completions, whole and streamed, by the completions' own endpoint."""
    plain = model(base, key, is_chat_model=False, max_tokens=8)
    whole = plain.complete("Once upon a time").text

    assert whole
    equal(whole, list(plain.stream_complete("Once upon a time"))[-1].text)


@check
def calls_tools(base: str, key: str) -> None:
    """A tool that must be called is called with arguments that its schema allows."""
    llm = model(base, key)
    tool = FunctionTool.from_defaults(get_weather)
    for answer in (
        llm.chat_with_tools([tool], "What is the weather in Paris?", tool_required=True),
        list(llm.stream_chat_with_tools([tool], "What is the weather in Paris?", tool_required=True))[-1],
    ):  # fmt: skip
        (call,) = llm.get_tool_calls_from_response(answer)
        equal(("get_weather", {"city": "Paris"}), (call.tool_name, call.tool_kwargs))


@check
def runs_agents(base: str, key: str) -> None:
    """An agent calls a function and answers from its result, over chat completions and over Responses."""

    def get_weather(city: str) -> str:
        """Get the weather."""
        called.append(city)
        return "sunny, 21 degrees"

    async def answer(llm: Any) -> str:
        return str(await FunctionAgent(tools=[get_weather], llm=llm).run("What is the weather in Paris?"))  # fmt: skip

    called: list[str] = []
    fields = {"temperature": 0, "max_output_tokens": 64, "max_retries": 0, "context_window": 2048}
    responses = OpenAIResponses(model="demo", api_base=base, api_key=key, **fields)
    for llm in (model(base, key), responses):
        text = asyncio.run(answer(llm))
        assert "21" in text or "sunny" in text, text
    equal(["Paris", "Paris"], called)


@check
def fills_schemas(base: str, key: str) -> None:
    """A structured model is filled, by a tool call and by a schema."""
    for structured in (False, True):
        llm = model(base, key, should_use_structured_outputs=structured)
        filled = llm.as_structured_llm(Verdict).complete("Hello!").raw
        equal(Verdict, type(filled))


@check
def embeds(base: str, key: str) -> None:
    """Embeddings of several texts and of a query."""
    embedder = OpenAIEmbedding(api_base=base, api_key=key, model_name="demo", max_retries=0)
    two = embedder.get_text_embedding_batch(["a cat", "a dog"])

    equal(2, len(two))
    equal(len(two[0]), len(embedder.get_query_embedding("a cat")))


@check
def tells_errors(base: str, key: str) -> None:
    """What is wrong is told by an exception of the right kind, in our words."""
    long = [ChatMessage(role="user", content="a " * 9000)]
    raises(openai.NotFoundError, lambda: model(base, key, model="none").chat(HELLO), "`none`")
    raises(openai.AuthenticationError, lambda: model(base, "sk-wrong").chat(HELLO))
    raises(openai.BadRequestError, lambda: model(base, key).chat(long), "context")


@check
def does_what_its_page_says(base: str, key: str) -> None:
    """The lines in the documentation run as they are."""
    said = follow("llamaindex.md", base, key)

    equal(2, said.count("21 degrees"))


if __name__ == "__main__":
    main(importlib.metadata.version("llama-index-llms-openai-like"))
