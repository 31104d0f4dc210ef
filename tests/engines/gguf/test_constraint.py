"""Tests of unilect.engines.gguf._constraint, on a tiny model whose SentencePiece vocabulary puts a blank before a text."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from support.backends.engine import TRIES, answer, chat, completion
from support.models import tiny_gguf
from unilect.config.server import ModelConfig
from unilect.core.errors import BackendError, InvalidRequest, UnilectError
from unilect.engines.gguf.engine import GgufEngine
from unilect.tools.forced import call_style
from unilect.tools.grammar import calls_grammar, prefix_rules

in_one_loop = pytest.mark.asyncio(loop_scope="module")
SLOTS = 4
ARGUMENTS = {
    "type": "object",
    "properties": {
        "place": {"$ref": "#/$defs/place"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "sure": {"const": True},
    },
    "required": ["place", "days", "sure"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "string", "maxLength": 8}},
}
OTHER = {"type": "object", "properties": {"place": {"enum": ["a b", 'c"]', "d\\"]}}, "required": ["place"]}  # fmt: skip
TOOLS = {"weather": ARGUMENTS, "other": OTHER, "none": {}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GgufEngine]:
    """The model."""
    path = tiny_gguf.make(tmp_path_factory.mktemp("model") / "tiny.gguf")
    engine = GgufEngine("tiny", path, ModelConfig(parallel=SLOTS))
    await engine.start()
    yield engine
    await engine.aclose()


def calling(names: Any = tuple(TOOLS), **fields: Any) -> Any:
    """A chat that must call one of these tools."""
    functions = [{"name": name, "parameters": TOOLS[name]} for name in names]
    tools = [{"type": "function", "function": function} for function in functions]
    return chat(**{"tools": tools, "tool_choice": "required", "temperature": 1} | fields)


@in_one_loop
async def test_calls_that_must_come(model: GgufEngine) -> None:
    """Every answer is one call that satisfies its tool's schema, whatever the model would rather say."""
    turns = asyncio.Semaphore(SLOTS)

    async def one(seed: int) -> tuple[str, Any, str | None]:
        async with turns:
            whole = await answer(model.generate(calling(seed=seed, stream=bool(seed % 2))))
        [choice] = whole.choices
        [call] = choice.tool_calls
        assert choice.text is None
        return call.name, json.loads(call.arguments), choice.finish_reason

    told = await asyncio.gather(*(one(seed) for seed in range(TRIES)))

    for name, arguments, reason in told:
        jsonschema.validate(arguments, TOOLS[name])
        assert "tool_calls" == reason
    assert len(TOOLS) == len({name for name, _, _ in told}) or TRIES < 100


@in_one_loop
async def test_a_call_by_name(model: GgufEngine) -> None:
    """A named tool is the one that is called."""
    named = {"type": "function", "function": {"name": "other"}}
    whole = await answer(model.generate(calling(tool_choice=named)))

    assert ["other"] == [call.name for call in whole.choices[0].tool_calls]


@in_one_loop
@pytest.mark.parametrize("tokens", [1, 3])
async def test_a_call_that_has_no_room(model: GgufEngine, tokens: int) -> None:
    """An answer too short for a call is refused, and is no empty one."""
    with pytest.raises(InvalidRequest, match="max_tokens"):
        await answer(model.generate(calling(max_tokens=tokens)))


@in_one_loop
@pytest.mark.parametrize("asking", [chat, completion])
async def test_schemas(model: GgufEngine, asking: Any) -> None:
    """An answer satisfies its schema, and leaves no room for more than one blank between two signs."""
    wanted = {"type": "json_object", "schema": ARGUMENTS}
    wholes = [
        await answer(model.generate(asking(temperature=1.5, seed=seed, response_format=wanted)))
        for seed in range(4)
    ]

    for whole in wholes:
        text = whole.choices[0].text or ""
        jsonschema.validate(json.loads(text), ARGUMENTS)
        assert not re.search(r"\s\s|\n", re.sub(r'"(\\.|[^"])*"', '""', text))


@in_one_loop
async def test_an_object_without_a_schema(model: GgufEngine) -> None:
    """Any JSON object begins without a run of blanks."""
    wanted = {"type": "json_object"}
    whole = await answer(model.generate(chat(response_format=wanted, temperature=2, max_tokens=48)))

    assert re.match(r'\{ ?["}]', whole.choices[0].text or "")


@in_one_loop
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"grammar": "root ::= [z-a]"}, "grammar"),
        ({"grammar": 'root ::= "\\UFFFFFFFF"'}, "grammar"),
        ({"grammar": '%llguidance {}\nstart: "a"'}, "grammar"),
        ({"grammar": '  %llguidance {}\nstart: "a"'}, "grammar"),
        ({"grammar": 'root ::= "a"{5,2}'}, "grammar"),
        ({"grammar": "(" * 1000}, "grammar"),
        ({"response_format": {"type": "json_object", "schema": {"type": "hiccup"}}}, "response_format"),
        ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g", "parameters": {"type": "hiccup"}}}]}, "tools"),
    ],
)  # fmt: skip
async def test_what_cannot_be_followed(
    model: GgufEngine, fields: dict[str, Any], param: str
) -> None:
    """A constraint that llama.cpp cannot follow to the end is the request's fault, by its name, and the engine lives on."""
    pid = model._generator.process.pid
    with pytest.raises(UnilectError) as raised:
        await answer(model.generate(chat(max_tokens=16, **fields)))

    assert not isinstance(raised.value, BackendError)
    assert (400, param) == (raised.value.status, raised.value.param)
    assert pid == model._generator.process.pid


@in_one_loop
@pytest.mark.parametrize("family", ["hermes", "[TOOL_CALLS]", "<|python_tag|>", "<|tool_call|>", "<|observation|>"])  # fmt: skip
async def test_every_family(model: GgufEngine, family: str) -> None:
    """A call comes in the form of every family, for all of them are read from JSON that a grammar bound."""
    style, model._chat_template.style = model._chat_template.style, call_style(family)  # fmt: skip
    try:
        whole = await answer(model.generate(calling(["weather"])))
    finally:
        model._chat_template.style = style

    jsonschema.validate(json.loads(whole.choices[0].tool_calls[0].arguments), ARGUMENTS)


@in_one_loop
async def test_names_of_rules(model: GgufEngine) -> None:
    """Rules of several grammars in one have names of their own; what literals and classes hold stays as it is."""
    grammar = 'root ::= "root" [a-z"\\]] root-x{1,2}\nroot-x ::= "\\"root" | "\\\\"\n'
    made = await calls_grammar(
        calling(["weather", "other"]), model._chat_template.style, model._checker
    )

    assert 'p-root ::= "root" [a-z"\\]] p-root-x{1,2}\np-root-x ::= "\\"root" | "\\\\"\n' == prefix_rules(grammar, "p-")  # fmt: skip
    names = re.findall(r"^([\w-]+) ::=", made, re.MULTILINE)
    assert len(names) == len(set(names))


def test_a_reranker(tmp_path: Path) -> None:
    """A model that scores texts says that it makes no embeddings, and why."""
    can = GgufEngine("r", tiny_gguf.make(tmp_path / "r.gguf", pooling=4), ModelConfig()).capabilities  # fmt: skip
    mean = GgufEngine("m", tiny_gguf.make(tmp_path / "m.gguf", pooling=1), ModelConfig()).capabilities  # fmt: skip

    assert (False, True) == (can.embeddings, mean.embeddings)
    assert "reranker" in can.why_not["embeddings"]
