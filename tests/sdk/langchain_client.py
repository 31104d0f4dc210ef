"""LangChain's classes for OpenAI against a running server."""

import asyncio
import importlib.metadata
from typing import Any, Literal

import openai
from checks import check, equal, main, raises
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

ASK = "What is the weather in Paris?"


class get_weather(BaseModel):
    """Get the weather."""

    city: Literal["Paris", "Oslo"]


class Verdict(BaseModel):
    """A verdict."""

    likes_it: bool
    stars: int = Field(ge=1, le=5)


def model(base: str, key: str, **rest: Any) -> ChatOpenAI:
    """A greedy chat model of at most 64 tokens."""
    fields = {
        "model": "demo",
        "max_tokens": 64,
        "temperature": 0,
        "max_retries": 0,
        "stream_usage": True,
    } | rest
    return ChatOpenAI(base_url=base, api_key=key, **fields)


@check
def chats(base: str, key: str) -> None:
    """A chat has text, usage, a finish reason and the model's name."""
    answer = model(base, key).invoke("Hello!")

    assert answer.text
    equal("demo", answer.response_metadata["model_name"])
    equal("stop", answer.response_metadata["finish_reason"])
    assert answer.usage_metadata
    assert answer.usage_metadata["output_tokens"] > 0


@check
def streams(base: str, key: str) -> None:
    """A stream gives the text and the usage of the whole answer, synchronously and not."""

    async def later() -> list[AIMessageChunk]:
        return [chunk async for chunk in model(base, key).astream("Hello!")]

    whole = model(base, key).invoke("Hello!")
    for chunks in (list(model(base, key).stream("Hello!")), asyncio.run(later())):
        total = chunks[0]
        for chunk in chunks[1:]:
            total += chunk  # type: ignore[assignment]
        equal(whole.text, total.text)
        assert whole.usage_metadata
        assert total.usage_metadata
        equal(whole.usage_metadata["total_tokens"], total.usage_metadata["total_tokens"])
        equal("stop", total.response_metadata["finish_reason"])


@check
def answers_in_batches(base: str, key: str) -> None:
    """Several questions at a time are answered in their order."""
    answers = model(base, key).batch(["Hello!", "Hello!", "What is the capital of France?"])

    equal(answers[0].text, answers[1].text)
    assert "Paris" in answers[2].text, answers[2].text


@check
def calls_tools(base: str, key: str) -> None:
    """Bound tools are called, whole and streamed, and their results are read."""
    bound = model(base, key).bind_tools([get_weather], tool_choice="get_weather")
    call = bound.invoke(ASK)
    assert isinstance(call, AIMessage)
    streamed: Any = None
    for chunk in bound.stream(ASK):
        streamed = chunk if streamed is None else streamed + chunk

    equal(["get_weather"], [item["name"] for item in call.tool_calls])
    equal({"city": "Paris"}, call.tool_calls[0]["args"])
    equal([{"city": "Paris"}], [item["args"] for item in streamed.tool_calls])
    result = ToolMessage("sunny, 21 degrees", tool_call_id=str(call.tool_calls[0]["id"]))
    last = model(base, key).bind_tools([get_weather]).invoke([HumanMessage(ASK), call, result])
    assert last.text


@check
def fills_schemas(base: str, key: str) -> None:
    """Structured output is filled by each of LangChain's ways."""
    for method in ("json_schema", "function_calling"):
        filled = model(base, key).with_structured_output(Verdict, method=method).invoke("Hello!")
        equal(Verdict, type(filled))
    filled = model(base, key).with_structured_output(Verdict, include_raw=True).invoke("Hello!")
    assert isinstance(filled, dict)
    equal(None, filled["parsing_error"])


@check
def gives_log_probabilities(base: str, key: str) -> None:
    """Log probabilities are in the answer's metadata."""
    answer = model(base, key, logprobs=True, top_logprobs=2).invoke("Hello!")

    assert len(answer.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2


@check
def completes(base: str, key: str) -> None:
    """Plain completions, whole and streamed."""
    plain = OpenAI(base_url=base, api_key=key, model="demo", max_tokens=8, temperature=0)
    whole = plain.invoke("Once upon a time")

    assert whole
    equal(whole, "".join(plain.stream("Once upon a time")))


@check
def embeds(base: str, key: str) -> None:
    """Embeddings of several texts and of one."""
    embedder = OpenAIEmbeddings(
        base_url=base, api_key=key, model="demo", check_embedding_ctx_length=False
    )
    two = embedder.embed_documents(["a cat", "a dog"])

    equal(2, len(two))
    equal(len(two[0]), len(embedder.embed_query("a cat")))


@check
def tells_errors(base: str, key: str) -> None:
    """What is wrong is told by an exception of the right kind, in our words."""
    raises(openai.NotFoundError, lambda: model(base, key, model="none").invoke("Hi"), "`none`")
    raises(openai.AuthenticationError, lambda: model(base, "sk-wrong").invoke("Hi"))
    raises(openai.BadRequestError, lambda: model(base, key).invoke("a " * 9000), "context")
    raises(openai.BadRequestError, lambda: list(model(base, key).stream("a " * 9000)), "context")


if __name__ == "__main__":
    main(importlib.metadata.version("langchain-openai"))
