"""Tests of unilect.engines.transformers.model.int8."""

import pytest

from support.models.torchside import need

need("torch")

import torch
from torch import nn

from unilect.engines.transformers.model.int8 import Int8Linear, quantize

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("bias", [True, False])
def test_products_are_near(bias: bool) -> None:
    """Products are within two parts in a hundred of the layer's, for any number of rows, of zeros and of huge numbers too."""
    layer = nn.Linear(256, 96, bias=bias)
    narrow = Int8Linear(layer)
    with torch.inference_mode():
        for rows, columns in ((1, 1), (8, 1), (3, 70)):
            for size in (1e-6, 1.0, 1e6):
                x = size * torch.randn(rows, columns, 256)
                expected = layer(x)
                assert (narrow(x) - expected).norm() <= 0.02 * expected.norm()
        zeros = torch.zeros(2, 1, 256)
        assert torch.allclose(layer(zeros), narrow(zeros))


def test_rows_are_alone() -> None:
    """A row's product is the same to the bit, whatever numbers stand beside it."""
    narrow = Int8Linear(nn.Linear(256, 96))
    row, huge = torch.randn(1, 1, 256), 1e4 * torch.randn(7, 1, 256)
    with torch.inference_mode():
        assert torch.equal(narrow(row)[0], narrow(torch.cat([huge, row]))[7])


def test_a_model_in_place() -> None:
    """All linear layers of a model become narrow, and a narrow type is refused."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8)))
    quantize(model)
    assert [True, True] == [isinstance(layer, Int8Linear) for layer in (model[0], model[1][1])]

    with pytest.raises(ValueError, match=r"quantize: .* float32"):
        quantize(nn.Sequential(nn.Linear(8, 8).bfloat16()))
