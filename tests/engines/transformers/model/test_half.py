"""Tests of unilect.engines.transformers.model.half."""

import pytest

from support.models.torchside import SETTINGS, need

need("torch", "transformers")

import torch
from torch import nn

from unilect.engines.transformers.model import load as _hf_load
from unilect.engines.transformers.model.half import WideLinear, is_slow, widen
from unilect.engines.transformers.model.load import LoadedModel

pytestmark = pytest.mark.heavy

ROWS = [(1, 1), (2, 1), (9, 1), (3, 70)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_the_layer(dtype: torch.dtype, bias: bool) -> None:
    """Products made block by block are those of the layer in float64, rounded to its type once, for any number of rows."""
    layer = nn.Linear(48, 100, bias=bias).to(dtype)
    wide = WideLinear(layer, scratch=torch.empty(48 * 7))
    with torch.inference_mode():
        for rows, columns in ROWS:
            x = torch.randn(rows, columns, 48).to(dtype)
            exact = nn.functional.linear(
                x.double(),
                layer.weight.double(),
                None if layer.bias is None else layer.bias.double(),
            )
            found = wide(x)
            assert (rows, columns, 100) == found.shape
            assert found.dtype == dtype
            assert torch.allclose(exact, found.double(), rtol=2 * torch.finfo(dtype).eps, atol=1e-3)


def test_only_16_bits_can_be_slow() -> None:
    """float32 is never made wide."""
    assert not is_slow(torch.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_wide_model_says_what_the_narrow_one_says(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundled model's logits for a padded batch are the same within the type's precision, whether widened or not."""
    for condition in ("is_slow", "is_worth_packing"):
        monkeypatch.setattr(_hf_load, condition, lambda dtype: False)
    model = LoadedModel(SETTINGS | {"dtype": dtype})._model
    ids = torch.tensor([[0, 0, 5, 6, 7], [9, 8, 7, 6, 5], [11, 12, 13, 14, 15]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1] * 5, [1] * 5])
    with torch.inference_mode():
        narrow = model(input_ids=ids, attention_mask=mask).logits[:, -1].float()
        widen(model)
        wide = model(input_ids=ids, attention_mask=mask).logits[:, -1].float()

    assert "sdpa_wide" == model.config._attn_implementation
    assert any(isinstance(module, WideLinear) for module in model.modules())
    assert torch.allclose(narrow, wide, atol=32 * torch.finfo(getattr(torch, dtype)).eps)
