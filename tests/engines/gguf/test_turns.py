"""Tests of unilect.engines.gguf._turns: conversations that agents send, on templates that take less."""

import pytest

from support.backends.engine import answer, chat, engine
from support.models.strict_templates import CALLED, STYLES, TALK, missing


@pytest.mark.parametrize("style", ["mistral", "gemma-2", "qwen-3.5"])
async def test_conversations_of_agents(style: str) -> None:
    """The prompt has each word once, it is what is counted and read, and the next turn's prompt begins with what went before."""
    async with engine("gguf", chat_template=STYLES[style][0]) as model:
        prompt = await model.render(chat(messages=TALK))
        count = await model.count_tokens(chat(messages=TALK))
        told = await answer(model.generate(chat(messages=TALK, max_tokens=1)))
        before = await model.render(chat(messages=TALK[:5]))

    assert [] == missing(prompt)
    assert count == told.usage.prompt_tokens
    if style != "mistral":  # which puts the system's text before the last question
        opening = before.rpartition("u2")[0]
        assert opening != ""
        assert prompt.startswith(opening)


@pytest.mark.parametrize("style", ["mistral", "llama-3", "gpt-oss", "gemma-2"])
async def test_calls_of_agents(style: str) -> None:
    """Several calls, ids of any form, cut arguments and calls of the older form: the prompt has all of it, and it is what is counted and read."""
    async with engine("gguf", chat_template=STYLES[style][0]) as model:
        for talk, words in CALLED:
            prompt = await model.render(chat(messages=talk))
            count = await model.count_tokens(chat(messages=talk))
            told = await answer(model.generate(chat(messages=talk, max_tokens=1)))

            assert [] == missing(prompt, words)
            assert count == told.usage.prompt_tokens
