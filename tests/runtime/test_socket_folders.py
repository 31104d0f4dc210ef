"""Tests of unilect.runtime.socket_folders."""

import socket
import tempfile
from pathlib import Path

import pytest

from unilect.runtime.socket_folders import MAX_PATH_BYTES, make_folder


@pytest.mark.parametrize(("spare", "inside"), [(0, True), (-1, False)])
def test_a_folder_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int, inside: bool
) -> None:
    """The folder for temporary files is used as long as the path of the socket is short enough, and whatever is made can be bound in."""
    name = "s" * (MAX_PATH_BYTES - len(f"{tmp_path}/unilect-12345678/") - spare)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    folder = make_folder(name)

    try:
        assert inside == (folder.parent == tmp_path)
        assert 0o700 == folder.stat().st_mode & 0o777
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(folder / name))
        (folder / name).unlink()
    finally:
        folder.rmdir()
