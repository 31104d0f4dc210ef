"""Tests of unilect.engines.transformers.model.memory: the memory of a folder's model, without torch."""

from typing import Any

import pytest

from unilect.api.backend import MemoryNeed
from unilect.core.errors import ModelTooLarge
from unilect.engines.transformers.model.memory import (
    grows_bytes,
    reckon_need,
    require_room,
    weight_bytes,
)

SETTINGS = {
    "dtype": "auto",
    "quantize": None,
    "size_bytes": 2_000_000,
    "stored_bytes": 2,
    "embedding_values": 100_000,
    "generates": True,
    "tied": True,
    "cache_values": 64,
    "context": 1000,
    "parallel": 2,
}


@pytest.mark.parametrize(
    ("changes", "weights"),
    [
        ({}, 4 * 1_100_000),
        ({"generates": False}, 4 * 1_000_000),
        ({"tied": False}, 4 * 1_000_000),
        ({"stored_bytes": 4}, 4 * 600_000),
        ({"quantize": "8bit"}, 4 * 100_000 + 1_000_000),
    ],
)
def test_weights(changes: dict[str, Any], weights: int) -> None:
    """Weights take the width that they are loaded with, the output once more where it is packed apart from the embeddings."""
    assert weight_bytes(SETTINGS | changes, 4, on_processor=True, packs=True) == weights


def test_what_can_never_fit() -> None:
    """A model with more weights than there is memory is refused for good, with its size and what to do; on a GPU nothing is known."""
    with pytest.raises(ModelTooLarge, match=r"^m can never fit.*takes 9000\.0 GB.*bfloat16"):
        require_room("m", MemoryNeed(9000 * 10**9), "cpu")

    require_room("m", MemoryNeed(10**6), "cpu")


def test_need() -> None:
    """A narrower type halves the weights and the cache; each request in parallel takes a context of it."""
    whole, half = reckon_need(SETTINGS), reckon_need(SETTINGS | {"dtype": "float16"})

    assert not whole.measured
    assert 4_400_000 - 2_000_000 == whole.ready - half.ready
    assert 2 * (2 * 1000 + 2 * 1000) * 64 * 2 == whole.grows - half.grows
    assert 2 * 1000 * 64 * 4 == grows_bytes(SETTINGS | {"parallel": 3}, 4, 0) - grows_bytes(SETTINGS, 4, 0)  # fmt: skip
