"""Tests of unilect.engines.gguf._projector."""

import logging
import shutil
from pathlib import Path

import pytest

from support.models import tiny_gguf
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.core.errors import ConfigError
from unilect.demo import MODEL
from unilect.models import sources


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, and its projector."""
    tiny_gguf.make(tmp_path / "v-F32.gguf")
    tiny_gguf.make_projector(tmp_path / "mmproj-v.gguf")
    return tmp_path


def sees(model: Path, **settings: object) -> bool:
    """A model takes images."""
    table = ModelConfig(source=str(model), **settings)  # type: ignore[arg-type]
    registry = sources.registry(Config(models={"m": table}))
    return registry.get("m").capabilities.vision


def test_the_projector_beside_a_model(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model sees through the projector beside its file, which the log says, unless its table says otherwise."""
    caplog.set_level(logging.INFO)

    assert sees(folder / "v-F32.gguf")
    assert "m: sees through mmproj-v.gguf" in caplog.text
    assert not sees(folder / "v-F32.gguf", mmproj="")
    assert not sees(folder / "v-F32.gguf", slot_save_path=str(folder))
    assert not sees(folder / "v-F32.gguf", keep_conversations="1GiB")
    with pytest.raises(ConfigError, match="mmproj: There is no file"):
        sees(folder / "v-F32.gguf", mmproj=str(folder / "gone.gguf"))


def test_a_projector_that_comes_later(folder: Path) -> None:
    """A projector that comes into a folder, or goes, is seen by the next model that is made."""
    (folder / "mmproj-v.gguf").rename(folder.parent / "mmproj-v.gguf")
    assert not sees(folder / "v-F32.gguf")
    (folder.parent / "mmproj-v.gguf").rename(folder / "mmproj-v.gguf")
    assert sees(folder / "v-F32.gguf")
    (folder / "mmproj-v.gguf").unlink()
    assert not sees(folder / "v-F32.gguf")


def test_a_folder_of_a_quantization(folder: Path) -> None:
    """A projector may stand above the folder of a quantization."""
    (folder / "F32").mkdir()
    (folder / "v-F32.gguf").rename(folder / "F32/v-F32.gguf")

    assert sees(folder / "F32/v-F32.gguf")


def test_a_projector_of_another_model(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A projector of another width, of another name, or that is none, is not used."""
    caplog.set_level(logging.INFO)
    shutil.copy(MODEL, folder / "w-F32.gguf")

    assert sees(folder / "v-F32.gguf")
    assert not sees(folder / "w-F32.gguf")
    (folder / "v-F32.gguf").unlink()
    assert not sees(folder / "w-F32.gguf")
    assert "is not used: it says that it is for models of width" in caplog.text
    (folder / "mmproj-v.gguf").write_bytes(b"GGUF")
    assert not sees(folder / "w-F32.gguf")
