"""Tests of unilect.engines.gguf._draft, and of speculative decoding: drafts change no text."""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from support.models import tiny_gguf
from unilect.config.server import ModelConfig
from unilect.core.errors import BackendUnavailable, ConfigError
from unilect.core.events import Answer, Fold
from unilect.core.requests import CompletionRequest
from unilect.demo import MODEL
from unilect.engines.gguf import _draft
from unilect.engines.gguf._file import read_model
from unilect.engines.gguf._memory import needs
from unilect.engines.gguf.engine import GgufEngine

LISTS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen. " * 5
GREEDY, SEEDED = {"temperature": 0}, {"temperature": 0.9, "seed": 7}


@asynccontextmanager
async def running(path: Path = MODEL, **config: Any) -> AsyncIterator[GgufEngine]:
    """A started engine, with an exact cache: what is computed for several tokens at once is not rounded otherwise."""
    settings = {"context": 512, "parallel": 1, "cache_type_k": "f32", "cache_type_v": "f32"}
    engine = GgufEngine("m", path, ModelConfig(**settings | config))
    try:
        await engine.start()
        yield engine
    finally:
        await engine.aclose()


async def told(engine: GgufEngine, prompt: str, **fields: Any) -> Answer:
    """An answer."""
    folding = Fold()
    async for batch in engine.generate(CompletionRequest(prompt=prompt, max_tokens=48, **fields)):
        folding.add(batch)
    return folding.answer()


def drafted(answer: Answer) -> tuple[int, int]:
    """How many tokens were drafted for an answer, and how many of them it has, as llama.cpp tells it."""
    times = json.loads(msgspec.json.encode(answer.extra["timings"]))
    return times.get("draft_n", 0), times.get("draft_n_accepted", 0)


@pytest.mark.parametrize("kind", ["bundled", pytest.param("random", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("by", [pytest.param("ngram", marks=pytest.mark.heavy), "model"])
async def test_the_text_is_the_same(kind: str, by: str, tmp_path: Path) -> None:
    """With and without drafts, greedy and sampled with a seed, alone and with a grammar; the counts of drafts are told."""
    path = MODEL if kind == "bundled" else tiny_gguf.make(tmp_path / "m.gguf")
    requests = [GREEDY, SEEDED, GREEDY | {"grammar": 'root ::= (" one two three four five six seven eight nine ten eleven twelve")+'}]  # fmt: skip
    texts, counts = [], (0, 0)
    for speculative in (None, "ngram" if by == "ngram" else str(path)):
        async with running(path, speculative=speculative) as engine:
            answers = [await told(engine, LISTS, **fields) for fields in requests]
        texts.append([answer.choices[0].text for answer in answers])
        counts = drafted(answers[2])

    assert texts[0] == texts[1]
    assert counts[0] >= counts[1]
    assert counts[1] or kind == "random"


async def test_a_draft_model_of_another_vocabulary(tmp_path: Path) -> None:
    """It is refused before anything is started; where only its tokens differ, once llama.cpp has said that it cannot draft."""
    other = tiny_gguf.make(tmp_path / "m.gguf")
    with pytest.raises(ConfigError, match=r"vocabulary has \d+ tokens of the kind 'llama', the model's 4096 of 'gpt2'"):  # fmt: skip
        GgufEngine("m", MODEL, ModelConfig(speculative=str(other)))
    with pytest.raises(ConfigError, match=r"m\.gguf is no GGUF|There is no|no such file"):
        GgufEngine("m", MODEL, ModelConfig(speculative=str(tmp_path / "none" / "m.gguf")))
    marked = tiny_gguf.make(tmp_path / "n.gguf", ids={"eot": 5}, marks=("<a>",), begins=False)
    engine = GgufEngine("m", other, ModelConfig(speculative=str(marked)))
    try:
        with pytest.raises(BackendUnavailable, match="cannot draft with"):
            await engine.start()
        assert (None, "failed") == (engine.children[0].pid, engine.children[0].state)
    finally:
        await engine.aclose()


def test_a_hostile_kind_of_vocabulary() -> None:
    """Little of it is told, and no control characters."""
    head, told = read_model(MODEL), "\x1b[31mforged\n" * 10_000
    other = structs.replace(head, fields=head.fields | {"tokenizer.ggml.model": told})
    with pytest.raises(ValueError) as raised:
        _draft.check_draft(MODEL, other)

    assert len(str(raised.value)) < 500
    assert str(raised.value).isprintable()


def test_the_memory_of_a_draft_model(tmp_path: Path) -> None:
    """A draft model takes what it would take alone."""
    head, copy = read_model(MODEL), tmp_path / "copy.gguf"
    shutil.copy(MODEL, copy)
    alone = needs(head, ModelConfig(), 512, embedding=False)
    both = needs(head, ModelConfig(speculative=str(copy)), 512, embedding=False)
    embeds = needs(head, ModelConfig(speculative=str(copy)), 512, embedding=True)

    assert (2 * alone.weights, 2 * alone.cache, 2 * alone.own) == (both.weights, both.cache, both.own)  # fmt: skip
    assert alone.weights == embeds.weights


def test_drafts_beside_a_projector(tmp_path: Path) -> None:
    """Drafts and images together are refused at once."""
    projector = tiny_gguf.make_projector(tmp_path / "p.gguf")
    with pytest.raises(ConfigError, match="does not draft for a model with `mmproj`"):
        GgufEngine("m", MODEL, ModelConfig(speculative=_draft.NGRAM, mmproj=str(projector)))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("main_gpu", 1),
        pytest.param("split_mode", "row", marks=pytest.mark.heavy),
        pytest.param("tensor_split", [1.0, 2.0], marks=pytest.mark.heavy),
    ],
)
async def test_places_on_gpus_that_are_not_there(option: str, value: Any) -> None:
    """Without a GPU a place on one is refused, by the option's name."""
    with pytest.raises(BackendUnavailable, match=f"{option}: .* no GPU. Leave `{option}` out"):
        async with running(**{option: value}):
            pass


@pytest.mark.heavy
async def test_drafts_and_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation that was kept while the engine was stopped goes on with drafts as it would without the stop."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    texts = []
    for stops in (False, True):
        async with running(speculative=str(MODEL), keep_conversations="1GiB") as engine:
            first = await told(engine, LISTS, **GREEDY)
            if stops:
                await engine.aclose()
                await engine.start()
            second = await told(engine, LISTS + (first.choices[0].text or "") + LISTS, **GREEDY)
            texts.append((second.choices[0].text, (second.usage.cached_tokens or 0) > 50))

    assert texts[0] == texts[1]
    assert texts[0][1]
