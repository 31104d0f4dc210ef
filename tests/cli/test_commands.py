"""Tests of unilect.cli._commands: what needs no server; tests/sdk and tests/reliability run real ones."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.common.commands import Commands
from support.servers.configured import merged
from unilect.cli import _commands
from unilect.cli._screen import fail
from unilect.cli._start_screen import example_call, start_screen
from unilect.config.server import Config, ModelConfig

check_config = Commands(_commands, code=2).check_config
list_models = Commands(_commands).list_models
from unilect.core.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No `UNILECT_*` of the surroundings reaches a test."""
    import os

    for name in list(os.environ):
        if name.startswith("UNILECT_"):
            monkeypatch.delenv(name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A configuration with two models."""
    file = tmp_path / "unilect.toml"
    file.write_text(
        'port = 9000\n[models.a]\nsource = "demo:"\n[models.longer]\nsource = "http://127.0.0.1:1"\naliases = ["b"]\n'
    )
    return file


def test_merged(path: Path) -> None:
    """Without arguments the models are the file's, and flags of the server are stronger."""
    config = merged([], path, {"port": 1, "host": None}, {})

    assert (1, "127.0.0.1", ["a", "longer"]) == (config.port, config.host, list(config.models))


def test_models_of_the_command_line_and_of_the_file(path: Path) -> None:
    """Models named on the command line come before the file's; the server's options stay."""
    config = merged(["x=demo:", "y.gguf"], path, {}, {})

    expected = {"x": "demo:", "y": "y.gguf", "a": "demo:", "longer": "http://127.0.0.1:1"}
    assert (9000, [*expected.items()]) == (
        config.port,
        [(name, model.source) for name, model in config.models.items()],
    )


def test_flags_of_the_engine(path: Path) -> None:
    """Flags about engines hold for every model that has them, the bundled one too."""
    assert [512, None] == [
        m.context for m in merged([], path, {}, {"context": 512}).models.values()
    ]
    assert {"demo": ModelConfig(threads=3)} == merged([], None, {}, {"threads": 3}).models


def test_flags_of_some_models() -> None:
    """A flag about engines is for the models that have it, and leaves the others as they are."""
    models = merged(["x=demo:", "y=http://a/v1"], None, {}, {"parallel": 8}).models

    assert {"x": ModelConfig(source="demo:", parallel=8), "y": ModelConfig(source="http://a/v1")} == models  # fmt: skip


def test_one_name_for_several_sources() -> None:
    """A name that is given twice is one model with two backends."""
    models = merged(["x=http://a/v1", "y=demo:", "x=http://b/v1"], None, {}, {}).models

    assert {"x": ["http://a/v1", "http://b/v1"], "y": ["demo:"]} == {
        name: model.sources for name, model in models.items()
    }


@pytest.mark.parametrize(
    ("models", "server", "engine", "said"),
    [
        (["nothing"], {}, {}, "nothing"),
        ([], {"port": 70_000}, {}, "port"),
        ([], {"host": "0.0.0.0"}, {}, "--api-key"),
        ([], {}, {"context": 1}, "context"),
        (["x=demo:"], {}, {"parallel": 0}, "--parallel: expected an integer"),
        (["x=http://a/v1"], {}, {"gpu_layers": 0}, "--gpu-layers: applies to GGUF models"),
    ],
)
def test_mistakes(
    models: list[str], server: dict[str, Any], engine: dict[str, Any], said: str
) -> None:
    """A mistake on the command line is one sentence."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        merged(models, None, server, engine)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://0.0.0.0:8000", "http://127.0.0.1:8000"),
        ("http://[::]:8000", "http://[::1]:8000"),
    ],
)
def test_start_screen(url: str, base: str) -> None:
    """The start screen says where the server answers, with an address that can be called."""
    screen = start_screen(url, Config(), example_call([]), facts={"demo": "the bundled model"})

    assert screen.splitlines()[0] == f"unilect answers at {base}/v1"
    assert "models: demo" in screen
    assert f"curl {base}/v1/chat/completions" in screen
    assert "Authorization" not in screen


def test_start_screen_with_keys() -> None:
    """The start screen never shows a key."""
    config = Config(api_keys=["sk-secret"], models={"m": ModelConfig(), "n": ModelConfig()})
    call, facts = example_call([]), dict.fromkeys(config.models, "a model")
    screen = start_screen("http://127.0.0.1:8000", config, call, facts=facts, asks_for_keys=True)

    assert "sk-secret" not in screen
    assert "$UNILECT_API_KEY" in screen
    assert "models: m, n" in screen
    assert "/metrics" not in screen  # which clients' keys cannot read
    config = Config(metrics_keys=["sk-other"])
    screen = start_screen("http://h", config, call, asks_for_keys=True)
    assert "metrics: http://h/metrics" in screen
    assert "sk-other" not in screen


def test_list_models(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The models of a configuration are listed with their sources and other names."""
    list_models(path)

    assert capsys.readouterr().out.splitlines() == [
        "a       demo:",
        "longer  http://127.0.0.1:1  (also b)",
    ]


def test_check_config(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A right configuration is said to be right."""
    check_config(path)

    assert capsys.readouterr().out.splitlines()[-1] == "OK"


@pytest.mark.parametrize("text", ["port = 'x'", "[models.m]\nsource = 'nothing'"])
def test_check_config_finds_mistakes(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong configuration ends with exit code 2 and one sentence on stderr."""
    file = tmp_path / "unilect.toml"
    file.write_text(text)
    with pytest.raises(SystemExit) as ended:
        check_config(file)

    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("unilect: ")


def test_no_credentials_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a configuration holds, and what is wrong with it, is told without the credentials of its URLs."""
    file = tmp_path / "unilect.toml"
    for url in ("http://me:secret@h/v1?api_key=secret", "http://me:secret@h:x?token=secret"):
        file.write_text(f'[models.a]\nsource = "{url}"\n')
        list_models(file)
        with suppress(SystemExit):
            check_config(file)
    printed = capsys.readouterr()
    config = Config(models={"a": ModelConfig(source=url, model="*")})
    every = start_screen("http://h", config, example_call([]))

    assert "***" in printed.out
    assert "***" in printed.err
    assert "secret" not in printed.out + printed.err + every


def test_fail(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure is one sentence on stderr and an exit code."""
    with pytest.raises(SystemExit) as ended:
        fail("No.", 3)

    assert (3, "unilect: No.\n") == (ended.value.code, capsys.readouterr().err)
