"""Tests of `context_shift` of GGUF models: an answer that goes on where the context is full."""

from pathlib import Path
from typing import Any

import pytest

from support.backends.engine import answer, completion, engine, made
from support.models import tiny_gguf
from unilect.core.errors import ConfigError, ContextLengthExceeded

CONTEXT = 256
ENDLESS: dict[str, Any] = {"ignore_eos": True, "temperature": 0}
LONG = "Once upon a time " * 40  # about 200 tokens


@pytest.mark.parametrize("speculative", [None, pytest.param("ngram", marks=pytest.mark.heavy)])
async def test_a_full_context(speculative: str | None) -> None:
    """An answer goes on, says so, and ends after as many tokens as the context has; what fits is as without, and a prompt that does not is refused."""
    found = []
    for shifts in (False, True):
        async with engine(
            context=CONTEXT, parallel=1, context_shift=shifts, speculative=speculative
        ) as model:
            told = [
                await answer(model.generate(completion(text, **ENDLESS, **limit)))
                for text, limit in ((LONG, {}), (LONG, {"max_tokens": 100}), ("Once", {"max_tokens": 60}))
            ]  # fmt: skip
            with pytest.raises(ContextLengthExceeded):
                await answer(model.generate(completion(2 * LONG)))
        found.append(told)
    (full, _, short), (endless, longer, same) = found

    assert CONTEXT == full.usage.prompt_tokens + full.usage.completion_tokens
    assert [CONTEXT, 100] == [one.usage.completion_tokens for one in (endless, longer)]
    assert endless.extra["truncated"]
    assert longer.extra["truncated"]
    assert "truncated" not in same.extra
    assert short.choices[0].text == same.choices[0].text


@pytest.mark.heavy
async def test_a_shift_and_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation whose middle was forgotten is kept, and goes on after a stop with the answer that it would have had."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    texts = []
    for stops in (False, True):
        async with engine(
            context=CONTEXT, parallel=1, context_shift=True, keep_conversations="1GiB"
        ) as model:
            first = await answer(model.generate(completion(LONG, **ENDLESS)))
            if stops:
                await model.aclose()
                await model.start()
            second = completion(LONG + "The cat", **ENDLESS, max_tokens=8)
            texts += [first.choices[0].text, (await answer(model.generate(second))).choices[0].text]

    assert texts[:2] == texts[2:]


def test_beside_a_projector(tmp_path: Path) -> None:
    """It is refused for a model that reads images."""
    projector = tiny_gguf.make_projector(tmp_path / "p.gguf")
    with pytest.raises(ConfigError, match=r"context_shift: .* with `mmproj`"):
        made("gguf", context_shift=True, mmproj=str(projector))
