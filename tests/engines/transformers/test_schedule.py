"""Whatever comes and goes beside it: each answer of a batch is the one that transformers' generate gives alone."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from support.models.torchside import Asked, need

need("torch", "transformers")

import torch

from support.models.tiny_hf import CONTEXT, Tiny, generated
from unilect.engines.transformers.batch.loop import BatchLoop
from unilect.engines.transformers.job import Sampling
from unilect.engines.transformers.model.lora import _read

#: when it comes (steps after the one before), what it shares with others, its own tokens, the answer's most, adapter, beams, when it leaves
JOBS = strategies.lists(
    strategies.tuples(
        strategies.integers(0, 6),
        strategies.sampled_from([0, 0, 20, 37, 60, 150]),
        strategies.sampled_from([1, 2, 9, 31, 32, 33, 90, 105]),
        strategies.sampled_from([1, 2, 7, 20]),
        strategies.sampled_from([None, None, "one", "two"]),
        strategies.sampled_from([1, 1, 1, 3]),
        strategies.sampled_from([None, None, None, 0, 2, 9]),
    ),
    min_size=1,
    max_size=6,
)


class World:
    """A model with two adapters, and for each of them the model that it makes of it."""

    def __init__(self, folder: Path, kind: str, **fields: Any) -> None:
        self.tiny = Tiny(
            folder / "model",
            kind,
            num_hidden_layers=2,
            intermediate_size=128,
            num_key_value_heads=2,
            **fields,
        )
        self.loaded = self.tiny.loaded()
        self.alone: dict[str | None, Any] = {None: self.tiny.model}
        for seed, name in enumerate(("one", "two")):
            path = self.tiny.adapter(folder / name, seed)
            self.loaded.adapters.add(name, [(str(path), 1.0)])
            merged = copy.deepcopy(self.tiny.model)
            for layer, (down, up) in _read(path).items():
                merged.get_submodule(layer).weight.data += up @ down
            self.alone[name] = merged


@pytest.fixture(scope="module", params=["llama", "mistral"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A model that sees everything, and one that sees a window."""
    window = {"sliding_window": 24} if request.param == "mistral" else {}
    return World(tmp_path_factory.mktemp("world"), request.param, **window)


class Schedule:
    """Has jobs come and go at certain steps, in the loop's own thread."""

    def __init__(self, loop: BatchLoop, jobs: list[tuple[int, Asked, int | None]]) -> None:
        self._loop, self._coming, self._here = loop, jobs, list[tuple[Asked, int | None]]()
        self._pause = 0
        self.step()

    def step(self) -> None:
        """Between two steps."""
        self._pause += 1
        here = [one for one in self._here if not one[0].over.is_set() and not one[0].job.cancelled]
        for asked, leaves in here:
            if leaves is not None and len(asked.tokens) >= leaves and asked.outputs:
                asked.job.cancelled = True
        self._here = here
        while self._coming and (self._pause >= self._coming[0][0] or not self._here):
            _, asked, leaves = self._coming.pop(0)
            self._here.append((asked, leaves))
            self._loop.submit(asked.job)
            self._pause = 0
        if not self._here and not self._coming:
            self._loop.stop()


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(jobs=JOBS, parallel=strategies.integers(1, 5), chunk=strategies.sampled_from([8, 32, 300]))
def test_answers_do_not_depend_on_each_other(
    world: World, jobs: list[Any], parallel: int, chunk: int
) -> None:
    """Answers that share prefixes, adapters and rows, and whose neighbours leave, are those of generate alone."""
    rng = random.Random(11)
    shared = world.tiny.text(rng, 150)
    steps: list[Schedule] = []
    loop = BatchLoop(
        world.loaded,
        parallel=parallel,
        context=CONTEXT,
        chunk=chunk,
        remember=600,
        after_step=lambda: steps[0].step(),
    )
    coming = [
        (
            pause,
            Asked(
                shared[:known] + world.tiny.text(rng, own),
                most,
                adapter=adapter,
                sampling=Sampling(temperature=0.0, num_beams=beams),
            ),
            leaves,
        )
        for pause, known, own, most, adapter, beams, leaves in jobs
    ]
    asked = [one for _, one, _ in coming]
    steps.append(Schedule(loop, coming))
    loop.run()

    for one in asked:
        if one.over.is_set():
            beams = one.job.sampling.num_beams
            how = {"num_beams": beams, "early_stopping": True} if beams > 1 else {}
            limit = min(one.job.max_tokens, CONTEXT - len(one.job.prompt))
            stops = world.loaded.stop_ids
            alone = world.alone[one.job.adapter]
            assert generated(alone, one.job.prompt, limit, stops, **how) == one.tokens
    assert torch.is_inference_mode_enabled() is False
