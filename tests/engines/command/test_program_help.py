"""Tests of unilect.engines.command.program_help."""

import os
import sys
from pathlib import Path

import pytest

from unilect.engines.command.program_help import has_word, read_help, recall_help


def test_read() -> None:
    """A help is all that a program prints, up to a bound; of one that is not there it is empty."""
    assert read_help(["sh", "-c", "echo one; echo two >&2; exit 2"], os.environ) == "one\ntwo\n"
    assert read_help(["/nowhere/program", "--help"], os.environ) == ""
    endless = read_help(["sh", "-c", "while :; do echo 0123456789; done"], os.environ)
    assert 1000 < len(endless) <= 1_000_000


def test_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A help is read again once the program's file has changed, and not before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program, count = tmp_path / "program", tmp_path / "count"
    program.write_text(f"#!/bin/sh\necho x >>{count}\ncat {count}\n")
    program.chmod(0o755)
    words, environment = ["program", "--help"], {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert [recall_help(words, environment) for _ in range(2)] == ["x\n", "x\n"]
    os.utime(program, (1, 1))
    assert recall_help(words, environment) == "x\nx\n"
    assert recall_help([sys.executable, "-c", ""], environment) == ""


@pytest.mark.parametrize(
    ("told", "known"), [("-c, --ctx N", True), ("--no-c", False), ("-cc", False), ("[-c]", True)]
)
def test_word(told: str, known: bool) -> None:
    """A flag is named where it stands by itself, and not as a part of a longer one."""
    assert has_word(told, "-c") is known
