"""_admin.py: `unilect reload` and `unilect ps` for a running server, which is found by its configuration or its process."""

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from support.backends.loopback import free_port
from support.common.certificates import certificate, needs_openssl
from support.common.commands import Commands
from support.servers.serving import Server, serve
from unilect import demo
from unilect.cli import _admin, _admin_client
from unilect.cli.main import app

admin = Commands(_admin)

ADMIN = "[admin]\nlisten = './admin.sock'\n"
MODEL = "[models.a]\nsource = 'echo:'\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with an admin API."""
    with serve(config=ADMIN + MODEL) as running:
        yield running


@pytest.fixture
def file(server: Server) -> Iterator[Path]:
    """Its configuration, which is as before after each test."""
    path = server.log.parent / "unilect.toml"
    yield path
    path.write_text(ADMIN + MODEL)


def test_reload(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`unilect reload` has the server read its file again, and prints what has changed."""
    file.write_text(ADMIN + MODEL + "aliases = ['b']\n")
    admin.reload(file, None)

    assert f"{file} reloaded: adjusted a\n" == capsys.readouterr().out


def test_a_reload_that_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the server refuses is printed with its place, and the command fails."""
    file.write_text(f"nothing = 1\n{ADMIN}{MODEL}")
    with pytest.raises(SystemExit, match="1"):
        admin.reload(file, None)

    told = capsys.readouterr()
    assert "unilect.toml:1: nothing: unknown option" in told.err
    assert "Nothing has changed" in told.err


def test_ps(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`unilect ps` prints the models and the requests, as tables or as JSON."""
    admin.show(file, False)
    table = capsys.readouterr().out
    admin.show(file, True)
    told = json.loads(capsys.readouterr().out)

    assert ["MODEL", "STATE", "MEMORY", "DEVICE"] == table.split()[:4]
    assert "echo:" in table
    assert ["a"] == [model["name"] for model in told["models"]]
    assert [] == told["requests"]


def test_a_model(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`unilect drain`, `load` and `stop` say what the model does then; one that there is not is refused."""
    admin.drain(file, "a", None)
    admin.load(file, "a", None)
    admin.stop(file, "a", None)
    told = capsys.readouterr().out.splitlines()
    with pytest.raises(SystemExit, match="1"):
        admin.load(file, "nobody", None)

    assert "a: draining, 0 requests" == told[0]
    assert re.fullmatch(r"a: ready after \d+\.\d s", told[1])
    assert told[2].startswith("a: ")
    assert "`nobody`" in capsys.readouterr().err


def test_a_model_that_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that is still `ready` after `unilect stop` is told to stop once its requests have ended."""
    said = {"name": "a", "state": "ready", "requests": 1}
    monkeypatch.setattr(_admin, "_change", lambda *given: said)
    _admin.stop(None, "a", None)

    assert "a: ready, 1 requests: it stops once none runs\n" == capsys.readouterr().out


def test_names_are_completed(file: Path) -> None:
    """The shell is offered the models of the server that the command is about."""
    line = f"unilect load --config {file} "
    env = {"COMP_WORDS": line, "COMP_CWORD": "4", "_UNILECT_COMPLETE": "bash_complete"}
    done = CliRunner().invoke(app, prog_name="unilect", env=env)

    assert "plain,a\n" == done.output


def test_another_name_of_stop(file: Path) -> None:
    """`unilect unload` is `unilect stop`."""
    done = CliRunner().invoke(app, ["unload", "a", "--config", str(file)])

    assert done.stdout.startswith("a: ")


def test_logs(capsys: pytest.CaptureFixture[str]) -> None:
    """`unilect logs` prints what engines wrote, and with `--follow` what comes until the server ends; where none wrote anything it says so."""
    config = f"[models.e]\nsource = '{demo.MODEL}'\n[models.quiet]\nsource = '{demo.MODEL}'\nload = 'demand'\n"
    with serve(config=ADMIN + config) as server:
        file = server.log.parent / "unilect.toml"
        admin.logs(file, "quiet", False, 200, None)
        nothing = capsys.readouterr()
        command = [sys.executable, "-m", "unilect", "logs", "-f", "--config", str(file)]
        following = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        admin.load(file, "quiet", None)
        admin.stop(file, "quiet", None)
        assert following.stdout is not None
        first = following.stdout.readline()
        admin.logs(file, None, False, 1, None)
        last = capsys.readouterr().out.splitlines()[-1]
    rest, _ = following.communicate(timeout=60)

    assert ("", True) == (nothing.out, "no engine has written anything" in nothing.err)
    assert first.rstrip() == last
    assert re.search(r" quiet\[\d+\]: \[ended: exit status 0\]$", last)
    assert re.search(r" e\[\d+\]: \[ended: exit status 0\]$", rest.rstrip())
    assert 0 == following.returncode


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (MODEL, "no server of this user runs with"),
        ("[admin]\nlisten = 'off'\n", "has `listen = 'off'`"),
        ("[admin]\nlisten = './none.sock'\n", "no server answers at"),
        ("[admin]\nlisten = 'nowhere'\n", "neither HOST:PORT"),
        ("port = [", "not valid TOML"),
    ],
)
def test_a_server_that_is_not_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    """Where the configuration leads to no server the command says why, and fails."""
    (tmp_path / "unilect.toml").write_text(text)
    with pytest.raises(SystemExit, match="1"):
        admin.reload(tmp_path / "unilect.toml", None)

    assert told in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n\r\nhello", b"nonsense\r\n", b""])
def test_something_else_that_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: bytes
) -> None:
    """Something else than the admin API is told."""
    path = tmp_path / "admin.sock"
    (tmp_path / "unilect.toml").write_text(ADMIN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def reply() -> None:
            with listening.accept()[0] as client:
                client.recv(65536)
                client.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(SystemExit, match="1"):
            admin.reload(tmp_path / "unilect.toml", None)
        thread.join()

    assert str(path) in capsys.readouterr().err


def tls(cert: str, key: str, port: int) -> str:
    """A configuration whose admin API has a certificate."""
    admin = f"[admin]\nlisten = '127.0.0.1:{port}'\napi_keys = ['admin-key']\n"
    return f"tls_cert = '{cert}'\ntls_key = '{key}'\n{admin}{MODEL}"


@needs_openssl
def test_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server is known by its certificate, whatever that names and whoever has signed it; other text may stand before it in the file."""
    cert, key = certificate(tmp_path, "DNS:chat.example.org")
    Path(cert).write_text(f"Kühn GmbH\n{Path(cert).read_text()}")
    config = tls(cert, key, free_port())
    (tmp_path / "unilect.toml").write_text(config)
    with serve(config=config):
        admin.show(tmp_path / "unilect.toml", False)
        admin.reload(tmp_path / "unilect.toml", None)

    assert " reloaded: " in capsys.readouterr().out


@needs_openssl
@pytest.mark.parametrize("far", [True, False])
def test_another_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, far: bool
) -> None:
    """A server elsewhere that has another certificate is sent nothing, no key either, and the command says so; one here may be about to read it."""
    monkeypatch.setattr(_admin_client, "is_loopback", lambda host: not far)
    context, got = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), list[bytes]()
    context.load_cert_chain(*certificate(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def receive() -> None:
            with listening.accept()[0] as client, suppress(ConnectionError):
                with context.wrap_socket(client, server_side=True) as secured:
                    got.append(secured.recv(65536))

        thread = threading.Thread(target=receive)
        thread.start()
        config = tls(*certificate(tmp_path), listening.getsockname()[1])
        (tmp_path / "unilect.toml").write_text(config)
        with pytest.raises(SystemExit, match="1"):
            admin.show(tmp_path / "unilect.toml", False)
        thread.join()

    assert any(got) is not far
    told = "has another certificate than the file `tls_cert`" if far else "no server answers"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"), [(None, "cannot be read (No such"), ("key", "has no certificate")]
)
def test_a_file_without_a_certificate(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    told: str,
) -> None:
    """A file that has no certificate is told by its option."""
    monkeypatch.setattr(_admin_client, "is_loopback", lambda host: False)
    if text is not None:
        (tmp_path / "c.pem").write_text(text)
    (tmp_path / "unilect.toml").write_text(tls("c.pem", "k.pem", 9))
    with pytest.raises(SystemExit, match="1"):
        admin.show(tmp_path / "unilect.toml", False)

    assert f"unilect: tls_cert: {tmp_path / 'c.pem'} {told}" in capsys.readouterr().err


def test_a_process_that_is_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    """SIGHUP is sent to no process that is not a server with a file."""
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as other:
        for pid in (other.pid, os.getpid(), 2**22 + 1):
            with pytest.raises(SystemExit, match="1"):
                admin.reload(None, pid)
        assert other.poll() is None
        other.communicate(b"\n")

    assert 3 == capsys.readouterr().err.count("--pid: ")


def test_a_process(file: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A server with a file and without a terminal gets SIGHUP, and one in a terminal does not, since that would stop it."""
    terminal = (Path("/proc") / str(server.pid) / "stat").read_text().rpartition(")")[2].split()[4]
    if terminal != "0":
        with pytest.raises(SystemExit, match="1"):
            admin.reload(None, server.pid)
        assert "runs in a terminal" in capsys.readouterr().err
        return
    admin.reload(None, server.pid)
    assert f"SIGHUP was sent to process {server.pid}" in capsys.readouterr().out
    admin.show(file, False)  # it still runs
