"""_admin_socket.py: where the default socket is made, and where none is."""

import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from unilect.config.admin import admin_folders
from unilect.server import _admin_socket
from unilect.server._acceptor import Acceptor
from unilect.server._connections import Connections, Limits


@pytest.fixture
async def acceptors() -> AsyncIterator[tuple[Acceptor, Acceptor]]:
    """Two acceptors of one process."""

    async def refuse(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=404)

    both = tuple(Acceptor(web.Server(refuse), Connections(Limits())) for _ in range(2))
    yield both[0], both[1]
    for one in both:
        one.close()


def leave(path: Path) -> None:
    """Leave a socket behind as a server that was killed does, long ago."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


async def test_private(acceptors: tuple[Acceptor, Acceptor], tmp_path: Path) -> None:
    """Folder and socket are for their user only, also where the folder was open to others; the socket goes with the server."""
    folder = tmp_path / "unilect" / "run"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    path = _admin_socket.listen(acceptors[0], [folder], 8000)

    assert folder / "8000.sock" == path
    assert 0o700 == stat.S_IMODE(folder.stat().st_mode)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    acceptors[0].close()
    assert not path.exists()


async def test_the_same_port(acceptors: tuple[Acceptor, Acceptor], tmp_path: Path) -> None:
    """Two servers with one port, at different addresses, have a socket each."""
    paths = [_admin_socket.listen(one, [tmp_path / "run"], 8000) for one in acceptors]

    assert ["8000.sock", f"8000-{os.getpid()}.sock"] == [path.name for path in paths]


async def test_what_was_left(
    acceptors: tuple[Acceptor, Acceptor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sockets of killed servers are replaced and removed; one that was just made, and one with a server, stay."""
    monkeypatch.setattr(_admin_socket, "_NEW_S", -1.0)  # those that are left here are new
    live = _admin_socket.listen(acceptors[0], [tmp_path], 8001)
    leave(tmp_path / "8000.sock")
    leave(tmp_path / "8002.sock")
    path = _admin_socket.listen(acceptors[1], [tmp_path], 8000)

    assert {live, path} == set(tmp_path.glob("*.sock"))


async def test_the_next_folder(acceptors: tuple[Acceptor, Acceptor], tmp_path: Path) -> None:
    """Where no folder can be made, or it is something else, the next one is taken."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    folders = [tmp_path / "file" / "run", tmp_path / "link", tmp_path / "other"]

    assert tmp_path / "other" == _admin_socket.listen(acceptors[0], folders, 1).parent


async def test_no_folder(acceptors: tuple[Acceptor, Acceptor], tmp_path: Path) -> None:
    """Where there is no folder at all, each is named with its reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file/run: Not a directory"):
        _admin_socket.listen(acceptors[0], [tmp_path / "file" / "run"], 1)


def test_folders() -> None:
    """The folder of the user's data comes first, and one with too long a path is left out."""
    uid, long = os.getuid(), "/" + "a" * 90
    everything = {"XDG_DATA_HOME": "/d", "XDG_RUNTIME_DIR": "/r", "TMPDIR": "/t"}

    assert [Path("/d/unilect/run"), Path("/r/unilect"), Path(f"/t/unilect-{uid}")] == admin_folders(everything)  # fmt: skip
    assert [Path(f"/tmp/unilect-{uid}")] == admin_folders({"XDG_DATA_HOME": long, "TMPDIR": "t"})
    assert [Path("/h/.local/share/unilect/run"), Path(f"/tmp/unilect-{uid}")] == admin_folders({"HOME": "/h"})  # fmt: skip
