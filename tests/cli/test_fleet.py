"""fleet.py: what `unilect fleet` says and refuses before anything is started. tests/fleet/driver/test_loopback.py and test_state.py run it on real clusters."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as some

from support.common.commands import Commands
from unilect.cli import _fleet
from unilect.cli.main import app
from unilect.config.fleet import FleetConfig, resources_here
from unilect.core.errors import ConfigError
from unilect.fleet import running
from unilect.fleet.node import NodeSettings

fleet = Commands(_fleet)

TOKEN = "a" * 32
MODEL = "[models.a]\nsource = 'echo:'\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with no data yet, on a machine that has Ray."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("UNILECT_FLEET_TOKEN", raising=False)
    monkeypatch.delenv("UNILECT_CONFIG", raising=False)
    monkeypatch.setattr(_fleet, "_need_ray", lambda: None)
    return tmp_path


def file(home: Path, text: str) -> Path:
    """A configuration."""
    path = home / "unilect.toml"
    path.write_text(text + MODEL)
    return path


def refused(capsys: pytest.CaptureFixture[str], code: int = 1) -> str:
    """What the command has said on stderr: one sentence or more, and no traceback."""
    told = capsys.readouterr().err
    assert told.startswith("unilect: ")
    assert "Traceback" not in told
    return told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpu=1,memory=24GiB,seat=2", {"gpu": 1, "memory": 24 * 1024**3, "seat": 2}),
        (" cpu=0.5 , memory=1000", {"cpu": 0.5, "memory": 1000}),
        ("", {}),
    ],
)
def test_resources(text: str, told: dict[str, float]) -> None:
    """What a machine offers is read as it is written; memory may have a unit."""
    assert told == resources_here(text)


@pytest.mark.parametrize(
    "text", ["gpu", "gpu=", "=1", "gpu=x", "gpu=-1", "gpu=1e9", "a b=1", "gpu=1,gpu=2", "memory=1XB", "gpu=nan"]
)  # fmt: skip
def test_resources_that_are_none(text: str) -> None:
    """A part that is no NAME=NUMBER is told, with an example."""
    with pytest.raises(
        ConfigError, match=r"--resources: .* is none\. Write NAME=NUMBER once for each"
    ):
        resources_here(text)


@given(some.text(max_size=40))
def test_any_resources(text: str) -> None:
    """Any text is numbers by name, or a ConfigError."""
    try:
        told = resources_here(text)
    except ConfigError:
        return
    assert all(name and amount >= 0 for name, amount in told.items())


def test_start_into_a_cluster_that_it_would_start(capsys: pytest.CaptureFixture[str]) -> None:
    """`--address` and what is for a cluster of its own exclude each other."""
    with pytest.raises(SystemExit, match="1"):
        fleet.start(None, "10.0.0.1", None, None, "10.0.0.1:6379")
    assert "--address names a cluster that runs already, and --listen is" in refused(capsys)


@pytest.mark.parametrize("address", ["a:b", "a:0", "a:99999", "http://a:1", "", "a b"])
def test_an_address_that_is_none(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no HOST[:PORT] is told, for a gateway and for a node."""
    for command in (
        lambda: fleet.start(None, None, None, None, address),
        lambda: fleet.join(address, None, None, None, None),
    ):
        with pytest.raises(SystemExit, match="1"):
            command()
        assert f"`{address}` is no HOST:PORT." in refused(capsys)


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "a\udcff"])
def test_a_host_that_is_none(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that no host can have is told, wherever it is given."""
    monkeypatch.setenv("UNILECT_FLEET_TOKEN", TOKEN)
    for command in (
        lambda: fleet.start(None, host, None, None, None),
        lambda: fleet.join(host, None, None, None, None),
        lambda: fleet.join("10.0.0.1", None, None, host, None),
    ):
        with pytest.raises(SystemExit, match="1"):
            command()
        assert f"{host!r} is no host name. Write an address" in refused(capsys)


@pytest.mark.parametrize("port", [0, -1, 1023, 65528])
def test_a_port_that_is_none(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first port that cannot be one is told, also 0, which is none to be picked."""
    monkeypatch.setenv("UNILECT_FLEET_TOKEN", TOKEN)
    for settings in (
        lambda: _fleet._head_settings(FleetConfig(), None, port, None),
        lambda: _fleet._node_settings("10.0.0.1", None, None, "10.0.0.2", port),
    ):
        with pytest.raises(ConfigError, match=f"--port: {port} is no first of 9 ports"):
            settings()


@pytest.mark.parametrize("command", ["drain", "remove"])
@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "-1"])
def test_a_time_that_is_none(command: str, seconds: str) -> None:
    """What is no length of time is told, before anything is asked."""
    arguments = ["fleet", command, "x", "--address", "127.0.0.1:1", "--timeout", seconds]
    done = CliRunner().invoke(app, arguments)

    assert (2, True) == (done.exit_code, "Invalid value for '--timeout'" in done.output)
    assert "is not in the range 0<=x<=1000000." in done.output


def test_start_elsewhere(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration names the machine of the head, and the command on another one says so."""
    config = file(home, "[fleet]\naddress = '192.0.2.77:6379'\n")
    with pytest.raises(SystemExit, match="1"):
        fleet.start(config, None, None, None, None)
    told = refused(capsys)

    assert "fleet.address: 192.0.2.77 is no address of this machine." in told
    assert "unilect fleet join 192.0.2.77:6379" in told


def test_start_at_an_address_of_another_machine(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--listen` is an address of this machine."""
    with pytest.raises(SystemExit, match="1"):
        fleet.start(file(home, ""), "192.0.2.77", None, None, None)
    assert "--listen: 192.0.2.77 is no address of this machine." in refused(capsys)


def test_the_head_of_a_shared_configuration(home: Path) -> None:
    """On the machine that `fleet.address` names, that is where the head listens; else at loopback, with a token of its own."""
    named = _fleet._head_settings(FleetConfig(address="127.0.0.9:29379"), None, None, None)
    alone = _fleet._head_settings(FleetConfig(), None, 29379, "cpu=1")

    assert ("127.0.0.9", 29379, "") == (named.host, named.port, named.head)
    assert ("127.0.0.1:29379", {"cpu": 1}) == (alone.address, alone.resources)
    assert named.token == alone.token == home / "unilect" / "fleet-token"


def test_join_a_head_on_loopback(capsys: pytest.CaptureFixture[str]) -> None:
    """A head at 127.0.0.1 takes no other machine."""
    with pytest.raises(SystemExit, match="1"):
        fleet.join("127.0.0.1:6379", None, None, None, None)
    assert "127.0.0.1:6379 is for its machine only, and no other can join there." in refused(capsys)


def test_join_without_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    """A node needs the token of the cluster, and is told how it gets it."""
    with pytest.raises(SystemExit, match="1"):
        fleet.join("127.0.0.9", None, None, "127.0.0.8", None)
    assert "The token of the cluster is missing. Copy the file" in refused(capsys)


def test_join_by_a_way_that_tells_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where this machine's own address cannot be seen from the way to the head, it has to be given."""
    monkeypatch.setenv("UNILECT_FLEET_TOKEN", TOKEN)
    with pytest.raises(SystemExit, match="1"):
        fleet.join("127.0.0.9", None, None, None, None)
    assert "--listen: is needed" in refused(capsys)
    assert TOKEN == (home / "unilect" / "fleet-token").read_text()


def test_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no cluster is named and none runs, the commands for one say so."""
    for command in (
        lambda: fleet.status(None, None, False),
        lambda: fleet.drain(None, None, "10.0.0.2", 1),
        fleet.stop,
    ):
        with pytest.raises(SystemExit, match="1"):
            command()
        told = refused(capsys)
        assert "none runs on this machine" in told or "of this user runs here" in told


def test_which_cluster(home: Path) -> None:
    """The cluster is the named one, that of the configuration, or the one that runs here, with its token."""
    config = file(home, "[fleet]\naddress = '10.0.0.7:6379'\n")
    env, known = {"XDG_DATA_HOME": str(home)}, home / "token"

    assert "10.0.0.7:6379" == _fleet._cluster(config, None).address
    assert "10.0.0.9:6379" == _fleet._cluster(config, "10.0.0.9").address
    with running.announce(env, "10.0.0.1:6379", "10.0.0.1", known):
        assert ("10.0.0.1:6379", known) == _fleet._cluster(None, None)
        assert ("10.0.0.1:6379", known) == _fleet._cluster(None, "10.0.0.1:6379")
        assert ("10.0.0.7:6379", None) == _fleet._cluster(config, None)


def test_the_start_in_json() -> None:
    """Where the log is JSON, so is what says where the head of a cluster is."""
    wanted = NodeSettings("10.0.0.1", 6379, Path("/run/token"), {}, "", "1.2.3")
    line = json.loads(_fleet._start_screen(wanted, "json"))

    assert ("info", "10.0.0.1:6379", "/run/token") == (
        line["level"],
        line["address"],
        line["token_file"],
    )
    assert "unilect fleet join 10.0.0.1:6379" in _fleet._start_screen(wanted, "text")
