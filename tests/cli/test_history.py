"""Tests of unilect.cli._history."""

from pathlib import Path

from unilect.cli._history import MOST, MOST_BYTES, History
from unilect.runtime.redact import Secrets


def test_history_is_bounded(tmp_path: Path) -> None:
    """The last messages stay; one that is very long is not kept, and what is no message is passed over."""
    file = tmp_path / "new" / "chat_history"
    history = History(file, Secrets())
    for number in range(MOST):
        history.add(f"{number}\nx")
    history.add("x" * MOST_BYTES)
    with file.open("ab") as rest:
        rest.write(b'nonsense\n"\\u0000"\n"cut')

    kept = history.load()

    assert [f"{number}\nx" for number in range(3, MOST)] == kept
    assert MOST == len(file.read_bytes().splitlines())
    assert [file] == list(file.parent.iterdir())


def test_history_without_a_folder(tmp_path: Path) -> None:
    """Where no file can be written nothing is kept, and nothing fails."""
    (tmp_path / "file").write_text("")
    for file in (None, tmp_path / "file" / "chat_history"):
        history = History(file, Secrets())
        history.add("one")

        assert [] == history.load()


def test_history_follows_no_link(tmp_path: Path) -> None:
    """A link in the place of the file is not written through."""
    (tmp_path / "other").write_text("")
    (tmp_path / "chat_history").symlink_to(tmp_path / "other")
    History(tmp_path / "chat_history", Secrets()).add("one")

    assert "" == (tmp_path / "other").read_text()
