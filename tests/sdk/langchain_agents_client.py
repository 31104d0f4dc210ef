"""LangChain's models and its agents against a running server: over chat completions, over Responses and over Messages."""

import asyncio
import importlib.metadata
import warnings
from functools import cache
from typing import Any, Literal

import anthropic
import openai
from checks import check, equal, follow, main, of_none, over, raises
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict

ASK = "What is the weather in Paris?"
each = over("chat", "responses", "messages")
called: list[str] = []
LOOP = asyncio.Runner()
# of a stream with a schema LangChain tells a filled model to pydantic as if it were none
warnings.filterwarnings("ignore", "Pydantic serializer warnings")


class Verdict(BaseModel):
    """A verdict, and nothing else."""

    model_config = ConfigDict(extra="forbid")

    likes_it: bool
    stars: Literal[1, 2, 3, 4, 5]


@tool
def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """Get the weather."""
    called.append(city)
    return "sunny, 21 degrees"


@cache
def model(base: str, key: str, api: str, name: str = "demo", **rest: Any) -> Any:
    """A greedy model of at most 64 tokens, over an API."""
    fields = {"model": name, "api_key": key, "max_tokens": 64, "temperature": 0, "max_retries": 0} | rest  # fmt: skip
    if api == "messages":
        return ChatAnthropic(base_url=base.removesuffix("/v1"), **fields)
    return ChatOpenAI(base_url=base, use_responses_api=api == "responses", stream_usage=True, **fields)  # fmt: skip


def ended(answer: Any) -> Any:
    """Why an answer ended, in its API's own word."""
    told = answer.response_metadata
    return told.get("finish_reason") or told.get("status") or told.get("stop_reason")


@each
def answers(base: str, key: str, api: str) -> None:
    """An answer has text, usage, an end and the model's name."""
    answer = model(base, key, api).invoke("Hello!")

    assert answer.text
    equal("demo", answer.response_metadata["model_name"])
    equal({"chat": "stop", "responses": "completed", "messages": "end_turn"}[api], ended(answer))
    usage = answer.usage_metadata
    equal(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])
    assert usage["output_tokens"] > 0


@each
def streams(base: str, key: str, api: str) -> None:
    """A stream gives the text, the usage and the end of the whole answer, synchronously and not."""

    async def later() -> list[Any]:
        return [chunk async for chunk in model(base, key, api).astream("Hello!")]

    whole = model(base, key, api).invoke("Hello!")
    for chunks in (list(model(base, key, api).stream("Hello!")), LOOP.run(later())):
        total = sum(chunks[1:], start=chunks[0])
        equal((whole.text, ended(whole)), (total.text, ended(total)))
        for count in ("input_tokens", "output_tokens", "total_tokens"):
            equal(whole.usage_metadata[count], total.usage_metadata[count])


@each
def calls_tools(base: str, key: str, api: str) -> None:
    """Bound tools are called, whole and streamed, and their results are read."""
    bound = model(base, key, api).bind_tools([get_weather], tool_choice="get_weather")
    whole, chunks = bound.invoke(ASK), list(bound.stream(ASK))
    free = model(base, key, api).bind_tools([get_weather])
    for said in (whole, sum(chunks[1:], start=chunks[0])):
        (call,) = said.tool_calls
        equal(("get_weather", {"city": "Paris"}), (call["name"], call["args"]))
        result = ToolMessage("sunny, 21 degrees", tool_call_id=str(call["id"]))
        last = free.invoke([HumanMessage(ASK), said, result])
        assert "21" in last.text or "sunny" in last.text, last.text


@each
def is_made_to_call(base: str, key: str, api: str) -> None:
    """A call that is required is made, and only one where only one is allowed."""
    bound = model(base, key, api).bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)  # fmt: skip

    (call,) = bound.invoke("Hello!").tool_calls
    equal("get_weather", call["name"])


@each
def runs_agents(base: str, key: str, api: str) -> None:
    """An agent calls a tool and ends with an answer from its result, whole and streamed."""
    one = create_agent(model(base, key, api), tools=[get_weather])
    called.clear()
    messages = one.invoke({"messages": [HumanMessage(ASK)]})["messages"]
    equal(["Paris"], called)
    equal(["human", "ai", "tool", "ai"], [message.type for message in messages])
    called.clear()
    pieces = [piece for piece, _ in one.stream({"messages": [HumanMessage(ASK)]}, stream_mode="messages")]  # fmt: skip
    equal(["Paris"], called)
    text = "".join(piece.text for piece in pieces if isinstance(piece, AIMessage))
    for said in (messages[-1].text, text):
        assert "21" in said or "sunny" in said, said


@each
def goes_on_from_its_messages(base: str, key: str, api: str) -> None:
    """The messages of an agent, calls among them, stand before its next turn."""
    one = create_agent(model(base, key, api), tools=[get_weather], system_prompt="Be short.")
    state = one.invoke({"messages": [HumanMessage(ASK)]})
    for question in ("My name is Ada.", "What is my name?"):
        state = one.invoke({"messages": [*state["messages"], HumanMessage(question)]})
    said = state["messages"][-1].text

    assert said
    talk = [HumanMessage("My name is Ada.")]
    talk += [model(base, key, api).invoke(talk), HumanMessage("What is my name?")]
    said = model(base, key, api).invoke(talk).text
    assert "Ada" in said, said


@each
def fills_schemas(base: str, key: str, api: str) -> None:
    """Structured output is filled by each of LangChain's ways, and by its agents."""
    for method in ("json_schema", "function_calling"):
        filling = model(base, key, api).with_structured_output(Verdict, method=method)
        equal(Verdict, type(filling.invoke("Hello!")))
        equal(Verdict, type(list(filling.stream("Hello!"))[-1]))
    for strategy in (ToolStrategy(Verdict), ProviderStrategy(Verdict)):
        one = create_agent(model(base, key, api), tools=[], response_format=strategy)
        state = one.invoke({"messages": [HumanMessage("Hello!")]})
        equal(Verdict, type(state["structured_response"]))


@each
def reads_the_systems_message(base: str, key: str, api: str) -> None:
    """The system's message is read."""
    talk = [SystemMessage("Your name is Mia."), HumanMessage("What is your name?")]
    said = model(base, key, api).invoke(talk).text

    assert "Mia" in said, said


@each
def tells_errors(base: str, key: str, api: str) -> None:
    """What is wrong is raised by the client's own class, whole and streamed, in our words; too long a prompt by LangChain's."""
    kind: Any = anthropic if api == "messages" else openai
    here, long = model(base, key, api), "hello " * 9000
    raises(kind.NotFoundError, lambda: model(base, key, api, "none").invoke("Hi"), "`none`")
    raises(kind.AuthenticationError, lambda: model(base, "sk-wrong", api).invoke("Hi"))
    for ask in (lambda: here.invoke(long), lambda: list(here.stream(long))):
        raises(kind.BadRequestError, ask)
        raises(ContextOverflowError, ask)


@each
def counts_tokens(base: str, key: str, api: str) -> None:
    """A prompt's tokens are counted as the answer's usage counts them, where the class asks the server."""
    if api != "messages":
        return  # they count with OpenAI's tokenizer
    there = model(base, key, api)
    usage = there.invoke("Hello!").usage_metadata
    equal(usage["input_tokens"], there.get_num_tokens_from_messages([HumanMessage("Hello!")]))


@check
def goes_on_from_stored_responses(base: str, key: str) -> None:
    """A conversation goes on from a response by its id, also within an agent's run."""
    there = model(base, key, "responses", use_previous_response_id=True)
    talk: list[Any] = [HumanMessage("My name is Ada.")]
    talk += [there.invoke(talk), HumanMessage("What is my name?")]
    said = there.invoke(talk).text
    assert "Ada" in said, said
    id = talk[1].response_metadata["id"]
    said = model(base, key, "responses").invoke(talk[-1:], previous_response_id=id).text
    assert "Ada" in said, said
    called.clear()
    one = create_agent(there, tools=[get_weather])
    assert one.invoke({"messages": [HumanMessage(ASK)]})["messages"][-1].text
    equal(["Paris"], called)
    raises(
        openai.BadRequestError,
        lambda: there.invoke("Hi", previous_response_id="resp_none"),
        "resp_none",
    )


@check
def goes_on_without_a_store(base: str, key: str) -> None:
    """Nothing needs to be stored where the client sends the whole history."""
    there = model(base, key, "responses", store=False)
    one = create_agent(there, tools=[get_weather])
    state = one.invoke({"messages": [HumanMessage(ASK)]})

    assert one.invoke({"messages": [*state["messages"], HumanMessage("Hello!")]})["messages"][-1].text  # fmt: skip


@check
def leaves_hosted_tools_out(base: str, key: str) -> None:
    """A tool that runs at OpenAI's is left out, and the others are called."""
    bound = model(base, key, "responses").bind_tools([{"type": "web_search"}, get_weather])

    equal(["get_weather"], [call["name"] for call in bound.invoke(ASK).tool_calls])


@check
def does_what_its_page_says(base: str, key: str) -> None:
    """The lines in the documentation run as they are."""
    said = follow("langchain.md", base, key)

    equal(3, said.count("21 degrees"))


if __name__ == "__main__":
    version = " ".join(importlib.metadata.version(f"langchain{name}") for name in ("", "-openai", "-anthropic"))  # fmt: skip
    main(version, of_none)
