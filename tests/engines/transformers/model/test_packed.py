"""Tests of unilect.engines.transformers.model.packed."""

import pytest

from support.models.torchside import need

need("torch")

import torch
from torch import nn

from unilect.engines.transformers.model.packed import PackedLinear, pack

pytestmark = pytest.mark.heavy


def test_products_are_those_of_the_layer() -> None:
    """Packed layers give the products of torch's own, for any number of rows, with bias and without."""
    model = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 24, bias=False))
    inputs = [torch.randn(rows, columns, 48) for rows, columns in ((1, 1), (8, 1), (3, 70))]
    with torch.inference_mode():
        expected = [model(x) for x in inputs]
        pack(model)
        found = [model(x) for x in inputs]

    assert [True, False, True] == [isinstance(layer, PackedLinear) for layer in model]
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
