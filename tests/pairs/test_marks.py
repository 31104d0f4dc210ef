"""Tools that are emulated, with each of: streams, every API, answers that have the marks of two families of tool calls."""

import json
from typing import Any

import pytest

from support.servers.appserver import App, serving
from unilect.testing.echo import Echo

TEXTS = ["<tool_call>x</tool_call>[TOOL_CALLS][]", "see <|tool_call|>x<|/tool_call|> and <tool_call>y</tool_call>"]  # fmt: skip
SCHEMA = {"type": "object", "properties": {}}
FUNCTION = {"name": "f", "parameters": SCHEMA}


def body_of(path: str, text: str, stream: bool) -> dict[str, Any]:
    """A request with one tool."""
    body: dict[str, Any] = {"model": "m", "stream": stream}
    messages = [{"role": "user", "content": text}]
    if path.endswith("responses"):
        return body | {"input": text, "tools": [{"type": "function", **FUNCTION}]}
    if path.endswith("/messages"):
        tool = {"name": "f", "input_schema": SCHEMA}
        return body | {"messages": messages, "max_tokens": 900, "tools": [tool]}
    return body | {"messages": messages, "tools": [{"type": "function", "function": FUNCTION}]}


def texts_of(data: Any) -> str:
    """All texts of an answer or an event, one behind the other, but for those that repeat what came before."""
    if isinstance(data, list):
        return "".join(map(texts_of, data))
    if not isinstance(data, dict) or "done" in str(data.get("type")) or "complete" in str(data.get("type")):  # fmt: skip
        return ""
    kept = ("choices", "message", "delta", "content", "output", "text")
    return "".join(
        value if isinstance(value, str) else texts_of(value)
        for name, value in data.items()
        if name in kept
    )


async def answer(app: App, path: str, text: str, stream: bool) -> str:
    """The text of an answer."""
    async with app.post(path, **body_of(path, text, stream)) as response:
        data = (await response.read()).decode()
        assert 200 == response.status, data
    if not stream:
        return texts_of(json.loads(data))
    lines = [line.removeprefix("data: ") for line in data.splitlines() if "{" in line]
    assert '"error":{' not in data
    return texts_of([json.loads(line) for line in lines])


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"]
)
async def test_every_api(path: str) -> None:
    """What a model says with the marks of two families, and calls nothing, is told as it is by every API, whole and streamed."""
    async with serving(Echo()) as app:
        for text in TEXTS:
            whole = await answer(app, path, text, False)
            streamed = await answer(app, path, text, True)

            assert text in whole
            assert whole == streamed
