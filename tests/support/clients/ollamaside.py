"""What tests of Ollama's API share: rows, questions, and a weather tool."""

import json
from typing import Any

from aiohttp import ClientResponse

from support.servers.appserver import App

SAY = [{"role": "user", "content": "Hello!"}]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
_STREAMED = ("/api/chat", "/api/generate", "/api/pull")
#: What the last row has, all integers.
COUNTS = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")  # fmt: skip


async def rows_of(response: ClientResponse) -> list[Any]:
    """The rows of a stream; each line must be one."""
    lines = (await response.read()).split(b"\n")
    assert b"" == lines.pop()
    return [json.loads(line) for line in lines]


async def post(app: App, path: str, **body: Any) -> tuple[int, Any, str]:
    """The status, the whole answer and the names of what was ignored, of a POST to the model `m`."""
    whole = {"stream": False} if path in _STREAMED else {}
    async with app.post(path, **{"model": "m"} | whole | body) as response:
        ignored = response.headers.get("X-Unilect-Ignored", "")
        return response.status, await response.json(), ignored


async def streamed(app: App, path: str, **body: Any) -> list[Any]:
    """The rows of a POST to the model `m`."""
    async with app.post(path, **{"model": "m"} | body) as response:
        assert 200 == response.status, await response.text()
        assert "application/x-ndjson" == response.headers["content-type"]
        return await rows_of(response)
