"""Tests of unilect.engines.transformers._cache: the slab of a batch."""

import pytest

from torchside import need

need("torch", "transformers")

import torch

from unilect.engines.transformers._cache import RowStates, Slab


def states(length: int, value: float = 1.0) -> RowStates:
    """Keys and values of a row of one layer."""
    return [(torch.full((2, length, 4), value), torch.full((2, length, 4), value))]


def test_the_slab_is_bounded_by_the_longest_row() -> None:
    """Rows that join and leave at every step for ever need no more columns than the longest of them has tokens."""
    slab = Slab()
    slab.join(states(20))
    for step in range(3000):
        for row in reversed(range(slab.rows)):
            if slab.length(row) > 40:
                slab.leave(row)
        slab.join(states(20 + step % 3))
        slab.make_column()
        slab.layers[0].update(*(torch.ones(slab.rows, 2, 1, 4) for _ in range(2)))
        slab.advance()

    assert 256 == slab.layers[0].keys.shape[2]


@pytest.mark.parametrize("after", [0, 5])
def test_what_is_no_number_goes_with_its_row(after: int) -> None:
    """A row whose numbers ran over leaves none of them behind for the next one."""
    slab = Slab()
    slab.join(states(10))
    slab.join(states(10, float("nan")))
    for _ in range(after):
        slab.make_column()
        slab.layers[0].update(*(torch.ones(2, 2, 1, 4) for _ in range(2)))
        slab.advance()
    slab.leave(1)
    slab.join(states(3))

    keys, values = slab.layers[0].update(*(torch.ones(2, 2, 1, 4) for _ in range(2)))
    assert not keys.isnan().any()
    assert not values.isnan().any()
