"""Tests of unilect.hub.heads, against a small hub on loopback."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers.small_hub import Hub, serve_hub
from unilect.core.errors import ConfigError
from unilect.hub import heads
from unilect.hub.download import RemoteFile

HEAD, WHOLE = b"head" * 1000, b"head" * 1000 + os.urandom(100_000)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a file whose head is 4000 bytes long, of which 1000 are asked for at first."""
    monkeypatch.setattr(heads, "FIRST_BYTES", 1000)
    monkeypatch.setenv("NO_PROXY", "*")
    with serve_hub(**{"org/repo/m.gguf": WHOLE}) as hub:
        yield hub


def fetched(hub: Hub, path: Path, end: int = len(HEAD)) -> None:
    """Fetch the head of the file, which ends there."""
    url = f"{hub.url}/storage/org/repo/m.gguf"
    file = RemoteFile("m.gguf", len(WHOLE), False, path.parent, lambda told: path, url, False)
    heads.fetch_head(file, path, lambda one: one.stat().st_size >= end)


def test_a_head(hub: Hub, tmp_path: Path) -> None:
    """Twice as much is asked for until the head is there; the rest of the file is a hole."""
    fetched(hub, tmp_path / "m")
    data = (tmp_path / "m").read_bytes()

    assert ["bytes=0-999", "bytes=1000-1999", "bytes=2000-3999"] == hub.ranges
    assert HEAD + bytes(len(WHOLE) - len(HEAD)) == data


def test_a_head_overwrites_nothing(hub: Hub, tmp_path: Path) -> None:
    """A head is never written through a link, such as one into the hub's cache, nor into a file that is there."""
    (tmp_path / "blob").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("blob")
    for name in ("blob", "link"):
        with pytest.raises(FileExistsError):
            fetched(hub, tmp_path / name)

    assert b"precious" == (tmp_path / "blob").read_bytes()
    assert [] == hub.ranges


def test_a_server_without_parts(hub: Hub, tmp_path: Path) -> None:
    """A server that gives no parts is listened to no longer than it takes."""
    hub.takes_ranges = False
    fetched(hub, tmp_path / "m")

    assert HEAD == (tmp_path / "m").read_bytes()[: len(HEAD)]


def test_a_head_that_does_not_end(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file whose head does not end no more is fetched than any head has; of a short one all."""
    fetched(hub, tmp_path / "all", 10**9)
    assert WHOLE == (tmp_path / "all").read_bytes()
    monkeypatch.setattr(heads, "MOST_BYTES", 16_000)
    hub.ranges.clear()
    with pytest.raises(ConfigError, match=r"m\.gguf: its first 16000 bytes are not its head"):
        fetched(hub, tmp_path / "m", 10**9)

    assert "bytes=8000-15999" == hub.ranges[-1]


@pytest.mark.parametrize("end", ["end", "reset"])
def test_a_connection_that_ends(hub: Hub, tmp_path: Path, end: str) -> None:
    """What ends before it has come is told."""
    hub.ends = [(500, end)]
    with pytest.raises(ConfigError, match=r"m\.gguf: "):
        fetched(hub, tmp_path / "m")


def test_a_file_that_is_not_there(hub: Hub, tmp_path: Path) -> None:
    """A file that is gone is told."""
    hub.files.clear()
    with pytest.raises(ConfigError, match=r"m\.gguf: "):
        fetched(hub, tmp_path / "m")
