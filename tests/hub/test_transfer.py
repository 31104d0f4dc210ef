"""Tests of unilect.hub.transfer, against a small hub on loopback."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from filelock import FileLock

from support.servers.small_hub import Hub, serve_hub
from unilect.core.errors import ConfigError
from unilect.hub import transfer
from unilect.hub.transfer import Transfer, hold

WHOLE = os.urandom(10_000)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a file, which is asked for again without a pause."""
    monkeypatch.setattr(transfer, "PAUSE_S", 0)
    monkeypatch.setenv("NO_PROXY", "*")
    with serve_hub(**{"org/repo/m.gguf": WHOLE}) as hub:
        yield hub


def fetched(hub: Hub, folder: Path, validator: str | None) -> bytes:
    """Fetch the file of that validator; its bytes."""
    url, partial = f"{hub.url}/storage/org/repo/m.gguf", folder / "partial"
    told = lambda part, size=0: None  # noqa: E731
    Transfer(url, folder / "m", partial, folder / "lock", len(WHOLE), "", {}, told, validator).run()
    return (folder / "m").read_bytes()


def test_no_validator(hub: Hub, tmp_path: Path) -> None:
    """What has come of a file whose server tells no version is not the beginning of what comes now."""
    (tmp_path / "partial").write_bytes(b"older" * 1000)
    hub.ends = [(2000, "close")]

    assert WHOLE == fetched(hub, tmp_path, "")
    assert [None, None] == hub.ranges


def test_a_part_that_begins_elsewhere(hub: Hub, tmp_path: Path) -> None:
    """A part that is not the one that is missing is refused, and what has come is kept."""
    (tmp_path / "partial").write_bytes(WHOLE[:5000])
    hub.shift = 7
    with pytest.raises(ConfigError, match="another part of the file than it is asked for"):
        fetched(hub, tmp_path, None)

    assert WHOLE[:5000] == (tmp_path / "partial").read_bytes()


def test_breaks_that_vary(hub: Hub, tmp_path: Path) -> None:
    """A server without parts that breaks off at varying places is given up once nothing comes that never came before."""
    hub.takes_ranges = False
    hub.ends = [(6000, "close"), (4000, "close")] * 20
    with pytest.raises(httpx2.HTTPError):
        fetched(hub, tmp_path, None)

    assert 1 + transfer.MAX_FRUITLESS_TRIES == len(hub.ranges)


def test_locks(tmp_path: Path) -> None:
    """A lock is held unless somebody else holds it, and for one that nobody ever took none is made."""
    lock = tmp_path / "lock"
    with hold(lock) as is_ours:
        assert is_ours
    assert not lock.exists()
    with FileLock(lock), hold(lock) as is_ours:
        assert not is_ours
    lock.touch()
    with hold(lock) as is_ours, hold(lock) as is_ours_too:
        assert (True, False) == (is_ours, is_ours_too)
