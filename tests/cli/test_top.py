"""_top.py: `unilect top` on a terminal and without one, for a running server."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.common.commands import Commands
from support.servers.serving import Server, serve
from unilect.cli import _top

CONFIG = "memory = '3GB'\n[admin]\nlisten = './admin.sock'\n[models.a]\nsource = 'echo:'\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with an admin API."""
    with serve(config=CONFIG) as running:
        yield running


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_a_terminal(server: Server, key: bytes) -> None:
    """The screen is drawn in place, again and again, until q or Ctrl-C; then the terminal is as it was."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "unilect", "top"]
    command += ["--config", str(server.log.parent / "unilect.toml")]
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "150", "LINES": "20"}
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        env=env,
        preexec_fn=_take_terminal,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        drawn = b""
        while drawn.count(b"MODEL ") < 4:  # two frames, with two tables each
            drawn += os.read(ours, 65536)
        os.write(ours, key)
        try:
            while more := os.read(ours, 65536):
                drawn += more
        except OSError:  # so a terminal ends in Linux
            pass
        os.close(ours)
    text = drawn.decode()
    assert 0 == process.returncode
    assert re.search(rf"{re.escape(server.root)}  pid {server.pid}  up \d+ s  1 models", text)
    assert "1 models, 0 in memory (-, - promised of 3.0 GB)" in text
    assert "0 requests, 0 queued, 0.0 tokens/s" in text
    assert text.startswith("\x1b[?1049h")
    assert text.rstrip().endswith("\x1b[?1049l")


def _take_terminal() -> None:
    """Make stdin the terminal that Ctrl-C comes from."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))


def test_no_terminal(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal it is shown once, which is said on stderr."""
    Commands(_top).watch(server.log.parent / "unilect.toml")
    told = capsys.readouterr()

    assert told.out.startswith(f"{server.root}  pid {server.pid}")
    assert "tokens/s\n" not in told.out.splitlines()[0]
    assert "shown once" in told.err


def test_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no server answers the command says why, and fails."""
    (tmp_path / "unilect.toml").write_text(CONFIG)
    with pytest.raises(SystemExit, match="1"):
        Commands(_top).watch(tmp_path / "unilect.toml")

    assert "no server answers at" in capsys.readouterr().err


def test_a_small_terminal() -> None:
    """Of more lines than the terminal has the last one says how many there are."""
    lines = [str(number) for number in range(9)]

    assert lines == _top._fit(lines, 10)
    assert ["0", "1", "… 7 lines more: `unilect ps`"] == _top._fit(lines, 3)
