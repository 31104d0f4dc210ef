"""Tests of unilect.cli._progress."""

import io
import sys

import pytest

from unilect.cli._progress import Progress


class Tty(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        """Somebody watches."""
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Tty:
    """A terminal of 120 columns, as stderr; a fixture would come before pytest puts its own there for the test."""
    screen = Tty()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    return screen


def test_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    """A download shows its bytes and the time that is left, and no percentage beside the time that has passed."""
    tty, progress = watched(monkeypatch), Progress()

    progress.show("m", "downloading", 0.5, 2_000_000)
    progress.stop()

    assert "downloading m" in tty.getvalue()
    assert "1.0/2.0 MB" in tty.getvalue()
    assert "left" in tty.getvalue()
    assert "%" not in tty.getvalue()


def test_a_model_that_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose weights have been read is being prepared for as long as it does not answer, and not done."""
    tty, progress = watched(monkeypatch), Progress()

    progress.show("m", "loading", 0.5)
    progress.show("m", "loading", 1.0)
    progress.stop()

    assert "preparing m" in tty.getvalue()
    assert "100%" not in tty.getvalue()
    assert "so far" in tty.getvalue()


def test_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    """Where stderr is no terminal nothing is drawn."""
    progress = Progress()

    progress.show("m", "loading", 0.5)
    progress.stop()

    assert ("", "") == capsys.readouterr()
