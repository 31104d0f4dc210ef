"""Tests of unilect.engines.gguf._errors, on bodies as llama.cpp's server sends them."""

import msgspec
import pytest

from unilect.core.errors import InvalidRequest, MemoryExhausted
from unilect.engines.gguf._errors import raise_for_child


@pytest.mark.parametrize("status", [400, 500])
def test_want_of_memory(status: int) -> None:
    """What fails for want of memory is no fault of the request, also where the server says that it is one."""
    body = b'{"error": {"code": 1, "message": "Failed to parse: std::bad_alloc", "type": "x"}}'
    with pytest.raises(MemoryExhausted):
        raise_for_child(status, {}, body)
    with pytest.raises(InvalidRequest):
        raise_for_child(400, {}, body.replace(b"bad_alloc", b"length_error"))


def refused(message: str) -> InvalidRequest:
    """What is made of an error of the child's with this message."""
    with pytest.raises(InvalidRequest) as caught:
        raise_for_child(500, {}, msgspec.json.encode({"error": {"code": 500, "message": message}}))
    return caught.value


def test_the_words_of_a_template() -> None:
    """What stands behind the last place is told; a message that repeats a long conversation, with places in it, holds nobody up."""
    place = "While executing x at line 1\n{{ x }}\n     ^\nError: "
    assert (
        "them: Jinja is hard." in refused(f"{place}{place}Jinja Exception: Jinja is hard").message
    )
    many = "While executing x\n   ^\n" * 200_000
    assert "them: no." in refused(f"{many}\n ^\nError: no").message
