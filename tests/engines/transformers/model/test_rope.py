"""Tests of unilect.engines.transformers.model.rope, on the bundled model: the frequencies that it really turns by, and what long texts come to."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.models.torchside import SETTINGS, Asked, need, running

need("torch", "transformers")

import torch

from unilect.config.model import RopeScaling
from unilect.config.server import ModelConfig
from unilect.core.errors import ConfigError
from unilect.demo import FOLDER
from unilect.engines.transformers.batch.loop import BatchLoop
from unilect.engines.transformers.engine import HfEngine
from unilect.engines.transformers.model.folder import read_folder
from unilect.engines.transformers.model.load import LoadedModel

pytestmark = pytest.mark.heavy

DIMENSIONS, BASE, TRAINED = 32, 10_000.0, 2048
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": BASE,
    "short_factor": [1.0] * 16,
    "long_factor": [float(place + 1) for place in range(16)],
    "original_max_position_embeddings": 1024,
}


def folder(path: Path, rope: dict[str, Any]) -> Path:
    """The bundled model, whose `config.json` says this of its positions."""
    shutil.copytree(FOLDER / "hf", path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"rope_parameters": rope}))
    return path


def frequencies(model: LoadedModel) -> list[float]:
    """What the model turns its positions by."""
    return [float(value) for value in model._model.model.rotary_emb.inv_freq]


def expected(base: float) -> list[float]:
    """The frequencies of a base."""
    return [base ** (-place / DIMENSIONS) for place in range(0, DIMENSIONS, 2)]


def stretched_base(alpha: float) -> float:
    """NTK-aware: the base that divides the lowest frequency by alpha."""
    return float(BASE * alpha ** (DIMENSIONS / (DIMENSIONS - 2)))


@pytest.mark.parametrize(
    ("scaling", "context", "base"),
    [
        (None, 2048, BASE),
        ({"rope_type": "ntk", "factor": 2.0}, 4096, stretched_base(2.0)),
        ({"rope_type": "dynamic", "factor": 2.0}, 2048, stretched_base(1.0 + 1e-12)),
        ({"rope_type": "dynamic", "factor": 2.0}, 4096, stretched_base(3.0)),
    ],
)
def test_the_base(scaling: dict[str, Any] | None, context: int, base: float) -> None:
    """`ntk` has its factor for alpha, and `dynamic` what it comes to for the longest text."""
    model = LoadedModel(SETTINGS | {"rope_scaling": scaling, "context": context})

    assert pytest.approx(expected(base), rel=1e-5) == frequencies(model)


def test_linear_and_yarn() -> None:
    """`linear` divides all frequencies; `yarn` divides the low ones, leaves the high ones, and sharpens attention."""
    linear, yarn = (
        LoadedModel(SETTINGS | {"rope_scaling": {"rope_type": kind, "factor": 4.0}})
        for kind in ("linear", "yarn")
    )
    plain = expected(BASE)

    assert pytest.approx([value / 4 for value in plain], rel=1e-5) == frequencies(linear)
    assert pytest.approx(plain[:3], rel=1e-5) == frequencies(yarn)[:3]
    assert pytest.approx(plain[-1] / 4, rel=1e-5) == frequencies(yarn)[-1]
    assert pytest.approx(0.1 * math.log(4) + 1) == yarn._model.model.rotary_emb.attention_scaling


def test_a_long_prompt() -> None:
    """A prompt beyond the trained length is answered as transformers itself does with that base, alone and beside a short one."""
    scaling = {"rope_type": "ntk", "factor": 2.0}
    model = LoadedModel(SETTINGS | {"rope_scaling": scaling, "context": 4096})
    short = model.tokenizer("What is the capital of France?")["input_ids"]
    long = (model.tokenizer("A cat and a dog live in a house. ")["input_ids"] * 400)[:3000]
    with running(BatchLoop(model, parallel=2, context=4096, chunk=512, remember=0)) as loop:
        alone = {len(prompt): Asked(prompt).answer(loop) for prompt in (short, long)}
        both = [Asked(prompt) for prompt in (short, long)]
        for one in both:
            loop.submit(one.job)
        together = [one.wait() for one in both]

    ids = torch.tensor([long])
    with torch.inference_mode():
        generated = model._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False
        )
    answer = [token for token in generated[0, 3000:].tolist() if token not in model.stop_ids]
    assert answer == alone[3000]
    assert [alone[len(short)], alone[3000]] == together


def test_positions_do_not_change_while_it_runs(tmp_path: Path) -> None:
    """A folder whose positions depend on the longest text, as transformers has it, gives one answer alone and beside a long text."""
    dynamic = {"rope_type": "dynamic", "rope_theta": BASE, "factor": 4.0}
    for number, rope in enumerate((dynamic, LONGROPE)):
        path = str(folder(tmp_path / str(number), rope))
        model = LoadedModel(SETTINGS | {"path": path, "context": 4096})
        before = frequencies(model)
        ids = torch.zeros(1, 3000, dtype=torch.long)
        with torch.inference_mode():
            model._model(ids)

        assert before == frequencies(model)


def test_the_longest_context(tmp_path: Path) -> None:
    """A folder's own stretching counts, and the option's takes its place; what goes beyond is refused with the number."""
    rope = {"rope_type": "linear", "rope_theta": BASE, "factor": 4.0}
    path = folder(tmp_path / "linear", rope)
    yarn = RopeScaling("yarn", 2.0, original_max_position_embeddings=1024)

    assert 4 * TRAINED == read_folder(path).context
    assert 8192 == HfEngine("x", path, ModelConfig(context=8192)).capabilities.context
    assert 2048 == HfEngine("x", path, ModelConfig(rope_scaling=yarn)).capabilities.context
    with pytest.raises(ConfigError, match="2048 tokens that `rope_scaling` allows"):
        HfEngine("x", path, ModelConfig(rope_scaling=yarn, context=4096))


def test_what_cannot_be_stretched(tmp_path: Path) -> None:
    """Positions of a trained kind, and models that have none, are refused in a sentence that names the option."""
    twice = RopeScaling("ntk", 2.0)
    with pytest.raises(ConfigError, match=r"rope_scaling: .* longrope"):
        HfEngine("x", folder(tmp_path / "long", LONGROPE), ModelConfig(rope_scaling=twice))
    plain = folder(tmp_path / "gpt2", {})
    (plain / "config.json").write_text('{"model_type": "gpt2", "n_embd": 256, "n_head": 8}')
    with pytest.raises(ValueError, match="rope_scaling: a model of type gpt2"):
        LoadedModel(
            SETTINGS | {"path": str(plain), "rope_scaling": {"rope_type": "ntk", "factor": 2}}
        )
