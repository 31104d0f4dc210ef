"""Published chat templates that begin thoughts in the prompt and have no place for tools: a call that must come is made."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.backends.engine import ENGINES_IN_CI, made
from support.models.published import chat_templates
from support.servers.appserver import serving

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]  # the templates may have to be fetched
TEMPLATES = [
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "llama-cpp-rwkv-world",  # of no known family
]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "test",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "maxLength": 5}}, "required": ["x"]},
    },
}  # fmt: skip
NAMED = {"type": "function", "function": {"name": "test"}}


@pytest.mark.parametrize("kind", ENGINES_IN_CI)
@pytest.mark.parametrize("template", TEMPLATES)
async def test_a_call_that_must_come(kind: str, template: str, tmp_path: Path) -> None:
    """A call that must come does, with few tokens and without thoughts, by any choice, whole and streamed."""
    path = tmp_path / "template.jinja"
    path.write_text(chat_templates()[template])
    engine = made(kind, chat_template=str(path))
    await engine.start()
    try:
        async with serving(engine) as app:
            for choice in ("required", NAMED):
                fields: dict[str, Any] = {
                    "model": "m", "max_tokens": 60, "tools": [TOOL], "tool_choice": choice, "temperature": 0,
                    "messages": [{"role": "user", "content": "hi"}],
                }  # fmt: skip
                async with app.post("/v1/chat/completions", **fields) as response:
                    whole = (await response.json())["choices"][0]
                async with app.post("/v1/chat/completions", stream=True, **fields) as response:
                    rows = [json.loads(row[6:]) for row in (await response.text()).splitlines() if row.startswith("data: {")]  # fmt: skip
                [call] = whole["message"]["tool_calls"]
                deltas = [one["choices"][0] for one in rows if one["choices"]]
                pieces = [piece["function"] for one in deltas for piece in one["delta"].get("tool_calls", ())]  # fmt: skip
                written = "".join(piece.get("arguments", "") for piece in pieces)

                assert ("test", {"x"}) == (call["function"]["name"], json.loads(call["function"]["arguments"]).keys())  # fmt: skip
                assert ("tool_calls", None) == (whole["finish_reason"], whole["message"].get("reasoning_content"))  # fmt: skip
                assert call["function"]["arguments"] == written
                assert "tool_calls" == deltas[-1]["finish_reason"]
    finally:
        await engine.aclose()
