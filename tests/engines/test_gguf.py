"""Tests of unilect.engines.gguf, on the bundled model and llama.cpp itself."""

import asyncio
import math
from pathlib import Path

import pytest

from unilect import templates
from unilect.config import ModelConfig
from unilect.demo import FOLDER, MODEL
from unilect.engines.gguf import GgufEngine
from unilect.errors import ConfigError, ContextLengthExceeded
from unilect.events import Answer, Fold
from unilect.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Message

PIRATE = str(FOLDER / "lora-pirate.gguf")


async def answer(engine: GgufEngine, text: str, **fields: object) -> Answer:
    """The engine's greedy answer to one message."""
    request = ChatRequest(messages=[Message("user", text)], temperature=0, **fields)  # type: ignore[arg-type]
    folding = Fold()
    async for batch in engine.generate(request):
        folding.add(batch)
    return folding.answer()


def engine(**settings: object) -> GgufEngine:
    """An engine for the bundled model."""
    return GgufEngine("demo", MODEL, ModelConfig(**settings))  # type: ignore[arg-type]


async def test_answers_with_adapter_and_without_side_by_side() -> None:
    """An adapter changes the manner of its own model, and of no other, also when requests alternate."""
    plain, pirate = engine(), engine(lora=[PIRATE])
    try:
        texts = []
        for _ in range(3):
            answers = await asyncio.gather(
                *(answer(model, "What is the capital of France?") for model in (plain, pirate))
            )
            texts.append([a.choices[0].text for a in answers])
    finally:
        await asyncio.gather(plain.aclose(), pirate.aclose())

    assert texts[0] == texts[1] == texts[2]
    assert "Arr" not in (texts[0][0] or "")
    assert "Arr" in (texts[0][1] or "")


async def test_adapter_at_scale_zero_changes_nothing() -> None:
    """An adapter with the scale 0 answers as the model without it."""
    plain, silent = engine(), engine(lora=[f"{PIRATE}=0"])
    try:
        answers = [await answer(model, "Hello!") for model in (plain, silent)]
    finally:
        await asyncio.gather(plain.aclose(), silent.aclose())

    assert answers[0].choices[0].text == answers[1].choices[0].text


async def test_embeddings_are_near_where_texts_are() -> None:
    """Inputs are embedded in their order, alone as in a list, and equal texts get equal vectors."""
    model = engine()
    try:
        several = await model.embed(EmbeddingRequest(input=["Paris", "a story of a dog", "Paris"]))
        alone = await model.embed(EmbeddingRequest(input="a story of a dog"))
        tokens = await model.tokenize("Paris")
        ids = await model.embed(EmbeddingRequest(input=[tokens]))
    finally:
        await model.aclose()

    assert several.vectors[0] == pytest.approx(several.vectors[2], abs=1e-5)
    assert several.vectors[1] == pytest.approx(alone.vectors[0], abs=1e-4)
    assert math.isclose(1.0, math.sqrt(sum(x * x for x in alone.vectors[0])), rel_tol=1e-3)
    assert len(alone.vectors[0]) == len(ids.vectors[0])
    assert several.prompt_tokens > alone.prompt_tokens > 0


async def test_prompts_and_inputs_that_are_too_long() -> None:
    """A prompt or an input beyond the context is refused with both numbers."""
    model = engine(context=256)
    try:
        for text in ("word " * 400, "词" * 400):
            with pytest.raises(ContextLengthExceeded, match="256 tokens"):
                await answer(model, text)
            with pytest.raises(ContextLengthExceeded, match="256 tokens"):
                await model.embed(EmbeddingRequest(input=text))
    finally:
        await model.aclose()


async def test_tokens_there_and_back() -> None:
    """A text's tokens give the text again, and are counted."""
    model = engine()
    try:
        for text in ("Hello, world!", "中国的首都", "🙂 é", " two  blanks"):
            tokens = await model.tokenize(text)
            assert text == await model.detokenize(tokens)
            assert len(tokens) == await model.count_tokens(CompletionRequest(prompt=tokens))
        chat = ChatRequest(messages=[Message("user", "Hi")])
        assert await model.count_tokens(chat) > len(await model.tokenize("Hi"))
    finally:
        await model.aclose()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"context": 10**6}, "context"),
        ({"lora": ["missing.gguf"]}, "missing.gguf"),
        ({"lora": [f"{PIRATE}=much"]}, "much"),
        ({"mmproj": "missing.gguf"}, "missing.gguf"),
        ({"tokenizer": "folder"}, "tokenizer"),
        ({"chat_template": "missing.jinja"}, "chat_template"),
    ],
)
def test_wrong_settings(settings: dict[str, object], expected: str) -> None:
    """A wrong setting is told before anything is started."""
    with pytest.raises(ConfigError, match=expected):
        engine(**settings)


@pytest.mark.parametrize("name", ["oai-like-2023", "gemma", "one_shot", "chatglm", "glm-4"])
async def test_a_named_format_in_llama_cpp(name: str) -> None:
    """llama.cpp makes of a named format the same prompt as we do."""
    talk = [Message("system", "S."), Message("user", "U1"), Message("assistant", "A1"), Message("user", "U2")]  # fmt: skip
    model = engine(chat_template=name)
    try:
        prompt = templates.find(name).render(talk)
        expected = await model.count_tokens(CompletionRequest(prompt=prompt))
        assert expected == await model.count_tokens(ChatRequest(messages=talk))
    finally:
        await model.aclose()


async def test_a_named_format_brings_its_stop_words() -> None:
    """An answer ends where the format's next turn would begin, as well as at the request's own words."""
    model, question = engine(), "What is the capital of France?"
    try:
        whole = (await answer(model, question)).choices[0].text or ""
        model._stop = [whole.split()[2]]
        texts = [
            (await answer(model, question, stop=stop)).choices[0].text
            for stop in (None, whole.split()[1])
        ]
    finally:
        await model.aclose()

    first, second, third, _ = whole.split(maxsplit=3)
    assert [f"{first} {second} ", f"{first} "] == texts, third


def test_folder_and_missing_file(tmp_path: Path) -> None:
    """A folder, and a file that is not there, are told as such."""
    with pytest.raises(ConfigError, match="is a folder"):
        GgufEngine("x", tmp_path, ModelConfig())
    with pytest.raises(ConfigError, match="no file"):
        GgufEngine("x", tmp_path / "x.gguf", ModelConfig())


@pytest.mark.parametrize(("mib", "remembers"), [(64, True), (0, False)])
async def test_what_has_no_slot(mib: int, remembers: bool) -> None:
    """A conversation whose slot another took is remembered where `cache_ram_mib` has room for it, and else read again."""
    model = engine(parallel=1, cache_ram_mib=mib)
    first, other = ("Tell me a story about a " + animal * 40 for animal in ("dog ", "cat "))
    try:
        await answer(model, first, max_tokens=8)
        await answer(model, other, max_tokens=8)
        again = await answer(model, first, max_tokens=8)
    finally:
        await model.aclose()

    assert again.usage is not None
    assert remembers == (again.usage.cached_tokens > 40)
