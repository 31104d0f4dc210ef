"""Schemas and forced calls of a real model: whatever a schema holds, each answer at temperature 1 that has ended satisfies it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import environments
from engine import answer, chat
from unilect.config.server import ModelConfig
from unilect.constraints.checker import Checker
from unilect.engines.gguf.engine import GgufEngine

pytestmark = [pytest.mark.heavy, environments.may_install, pytest.mark.asyncio(loop_scope="module")]
TEXT = {"type": "string", "maxLength": 24}


def closed(**properties: Any) -> dict[str, Any]:
    """A schema of an object that has these properties and no other."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}  # fmt: skip


SCHEMAS = [
    closed(a={"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, b={"type": ["integer", "null"]}),
    {"type": "object", "properties": {"name": TEXT, "kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}}, "required": ["name"]},
    {"type": "object", "properties": {"a": {"$ref": "#/definitions/P%3CF%3E"}}, "required": ["a"], "definitions": {"P<F>": closed(b=TEXT)}},
    {"type": "object", "properties": {"f": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/F", "$defs": {"F": closed(k=TEXT)}}}}, "required": ["f"]},
    closed(a={"const": "x\u2028y"}, b={"enum": ["a", 'b"c', "d\\e", 3, None]}, c={"type": "boolean"}),
    closed(a={"type": "string", "pattern": '^"x"$'}, b={"type": "string", "pattern": r"^C:\\[a-z]$"}),
    closed(a={"type": "string", "pattern": "^.{8}$"}, b={"type": "string", "pattern": "^a+?b$"}),
    closed(a={"type": "string", "pattern": r"^\d{3}-\w{2,5}\/\s$"}, b={"type": "string", "pattern": "^(red|green)$|^#[0-9a-f]{6}$"}),
    closed(a={"type": "string", "format": "date"}, b={"type": "string", "format": "uuid"}),
    closed(a={"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 500}, "minItems": 2, "maxItems": 4}),
    {"allOf": [closed(a=TEXT), {"required": ["a"]}]},
    {"anyOf": [closed(a=TEXT), closed(b={"type": "integer"})]},
]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[GgufEngine]:
    """The model."""
    engine = GgufEngine("smollm2", environments.smollm2(), ModelConfig(parallel=2))
    await engine.start()
    yield engine
    await engine.aclose()


async def test_every_answer_satisfies_its_schema(model: GgufEngine) -> None:
    """Each schema is satisfied, as an answer's and as a call's that must come."""
    turns, checker = asyncio.Semaphore(2), Checker()
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Some data about Paris, please."}],
        "temperature": 1,
        "max_tokens": 300,
    }

    async def one(seed: int, schema: dict[str, Any]) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        tool = {"type": "function", "function": {"name": "save", "parameters": schema}}
        async with turns:
            whole = await answer(model.generate(chat(seed=seed, response_format=form, **asked)))
            called = chat(seed=seed, tools=[tool], tool_choice="required", **asked)
            calls = (await answer(model.generate(called))).choices[0]
        [call] = calls.tool_calls
        assert ("stop", "tool_calls") == (whole.choices[0].finish_reason, calls.finish_reason)
        for text in (whole.choices[0].text or "", call.arguments):
            json.loads(text)
            assert None is await checker.validate(schema, text), (text, schema)

    try:
        await asyncio.gather(*(one(seed, schema) for seed, schema in enumerate(SCHEMAS)))
    finally:
        await checker.aclose()
