"""The official `anthropic` package for Python against a running server: its own helpers for streams, tools, pages and errors."""

import asyncio
import atexit
from functools import cache
from typing import Any, Literal

import anthropic
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from checks import check, equal, main, raises
from pydantic import BaseModel

HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
        "required": ["city"],
    },
}
FORCED: Any = {
    "tools": [WEATHER],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}
GREEDY: Any = {"temperature": 0}  # newer clients have no such argument any more


@cache
def client(base: str, key: str) -> Anthropic:
    """A client that does not try again; it is closed at the end."""
    one = Anthropic(base_url=base.removesuffix("/v1"), api_key=key, max_retries=0, timeout=60)
    atexit.register(one.close)
    return one


def fields(**more: Any) -> Any:
    """What every message is asked with."""
    return {"model": "demo", "max_tokens": 64, "messages": HELLO, "extra_body": GREEDY} | more


@check
def creates(base: str, key: str) -> None:
    """A message has a text, a stop reason, usage and a request id."""
    message = client(base, key).messages.create(**fields())

    assert message.content[0].text
    equal(("assistant", "end_turn", "demo"), (message.role, message.stop_reason, message.model))
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 0
    assert message.usage.output_tokens > 0
    assert message._request_id.startswith("req_"), message._request_id


@check
def streams(base: str, key: str) -> None:
    """The stream helper gives the text, the events and the message of the whole answer, synchronously and not."""

    async def later() -> Any:
        options: Any = {"base_url": base.removesuffix("/v1"), "api_key": key, "max_retries": 0}
        async with AsyncAnthropic(**options) as there, there.messages.stream(**fields()) as stream:
            return await stream.get_final_message()

    whole = client(base, key).messages.create(**fields())
    with client(base, key).messages.stream(**fields()) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    for message in (final, asyncio.run(later())):
        equal(whole.content[0].text, message.content[0].text)
        equal(
            (whole.stop_reason, whole.usage.output_tokens),
            (message.stop_reason, message.usage.output_tokens),
        )
    equal(whole.content[0].text, text)


@check
def tells_raw_events(base: str, key: str) -> None:
    """A raw stream has each event by its type, in the order of the protocol."""
    stream = client(base, key).messages.create(**fields(), stream=True)
    kinds = [event.type for event in stream if event.type != "ping"]

    equal(["message_start", "content_block_start"], kinds[:2])
    equal(["content_block_stop", "message_delta", "message_stop"], kinds[-3:])
    equal({"content_block_delta"}, set(kinds[2:-3]))


@check
def calls_tools(base: str, key: str) -> None:
    """A forced call has its input as an object, whole and through the stream helper, and its result is answered."""
    whole = client(base, key).messages.create(**fields(messages=ASK, **FORCED))
    with client(base, key).messages.stream(**fields(messages=ASK, **FORCED)) as stream:
        final = stream.get_final_message()
    for message in (whole, final):
        (call,) = message.content
        equal(("tool_use", "get_weather", {"city": "Paris"}), (call.type, call.name, call.input))
        equal("tool_use", message.stop_reason)
    result = {"type": "tool_result", "tool_use_id": final.content[0].id, "content": "sunny"}
    turns = [
        *ASK,
        {"role": "assistant", "content": final.content},
        {"role": "user", "content": [result]},
    ]
    last = client(base, key).messages.create(**fields(messages=turns, tools=[WEATHER]))
    assert last.content[0].text


@check
def runs_tools(base: str, key: str) -> None:
    """The tool runner calls a function for the model, and ends with an answer from its result, streamed and whole."""
    called = []

    @beta_tool
    def get_weather(city: str) -> str:
        """
        Get the weather.

        Args:
            city: The city.
        """
        called.append(city)
        return "sunny, 21 degrees"

    for stream in (False, True):
        called.clear()
        runner: Any = client(base, key).beta.messages.tool_runner(
            **fields(messages=ASK, tools=[get_weather]), stream=stream, max_iterations=4
        )
        messages = [turn.get_final_message() if stream else turn for turn in runner]
        equal(["Paris"], called)
        equal(["tool_use", "end_turn"], [message.stop_reason for message in messages])
        assert messages[-1].content[-1].text


class Verdict(BaseModel):
    """A verdict, and nothing else."""

    likes_it: bool
    stars: Literal[1, 2, 3, 4, 5]


@check
def parses(base: str, key: str) -> None:
    """`parse()` and the stream helper fill a class from the answer, the same one."""
    here = client(base, key).messages
    whole = here.parse(**fields(output_format=Verdict)).parsed_output
    with here.stream(**fields(output_format=Verdict)) as stream:
        streamed = stream.get_final_message().parsed_output

    equal(Verdict, type(whole))
    equal(whole, streamed)


@check
def reads_claude_codes_fields(base: str, key: str) -> None:
    """Thinking, marks for the cache and the beta client's fields are taken from the client's own types."""
    system: Any = [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}]
    message = client(base, key).beta.messages.create(
        **fields(
            system=system,
            max_tokens=2048,
            thinking={"type": "enabled", "budget_tokens": 1024},
            metadata={"user_id": "{}"},
            betas=["context-management-2025-06-27"],
        )
    )

    assert message.content[0].text


@check
def counts_tokens(base: str, key: str) -> None:
    """The count of a message's tokens is that of its usage."""
    counted = client(base, key).messages.count_tokens(model="demo", messages=HELLO)
    usage = client(base, key).messages.create(**fields()).usage

    equal(counted.input_tokens, usage.input_tokens + (usage.cache_read_input_tokens or 0))


@check
def lists_models(base: str, key: str) -> None:
    """The models are listed page by page, and described one by one."""
    here = client(base, key)

    assert "demo" in [model.id for model in here.models.list(limit=1)]
    equal("demo", here.models.retrieve("demo").display_name)


@check
def tells_errors(base: str, key: str) -> None:
    """What is wrong is raised by its own class, whole and streamed, in our words."""
    here = client(base, key)
    long: Any = [{"role": "user", "content": "hello " * 9000}]
    words = "prompt is too long: "

    raises(anthropic.NotFoundError, lambda: here.messages.create(**fields(model="none")), "`none`")
    raises(
        anthropic.AuthenticationError, lambda: client(base, "sk-wrong").messages.create(**fields())
    )
    raises(anthropic.BadRequestError, lambda: here.messages.create(**fields(messages=long)), words)
    raises(
        anthropic.BadRequestError,
        lambda: here.messages.create(**fields(messages=long), stream=True),
        words,
    )
    raises(
        anthropic.BadRequestError, lambda: here.messages.create(**fields(messages=[])), "`messages`"
    )


if __name__ == "__main__":
    main(anthropic.__version__)
