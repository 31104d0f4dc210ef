"""Tests of unilect.engines.transformers.batch.frequencies: frequencies that depend on the length are those of the context, for everybody."""

import random
from pathlib import Path

import pytest

from support.models.torchside import Asked, need, running

need("torch", "transformers")

from support.models.tiny_hf import Tiny, generated
from unilect.engines.transformers.batch.loop import BatchLoop


@pytest.mark.parametrize(("context", "length"), [(64, 20), (256, 100)])
def test_short_and_long_factors(context: int, length: int, tmp_path: Path) -> None:
    """Within the original length the short factors count, beyond it the long ones, beside texts of any length."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    tiny = Tiny(
        tmp_path,
        "phi3",
        intermediate_size=128,
        original_max_position_embeddings=64,
        rope_scaling={"rope_type": "longrope", "original_max_position_embeddings": 64} | factors,
    )
    model = tiny.loaded(context=context)
    rng = random.Random(3)
    prompts = [tiny.text(rng, count) for count in (length, length + 3)]
    with running(BatchLoop(model, parallel=4, context=context, chunk=16, remember=0)) as loop:
        asked = [Asked(one, 16) for one in [*prompts, tiny.text(rng, 3), tiny.text(rng, 40)]]
        for one in asked:
            loop.submit(one.job)
        answers = [one.wait() for one in asked]

    assert [generated(tiny.model, one, 16, model.stop_ids) for one in prompts] == answers[:2]
