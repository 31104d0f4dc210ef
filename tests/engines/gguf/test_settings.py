"""Tests of unilect.engines.gguf._settings: what a child is told of its model."""

import shutil
from pathlib import Path

import pytest

from unilect.demo import MODEL
from unilect.engines.gguf._file import read_head
from unilect.engines.gguf._settings import _TAKEN_BY, load_recorder, to_try


@pytest.mark.parametrize("given", [None, "{{ messages[0].content }}"])
def test_templates_of_a_file_of_somebody_else(tmp_path: Path, given: str | None) -> None:
    """A file's own chat templates are tried, or the one that replaces them."""
    path = tmp_path / "model.gguf"
    shutil.copy(MODEL, path)
    head = read_head(path)

    assert to_try(path, head, given) == ([given] if given else head.templates)
    assert head.templates


def test_the_key_of_a_load(tmp_path: Path) -> None:
    """A load is another one with another draft, projector or later file of the model, and as it was before once they are."""
    names = ("m-00001-of-00002", "m-00002-of-00002", "d", "p")
    files = [tmp_path / f"{name}.gguf" for name in names]
    for file in files:
        file.write_bytes(b"x")
    settings = dict.fromkeys(_TAKEN_BY) | {"lora": [], "needs": {"weights": 1}}
    settings |= {"speculative": str(files[2]), "mmproj": str(files[3])}

    def key(**other: int) -> str:
        return load_recorder(files[0], settings | other).key

    keys = [key(draft_max=3), key()]
    for file in files[1:]:
        file.write_bytes(b"xx")
        keys.append(key())

    assert len(keys) == len(set(keys))
    assert key() == keys[-1]


def test_template_of_the_bundled_model(tmp_path: Path) -> None:
    """The bundled model's own chat template is not tried, under another name neither; one that is given for it is."""
    link = tmp_path / "link.gguf"
    link.symlink_to(MODEL)
    head = read_head(MODEL)

    assert to_try(MODEL, head, None) == to_try(link, head, None) == []
    assert to_try(MODEL, head, "{{ 1 }}") == ["{{ 1 }}"]
