"""Tests of unilect.engines.transformers.batch.cache: the KV cache of a batch."""

import pytest

from support.models.torchside import need

need("torch", "transformers")

import torch

from unilect.engines.transformers.batch.cache import BatchKVCache, RowStates


def states(length: int, value: float = 1.0) -> RowStates:
    """Keys and values of a row of one layer."""
    return [(torch.full((2, length, 4), value), torch.full((2, length, 4), value))]


def test_the_cache_is_bounded_by_the_longest_row() -> None:
    """Rows that join and leave at every step for ever need no more columns than the longest of them has tokens."""
    cache = BatchKVCache()
    cache.join(states(20))
    for step in range(3000):
        for row in reversed(range(cache.rows)):
            if cache.length(row) > 40:
                cache.leave(row)
        cache.join(states(20 + step % 3))
        cache.make_column()
        cache.layers[0].update(*(torch.ones(cache.rows, 2, 1, 4) for _ in range(2)))
        cache.advance()

    assert 256 == cache.layers[0].keys.shape[2]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_room_for_all_that_come(kind: torch.dtype) -> None:
    """Room for the rows that are expected is made at once, as zeros of the model's type, and what is there stays."""
    cache = BatchKVCache()
    cache.join([(keys.to(kind), values.to(kind)) for keys, values in states(10)])
    cache.expected_rows = 7
    cache.join([(keys.to(kind), values.to(kind)) for keys, values in states(3)])

    (layer,) = cache.layers
    assert (7, kind) == (layer.keys.shape[0], layer.keys.dtype)
    assert [20.0 * 4, 6.0 * 4, 0.0] == [float(layer.keys[row].sum()) for row in range(3)]


def test_values_of_no_numbers() -> None:
    """A layer that keeps keys alone, with values of no numbers, has room for them."""
    cache = BatchKVCache()
    cache.join([(torch.ones(2, 3, 4), torch.ones(2, 3, 0))])

    assert 0 == cache.layers[0].values.numel()


@pytest.mark.parametrize("after", [0, 5])
def test_what_is_no_number_goes_with_its_row(after: int) -> None:
    """A row whose numbers ran over leaves none of them behind for the next one."""
    cache = BatchKVCache()
    cache.join(states(10))
    cache.join(states(10, float("nan")))
    for _ in range(after):
        cache.make_column()
        cache.layers[0].update(*(torch.ones(2, 2, 1, 4) for _ in range(2)))
        cache.advance()
    cache.leave(1)
    cache.join(states(3))

    keys, values = cache.layers[0].update(*(torch.ones(2, 2, 1, 4) for _ in range(2)))
    assert not keys.isnan().any()
    assert not values.isnan().any()


def test_no_memory_to_move_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that cannot join for want of memory leaves what the others hold as it was, and may join later."""
    cache = BatchKVCache()
    layers = [*states(10), *states(10, 2.0)]
    cache.join(layers)

    def fails(*args: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", fails)
        with pytest.raises(MemoryError):
            cache.join([*states(20), *states(20, 2.0)])
    assert (1, 10) == (cache.rows, cache.length(0))
    for (keys, values), (before, _) in zip(cache.states(0), layers, strict=True):
        assert torch.equal(keys, before)
        assert torch.equal(values, before)
    cache.join([*states(20), *states(20, 2.0)])

    for row in range(2):
        sums = [float(keys.mean()) for keys, _ in cache.states(row)]
        assert [1.0, 2.0] == sums
