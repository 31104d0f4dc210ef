"""_servers.py: the running servers of a user, and the one that a command is about."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.common.commands import Commands
from support.servers.serving import Server, serve
from unilect.cli import _admin
from unilect.cli import _servers as servers
from unilect.config.server import process_environment
from unilect.core.errors import ConfigError

admin = Commands(_admin)

MODEL = "[models.{}]\nsource = 'echo:'\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the user's data."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def pair(data: Path) -> Iterator[tuple[Server, Server]]:
    """Two servers of one user, one with a configuration file and keys."""
    env = {"XDG_DATA_HOME": str(data)}
    with (
        serve("a=echo:", env=env) as one,
        serve(config=f"api_keys = ['k']\n{MODEL.format('b')}", env=env) as other,
    ):
        yield one, other


@pytest.fixture(autouse=True)
def user(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be that user, without a configuration."""
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(data / "tmp"))
    monkeypatch.delenv("UNILECT_CONFIG", raising=False)


def test_the_running_servers(pair: tuple[Server, Server], data: Path) -> None:
    """Each server is found with its process, store and configuration, and says if it asks clients for keys."""
    found, silent = servers.running(process_environment())

    by_pid = {one.pid: one for one in found}
    one, other = (by_pid[server.pid] for server in pair)
    assert [] == silent
    assert 2 == len(found)
    assert [pair[0].root] == one.urls
    assert (None, False) == (one.config, one.keys)
    assert (str(pair[1].log.parent / "unilect.toml"), True) == (other.config, other.keys)
    assert str(data / "unilect" / "unilect.db") == one.store == other.store


def test_one_of_two(pair: tuple[Server, Server]) -> None:
    """A port, a URL, a process, a socket or a configuration file names one of two servers."""
    one, other = pair
    (socket,) = {f.client.place for f in servers.running(process_environment())[0] if f.pid == one.pid}  # fmt: skip
    config = other.log.parent / "unilect.toml"

    for name in (str(one.port), str(one.pid), one.url, one.root, str(socket)):
        assert one.pid == servers.describe(servers.only(None, name)).pid
    assert other.pid == servers.describe(servers.only(config, None)).pid


def test_none_is_named(pair: tuple[Server, Server], capsys: pytest.CaptureFixture[str]) -> None:
    """What acts says which servers run and changes none; `ps` shows each under a heading."""
    with pytest.raises(SystemExit):
        admin.reload(None, None)
    refused = capsys.readouterr().err
    admin.show(None, False)
    shown = capsys.readouterr().out

    assert "2 servers run. Name one with --server PORT: " in refused
    assert "\\n" not in refused
    for server in pair:
        assert f"{server.root} (pid {server.pid}, " in refused
        assert f"{server.root}  pid {server.pid}\n" in shown


@pytest.mark.parametrize("name", ["1", "http://127.0.0.1:1/v1", "./none.sock"])
def test_a_name_of_none(pair: tuple[Server, Server], name: str) -> None:
    """A name of no running server is told, with those that there are."""
    with pytest.raises(ConfigError) as caught:
        servers.describe(servers.only(None, name))

    assert "no server" in str(caught.value)
    assert name == "./none.sock" or pair[0].root in str(caught.value)


def test_no_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no server of the user runs, it is said; a folder of another kind is not looked into."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "unilect").mkdir()
    (tmp_path / "unilect" / "run").symlink_to(os.environ["TMPDIR"])
    with pytest.raises(
        ConfigError, match=r"no server of this user runs .*Start one with `unilect serve`"
    ):
        servers.choose(None, None)
