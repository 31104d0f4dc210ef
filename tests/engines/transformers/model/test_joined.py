"""Tests of unilect.engines.transformers.model.joined."""

import pytest

from support.models.torchside import need

need("torch")

import torch
from torch import Tensor, nn

from unilect.engines.transformers.model.joined import Joined, Part, join

pytestmark = pytest.mark.heavy


class Attention(nn.Module):
    """What reads one input three times, or another one for keys and values."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q_proj = nn.Linear(16, 24, bias)
        self.k_proj = nn.Linear(16, 8, bias)
        self.v_proj = nn.Linear(16, 8, bias)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """All three products."""
        return torch.cat([self.q_proj(x), self.k_proj(other), self.v_proj(other)], -1)


@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_the_layers(bias: bool) -> None:
    """Joined layers give the products of each, in any order, again and again, also when they read different inputs."""
    model = Attention(bias)
    x, other = torch.randn(2, 3, 16), torch.randn(2, 3, 16)
    with torch.inference_mode():
        expected = [model(*inputs) for inputs in ((x, x), (x, other), (other, x), (x, x))]
        join(model)
        found = [model(*inputs) for inputs in ((x, x), (x, other), (other, x), (x, x))]
        again = model.v_proj(x), model.v_proj(x)

    assert all(isinstance(layer, Part) for layer in (model.q_proj, model.k_proj, model.v_proj))
    for one, two in zip(expected, found, strict=True):
        assert torch.allclose(one, two, atol=1e-6)
    assert torch.equal(*again)


def test_one_product_for_all() -> None:
    """Layers that read the same input are multiplied once, and keep nothing when all have been asked."""
    model = Attention(False)
    join(model)
    joined = next(module for module in model.modules() if isinstance(module, Joined))
    products = []
    joined.linear.register_forward_hook(lambda *_: products.append(1))
    x = torch.randn(1, 1, 16)
    with torch.inference_mode():
        model(x, x)
        model(x, x)

    assert 2 == len(products)
    assert joined._x is None
    assert not joined._products


def test_what_differs_stays_apart() -> None:
    """Layers of which only one has a bias, or that are of another kind, are left alone."""
    model = Attention(False)
    model.k_proj = nn.Linear(16, 8, bias=True)
    join(model)

    assert type(model.q_proj) is nn.Linear
