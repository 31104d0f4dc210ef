"""The default admin socket together with two servers of one user."""

import json
from pathlib import Path

import pytest

from support.servers.serving import serve
from unilect.cli import _admin
from unilect.cli import _servers as servers
from unilect.config.server import process_environment


def test_two_servers_of_one_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two servers of one user have a socket each; each is asked alone, and the one that ends takes its socket along."""
    env = {"XDG_DATA_HOME": str(tmp_path)}
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("UNILECT_CONFIG", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serve("a=echo:", env=env) as one:
        with serve("b=echo:", env=env) as other:
            found, silent = servers.running(process_environment())
            assert sorted([one.pid, other.pid]) == sorted(server.pid for server in found)
            assert [] == silent
            _admin.show(None, True, str(other.port))
            told = json.loads(capsys.readouterr().out)
            assert ["b"] == [model["name"] for model in told["models"]]
        assert [one.pid] == [server.pid for server in servers.running(process_environment())[0]]
        assert [f"{one.port}.sock"] == [
            path.name for path in (tmp_path / "unilect" / "run").iterdir()
        ]
