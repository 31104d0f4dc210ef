"""Tests of unilect.engines.gguf._turns: constraints of models that think, whose templates begin the thoughts or leave it to them."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.backends.engine import answer, chat
from support.models import thinking_templates as templates
from support.models import tiny_gguf
from unilect.config.server import ModelConfig
from unilect.engines.gguf.engine import GgufEngine

YES = 'root ::= "yes" | "no" # either'
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "pattern": '^"x"$'}}, "required": ["a"], "additionalProperties": False}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
MARKS = ("</think>", "[BEGIN FINAL RESPONSE]")


async def thinking(folder: Path, template: str) -> GgufEngine:
    """A started model with a template."""
    path = tiny_gguf.make(folder / "tiny.gguf", template=template, marks=MARKS)
    engine = GgufEngine("tiny", path, ModelConfig())
    await engine.start()
    return engine


async def ending_soon(model: GgufEngine, mark: str) -> dict[str, Any]:
    """Fields with which the model ends its thoughts soon: it would go on for ever."""
    id = (await model.tokenize(mark))[-1]
    return {"logit_bias": {str(id): 4.0}, "max_tokens": 900, "temperature": 1}


@pytest.mark.parametrize(
    ("template", "mark"),
    [(templates.BEGUN, MARKS[0]), (templates.WORDS, MARKS[1])],
    ids=["tag", "words"],
)
async def test_thoughts_that_the_prompt_has_begun(tmp_path: Path, template: str, mark: str) -> None:
    """A grammar, and a schema, bind what comes behind the thoughts, whatever ends them: an answer that has ended is never empty."""
    model = await thinking(tmp_path, template)
    try:
        soon = await ending_soon(model, mark)
        for seed in range(4):
            whole = await answer(model.generate(chat(grammar=YES, seed=seed, **soon)))
            [choice] = whole.choices
            assert choice.reasoning
            assert ("stop", True) == (choice.finish_reason, choice.text in ("yes", "no"))
            whole = await answer(model.generate(chat(response_format=FORMAT, seed=seed, **soon)))
            [choice] = whole.choices
            assert choice.reasoning
            assert {"a": '"x"'} == json.loads(choice.text or "")
    finally:
        await model.aclose()


async def test_thoughts_that_are_over(tmp_path: Path) -> None:
    """Where thoughts are switched off the answer is bound from its first token on; a call that must come ends those that the prompt has begun."""
    model = await thinking(tmp_path, templates.BEGUN_WITH_TOOLS)
    try:
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        for fields in ({"grammar": YES}, {"response_format": FORMAT}):
            [choice] = (await answer(model.generate(chat(max_tokens=40, **fields, **off)))).choices
            assert (None, "stop") == (choice.reasoning or None, choice.finish_reason)
            assert choice.text in ("yes", "no", *(choice.text,) * ("response_format" in fields))
        called = chat(tools=TOOLS, tool_choice="required", max_tokens=40)
        [choice] = (await answer(model.generate(called))).choices
        [call] = choice.tool_calls
        assert {"a": '"x"'} == json.loads(call.arguments)
    finally:
        await model.aclose()


async def test_thoughts_of_its_own(tmp_path: Path) -> None:
    """A model that begins thoughts itself may do so before JSON, and answers with JSON either way; another grammar leaves no place for them."""
    model = await thinking(tmp_path, templates.OWN)
    try:
        for seed in range(3):
            whole = await answer(
                model.generate(chat(response_format=FORMAT, seed=seed, max_tokens=60))
            )
            [choice] = whole.choices
            assert choice.finish_reason == "length" or {"a": '"x"'} == json.loads(choice.text or "")
        [choice] = (await answer(model.generate(chat(grammar=YES, max_tokens=20)))).choices
        assert choice.text in ("yes", "no")
    finally:
        await model.aclose()
