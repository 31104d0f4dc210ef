"""Tests of unilect.engines.gguf.source: folders of GGUF files."""

import json
import shutil
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from support.servers.serving import KEY, Server, serve
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.core.errors import ConfigError
from unilect.demo import FOLDER, MODEL
from unilect.engines.gguf.source import choose_model, find_models
from unilect.models import sources


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two models, and of files that are none."""
    (tmp_path / "q8").mkdir()
    for name in ("a.gguf", "q8/b b-00001-of-00002.gguf", "q8/b b-00002-of-00002.gguf", "q8/a.gguf"):
        (tmp_path / name).symlink_to(MODEL)
    (tmp_path / "named-as-a-model.gguf").symlink_to(FOLDER / "lora-pirate.gguf")
    for name in ("mmproj-a.gguf", "imatrix.gguf", "ggml-vocab.gguf", "mtp-a.gguf", "notes.txt"):
        (tmp_path / name).write_bytes(b"GGUF")
    return tmp_path


def test_models_of_a_folder(folder: Path) -> None:
    """Each model has the name of its file, parts are one, and what goes with a model is none."""
    found = find_models(folder)

    assert {"a": "a.gguf", "b-b": "q8/b b-00001-of-00002.gguf", "q8-a": "q8/a.gguf"} == {
        name: str(path.relative_to(folder)) for name, path in found.items()
    }
    assert folder / "q8/a.gguf" == choose_model(folder, "q8-a")
    assert folder / "q8/a.gguf" == choose_model(folder / "q8", "a")
    with pytest.raises(ConfigError, match="holds no model c"):
        choose_model(folder, "c")
    with pytest.raises(ConfigError, match="Name one of its files"):
        choose_model(folder, None)


def test_a_folder_with_what_cannot_be_read(folder: Path) -> None:
    """A link to itself hides no other model of its folder, and a folder that is gone is told."""
    for name in ("loop.gguf", "q8/loop.gguf"):
        (folder / name).symlink_to("loop.gguf")

    assert {"a", "b-b", "q8-a"} == set(find_models(folder))
    with pytest.raises(ConfigError, match="cannot be read"):
        find_models(folder / "gone")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"source": str(MODEL), "model": "a"}, "model: is for a folder"),
        ({"source": str(MODEL), "model": "*"}, "model: is for a folder"),
        ({"source": "demo:", "model": "a"}, "model: is for an upstream or a folder"),
        ({"source": "FOLDER", "model": "c"}, "holds no model c"),
        ({"source": ["FOLDER", "FOLDER/q8"], "model": "*"}, "needs one source"),
    ],
)
def test_tables_that_mean_no_model(folder: Path, table: dict[str, object], said: str) -> None:
    """A model's name is for a folder, and one that it has."""
    text = json.dumps(table).replace("FOLDER", str(folder))
    config = Config(models={"m": ModelConfig(**json.loads(text))})

    with pytest.raises(ConfigError, match=said):
        sources.registry(config)


def ask(server: Server, path: str, **body: object) -> dict[str, object]:
    """The answer of a server, or its error."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    data = json.dumps(body).encode() if body else None
    try:
        with urlopen(Request(f"{server.url}/{path}", data, headers), timeout=60) as answer:
            return dict(json.load(answer))
    except HTTPError as error:
        return dict(json.load(error))


@pytest.mark.heavy
def test_a_folder_is_served(folder: Path) -> None:
    """All models of a folder are served, each from its first request on, also one that comes later; a broken file is left out and told, and another folder has its own."""
    (folder / "q8/a.gguf").unlink()
    (folder / "broken.gguf").write_bytes(MODEL.read_bytes()[:3000])
    second = folder / "second"
    second.mkdir()
    shutil.copy(MODEL, second / "c.gguf")
    with serve(str(folder), str(second), "--api-key", KEY, "--context", "256") as server:
        before = [one["id"] for one in ask(server, "models")["data"]]  # type: ignore[attr-defined]
        shutil.copy(MODEL, folder / "new.gguf")
        answers = {name: ask(server, "completions", model=name, prompt="Hi", max_tokens=2) for name in ("a", "new", "c", "broken")}  # fmt: skip
        log = server.log.read_text()

    assert {"a", "b-b", "c"} == {*before}
    assert ["error"] == [name for name in answers["broken"] if name == "error"]
    for name in ("a", "new", "c"):
        assert name == answers[name]["model"]
    assert "its model broken is left out" in log
    assert "b-b: starting" not in log
