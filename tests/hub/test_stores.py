"""Tests of unilect.hub.stores, with made-up stores of three programs in a home of their own."""

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from unilect.core.errors import ConfigError
from unilect.demo import MODEL
from unilect.hub import stored
from unilect.hub.stores import find_file, find_in_ollama, list_foreign, plain_name
from unilect.models.source_names import name_source
from unilect.models.sources import split

_OLLAMA = "application/vnd.ollama.image"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the bundled model in each store."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    add_ollama(
        tmp_path / ".ollama/models", "registry.ollama.ai/library/qwen3/4b", MODEL.read_bytes()
    )
    for place in (".lmstudio/models/org/repo/x-Q8_0.gguf", ".cache/llama.cpp/org_repo_x.gguf"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_bytes(MODEL.read_bytes())
    return tmp_path


def add_ollama(store: Path, name: str, content: bytes, *layers: tuple[str, str]) -> Path:
    """Put a model into a store of Ollama, with further layers; the manifest's path."""
    digest = sha256(content).hexdigest()
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    (store / f"blobs/sha256-{digest}").write_bytes(content)
    manifest = store / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    every = [(f"{_OLLAMA}.model", f"sha256:{digest}"), (f"{_OLLAMA}.template", "sha256:0"), *layers]
    listed = [{"mediaType": kind, "digest": one, "size": 1} for kind, one in every]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": listed}))
    return manifest


def test_models_of_others(home: Path) -> None:
    """What other programs have is listed by names that are served, each by the name that it has there."""
    found = {one.name: one for one in list_foreign()}

    assert ["ollama:qwen3:4b", "lmstudio:org/repo/x-Q8_0.gguf", "llama.cpp:org_repo_x.gguf"] == [*found]  # fmt: skip
    for name, entry in found.items():
        assert ("gguf", str(entry.path)) == split(name)
        assert MODEL.read_bytes() == entry.path.read_bytes()
        assert () == entry.removes
    assert ["qwen3:4b", "x-Q8_0", "org_repo_x"] == [name_source(name)[0] for name in found]


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("registry.ollama.ai/library/a/latest", ["a", "a:latest", "library/a", "A:Latest", "registry.ollama.ai/library/a"]),
        ("registry.ollama.ai/me/a/q8", ["me/a:q8"]),
        ("hf.co/org/a-gguf/q4_k_m", ["hf.co/org/a-gguf:Q4_K_M"]),
    ],
)  # fmt: skip
def test_names_of_ollama(home: Path, place: str, names: list[str]) -> None:
    """A model is found by each spelling of its name that Ollama takes."""
    add_ollama(home / ".ollama/models", place, b"GGUF other")

    for name in names:
        assert b"GGUF other" == find_file(f"ollama:{name}").read_bytes()
    assert find_in_ollama("a:other") is None


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("ollama:none", "no such model in the store of Ollama. There are: qwen3:4b. Set OLLAMA_MODELS"),
        ("lmstudio:none", "no such model in the store of LM Studio. There are: org/repo/x-Q8_0.gguf."),
        ("llama.cpp:../../x.gguf", "no such model in the store of llama.cpp. There are: org_repo_x.gguf."),
        ("qwen3:4b", "The store of Ollama has a model of that name: ollama:qwen3:4b."),
    ],
)  # fmt: skip
def test_what_a_store_has_not(home: Path, source: str, said: str) -> None:
    """A name that a store has not is told with those that it has; a bare name with the store that has it."""
    with pytest.raises(ConfigError) as raised:
        split(source)

    assert str(raised.value).startswith(f"{source}: ")
    assert said in str(raised.value)


def test_where_stores_are(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of these programs say where their stores are; a model whose file is gone is none."""
    store = home / "elsewhere"
    manifest = add_ollama(store, "registry.ollama.ai/library/b/latest", b"GGUF b")
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    monkeypatch.setenv("LLAMA_CACHE", str(home / "nowhere"))
    there = [one.name for one in list_foreign()]
    (blob,) = (store / "blobs").iterdir()
    blob.unlink()

    assert ["ollama:b:latest", "lmstudio:org/repo/x-Q8_0.gguf"] == there
    assert ["lmstudio:org/repo/x-Q8_0.gguf"] == [one.name for one in list_foreign()]
    assert manifest.exists()


def test_hostile_stores(home: Path) -> None:
    """Digests that are paths, endless or nested manifests, pipes, devices, loops of links and adapters are passed over."""
    store = home / ".ollama/models"
    library = store / "manifests/registry.ollama.ai/library/evil"
    library.mkdir(parents=True)
    (home / "secret").write_bytes(b"GGUF")
    layer = {"mediaType": f"{_OLLAMA}.model", "digest": "sha256:../../../secret"}
    for number, text in enumerate(
        (
            json.dumps({"layers": [layer]}),
            json.dumps({"layers": [layer | {"digest": "sha256-" + "0" * 64}]}),
            json.dumps({"layers": "x"}),
            "[" * 900_000,
            '{"layers": [' + '{"mediaType": "m", "digest": "d"},' * 100_000,
            "\x00\xff",
            "",
        )
    ):
        (library / str(number)).write_text(text)
    os.mkfifo(library / "pipe")
    (library / "zero").symlink_to("/dev/zero")
    (store / "manifests/loop").symlink_to(store / "manifests")
    (home / ".lmstudio/models/root").symlink_to("/")
    (home / ".lmstudio/models/org/repo/gone.gguf").symlink_to(home / "gone")
    add_ollama(store, "registry.ollama.ai/library/tuned/latest", b"GGUF t", (f"{_OLLAMA}.adapter", "sha256:0"))  # fmt: skip

    assert 3 == len(list_foreign())


def test_links_in_a_store(home: Path) -> None:
    """A link to itself hides no other model, and a link to a model is as large as it."""
    folder = home / ".lmstudio/models/org/repo"
    (folder / "a.gguf").symlink_to("a.gguf")
    (folder / "z.gguf").symlink_to(MODEL)
    found = {one.name: one.size for one in list_foreign() if one.store == "LM Studio"}

    assert dict.fromkeys(["lmstudio:org/repo/x-Q8_0.gguf", "lmstudio:org/repo/z.gguf"], MODEL.stat().st_size) == found  # fmt: skip


def test_others_models_are_not_removed(home: Path) -> None:
    """Nothing of another program's store is removed."""
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}

    assert 0 == stored.remove(list_foreign())
    assert before == {path: path.stat().st_mtime_ns for path in home.rglob("*")}


def test_plain_names() -> None:
    """A source of a store is called as its last part."""
    assert "qwen3:4b" == plain_name("ollama:me/qwen3:4b")
    assert "x" * 300_000 == plain_name("ollama://" + "x" * 300_000)
