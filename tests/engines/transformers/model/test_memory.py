"""Tests of unilect.engines.transformers.model.memory: the memory of a folder's model, without torch."""

from typing import Any

import pytest

from unilect.api.backend import MemoryNeed
from unilect.core.errors import ModelTooLarge
from unilect.engines.transformers.model.memory import (
    gpu_need,
    grows_bytes,
    reckon_need,
    require_room,
    weight_bytes,
)
from unilect.runtime.gpus import GpuMemory

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


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"device": "cpu"}, (0, 0)),
        ({}, (2, 0)),
        ({"size_bytes": 2_600_000}, (1.3, 1.3)),
        ({"size_bytes": 9_000_000}, (4.5, 4.5)),
        ({"device": "cuda"}, (2, 0)),
        ({"device": "cuda:1"}, (0, 2)),
        ({"device": "cuda:0,1"}, (1, 1)),
        ({"device": "cuda", "dtype": "float32"}, (4, 0)),
        ({"device": "cuda", "cache_values": 1000}, (2 + 2 * 1000 * 1000 * 2 / 10**6, 0)),
    ],
)
def test_the_need_on_gpus(changes: dict[str, Any], expected: tuple[float, float]) -> None:
    """Weights, half as wide as on a processor, and the cache are on the GPUs that `device` names, else on as many as the weights take."""
    settings = SETTINGS | {"device": "auto", "cache_values": 0} | changes
    found = gpu_need(settings, [GpuMemory(1, 3_000_000)] * 2)

    assert expected == tuple(one / 10**6 for one in found or (0, 0))
    assert () == gpu_need(settings, [])


def test_need() -> None:
    """A narrower type halves the weights and the cache; each request in parallel takes a context of it."""
    whole, half = reckon_need(SETTINGS), reckon_need(SETTINGS | {"dtype": "float16"})

    assert not whole.measured
    assert 4_400_000 - 2_000_000 == whole.ready - half.ready
    assert 2 * (2 * 1000 + 2 * 1000) * 64 * 2 == whole.grows - half.grows
    assert 2 * 1000 * 64 * 4 == grows_bytes(SETTINGS | {"parallel": 3}, 4, 0) - grows_bytes(SETTINGS, 4, 0)  # fmt: skip
