"""A call that `max_tokens` cuts, through the APIs: it is a call as far as it goes, and no mark of it is text."""

import json
from typing import Any

from support.servers.appserver import App, serving
from unilect.testing.echo import Echo, Options, Scripted

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
SAID = f"<think>hm</think>Let me see.\n{CALL}"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
MESSAGES = [{"role": "user", "content": "The weather?"}]
WHOLE = '{"city": "Paris"}'
#: Behind the name, within the arguments, behind them, and within the mark that ends the call.
NAMED, BEGUN, ENDED, CLOSING = (
    SAID.index(piece) + len(piece)
    for piece in ('get_weather"', '"city": "Pa', 'Paris"}', "}}</too")
)
CUTS = sorted({*range(SAID.index("<tool_call>"), len(SAID), 5), NAMED, BEGUN, ENDED, CLOSING})


async def chatted(app: App, limit: int) -> tuple[str, list[tuple[str, str]], str]:
    """The text, the calls and the reason of the end of a chat of so many characters."""
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    async with app.post("/v1/chat/completions", model="m", max_tokens=limit, messages=MESSAGES, tools=[tool]) as response:  # fmt: skip
        choice = (await response.json())["choices"][0]
    calls = [one["function"] for one in choice["message"].get("tool_calls", ())]
    told = [(one["name"], one["arguments"]) for one in calls]
    return choice["message"]["content"] or "", told, choice["finish_reason"]


async def messaged(app: App, limit: int) -> tuple[list[tuple[str, Any]], str]:
    """The blocks and the reason of the end of a message of so many characters, beside thoughts."""
    tool = {"name": "get_weather", "input_schema": SCHEMA}
    async with app.post("/v1/messages", model="m", max_tokens=limit, messages=MESSAGES, tools=[tool]) as response:  # fmt: skip
        body = await response.json()
    blocks = [(one["type"], one.get("text") or one.get("input")) for one in body["content"]]
    return [block for block in blocks if block[0] != "thinking"], body["stop_reason"]


async def test_a_call_that_a_limit_cuts() -> None:
    """Nothing of it is text; with its name begins the call, whose arguments are a beginning of JSON, and at `/v1/messages` whole or not there."""
    backend = Echo(Options(answers=[Scripted(text=SAID)]))
    async with serving(backend) as app:
        for limit in CUTS:
            text, calls, reason = await chatted(app, limit)
            blocks, stop = await messaged(app, limit)
            arguments = [given for _, given in calls]

            assert ("Let me see.", "length", "max_tokens") == (text, reason, stop)
            assert [name for name, _ in calls] == ["get_weather"] * (limit >= NAMED)
            assert all(given and WHOLE.startswith(given) for given in arguments)
            assert [("text", "Let me see."), *(("tool_use", json.loads(WHOLE)) for given in arguments if given == WHOLE)] == blocks  # fmt: skip
            assert (limit >= ENDED) == (arguments == [WHOLE])
        assert ("Let me see.", [("get_weather", WHOLE)], "tool_calls") == await chatted(app, 999)
