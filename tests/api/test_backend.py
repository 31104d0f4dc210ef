"""Tests of unilect.api.backend: what the backends of a configuration share."""

from itertools import count

import pytest
from msgspec.structs import replace

from unilect.api import backend
from unilect.api.backend import BackendSpec
from unilect.config.model import ModelConfig


def test_what_another_backend_has_found_a_moment_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backends of a configuration look once for the same, and again when some time has passed; those of another one look themselves."""
    now, numbers = [0.0], count()
    monkeypatch.setattr(backend, "monotonic", lambda: now[0])
    one, other = (
        BackendSpec("m", "gguf", "", ModelConfig(), 1, print, shared={}) for _ in range(2)
    )

    def look() -> int:
        return next(numbers)

    assert [0, 0] == [spec.recall("a", look) for spec in (one, replace(one, name="n"))]
    assert (1, 2) == (one.recall("b", look), other.recall("a", look))
    now[0] = 0.9
    assert 0 == one.recall("a", look)
    now[0] = 1.1
    assert 3 == one.recall("a", look)
