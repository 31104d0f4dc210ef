"""OpenAI's Agents SDK against a running server: its runner, tools, sessions and errors, over Responses and over chat completions."""

import asyncio
import importlib.metadata
from functools import cache
from typing import Any, Literal

import agents
import openai
from agents import Agent, ModelSettings, RunConfig, Runner, function_tool
from checks import check, equal, follow, main, of_none, over, raises
from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict

ASK = "What is the weather in Paris?"
each = over("responses", "chat")
called: list[str] = []
LOOP = asyncio.Runner()


class Verdict(BaseModel):
    """A verdict, and nothing else."""

    model_config = ConfigDict(extra="forbid")

    likes_it: bool
    stars: Literal[1, 2, 3, 4, 5]


@function_tool
def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """Get the weather."""
    called.append(city)
    return "sunny, 21 degrees"


def agent(**rest: Any) -> Agent[Any]:
    """A greedy agent of at most 64 tokens a turn."""
    fields = {"name": "Mia", "model": "demo"} | rest
    fields["model_settings"] = ModelSettings(temperature=0, max_tokens=64, include_usage=True).resolve(
        rest.get("model_settings")
    )  # fmt: skip
    return Agent(**fields)


@cache
def client(base: str, key: str) -> AsyncOpenAI:
    """A client that does not try again."""
    return AsyncOpenAI(base_url=base, api_key=key, max_retries=0)


def config(base: str, key: str, api: str = "responses") -> RunConfig:
    """A run that asks the server over an API and reports to nobody."""
    there, responses = client(base, key), api == "responses"
    provider = agents.OpenAIProvider(openai_client=there, use_responses=responses)
    return RunConfig(model_provider=provider, tracing_disabled=True)


def run(
    base: str, key: str, api: str = "responses", one: Agent[Any] | None = None, input: Any = "Hello!", **rest: Any
) -> Any:  # fmt: skip
    """The result of a run."""
    called.clear()
    return LOOP.run(Runner.run(one or agent(), input, run_config=config(base, key, api), **rest))


def streamed(base: str, key: str, api: str, one: Agent[Any], input: Any) -> tuple[Any, list[Any]]:
    """The result of a streamed run, and its events."""
    called.clear()

    async def there() -> Any:
        result = Runner.run_streamed(one, input, run_config=config(base, key, api))
        return result, [event async for event in result.stream_events()]

    return LOOP.run(there())


@each
def answers(base: str, key: str, api: str) -> None:
    """A run ends with a text, and tells its usage."""
    result = run(base, key, api)

    assert result.final_output
    usage = result.context_wrapper.usage
    equal(1, usage.requests)
    assert usage.input_tokens > 0
    assert usage.output_tokens > 0
    equal(usage.total_tokens, usage.input_tokens + usage.output_tokens)


@each
def streams(base: str, key: str, api: str) -> None:
    """A streamed run gives the text and the usage of the whole one, in pieces of text that the SDK accumulates."""
    whole = run(base, key, api)
    result, events = streamed(base, key, api, agent(), "Hello!")
    raw = [event.data for event in events if event.type == "raw_response_event"]
    text = "".join(data.delta for data in raw if data.type == "response.output_text.delta")

    equal((whole.final_output, whole.final_output), (result.final_output, text))
    used, told = whole.context_wrapper.usage, result.context_wrapper.usage
    equal((used.input_tokens, used.output_tokens), (told.input_tokens, told.output_tokens))


@each
def runs_tools(base: str, key: str, api: str) -> None:
    """The runner calls a function for the model and ends with an answer from its result, whole and streamed."""
    one = agent(tools=[get_weather])
    for result in (run(base, key, api, one, ASK), streamed(base, key, api, one, ASK)[0]):
        equal(["Paris"], called)
        equal(
            ["tool_call_item", "tool_call_output_item", "message_output_item"],
            [item.type for item in result.new_items],
        )
        assert "21" in result.final_output or "sunny" in result.final_output, result.final_output


@each
def tells_of_tools_in_a_stream(base: str, key: str, api: str) -> None:
    """The events of a streamed run tell of the call and of its output when they happen."""
    _, events = streamed(base, key, api, agent(tools=[get_weather]), ASK)
    names = [event.name for event in events if event.type == "run_item_stream_event"]

    equal(["tool_called", "tool_output", "message_output_created"], names)


@each
def is_made_to_call(base: str, key: str, api: str) -> None:
    """A call that is required, or named, is made; its output may end the run."""
    for choice in ("required", "get_weather"):
        one = agent(
            tools=[get_weather],
            model_settings=ModelSettings(tool_choice=choice, parallel_tool_calls=False),
            tool_use_behavior="stop_on_first_tool",
        )
        equal("sunny, 21 degrees", run(base, key, api, one, ASK).final_output)


@each
def fills_output_types(base: str, key: str, api: str) -> None:
    """An output type is filled, whole and streamed."""
    one = agent(output_type=Verdict)

    equal(Verdict, type(run(base, key, api, one).final_output))
    equal(Verdict, type(streamed(base, key, api, one, "Hello!")[0].final_output))


@each
def hands_over(base: str, key: str, api: str) -> None:
    """An agent hands the conversation to another, which answers."""
    other = agent(name="Other")
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    one = agent(handoffs=[other], model_settings=settings)
    result = run(base, key, api, one)

    equal("Other", result.last_agent.name)
    assert result.final_output


@each
def asks_other_agents(base: str, key: str, api: str) -> None:
    """An agent is a tool of another."""
    other = agent(name="Other").as_tool("ask_other", "Ask the other.")
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    one = agent(tools=[other], model_settings=settings, tool_use_behavior="stop_on_first_tool")

    assert run(base, key, api, one).final_output


@each
def goes_on_from_its_items(base: str, key: str, api: str) -> None:
    """The items of a run, calls among them, are the input of the next."""
    first = run(base, key, api, agent(tools=[get_weather]), ASK).to_input_list()
    assert run(base, key, api, agent(tools=[get_weather]), [*first, {"role": "user", "content": "Hello!"}]).final_output  # fmt: skip
    first = run(base, key, api, input="My name is Ada.").to_input_list()
    last = run(base, key, api, input=[*first, {"role": "user", "content": "What is my name?"}])

    assert "Ada" in last.final_output, last.final_output


@each
def keeps_sessions(base: str, key: str, api: str) -> None:
    """A session of the SDK holds the conversation."""
    session = agents.SQLiteSession("one")
    run(base, key, api, input="My name is Ada.", session=session)
    last = run(base, key, api, input="What is my name?", session=session)

    assert "Ada" in last.final_output, last.final_output


@each
def reads_instructions(base: str, key: str, api: str) -> None:
    """Instructions are the system's message."""
    said = run(base, key, api, agent(instructions="Your name is Mia."), "What is your name?")

    assert "Mia" in said.final_output, said.final_output


@each
def tells_errors(base: str, key: str, api: str) -> None:
    """What is wrong is raised by OpenAI's own class, whole and streamed, in our words."""
    long = "hello " * 9000
    raises(openai.NotFoundError, lambda: run(base, key, api, agent(model="none")), "`none`")
    raises(openai.AuthenticationError, lambda: run(base, "sk-wrong", api))
    raises(openai.BadRequestError, lambda: run(base, key, api, input=long), "context")
    raises(openai.BadRequestError, lambda: streamed(base, key, api, agent(), long), "context")


@check
def goes_on_from_stored_responses(base: str, key: str) -> None:
    """A run goes on from a response by its id, also from one to the next within it."""
    first = run(base, key, input="My name is Ada.")
    last = run(base, key, input="What is my name?", previous_response_id=first.last_response_id)
    assert "Ada" in last.final_output, last.final_output
    result = run(base, key, one=agent(tools=[get_weather]), input=ASK, auto_previous_response_id=True)  # fmt: skip
    equal(["Paris"], called)
    assert "21" in result.final_output or "sunny" in result.final_output, result.final_output
    raises(
        openai.BadRequestError,
        lambda: run(base, key, previous_response_id="resp_none"),
        "resp_none",
    )


@check
def goes_on_in_conversations(base: str, key: str) -> None:
    """A conversation of the server holds what is said, by its id and by a session of the SDK, which takes items back."""

    async def talk(**where: Any) -> str:
        one = agent(tools=[get_weather])
        for question in ("My name is Ada.", ASK, "What is my name?"):
            result = await Runner.run(one, question, run_config=config(base, key), **where)
        return str(result.final_output)

    conversation = LOOP.run(client(base, key).conversations.create())
    session = agents.OpenAIConversationsSession(openai_client=client(base, key))
    for said in (
        LOOP.run(talk(conversation_id=conversation.id)),
        LOOP.run(talk(session=session)),
    ):
        assert "Ada" in said, said
    items = LOOP.run(session.get_items())
    assert "function_call_output" in [item.get("type") for item in items], items
    LOOP.run(session.pop_item())
    equal(len(items) - 1, len(LOOP.run(session.get_items())))
    LOOP.run(session.clear_session())


@check
def shortens_sessions(base: str, key: str) -> None:
    """A session is compacted by the server, and the conversation goes on from what is left of it."""
    session = agents.OpenAIResponsesCompactionSession(
        "one",
        agents.SQLiteSession("one"),
        client=client(base, key),
        model="gpt-4.1",
        should_trigger_compaction=lambda _: False,
    )
    session.model = "demo"  # the class takes names of OpenAI's models only; an alias has one
    for question in ("My name is Ada.", "Hello!"):
        run(base, key, input=question, session=session)
    LOOP.run(session.run_compaction({"force": True}))
    kinds = [item.get("type") for item in LOOP.run(session.get_items())]

    equal(["message", "message", "compaction"], kinds)
    assert run(base, key, input="What is my name?", session=session).final_output


@check
def takes_settings(base: str, key: str) -> None:
    """What the SDK's settings ask for beside sampling is taken."""
    settings = ModelSettings(
        store=False,
        metadata={"a": "b"},
        truncation="auto",
        verbosity="low",
        reasoning={"effort": "low", "summary": "auto"},
        response_include=["reasoning.encrypted_content"],
        top_logprobs=1,
        parallel_tool_calls=False,
    )

    assert run(base, key, one=agent(model_settings=settings)).final_output


@check
def calls_tools_of_namespaces(base: str, key: str) -> None:
    """A tool of a namespace is called under its own name."""
    (tool,) = agents.tool_namespace(name="weather", description="Weather.", tools=[get_weather])
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    one = agent(tools=[tool], model_settings=settings)
    result = run(base, key, one=one, input=ASK)

    equal(["Paris"], called)
    assert result.final_output


@check
def calls_custom_tools(base: str, key: str) -> None:
    """A custom tool gets a plain text, and its output goes back."""
    texts = []

    def note(_: Any, text: str) -> str:
        texts.append(text)
        return "noted"

    tool = agents.CustomTool(name="note", description="Note a text.", on_invoke_tool=note)
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    result = run(base, key, one=agent(tools=[tool], model_settings=settings))

    equal(1, len(texts))
    assert isinstance(texts[0], str)
    assert result.final_output


@check
def leaves_hosted_tools_out(base: str, key: str) -> None:
    """A tool that runs at OpenAI's is left out, and the others are called."""
    run(base, key, one=agent(tools=[agents.WebSearchTool(), get_weather]), input=ASK)

    equal(["Paris"], called)


@check
def does_what_its_page_says(base: str, key: str) -> None:
    """The lines in the documentation run as they are."""
    said = follow("openai-agents.md", base, key)

    equal(1, said.count("21 degrees"))


if __name__ == "__main__":
    main(importlib.metadata.version("openai-agents"), of_none)
