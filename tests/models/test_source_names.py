"""Tests of unilect.models.source_names; tests/models/test_sources.py has the names of more sources."""

import pytest

from unilect.config.model import name_from, wrong_name
from unilect.models.source_names import name_source, rename_note


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Modèle ü 模型", "Modèle-ü-模型"),
        ("Mode\u0300le", "Modèle"),
        ("हिन्दी मॉडल", "हिन्दी-मॉडल"),
        ("a  (1)", "a-1"),
        ("x\u202ey", "x-y"),
        ("", "model"),
        ("?" * 9, "model"),
        ("é" * 200, "é" * 128),
    ],
)
def test_a_name_of_a_text(text: str, name: str) -> None:
    """Letters of any script stay, in one spelling, and what a name cannot have becomes one `-`."""
    assert name == name_from(text)
    assert wrong_name(name) is None


@pytest.mark.parametrize("name", ["a b", "x\n", "x\u202ey", "a\u200bb", "", "é" * 129, "a?"])
def test_no_name(name: str) -> None:
    """Blanks, controls and marks that are not seen are in no name."""
    assert wrong_name(name) is not None


def test_a_note() -> None:
    """A note is about a name that is not the source's own and was not given."""
    assert "" == rename_note("x", "a/x.gguf")
    assert "" == rename_note("default", "http://h/v1")
    assert "" == rename_note("y", "y=a/x.gguf")
    assert "another model has that name" in rename_note("x-2", "a/x.gguf")
    name, _ = name_source("a/x y.gguf")
    assert "is served as `x-y`. " in rename_note(name, "a/x y.gguf")
