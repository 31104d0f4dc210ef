"""Pydantic AI against a running server: its agents, tools, outputs, histories and errors, over each API that it speaks."""

import asyncio
import os
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import pydantic_ai
from anthropic import AsyncAnthropic
from checks import check, equal, follow, main, of_none, over, raises
from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict
from pydantic_ai import Agent, NativeOutput, ToolOutput, UsageLimits, exceptions
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

ASK = "What is the weather in Paris?"
each = over("openai-chat", "openai-responses", "anthropic")
called: list[str] = []
LOOP = asyncio.Runner()


class Verdict(BaseModel):
    """A verdict, and nothing else."""

    model_config = ConfigDict(extra="forbid")

    likes_it: bool
    stars: Literal[1, 2, 3, 4, 5]


def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """Get the weather."""
    called.append(city)
    return "sunny, 21 degrees"


@cache
def provider(base: str, key: str, api: str) -> Any:
    """A provider whose client does not try again."""
    if api == "anthropic":
        url = base.removesuffix("/v1")
        return AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=url, api_key=key, max_retries=0))  # fmt: skip
    return OpenAIProvider(openai_client=AsyncOpenAI(base_url=base, api_key=key, max_retries=0))


def model(base: str, key: str, api: str, name: str = "demo") -> Model:
    """A model of the server over an API."""
    made = {
        "openai-chat": OpenAIChatModel,
        "openai-responses": OpenAIResponsesModel,
        "anthropic": AnthropicModel,
    }[api]
    # of Anthropic's models it knows by their names which have it
    return made(name, provider=provider(base, key, api), profile={"supports_json_schema_output": True})  # fmt: skip


def agent(base: str, key: str, api: str, name: str = "demo", **rest: Any) -> Agent[None, Any]:
    """A greedy agent of at most 64 tokens a turn."""
    settings = {"temperature": 0, "max_tokens": 64} | rest.pop("settings", {})
    return Agent(model(base, key, api, name), model_settings=settings, **rest)


def run(one: Agent[None, Any], prompt: str = "Hello!", **rest: Any) -> Any:
    """The result of a run."""
    called.clear()
    return LOOP.run(one.run(prompt, **rest))


def streamed(one: Agent[None, Any], prompt: str = "Hello!") -> tuple[list[Any], Any, Any]:
    """The pieces of a streamed run, its output and its usage."""
    called.clear()

    async def there() -> tuple[list[Any], Any, Any]:
        async with one.run_stream(prompt) as result:
            pieces = [piece async for piece in result.stream_output(debounce_by=None)]
            return pieces, await result.get_output(), result.usage

    return LOOP.run(there())


def parts(messages: Sequence[ModelMessage], kind: type[Any]) -> list[Any]:
    """The parts of messages that are of a kind."""
    return [part for message in messages for part in message.parts if isinstance(part, kind)]


@each
def answers(base: str, key: str, api: str) -> None:
    """A run ends with a text, and tells its usage, its model and why it ended."""
    result = run(agent(base, key, api))
    last = result.all_messages()[-1]

    assert result.output
    equal(("demo", "stop"), (last.model_name, last.finish_reason))
    assert result.usage.input_tokens > 0
    assert result.usage.output_tokens > 0


@each
def streams(base: str, key: str, api: str) -> None:
    """A streamed run gives the text and the usage of the whole one."""
    whole = run(agent(base, key, api))
    pieces, output, usage = streamed(agent(base, key, api))

    equal((whole.output, whole.output), (pieces[-1], output))
    equal(
        (whole.usage.input_tokens, whole.usage.output_tokens),
        (usage.input_tokens, usage.output_tokens),
    )


@each
def runs_tools(base: str, key: str, api: str) -> None:
    """The agent calls a function for the model and ends with an answer from its result, whole and streamed."""
    one = agent(base, key, api, tools=[get_weather])
    result = run(one, ASK)
    equal(["Paris"], called)
    (call,) = parts(result.all_messages(), ToolCallPart)
    (back,) = parts(result.all_messages(), ToolReturnPart)
    equal(call.tool_call_id, back.tool_call_id)
    _, output, _ = streamed(one, ASK)
    equal(["Paris"], called)
    for text in (result.output, output):
        assert "21" in text or "sunny" in text, text


@each
def tells_of_tools_in_a_stream(base: str, key: str, api: str) -> None:
    """The events of a run tell of the call, and of its result, when they happen."""
    called.clear()

    async def there() -> list[str]:
        one = agent(base, key, api, tools=[get_weather])
        async with one.run_stream_events(ASK) as events:
            return [event.event_kind async for event in events]

    kinds = LOOP.run(there())
    wanted = ("function_tool_call", "function_tool_result", "agent_run_result")
    equal(list(wanted), [kind for kind in kinds if kind in wanted])


@each
def is_made_to_call(base: str, key: str, api: str) -> None:
    """A call that is required, or named, is made, in a request without an agent."""
    city = {"type": "string", "enum": ["Paris", "Oslo"]}
    schema = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    tools = [
        ToolDefinition(name=name, parameters_json_schema=schema)
        for name in ("get_weather", "get_time")
    ]
    for choice in ("required", ["get_weather"]):
        answer = LOOP.run(
            model_request(
                model(base, key, api),
                [ModelRequest.user_text_prompt(ASK)],
                model_settings={
                    "tool_choice": choice,
                    "parallel_tool_calls": False,
                    "max_tokens": 64,
                },
                model_request_parameters=ModelRequestParameters(function_tools=tools),
            )
        )
        (call,) = answer.tool_calls
        assert call.args_as_dict()["city"] in ("Paris", "Oslo"), call
        assert call.tool_name in ([tool.name for tool in tools] if choice == "required" else choice)


@each
def fills_output_types(base: str, key: str, api: str) -> None:
    """An output type is filled by a tool and by the schema of an answer, whole and streamed."""
    for kind in (Verdict, ToolOutput(Verdict), NativeOutput(Verdict)):
        one = agent(base, key, api, output_type=kind)
        equal(Verdict, type(run(one).output))
        equal(Verdict, type(streamed(one)[1]))


@each
def goes_on_from_its_messages(base: str, key: str, api: str) -> None:
    """The messages of a run, calls among them, stand before the next."""
    one = agent(base, key, api, tools=[get_weather])
    first = run(one, ASK).all_messages()
    assert run(one, message_history=first).output
    first = run(one, "My name is Ada.").all_messages()
    last = run(one, "What is my name?", message_history=first)

    assert "Ada" in last.output, last.output


@each
def reads_instructions(base: str, key: str, api: str) -> None:
    """Instructions and a system prompt are the system's message."""
    for place in ("instructions", "system_prompt"):
        one = agent(base, key, api, **{place: "Your name is Mia."})
        said = run(one, "What is your name?").output
        assert "Mia" in said, said


@each
def tells_errors(base: str, key: str, api: str) -> None:
    """What is wrong is raised by its own class, whole and streamed, in our words."""
    here, long = agent(base, key, api), "hello " * 9000
    raises(exceptions.ModelNotFoundError, lambda: run(agent(base, key, api, "none")), "`none`")
    raises(exceptions.ModelAuthenticationError, lambda: run(agent(base, "sk-wrong", api)))
    raises(exceptions.ModelContextWindowExceededError, lambda: run(here, long))
    raises(exceptions.ModelContextWindowExceededError, lambda: streamed(here, long))


@each
def is_named_by_a_text(base: str, key: str, api: str) -> None:
    """The server is found by the variables of the environment, and the model by its name."""
    os.environ |= {"OPENAI_BASE_URL": base, "OPENAI_API_KEY": key}
    os.environ |= {"ANTHROPIC_BASE_URL": base.removesuffix("/v1"), "ANTHROPIC_API_KEY": key}
    one: Agent[None, str] = Agent(f"{api}:demo", model_settings={"max_tokens": 8})

    assert run(one).output


@check
def goes_on_from_stored_responses(base: str, key: str) -> None:
    """A run goes on from a response by its id, also from one to the next within it."""
    one = agent(base, key, "openai-responses", tools=[get_weather], settings={"openai_previous_response_id": "auto"})  # fmt: skip
    first = run(one, "My name is Ada.")
    last = run(one, "What is my name?", message_history=first.all_messages())
    assert "Ada" in last.output, last.output
    id = first.all_messages()[-1].provider_response_id
    last = run(one, "What is my name?", model_settings={"openai_previous_response_id": id})
    assert "Ada" in last.output, last.output
    assert run(one, ASK).output
    equal(["Paris"], called)


@check
def goes_on_in_conversations(base: str, key: str) -> None:
    """A conversation of the server holds what is said."""
    client: AsyncOpenAI = provider(base, key, "openai-responses").client
    conversation = LOOP.run(client.conversations.create())
    one = agent(base, key, "openai-responses", settings={"openai_conversation_id": conversation.id})  # fmt: skip
    run(one, "My name is Ada.")

    said = run(one, "What is my name?").output
    assert "Ada" in said, said


@check
def goes_on_without_a_store(base: str, key: str) -> None:
    """Nothing needs to be stored where the client sends the whole history."""
    one = agent(base, key, "openai-responses", tools=[get_weather], settings={"openai_store": False})  # fmt: skip
    first = run(one, ASK)
    equal(["Paris"], called)

    assert run(one, message_history=first.all_messages()).output


@check
def counts_tokens(base: str, key: str) -> None:
    """A run that would read more than it may is not begun."""
    for api in ("openai-responses", "anthropic"):
        limits = UsageLimits(input_tokens_limit=2, count_tokens_before_request=True)
        one = agent(base, key, api)
        raises(exceptions.UsageLimitExceeded, lambda one=one, limits=limits: run(one, usage_limits=limits))  # fmt: skip


@check
def does_what_its_page_says(base: str, key: str) -> None:
    """The lines in the documentation run as they are."""
    said = follow("pydantic-ai.md", base, key)

    equal(3, said.count("21 degrees"))


if __name__ == "__main__":
    main(pydantic_ai.__version__, of_none)
