"""Tests of unilect.cli._given: models of a command line, beside a file, and what is said of their names."""

import os
import shutil
from pathlib import Path

import pytest

from support.servers.configured import merged
from unilect.cli._given import Given, read
from unilect.core.errors import ConfigError
from unilect.demo import MODEL


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with models, and a configuration that has one of its own."""
    for name in list(os.environ):
        if name.startswith("UNILECT_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    for folder in ("one", "two", "my models"):
        Path(folder).mkdir()
    for file in ("a.gguf", "one/model.gguf", "two/model.gguf", "my models/Modèle ü 模型.gguf"):
        Path(file).symlink_to(MODEL)
    Path("main.toml").write_text('[models.f]\nsource = "demo:"\n')


def given(*models: str, config: str | None = None) -> Given:
    """A command line."""
    return Given(models, None if config is None else Path(config), {}, {})


def test_a_name_of_both() -> None:
    """A name on the command line that a model of the file has is an error that names both and a way out."""
    with pytest.raises(ConfigError) as raised:
        merged(["f=a.gguf"], Path("main.toml"), {}, {})

    assert "a.gguf: the name `f` is also that of a model in main.toml." in str(raised.value)
    assert "f-2=a.gguf" in str(raised.value)


def test_mistakes_of_both() -> None:
    """A mistake in the file is told with its line, and one of the command line without one."""
    Path("main.toml").write_text('[models.f]\nsource = "demo:"\nfallback = "gone"\n')
    _, mistakes = read(given("a.gguf", "b=nothing", config="main.toml"))
    origin = given("a.gguf", config="main.toml").origin

    assert any("main.toml:3: models.f.fallback" in str(error) for error in mistakes.errors)
    told = origin.locate([ConfigError("models.a: x", ("models", "a", "source")), ConfigError("models.f: y", ("models", "f", "source"))])  # fmt: skip
    assert ["main.toml:2: models.f: y", "models.a: x"] == [str(error) for error in told]


def test_flags_are_for_the_command_line() -> None:
    """Flags about engines are for the models of the command line, where there are some."""
    models = merged(["a.gguf"], Path("main.toml"), {}, {"context": 64}).models

    assert {"a": 64, "f": None} == {name: table.context for name, table in models.items()}


def test_two_models_of_one_name() -> None:
    """Two files under one name are an error; a file and a server are two backends of a model."""
    with pytest.raises(ConfigError) as raised:
        merged(["a=a.gguf", "a=one/model.gguf"], None, {}, {})
    both = merged(["a=a.gguf", "a=http://h/v1"], None, {}, {}).models["a"]

    assert "the name `a` is given to a.gguf, too" in str(raised.value)
    assert "a=a.gguf a-2=one/model.gguf" in str(raised.value)
    assert ["a.gguf", "http://h/v1"] == both.sources


def test_notes() -> None:
    """A name that is not the file's own is said, with why and how another is chosen; one that was given is not."""
    notes = given("my models/Modèle ü 模型.gguf", "one/model.gguf", "two/model.gguf", "x=a.gguf").notes  # fmt: skip

    assert [
        "my models/Modèle ü 模型.gguf is served as `Modèle-ü-模型`.",
        "two/model.gguf is served as `model-2`, since another model has that name.",
    ] == [note.partition(" Write ")[0] for note in notes]
    assert all("Write NAME=" in note for note in notes)


def test_a_url_of_a_file() -> None:
    """`file:` before a path is the path, also with percent signs and in a configuration."""
    shutil.copy(MODEL, "x y.gguf")
    Path("main.toml").write_text('[models.f]\nsource = "file:a.gguf"\n')
    config = merged([f"file://{Path('x%20y.gguf').absolute()}"], Path("main.toml"), {}, {})

    assert {"x-y": str(Path("x y.gguf").absolute()), "f": "a.gguf"} == {
        name: table.source for name, table in config.models.items()
    }
