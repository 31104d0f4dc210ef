"""Tests of unilect.engines.gguf._constraint: tools that may be called, whatever their schemas are."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from support.backends.engine import answer, chat
from support.models import tiny_gguf
from unilect.config.server import ModelConfig
from unilect.engines.gguf._constraint import loose
from unilect.engines.gguf.engine import GgufEngine

in_one_loop = pytest.mark.asyncio(loop_scope="module")
FOREIGN = [
    {"properties": {"value": True}},
    {"properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}},
    {"properties": {"a": {"$ref": "#/definitions/P%3CF%3E"}}, "definitions": {"P<F>": {"type": "object"}}},
    {"properties": {"a": {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}}},
    {"properties": {"a": {"type": "integer", "maximum": 1e30}}},
    {"properties": {"a": {"const": "x\u2028y"}}},
    {"properties": {"a": {"type": "number", "minimum": 0, "exclusiveMinimum": True}}},
    {"properties": {"f": {"items": {"$ref": "#/$defs/F", "$defs": {"F": {"type": "object"}}}}}},
    {"properties": {"a": {"type": "integer", "minimum": 5, "maximum": 3}}},
    {"properties": {"a": {"type": "string", "pattern": "^(?=a)a$"}}},
    {"properties": {"a": {"$ref": "http://127.0.0.1/x"}}},
    {"properties": {"a": {"type": "hiccup"}}},
    {"properties": {f"a{n}": {} for n in range(11_000)}},
]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GgufEngine]:
    """A model whose template writes tools, and calls."""
    template = (
        "{%- if tools -%}{{ tools | tojson }}{%- endif -%}"
        "{%- for m in messages -%}[{{ m.role }}] {{ m.content or '' }}{%- for c in m.tool_calls or [] -%}<tool_call>\n"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{%- endfor -%}\n{%- endfor -%}'
        "{%- if add_generation_prompt -%}[assistant] {%- endif -%}"
    )
    path = tiny_gguf.make(tmp_path_factory.mktemp("model") / "tiny.gguf", template=template)
    engine = GgufEngine("tiny", path, ModelConfig())
    await engine.start()
    yield engine
    await engine.aclose()


def tool(parameters: dict[str, Any]) -> Any:
    """A tool with these parameters."""
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object"} | parameters}}  # fmt: skip


@in_one_loop
@pytest.mark.parametrize("parameters", FOREIGN[:-1], ids=lambda one: str(one)[:40])
async def test_a_tool_that_may_be_called(model: GgufEngine, parameters: dict[str, Any]) -> None:
    """The schema of a tool that nobody must call costs no request, and the prompt has it as the client sent it."""
    asked = chat(tools=[tool(parameters)], max_tokens=2)
    told = await answer(model.generate(asked))

    prompt = await model.render(asked)
    assert len(await model.tokenize(prompt)) + 1 >= told.usage.prompt_tokens > 2
    assert told.usage.prompt_tokens == await model.count_tokens(asked)


@in_one_loop
async def test_a_tool_that_is_too_large(model: GgufEngine) -> None:
    """Nor does one that is larger than any that is compiled; its grammar is any object."""
    body = await model.compile(chat(tools=[tool(FOREIGN[-1]), tool({})]))

    assert [{"type": "object"}] * 2 == [one["function"]["parameters"] for one in body["tools"]]
    assert FOREIGN[-1]["properties"] == body["chat_template_kwargs"]["tools"][0]["function"]["parameters"]["properties"]  # fmt: skip


@in_one_loop
async def test_a_tool_that_is_taken(model: GgufEngine) -> None:
    """What llama.cpp takes it is given as it is, and nothing is said twice."""
    asked = tool({"properties": {"a": {"type": "string", "pattern": "^[a-z]+(b|c)?$"}}})
    body = await model.compile(chat(tools=[asked]))

    assert asked["function"]["parameters"] == body["tools"][0]["function"]["parameters"]
    assert "chat_template_kwargs" not in body


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"items": True, "additionalProperties": False}, {"items": True, "additionalProperties": False}),
        ({"properties": {"a": True, "b": {}}, "not": False}, {"properties": {"a": {}, "b": {}}}),
        ({"anyOf": [True, {"maximum": 2**63}]}, {"anyOf": [{}, {}]}),
        ({"properties": {"a": {"$ref": "#", "title": "b"}}}, {"properties": {"a": {}}}),
        ({"pattern": '^"$'}, {}),
        ({"pattern": r"^\d$"}, {}),
        ({"pattern": "^a+?$"}, {}),
        ({"pattern": "a"}, {}),
        ({"pattern": "^[a-z_]{2,3}$", "minimum": 3}, {"pattern": "^[a-z_]{2,3}$", "minimum": 3}),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_left_out(schema: dict[str, Any], left: dict[str, Any]) -> None:
    """What llama.cpp's converter does not take, or not as JSON has it, is left out of the grammar."""
    assert left == loose(schema)
