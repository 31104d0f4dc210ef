"""state.py: a cluster of two nodes by `unilect fleet start --listen` and `join`: who may join, what is told, and how one leaves."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from support.servers.clusters import (
    SMALL,
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Command,
    environment,
    free_row,
    need_ray,
    running,
    said,
    status,
)

need_ray()
pytestmark = pytest.mark.heavy

HEAD, NODE = "127.0.0.31", "127.0.0.32"
CONFIG = """
port = 0
[models.m]
source = "echo:"
replicas = 2
resources = { cpu = 0.1, seat = 1 }
"""


class Head(NamedTuple):
    """A head that listens beyond 127.0.0.1, and the folder of its user's data."""

    command: Command
    address: str
    home: Path

    @property
    def token(self) -> Path:
        """The file with its token."""
        return self.home / "unilect" / "fleet-token"


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """A cluster, which has no model yet: one is put there by the tests that need it."""
    home, port = tmp_path_factory.mktemp("home"), free_row()
    (home / "unilect.toml").write_text("port = 0\n[models.local]\nsource = 'echo:'\n")
    words = ("start", "--config", "unilect.toml", "--listen", HEAD, "--port", str(port))
    with running(home, *words, "--resources", "cpu=1,seat=2", until="in a browser") as command:
        yield Head(command, f"{HEAD}:{port}", home)


def joining(head: Head, *more: str) -> tuple[str, ...]:
    """The command that joins a node."""
    return ("join", head.address, "--listen", NODE, "--port", str(free_row()), *more)


def test_what_is_printed(head: Head) -> None:
    """A head that others can reach tells the command with which they join, the file of the token, and its ports."""
    first = int(head.address.rpartition(":")[2])

    assert f"unilect fleet join {head.address} --token-file FILE" in head.command.text
    assert str(head.token) in head.command.text
    assert f"at {first} to {first + 8} and 10002 to 19999" in head.command.text
    assert head.token.read_text() not in head.command.text


def test_what_answers_without_a_token(head: Head) -> None:
    """Of what speaks HTTP on a head, the metrics and that it is alive are told without the token, and nothing is done."""
    first = int(head.address.rpartition(":")[2])

    assert "ray_" in got(f"http://{HEAD}:{first + 7}/metrics")[1]
    assert "ray_" in got(f"http://{HEAD}:{first + 8}/metrics")[1]
    assert 200 == got(f"http://{HEAD}:{first + 4}/api/local_raylet_healthz")[0]
    for refused in (f"{first + 4}/", f"{first + 4}/logs", f"{first + 6}/get_or_create_runtime_env"):
        assert 401 == got(f"http://{HEAD}:{refused}")[0]


def got(url: str) -> tuple[int, str]:
    """The status and the text of an answer."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_a_wrong_token(head: Head, tmp_path: Path) -> None:
    """A node with another token is refused in one sentence, and so is one that asks for the status."""
    env = {"UNILECT_FLEET_TOKEN": "0" * 64}
    code, text = said(tmp_path, *joining(head), env=env)
    status_code, status_text = said(tmp_path, "status", "--address", head.address, env=env)

    assert (code, status_code) == (1, 1)
    for told in (text, status_text):
        assert f"The cluster at {head.address} does not know the token of this machine." in told
        assert "Traceback" not in told
        assert "0" * 64 not in told


def test_no_token(head: Head, tmp_path: Path) -> None:
    """A node without a token is told how it gets one."""
    code, text = said(tmp_path, *joining(head))

    assert code == 1
    assert "The token of the cluster is missing." in text


def test_nobody_there(head: Head, tmp_path: Path) -> None:
    """Where nothing listens, the node says so at once."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    address = f"{HEAD}:{port}"
    code, text = said(tmp_path, "join", address, "--listen", NODE, "--token-file", str(head.token))

    assert code == 1
    assert f"Nothing answers at {address}" in text


def test_a_host_that_is_none() -> None:
    """A name that no host can have is told as that."""
    from unilect.fleet.driver import state

    with pytest.raises(state.ClusterError, match=r"'a\.\.b' is no host name"):
        state.connect("a..b:6379")


@pytest.mark.parametrize(
    ("ray", "python", "told"),
    [
        ("2.59.0", None, "This machine has Ray {ray} and the cluster 2.59.0."),
        (None, "3.10.1", "This machine has Python {python} and the cluster 3.10.1."),
    ],
)
def test_another_version(head: Head, ray: str | None, python: str | None, told: str) -> None:
    """A cluster of another version of Ray or of Python is not joined, and both versions are told."""
    import platform
    from importlib.metadata import version

    metadata = {"ray_version": ray or version("ray"), "python_version": python or platform.python_version()}  # fmt: skip
    before = swapped(head, json.dumps(metadata).encode())
    try:
        code, text = said(head.home, *joining(head))
    finally:
        swapped(head, before)

    assert code == 1
    assert told.format(ray=version("ray"), python=platform.python_version()) in text


def swapped(head: Head, metadata: bytes) -> bytes:
    """What the head had as its versions, in place of which it has others now."""
    import sys

    script = (
        "import sys; from ray._raylet import GcsClient; head = GcsClient(address=sys.argv[1])\n"
        "place = (b'CLUSTER_METADATA', b'cluster')\n"
        "sys.stdout.buffer.write(head.internal_kv_get(*place))\n"
        "head.internal_kv_put(place[0], sys.stdin.buffer.read(), True, place[1])\n"
    )
    env = environment(head.home) | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(head.token)}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script, head.address],
        input=metadata,
        env=env,
        capture_output=True,
        timeout=START_TIMEOUT_S,
        check=True,
    )
    return done.stdout


def test_another_version_of_unilect(head: Head) -> None:
    """A node with another version of unilect than the head's is refused, by both names."""
    from unilect.core.errors import ConfigError
    from unilect.fleet.node import Node, NodeSettings

    node = Node(NodeSettings(NODE, free_row(), head.token, {"cpu": 1}, head.address, "0.0.9"))
    try:
        with pytest.raises(ConfigError, match=r"has unilect 0\.0\.9 and the cluster "):
            node.start()
    finally:
        node.stop()


def test_a_node_joins_and_is_drained(head: Head, tmp_path: Path) -> None:
    """A machine joins with the token of the environment and gets a replica, and when it is drained it hands that over and leaves."""
    (head.home / "fleet.toml").write_text(CONFIG)
    env = {"UNILECT_FLEET_TOKEN": head.token.read_text()}
    serving = ("start", "--config", "fleet.toml", "--address", head.address)
    words = joining(head, "--resources", "cpu=1,seat=1")
    with running(tmp_path, *words, until="is a node", env=env) as node:
        with running(head.home, *serving, until="in a browser"):
            both = status(head.home)
            code, text = said(head.home, "drain", NODE)
            after = status(head.home)

            assert (code, node.wait()) == (0, 0), text + node.text
        assert "This node was drained, and has left the cluster." in node.text
        assert f"{NODE} has left the cluster." in text
    here, there = both["nodes"]
    assert (both["address"], here["address"], there["address"]) == (head.address, HEAD, NODE)
    assert (there["state"], there["resources"]["seat"]) == ("alive", 1)
    assert there["id"] in [one["node"] for one in both["models"][0]["replicas"]]
    assert [HEAD] == [one["address"] for one in after["nodes"]]
    assert {here["id"]} == {one["node"] for one in after["models"][0]["replicas"]}
    token = tmp_path / "unilect" / "fleet-token"
    assert (token.read_text(), token.stat().st_mode & 0o777) == (head.token.read_text(), 0o600)


def test_a_node_leaves(head: Head, tmp_path: Path) -> None:
    """SIGTERM ends a node's command and all its processes, and the cluster goes on without it."""
    words = joining(head, "--token-file", str(head.token), *SMALL)
    with running(tmp_path, *words, until="is a node") as node:
        tree = node.tree()
        node.process.terminate()

        assert node.wait() == 0, node.text
    assert [] == psutil.wait_procs(tree, STOP_TIMEOUT_S)[1]
    assert [HEAD] == [each["address"] for each in status(head.home)["nodes"]]


def test_a_node_that_ray_ends(head: Head, tmp_path: Path) -> None:
    """A node whose Ray has ended says so and joins again by itself, and it can be drained then."""
    words = joining(head, "--token-file", str(head.token), *SMALL)
    with running(tmp_path, *words, until="is a node") as node:
        (raylet,) = [one for one in node.tree() if one.name() == "raylet"]
        raylet.kill()
        over = time.monotonic() + START_TIMEOUT_S
        while node.text.count("is a node") < 2:
            assert node.process.poll() is None, node.text
            assert time.monotonic() < over, node.text
            time.sleep(0.05)
        code, text = said(head.home, "drain", NODE)

        assert (code, node.wait()) == (0, 0), text + node.text
    assert "Ray has ended on this machine" in node.text
    assert "It joins again when it can." in node.text


def test_the_head_dies(head: Head) -> None:
    """A command whose head has died ends with the reason, and with exit code 1; it is the last thing that this head does."""
    tree = head.command.tree()
    (server,) = [one for one in tree if one.name() == "gcs_server"]
    server.kill()
    try:
        assert head.command.wait() == 1
    except subprocess.TimeoutExpired:
        pytest.fail(head.command.text)

    assert "Ray has ended on this machine" in head.command.text
    assert [] == psutil.wait_procs(tree, STOP_TIMEOUT_S)[1]
