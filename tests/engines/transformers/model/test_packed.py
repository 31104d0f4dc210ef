"""Tests of unilect.engines.transformers.model.packed."""

import weakref

import pytest

from support.models.torchside import SETTINGS, Asked, need, running

need("torch", "transformers")

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from support.models.tiny_hf import generated
from unilect.engines.transformers.batch.loop import BatchLoop
from unilect.engines.transformers.model import packed
from unilect.engines.transformers.model.load import LoadedModel
from unilect.engines.transformers.model.packed import PackedLinear, is_worth_packing, pack

pytestmark = pytest.mark.heavy


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Each type that this processor packs."""
    if not is_worth_packing(request.param):
        pytest.skip("needs a processor with AVX512-BF16")
    return request.param


def test_products_are_those_of_the_layer(dtype: torch.dtype) -> None:
    """Packed layers give the products of torch's own, for any number of rows, with bias and without."""
    model = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 24, bias=False)).to(dtype)
    inputs = [
        torch.randn(rows, columns, 48).to(dtype) for rows, columns in ((1, 1), (8, 1), (3, 70))
    ]
    weights = [layer.weight.detach().clone() for layer in (model[0], model[2])]
    with torch.inference_mode():
        expected = [model(x) for x in inputs]
        pack(model)
        found = [model(x) for x in inputs]

    assert [True, False, True] == [isinstance(layer, PackedLinear) for layer in model]
    assert all(map(torch.equal, weights, (model[0].weight, model[2].weight)))  # some models look
    for one, other in zip(expected, found, strict=True):
        assert other.dtype == dtype
        assert torch.allclose(one, other, atol=1e-5, rtol=torch.finfo(dtype).eps)


def test_weights_are_in_memory_once(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer is gone before those of the next block are packed, and with the last one the file that they were parts of."""
    file = torch.zeros(4, 8, 8, dtype=dtype)
    mapped = weakref.ref(file.untyped_storage())
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8, bias=False)) for _ in range(3)))
    model.append(nn.Embedding(8, 8))
    for number, part in enumerate(model):
        for parameter in part.parameters():
            parameter.data = file[number]
    layers = [weakref.ref(block[0]) for block in list(model)[:3]]
    alive = []

    class Watched(PackedLinear):
        def __init__(self, layer: nn.Linear) -> None:
            alive.append(sum(one() is not None for one in layers))
            super().__init__(layer)

    monkeypatch.setattr(packed, "PackedLinear", Watched)
    del file, part, parameter
    with torch.inference_mode():
        pack(model)

    assert [3, 2, 1] == alive
    assert mapped() is None


def test_an_answer_is_that_of_generate(dtype: torch.dtype) -> None:
    """The bundled model answers as transformers' own `generate` does with weights of the same type."""
    model = LoadedModel(SETTINGS | {"dtype": str(dtype).removeprefix("torch.")})
    prompt = list(model.tokenizer("The capital of France is")["input_ids"])
    with running(BatchLoop(model, parallel=2, context=512, chunk=64, remember=0)) as loop:
        tokens = Asked(prompt, 48).answer(loop)
    plain = AutoModelForCausalLM.from_pretrained(SETTINGS["path"], dtype=dtype).eval()

    assert tokens
    assert generated(plain, prompt, 48, model.stop_ids) == tokens
