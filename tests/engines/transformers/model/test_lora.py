"""Tests of unilect.engines.transformers.model.lora: adapters of the bundled model, side by side in one batch."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.models.torchside import SETTINGS, Asked, need, running

need("torch", "transformers", "peft")

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from unilect.demo import FOLDER
from unilect.engines.transformers.batch.loop import BatchLoop
from unilect.engines.transformers.model.load import LoadedModel
from unilect.engines.transformers.model.lora import MixedLinear, Selection

pytestmark = pytest.mark.heavy

ADAPTERS = {"pirate": FOLDER / "lora-pirate", "robot": FOLDER / "lora-robot"}
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    """The bundled model with two blends."""
    found = LoadedModel(SETTINGS)
    for name, path in ADAPTERS.items():
        found.adapters.add(name, [(str(path), 1.0)])
    return found


def asked(model: LoadedModel, adapter: str | None) -> Asked:
    """A question to a blend."""
    prompt = model.tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True
    )["input_ids"]
    return Asked(prompt, adapter=adapter)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft's
def test_each_row_has_its_own_adapter(model: LoadedModel) -> None:
    """In one batch every answer is that of peft with its adapter, and the base stays the base."""
    names = [None, "pirate", "robot", "pirate", None, "robot"]
    with running(BatchLoop(model, parallel=6, context=512, chunk=64, remember=2048)) as loop:
        crowd = [asked(model, name) for name in names]
        for one in crowd:
            loop.submit(one.job)
        texts = [one.wait() for one in crowd]

    prompt = crowd[0].job.prompt
    for name in ("pirate", "robot"):
        base = AutoModelForCausalLM.from_pretrained(FOLDER / "hf", dtype=torch.float32)
        merged = PeftModel.from_pretrained(base, ADAPTERS[name]).eval()
        ids = merged.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=24,
            do_sample=False,
        )[0, len(prompt) :].tolist()
        expected = [token for token in ids if token not in model.stop_ids]
        assert [expected] * 2 == [
            text for text, one in zip(texts, names, strict=True) if one == name
        ]
    assert texts[0] == texts[4] != texts[1]


def test_a_blend_of_two_is_their_sum(model: LoadedModel) -> None:
    """Adapters of one blend add up, each with its scale; a scale of 0 is none."""
    paths = [str(path) for path in ADAPTERS.values()]
    model.adapters.add("silent", [(path, 0.0) for path in paths])
    model.adapters.add("first", [(paths[0], 1.0), (paths[1], 0.0)])
    try:
        with running(BatchLoop(model, parallel=2, context=512, chunk=64, remember=0)) as loop:
            texts = {
                name: asked(model, name).answer(loop)
                for name in (None, "silent", "first", "pirate")
            }
    finally:
        model.adapters.remove("silent")
        model.adapters.remove("first")

    assert texts[None] == texts["silent"]
    assert texts["pirate"] == texts["first"]


@pytest.mark.parametrize("shape", [(3, 2, 8), (3, 1, 2, 8), (6, 8)], ids=str)
def test_rows_in_any_shape(shape: tuple[int, ...]) -> None:
    """Rows of different blends get each its own, also where a model has flattened them (OPT, experts) or spread them (MLA)."""
    x = torch.randn(3, 2, 8)
    blends = {name: (torch.randn(4, 8), torch.randn(5, 4)) for name in ("one", "two")}
    selection = Selection()
    layer = MixedLinear(torch.nn.Linear(8, 5, bias=False), selection)
    for name, (down, up) in blends.items():
        layer.set_blend(name, down, up)

    def alone(name: str | None, row: torch.Tensor) -> torch.Tensor:
        down, up = blends.get(str(name), (torch.zeros(4, 8), torch.zeros(5, 4)))
        return layer.inner(row) + row @ down.T @ up.T

    names = ["two", None, "one"]
    selection.choose(names, torch.device("cpu"))
    expected = torch.stack([alone(name, row) for name, row in zip(names, x, strict=True)])
    torch.testing.assert_close(layer(x.view(shape)), expected.view(*shape[:-1], 5))


def test_an_adapter_of_another_model_is_told(model: LoadedModel, tmp_path: Path) -> None:
    """An adapter whose layers or sizes the model does not have is refused in a sentence, and nothing changes."""
    shutil.copytree(ADAPTERS["pirate"], tmp_path / "wide")
    file = tmp_path / "wide" / "adapter_model.safetensors"
    weights = load_file(str(file))
    save_file(
        {key: torch.zeros(8, 999) if "lora_A" in key else value for key, value in weights.items()},
        str(file),
    )
    with pytest.raises(ValueError, match="made for another"):
        model.adapters.add("wide", [(str(tmp_path / "wide"), 1.0)])
    save_file(
        {key.replace("layers.", "blocks."): value for key, value in weights.items()}, str(file)
    )
    with pytest.raises(ValueError, match="does not have"):
        model.adapters.add("wide", [(str(tmp_path / "wide"), 1.0)])
