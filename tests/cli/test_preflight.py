"""Tests of unilect.cli._preflight, through `unilect config check`; tests/config/test_mistakes_settings.py has what it finds."""

import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.backends.engine import needs_transformers
from support.common.certificates import certificate, needs_openssl
from support.common.commands import Commands
from support.models import shaped_gguf
from unilect.cli import _commands
from unilect.demo import FOLDER, MODEL
from unilect.engines.gguf import fit

check_config = Commands(_commands, code=2).check_config

CHECK_TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No `UNILECT_*` of the surroundings reaches a test."""
    for name in list(os.environ):
        if name.startswith("UNILECT_"):
            monkeypatch.delenv(name)


def check(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What is printed of a right configuration."""
    (tmp_path / "c.toml").write_text(text)
    (tmp_path / "c.toml").chmod(0o600)
    check_config(tmp_path / "c.toml")
    return capsys.readouterr().out.splitlines()


@needs_openssl
@needs_transformers
def test_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says where the server would listen and what each model is, without credentials, and OK."""
    certificate(tmp_path)
    (tmp_path / "m.gguf").symlink_to(MODEL)
    told = check(
        tmp_path,
        f"""
        host = "0.0.0.0"
        api_keys = ["a", "b"]
        tls_cert = "cert.pem"
        tls_key = "key.pem"
        listeners = [{{ port = 8001, host = "::1", dialect = "llamacpp" }}]
        [models.demo]
        [models.file]
        source = "m.gguf"
        context = 512
        parallel = 2
        [models.folder]
        source = "{FOLDER / "hf"}"
        [models.far]
        source = ["http://me:secret@h/v1", "llamacpp+http://h"]
        [models.every]
        source = "https://h/v1?api_key=secret"
        model = "*"
        """.replace("        ", ""),
        capsys,
    )

    assert [
        "https://0.0.0.0:8000: openai, 2 keys",
        "https://[::1]:8001: llamacpp, 2 keys",
        "demo: the bundled model, context 2048, 4 requests at a time",
        f"file: GGUF on llama.cpp {tmp_path / 'm.gguf'}, context 512, 2 requests at a time",
        f"folder: transformers {FOLDER / 'hf'}, context 2048, 4 requests at a time",
        "far: a server of OpenAI's API http://***@h/v1, not contacted",
        "far: a llama.cpp server llamacpp+http://h, not contacted",
        "every: a server of OpenAI's API https://h/v1?api_key=***, all its models (at most 500), not contacted",
        "OK",
    ] == told


def test_nothing_is_fetched(tmp_path: Path) -> None:
    """A model that is still on the hub is said to be there, and nobody is asked for it."""
    file = tmp_path / "c.toml"
    file.write_text(
        '[models.a]\nsource = "gguf:org/repo/big.gguf"\nload = "demand"\n[models.b]\nsource = "gguf:org/repo:Q4_K_M"\n'
        '[models.c]\nsource = "https://huggingface.co/org/repo-GGUF/blob/main/x.gguf"\n'
    )
    with socket.create_server(("127.0.0.1", 0)) as hub:
        hub.settimeout(0)
        port = hub.getsockname()[1]
        ours = {
            name: v for name, v in os.environ.items() if not name.startswith(("HF_", "UNILECT_"))
        }
        env = ours | {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", "unilect", "config", "check", str(file)],
            env=env,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
        )
        with pytest.raises(BlockingIOError):
            hub.accept()

    assert (0, "") == (done.returncode, done.stderr)
    *models, last = done.stdout.splitlines()[1:]
    assert "OK" == last
    assert 3 == len([line for line in models if line.endswith("hub, downloaded when served")])


def test_the_hub_must_not_be_asked(tmp_path: Path) -> None:
    """With HF_HUB_OFFLINE a model that is not on this machine is a mistake."""
    file = tmp_path / "c.toml"
    file.write_text('[models.a]\nsource = "gguf:org/repo/big.gguf"\n')
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "unilect", "config", "check", str(file)],
        env=env,
        capture_output=True,
        text=True,
        timeout=CHECK_TIMEOUT_S,
    )

    assert 2 == done.returncode
    assert (
        "c.toml:2: models.a: org/repo/big.gguf: is not on this machine, and HF_HUB" in done.stderr
    )


def test_nothing_is_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A port that is in use is right, since the server that uses it may be the one that is configured."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = check(tmp_path, f"port = {taken.getsockname()[1]}\n", capsys)

    assert "OK" == told[-1]


def test_replicas_without_ray(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Ray is not installed, a model with replicas is told with the command that installs it; with Ray it is accepted."""
    text = "[models.m]\nreplicas = 2\n"
    monkeypatch.setattr("unilect.fleet.backend.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        check(tmp_path, text, capsys)
    told = capsys.readouterr().err
    assert "c.toml:2: models.m: replicas: requires Ray. Install it with `pip install " in told
    assert "[fleet]" in told
    monkeypatch.undo()
    if find_spec("ray") is not None:
        assert "OK" == check(tmp_path, text, capsys)[-1]


def refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What is told of a wrong configuration."""
    with pytest.raises(SystemExit, match="2"):
        check(tmp_path, text, capsys)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("text.db", "is not an SQLite database; name another file, or move this one away"),
        ("none/x.db", "does not exist. Make it, or name a file in another one."),
        ("../../../../../../../../proc/x.db", "no file can be made in /proc"),
    ],
)
def test_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, told: str
) -> None:
    """A store that cannot be read, or made, is told once, with its place and what to do; nothing is made."""
    (tmp_path / "text.db").write_text("this is no database " * 50)
    error = refused(tmp_path, f"[store]\nurl = 'sqlite:///{name}'\n[models.a]\nsource = 'echo:'\n", capsys)  # fmt: skip

    assert "c.toml:2: store.url: " in error
    assert 1 == error.count(told)
    assert {"c.toml", "text.db"} == {path.name for path in tmp_path.iterdir()}


def test_a_default_without_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A default that the model does not support is told, by `config check` and at start."""
    text = "[models.demo]\nsource = 'demo:'\ndefaults = { enable_thinking = false }\n"
    told = "models.demo.defaults.enable_thinking: this model does not support it; leave it out."

    assert f"c.toml:3: {told}" in refused(tmp_path, text, capsys)
    serve = [sys.executable, "-m", "unilect", "serve", "--config", "c.toml", "--port", "0"]
    done = subprocess.run(serve, cwd=tmp_path, capture_output=True, text=True, timeout=CHECK_TIMEOUT_S)  # fmt: skip
    assert told in done.stderr
    assert 1 == done.returncode


def test_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that does not fit into memory is told before it is loaded, as `serve` would."""
    monkeypatch.setattr(fit, "gpu_memory", lambda torch: [])
    monkeypatch.setattr(fit, "free_bytes", lambda: 10_000_000)
    (tmp_path / "m.gguf").symlink_to(MODEL)
    error = refused(
        tmp_path, "[models.a]\nsource = 'm.gguf'\nparallel = 4\nload = 'demand'\n", capsys
    )

    assert "c.toml:" in error
    assert "models.a does not fit into memory: weights 4 MB, KV cache 21 MB" in error


def test_sizes_that_nobody_has_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose requests at a time are made to fit is checked with those, and told with them."""
    monkeypatch.setattr(fit, "gpu_memory", lambda torch: [])
    for name in ("free_bytes", "total_bytes"):
        monkeypatch.setattr(fit, name, lambda: 245_000_000)
    shaped_gguf.make(tmp_path / "m.gguf", "llama")
    told = check(tmp_path, "[models.a]\nsource = 'm.gguf'\nload = 'demand'\n", capsys)

    assert any("context 8192, 1 requests at a time" in line for line in told)


def test_memory_beside_pinned_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that `memory` has no room for beside those that are pinned is a mistake, wherever it stands; the sizes of another one are made to fit."""
    (tmp_path / "m.gguf").symlink_to(MODEL)
    pinned = "[models.p]\nsource = 'm.gguf'\ncontext = 512\nparallel = 1\npin = true\n"
    large = "[models.a]\nsource = 'm.gguf'\ncontext = 2048\nparallel = 64\nload = 'demand'\n"
    error = refused(tmp_path, f"memory = '150MiB'\n{large}{pinned}", capsys)

    assert "models.a: it needs " in error
    assert "beside pinned models" in error
    assert "models.p" not in error
    assert check(tmp_path, f"memory = '4GiB'\n{large}{pinned}", capsys)


@pytest.mark.parametrize(("text", "warns"), [("", True), ("port = 8001\n", True), ('models.a.source = "demo:"\n', False), ("fastchat_controller = true\n", False)])  # fmt: skip
def test_no_models(
    text: str, warns: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file without a model, such as an empty one, is told: the bundled model is served."""
    told = check(tmp_path, text, capsys)

    assert warns == any("c.toml has no model: the bundled one is served" in line for line in told)
    assert "OK" == told[-1]
