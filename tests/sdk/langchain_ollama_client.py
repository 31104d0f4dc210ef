"""LangChain's classes for Ollama against a running server."""

import asyncio
import importlib.metadata
from typing import Any, Literal

from checks import check, equal, main, raises
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from ollama import ResponseError
from pydantic import BaseModel, ConfigDict, Field

ASK = "What is the weather in Paris?"


class get_weather(BaseModel):
    """Get the weather."""

    city: Literal["Paris", "Oslo"]


class Verdict(BaseModel):
    """A verdict, and nothing else: without that an answer may go on with further fields."""

    model_config = ConfigDict(extra="forbid")

    likes_it: bool
    stars: int = Field(ge=1, le=5)


def fields(base: str, key: str) -> dict[str, Any]:
    """What all classes are given: the server, and the model."""
    headers = {"headers": {"Authorization": f"Bearer {key}"}}
    return {"model": "demo", "base_url": base.removesuffix("/v1"), "client_kwargs": headers}


def model(base: str, key: str, **rest: Any) -> ChatOllama:
    """A greedy chat model of at most 64 tokens, with a context as applications ask for one."""
    return ChatOllama(**fields(base, key) | {"num_predict": 64, "temperature": 0, "num_ctx": 8192} | rest)  # fmt: skip


@check
def chats(base: str, key: str) -> None:
    """A chat has text, usage and an end."""
    answer = model(base, key, validate_model_on_init=True).invoke("Hello!")

    assert answer.text
    equal(("demo", "stop"), tuple(answer.response_metadata[name] for name in ("model", "done_reason")))  # fmt: skip
    assert answer.usage_metadata
    assert answer.usage_metadata["output_tokens"] > 0


@check
def streams(base: str, key: str) -> None:
    """A stream gives the text and the usage of the whole answer, synchronously and not."""

    async def later() -> list[Any]:
        return [chunk async for chunk in model(base, key).astream("Hello!")]

    whole = model(base, key).invoke("Hello!")
    for chunks in (list(model(base, key).stream("Hello!")), asyncio.run(later())):
        folded = sum(chunks[1:], start=chunks[0])
        assert isinstance(folded, AIMessageChunk)
        equal((whole.text, whole.usage_metadata), (folded.text, folded.usage_metadata))


@check
def calls_tools(base: str, key: str) -> None:
    """A tool is called, and its result goes back without a name."""
    llm = model(base, key).bind_tools([get_weather])
    said = llm.invoke(ASK)
    [call] = said.tool_calls

    equal(("get_weather", {"city": "Paris"}), (call["name"], call["args"]))
    last = llm.invoke([HumanMessage(ASK), said, ToolMessage("sunny", tool_call_id=call["id"])])
    assert last.text or last.tool_calls


@check
def fills_schemas(base: str, key: str) -> None:
    """A structured model is filled by a schema."""
    filled = model(base, key).with_structured_output(Verdict, method="json_schema").invoke("Hello!")

    equal(Verdict, type(filled))


@check
def completes(base: str, key: str) -> None:
    """A text is answered, whole and streamed."""
    llm = OllamaLLM(**fields(base, key), num_predict=64, temperature=0)

    equal(llm.invoke("Hello!"), "".join(llm.stream("Hello!")))


@check
def embeds(base: str, key: str) -> None:
    """Embeddings of several texts and of a query."""
    embedder = OllamaEmbeddings(**fields(base, key))
    two = embedder.embed_documents(["a cat", "a dog"])

    equal((2, len(two[0])), (len(two), len(embedder.embed_query("a cat"))))


@check
def tells_errors(base: str, key: str) -> None:
    """What is wrong is told by Ollama's exception, in our words."""
    raises(ResponseError, lambda: model(base, key, model="none").invoke("Hello!"), "not found")
    raises(ResponseError, lambda: model(base, "sk-wrong").invoke("Hello!"), "key")


if __name__ == "__main__":
    main(importlib.metadata.version("langchain-ollama"))
