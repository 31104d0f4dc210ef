"""doubts.py: what is allowed among the tables of models, and hardly meant."""

from pathlib import Path

from unilect.config.model import ModelConfig
from unilect.config.presets import resolve_presets
from unilect.models import sources
from unilect.models.doubts import cores, doubts


def test_a_file_that_is_loaded_twice(tmp_path: Path) -> None:
    """Two models of one file are told, with how one is a preset of the other; a preset is not."""
    file = str(tmp_path / "m.gguf")
    tables = {"a": ModelConfig(source=file), "c": ModelConfig(base="a")}
    twice = tables | {"b": ModelConfig(source=file)}

    assert [] == list(doubts(resolve_presets(tables), sources.kinds))
    (told,) = doubts(resolve_presets(twice), sources.kinds)
    assert "models.b: its file is that of models.a, too" in told
    assert 'write `base = "a"` instead of `source`' in told


def test_more_threads_than_cores(tmp_path: Path) -> None:
    """An engine with more threads than there are cores is told."""
    table = ModelConfig(source=str(tmp_path / "m.gguf"), threads=cores() + 1)

    (told,) = doubts({"a": table}, sources.kinds)
    assert f"{cores() + 1} threads on {cores()} cores" in told
