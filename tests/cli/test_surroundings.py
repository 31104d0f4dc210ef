"""The command line among what surrounds it: signals, pipes, files, and arguments that are no text."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from unilect.__main__ import main
from unilect.cli import main as cli


@pytest.fixture(autouse=True)
def _no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's reaches a test."""
    for name in list(os.environ):
        if name.startswith("UNILECT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def test_interrupted_before_there_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the command line itself is being imported ends it with 130, too."""

    class Slow:
        @property
        def app(self) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setattr("gc.set_threshold", lambda *_: None)
    monkeypatch.setitem(sys.modules, "unilect.cli.main", Slow())  # type: ignore[arg-type]
    with pytest.raises((SystemExit, KeyboardInterrupt)) as ended:
        main()
    assert (130,) == ended.value.args


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("keys create a\udcff", "NAME"),
        ("keys create a --owner a\udcff", "--owner"),
        ("keys create a --limit a\udcff", "--limit"),
        ("serve a\udcff.gguf", "[[NAME=]SOURCE]..."),
        ("serve --log-level a\udcff", "--log-level"),
        ("compat ollama --host a\udcff", "[ARGUMENTS]..."),
        ("fleet join a\udcff", "HEAD[:PORT]"),
    ],
)
def test_bytes_that_are_no_text(command: str, name: str) -> None:
    """An argument that is no UTF-8 is told by its name; the name of a file may be any bytes."""
    done = CliRunner().invoke(cli.app, command.split())

    assert (2, True) == (done.exit_code, f"Invalid value for '{name}'" in done.output), done.output
    assert "is not UTF-8 text." in done.output
    assert (
        "cannot be read (No such file"
        in CliRunner().invoke(cli.app, "models --config a\udcff").output
    )


def test_whether_a_file_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read, and nothing else is asked: what the command says of a file is what came of that."""
    file = tmp_path / "unilect.toml"
    file.write_text("[models.a]\nsource = 'echo:'\n")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)

    assert "a  echo:\n" == CliRunner().invoke(cli.app, ["models", "--config", str(file)]).output


@pytest.mark.parametrize("command", ["connect", "models", "config check /nowhere", "keys --help"])
def test_a_reader_that_has_left(command: str) -> None:
    """A command whose output nobody reads any more, as behind `| head -1`, ends without a word of that."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "unilect", *command.split()],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)

    assert (2 if "check" in command else 1) == done.returncode
    assert ("/nowhere" in command) == bool(done.stderr)
    assert "BrokenPipeError" not in done.stderr


@pytest.mark.heavy(but=3)
@pytest.mark.parametrize("descriptor", [0, 1, 2])
@pytest.mark.parametrize("command", ["keys digest", "chat --url http://127.0.0.1:1/v1"])
def test_a_descriptor_that_is_closed(command: str, descriptor: int) -> None:
    """A command without stdin, stdout or stderr (`<&-`) is one that gets nothing, or tells nobody."""
    done = subprocess.run(
        [sys.executable, "-m", "unilect", *command.split()],
        input="",
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.close(descriptor),
    )

    assert 1 == done.returncode
    assert ("unilect: " if descriptor != 2 else "") == done.stderr[:9]
    assert "Traceback" not in done.stderr
