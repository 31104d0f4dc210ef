"""Tests of unilect.engines.gguf._settings: what a child is told of its model."""

import shutil
from pathlib import Path

import pytest

from unilect.demo import MODEL
from unilect.engines.gguf._file import read_head
from unilect.engines.gguf._settings import to_try


@pytest.mark.parametrize("given", [None, "{{ messages[0].content }}"])
def test_templates_of_a_file_of_somebody_else(tmp_path: Path, given: str | None) -> None:
    """A file's own chat templates are tried, or the one that replaces them."""
    path = tmp_path / "model.gguf"
    shutil.copy(MODEL, path)
    head = read_head(path)

    assert to_try(path, head, given) == ([given] if given else head.templates)
    assert head.templates


def test_template_of_the_bundled_model(tmp_path: Path) -> None:
    """The bundled model's own chat template is not tried, under another name neither; one that is given for it is."""
    link = tmp_path / "link.gguf"
    link.symlink_to(MODEL)
    head = read_head(MODEL)

    assert to_try(MODEL, head, None) == to_try(link, head, None) == []
    assert to_try(MODEL, head, "{{ 1 }}") == ["{{ 1 }}"]
