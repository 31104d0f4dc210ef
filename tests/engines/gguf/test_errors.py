"""Tests of unilect.engines.gguf._errors, on bodies as llama.cpp's server sends them."""

import pytest

from unilect.engines.gguf._errors import raise_for_child
from unilect.errors import InvalidRequest, MemoryExhausted


@pytest.mark.parametrize("status", [400, 500])
def test_want_of_memory(status: int) -> None:
    """What fails for want of memory is no fault of the request, also where the server says that it is one."""
    body = b'{"error": {"code": 1, "message": "Failed to parse: std::bad_alloc", "type": "x"}}'
    with pytest.raises(MemoryExhausted):
        raise_for_child(status, {}, body)
    with pytest.raises(InvalidRequest):
        raise_for_child(400, {}, body.replace(b"bad_alloc", b"length_error"))
