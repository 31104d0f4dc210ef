"""Schemas and forced calls of a real model: whatever a schema holds, each answer at temperature 1 that has ended satisfies it."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from support.backends.engine import ENGINES, answer, chat
from support.common import environments
from support.models.published import smollm2_folder
from unilect.config.server import ModelConfig
from unilect.constraints.normal import normal
from unilect.constraints.schema import analyse, find_unenforced
from unilect.engines.gguf.engine import GgufEngine
from unilect.engines.transformers.engine import HfEngine

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(1200),
    pytest.mark.asyncio(loop_scope="module"),
]
TEXT = {"type": "string", "maxLength": 24}
COUNT = {"type": "integer", "minimum": 1, "maximum": 100, "default": 30}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
AT_ONCE = 8
LEAST = 17  # schemas that each engine enforces as it writes; others are held against the finished answer
#: How often each schema is asked for, with other seeds; `UNILECT_TEST_SCHEMAS=10` asks so often.
TIMES = int(os.environ.get("UNILECT_TEST_SCHEMAS", "1"))


def closed(**properties: Any) -> dict[str, Any]:
    """A schema of an object that has these properties and no other."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}  # fmt: skip


def listed(items: Any, least: int = 0, most: int = 2) -> dict[str, Any]:
    """A schema of a list."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def optional(*required: str, **properties: Any) -> dict[str, Any]:
    """A schema of an object that has some of these properties, as most tools have it."""
    return {"type": "object", "properties": properties, "required": [*required]}


SCHEMAS = {
    "bounds": closed(a={"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, b={"type": ["integer", "null"]}),
    "recursion": {"type": "object", "properties": {"name": TEXT, "kids": listed({"$ref": "#"}, most=1)}, "required": ["name"]},
    "reference": {"type": "object", "properties": {"a": {"$ref": "#/definitions/P%3CF%3E"}}, "required": ["a"], "definitions": {"P<F>": closed(b=TEXT)}},
    "inner definitions": {"type": "object", "properties": {"f": listed({"$ref": "#/$defs/F", "$defs": {"F": closed(k=TEXT)}})}, "required": ["f"]},
    "enumerations": closed(a={"const": "x\u2028y"}, b={"enum": ["a", 'b"c', "d\\e", 3, None]}, c={"type": "boolean"}),
    "escapes": closed(a={"type": "string", "pattern": '^"x"$'}, b={"type": "string", "pattern": r"^C:\\[a-z]$"}),
    "repetitions": closed(a={"type": "string", "pattern": "^.{8}$"}, b={"type": "string", "pattern": "^a+?b$"}),
    "classes": closed(a={"type": "string", "pattern": r"^\d{3}-\w{2,5}\/\s$"}, b={"type": "string", "pattern": "^(red|green)$|^#[0-9a-f]{6}$"}),
    "formats": closed(a={"type": "string", "format": "date"}, b={"type": "string", "format": "uuid"}),
    "lists": closed(a=listed({"type": "integer", "minimum": -5, "maximum": 500}, 2, 4)),
    "all of": {"allOf": [closed(a=TEXT), {"required": ["a"]}]},
    "any of": {"anyOf": [closed(a=TEXT), closed(b={"type": "integer"})]},
    "issues": DRAFT_7 | closed(
        owner={**TEXT, "description": "Repository owner"}, repo=TEXT,
        state={"type": "string", "enum": ["open", "closed", "all"]}, labels=listed(TEXT), sort={"enum": ["created", "updated"]},
        page={"type": "number", "minimum": 1, "maximum": 50},
    ),
    "edits": DRAFT_7 | closed(
        path={"type": "string", "maxLength": 24, "minLength": 1},
        edits=listed(closed(oldText=TEXT, newText=TEXT), 1), dryRun={"type": "boolean", "default": False},
    ),
    "search": optional("query", query=TEXT, count=COUNT, freshness={"type": ["string", "null"], "enum": ["pd", "pw", None]}, safe={"type": "boolean"}) | {"additionalProperties": False},
    "choice": closed(target={"oneOf": [closed(kind={"const": "url"}, url=TEXT), closed(kind={"const": "element"}, index={"type": "integer", "minimum": 0, "maximum": 99})]}, timeout={"type": "number", "exclusiveMinimum": 0, "maximum": 60}),
    "definitions": closed(
        entities=listed({"$ref": "#/$defs/Entity"}, 1), relations=listed({"$ref": "#/$defs/Relation"})
    ) | {"$defs": {
        "Entity": closed(name=TEXT, entityType={"enum": ["person", "place"]}, observations=listed(TEXT)),
        "Relation": closed(**{"from": TEXT, "to": TEXT, "weight": {"type": "number", "minimum": 0, "maximum": 1}}),
    }},
    "nullable": closed(name={"anyOf": [TEXT, {"type": "null"}]}, when={"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}, tags={"anyOf": [listed(TEXT), {"type": "null"}]}),
    "map": closed(headers={"type": "object", "additionalProperties": TEXT, "maxProperties": 2}, method={"enum": ["GET", "POST"]}),
    "steps": closed(steps=listed(closed(explanation=TEXT, output=TEXT), 1), final_answer=TEXT),
    "names": closed(**{"größe": {"type": "integer", "minimum": 1, "maximum": 9}, "a-b c": TEXT, 'x"y': {"type": "boolean"}}),
    "pair": closed(point={"type": "array", "prefixItems": [{"type": "number", "minimum": -90, "maximum": 90}, {"type": "number", "minimum": -180, "maximum": 180}], "items": False, "minItems": 2, "maxItems": 2}),
    "amount": closed(currency={"type": "string", "pattern": "^[A-Z]{3}$"}, amount={"type": "string", "pattern": r"^-?\d{1,6}(\.\d{2})?$"}, step={"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}),
    "nothing": closed(),
}  # fmt: skip
#: What a schema means that says it in a way of its own.
PLAIN = {"inner definitions": optional("f", f=listed(closed(k=TEXT)))}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES)
async def model(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """The model on an engine."""
    config = ModelConfig(parallel=AT_ONCE, context=2048)
    engine: Any = (
        GgufEngine("smollm2", environments.smollm2(), config)
        if request.param == "gguf"
        else HfEngine("smollm2", smollm2_folder(), config)
    )
    await engine.start()
    yield engine
    await engine.aclose()


async def test_every_answer_satisfies_its_schema(model: Any) -> None:
    """Each schema that the engine enforces is satisfied, as an answer's and as a call's that must come, strictly or not."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    turns, wrong, cut = asyncio.Semaphore(AT_ONCE), list[Any](), list[str]()
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Some data about Paris, please."}],
        "temperature": 1,
        "max_tokens": 500,
    }

    async def one(seed: int, name: str, schema: dict[str, Any]) -> None:
        strict = bool(seed % 2)
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": strict}}  # fmt: skip
        tool = {"name": "save", "parameters": schema, "strict": strict}
        more = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
        kind = validator_for(schema, default=Draft202012Validator)
        checks = kind(PLAIN.get(name, schema), format_checker=kind.FORMAT_CHECKER)
        for way, fields in (("answer", {"response_format": form}), ("call", more)):
            try:
                async with turns:
                    whole = await answer(model.generate(chat(seed=seed, **asked, **fields)))
                [choice] = whole.choices
                if choice.finish_reason == "length":  # a list or a number without an end
                    cut.append(f"{name}: {way}")
                    continue
                text = choice.tool_calls[0].arguments if way == "call" else choice.text or ""
                assert {"answer": "stop", "call": "tool_calls"}[way] == choice.finish_reason, text
                checks.validate(json.loads(text))
            except Exception as error:  # noqa: BLE001 - all are told at the end
                wrong.append((name, way, seed, repr(error)[:600]))

    enforced = model.capabilities.schema_keywords or ()
    schemas = {
        name: schema
        for name, schema in SCHEMAS.items()
        if not find_unenforced(analyse(normal(schema)), enforced)
    }
    assert len(schemas) >= LEAST
    await asyncio.gather(
        *(
            one(seed * len(schemas) + number + seed, name, schema)
            for seed in range(TIMES)
            for number, (name, schema) in enumerate(schemas.items())
        )
    )
    assert [] == wrong
    assert len(cut) <= TIMES * len(schemas) // 5, cut  # a tenth of all answers
