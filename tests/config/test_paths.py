"""Tests of unilect.config.paths."""

from pathlib import Path

import pytest

from unilect.config.model import ModelConfig
from unilect.config.paths import move_paths, resolve_paths
from unilect.config.server import Config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a file, with a model's folder and one that is called as the bundled model is; not where the server runs."""
    for name in ("org/name", "model", "demo"):
        (tmp_path / "etc" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    return tmp_path / "etc"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x.gguf", "FOLDER/x.gguf"),
        ("a/x.gguf", "FOLDER/a/x.gguf"),
        ("gguf:x.gguf", "gguf:FOLDER/x.gguf"),
        ("gguf:a/x.gguf", "gguf:FOLDER/a/x.gguf"),
        ("./a", "FOLDER/a"),
        ("model", "FOLDER/model"),
        ("hf:model", "hf:FOLDER/model"),
        ("hf:./other", "hf:FOLDER/other"),
        ("chatglm:x.bin", "chatglm:FOLDER/x.bin"),
        ("~/x.gguf", "/home/me/x.gguf"),
        ("gguf:~/x.gguf", "gguf:/home/me/x.gguf"),
        ("/abs/x.gguf", "/abs/x.gguf"),
        ("org/name", "FOLDER/org/name"),  # there is such a folder
        ("hf:org/name", "hf:FOLDER/org/name"),
        ("org/other", "org/other"),
        ("hf:org/other", "hf:org/other"),
        ("gguf:org/repo/x.gguf", "gguf:org/repo/x.gguf"),
        ("org/repo/x.gguf", "org/repo/x.gguf"),
        ("gguf:org/repo:Q4_K_M", "gguf:org/repo:Q4_K_M"),
        ("http://h/v1", "http://h/v1"),
        ("llamacpp+http://h", "llamacpp+http://h"),
        ("mine:x.gguf", "mine:x.gguf"),
        ("demo", "demo"),
        ("demo:", "demo:"),
        ("", ""),
        ("nothing", "nothing"),
    ],
)
def test_sources(folder: Path, source: str, expected: str) -> None:
    """A source that is a path is relative to the file; what may be on the hub and is not here, and a URL, stay as they are."""
    expected = expected.replace("FOLDER", str(folder))

    assert {"source": expected} == resolve_paths({"source": source}, ModelConfig, folder)
    assert {"source": [expected, "demo:"]} == resolve_paths(
        {"source": [source, "demo:"]}, ModelConfig, folder
    )


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("mmproj", "x.gguf", "FOLDER/x.gguf"),
        ("slot_save_path", "slots", "FOLDER/slots"),
        ("tokenizer", "../tok", "FOLDER/../tok"),
        ("tokenizer", "~/tok", "/home/me/tok"),
        ("lora", ["x.gguf", "y.gguf=0.5", "a=b.gguf", "~/z=1e-1"], ["FOLDER/x.gguf", "FOLDER/y.gguf=0.5", "FOLDER/a=b.gguf", "/home/me/z=1e-1"]),
        ("chat_template", "t.jinja", "FOLDER/t.jinja"),
        ("chat_template", "a/t", "FOLDER/a/t"),
        ("chat_template", "vicuna_v1.1", "vicuna_v1.1"),
        ("chat_template", "{{ messages }}/x.jinja", "{{ messages }}/x.jinja"),
        ("chat_template", "${DIR}/x.jinja", "FOLDER/${DIR}/x.jinja"),
        ("completion_template", "alpaca-completion", "alpaca-completion"),
        ("completion_template", "c.txt", "FOLDER/c.txt"),
        ("model", "a/b.gguf", "a/b.gguf"),
    ],
)  # fmt: skip
def test_options(folder: Path, option: str, value: object, expected: object) -> None:
    """Paths of options are relative to the file; names of formats, Jinja and what is no path stay as they are."""
    told = resolve_paths({option: value, "context": 5}, ModelConfig, folder)

    assert {option: expected, "context": 5} == {
        name: eval(repr(one).replace(str(folder), "FOLDER")) for name, one in told.items()
    }


def test_without_a_file(folder: Path) -> None:
    """On the command line and in the environment paths stay relative to the working directory, but for `~`."""
    given = {"source": "x.gguf", "lora": ["y"], "chat_template": "~/t.jinja"}

    assert given | {"chat_template": "/home/me/t.jinja"} == resolve_paths(given, ModelConfig, None)
    assert {"tls_cert": "c.pem", "tls_key": "/home/me/k"} == resolve_paths(
        {"tls_cert": "c.pem", "tls_key": "~/k"}, Config, None
    )
    assert {"tls_cert": str(folder / "c.pem")} == resolve_paths(
        {"tls_cert": "c.pem"}, Config, folder
    )


def test_moved() -> None:
    """All that an engine reads may be moved, each with its scheme and its scale; what is written to, a name and a template stay."""
    values = {
        "source": [
            "gguf:/a/x.gguf",
            "/a/hf",
            "hf:org/name",
            "demo:",
            "http://h/v1",
            "chatglm:/a/b",
        ],
        "mmproj": "/a/m.gguf",
        "tokenizer": None,
        "lora": ["/a/l=0.5", "/a/l"],
        "chat_template": "/a/t.jinja",
        "completion_template": "chatml",
        "slot_save_path": "/a/slots",
        "threads": 3,
    }

    assert values | {
        "source": [
            "gguf:/b/x.gguf",
            "/b/hf",
            "hf:org/name",
            "demo:",
            "http://h/v1",
            "chatglm:/b/b",
        ],
        "mmproj": "/b/m.gguf",
        "lora": ["/b/l=0.5", "/b/l"],
        "chat_template": "/b/t.jinja",
    } == move_paths(values, ModelConfig, lambda path: path.replace("/a/", "/b/"))
    assert "{{ '/a/x' }}" == move_paths({"chat_template": "{{ '/a/x' }}"}, ModelConfig, str.upper)["chat_template"]  # fmt: skip
