"""Tests of unilect.engines.gguf._quantization."""

import pytest

from unilect.engines.gguf._quantization import name_quantization


@pytest.mark.parametrize(
    ("file_type", "tensors", "name"),
    [
        (15, {12: 90, 14: 10}, "Q4_K_M"),
        (1, {2: 90, 14: 10}, "Q4_0"),
        (7, {8: 100}, "Q8_0"),
        (None, {30: 5}, "BF16"),
        (1, {30: 5}, "BF16"),
        (38, {39: 9, 8: 1}, "MXFP4"),
        (15, {}, "Q4_K_M"),
        (None, {}, None),
        ("x", {99: 1}, None),
        (-1, {12: 1}, "Q4_K"),
    ],
)
def test_names(file_type: object, tensors: dict[int, int], name: str | None) -> None:
    """A file's own name of its quantization is told, unless most of its weights have another number of bits."""
    assert name == name_quantization(file_type, tensors)
