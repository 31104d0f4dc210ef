"""A cluster for one machine, by `unilect fleet start`: it serves, listens on loopback only, and leaves nothing behind."""

import ipaddress
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.servers.clusters import (
    SMALL,
    STOP_TIMEOUT_S,
    Command,
    free_row,
    need_ray,
    running,
    said,
    status,
)

need_ray()
pytestmark = pytest.mark.heavy

CONFIG = """
port = 0
[models.m]
source = "echo:"
replicas = 2
resources = { cpu = 0.1 }
options = { tokens_per_s = 40 }
"""
LONG = "x" * 4000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user's data."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[Command]:
    """A cluster with a model of two replicas."""
    (home / "unilect.toml").write_text(CONFIG)
    port = str(free_row())
    words = ("start", "--config", "unilect.toml", "--port", port, *SMALL)
    with running(home, *words, until="in a browser") as command:
        yield command


def request(command: Command, **fields: Any) -> urllib.request.Request:
    """A request to the model."""
    base = command.text.partition("unilect answers at ")[2].split()[0]
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello there!"}]} | fields
    return urllib.request.Request(f"{base}/chat/completions", json.dumps(body).encode())


def ask(command: Command) -> str:
    """The text of an answer."""
    with urllib.request.urlopen(request(command), timeout=30) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def listening(processes: list[psutil.Process]) -> set[tuple[str, int]]:
    """The addresses that processes listen at."""
    found = set()
    for process in processes:
        try:
            connections = process.net_connections(kind="inet")
        except psutil.NoSuchProcess:
            continue
        found |= {tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN}
    return found


def is_loopback(address: str) -> bool:
    """Also where it is IPv4 in IPv6's clothes."""
    ip = ipaddress.ip_address(address)
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def test_it_answers(cluster: Command) -> None:
    """`fleet start` brings up a head at 127.0.0.1 and serves the configuration's models on it."""
    assert "others cannot join" in cluster.text
    assert ask(cluster) == "Hello there!"


def test_the_token(cluster: Command, home: Path) -> None:
    """The token is made in a file for its user only, and is in no command line and no output."""
    file = home / "unilect" / "fleet-token"
    token = file.read_text()

    assert file.stat().st_mode & 0o777 == 0o600
    assert len(token) == 64
    assert token not in cluster.text
    for process in cluster.tree():
        assert token not in " ".join(process.cmdline())


def test_the_status(cluster: Command, home: Path) -> None:
    """`fleet status` finds the cluster of this machine, and tells its node, its replicas, their memory and their load."""
    told = status(home)
    code, table = said(home, "status")

    (node,), (model,) = told["nodes"], told["models"]
    assert (node["head"], node["state"], node["resources"]["CPU"]) == (True, "alive", 1)
    assert node["memory_bytes"] > node["memory_free_bytes"] > 0
    assert (model["name"], model["status"], model["wanted"]) == ("m", "running", 2)
    assert len(model["replicas"]) == 2
    for replica in model["replicas"]:
        assert replica["node"] == node["id"]
        assert (replica["state"], replica["requests"]) == ("running", 0)
        assert replica["memory_bytes"] > 2**20
    assert code == 0
    assert "running, 2 wanted" in table


def test_nothing_listens_beyond_loopback(cluster: Command) -> None:
    """No process of the cluster, of the gateway or of a replica listens at another address than loopback."""
    tree = cluster.tree()
    names = {" ".join(process.cmdline())[:200] for process in tree}
    found = listening(tree)

    assert any("gcs_server" in name for name in names)
    assert any("ServeReplica" in name for name in names)
    assert len(found) > 9
    assert [] == [where for where in found if not is_loopback(where[0])]


def test_a_port_in_use(cluster: Command, home: Path) -> None:
    """A second head at the same ports is refused with a sentence for each port, before anything is started."""
    port = cluster.text.partition("127.0.0.1:")[2].partition(",")[0]
    code, text = said(home, "start", "--config", "unilect.toml", "--port", port)

    assert code == 1
    assert f"port {port} (cluster state) is in use" in text


def test_a_node_cannot_be_drained_that_is_the_head(cluster: Command, home: Path) -> None:
    """`fleet drain` refuses the head, and a name that nobody has."""
    code, text = said(home, "drain", "127.0.0.1")
    other_code, other = said(home, "drain", "nobody")

    assert (code, other_code) == (1, 1)
    assert "is the head, with which the cluster ends" in text
    assert "nobody is no node of the cluster" in other


def test_serving_into_it(cluster: Command, home: Path) -> None:
    """`fleet start --address` is one more gateway of the same cluster."""
    port = cluster.text.partition("127.0.0.1:")[2].partition(",")[0]
    words = ("start", "--config", "unilect.toml", "--address", f"127.0.0.1:{port}")
    with running(home, *words, until="in a browser") as gateway:
        assert ask(gateway) == "Hello there!"


def test_a_model_is_removed(cluster: Command, home: Path) -> None:
    """`fleet remove` takes a model off the cluster after its last answer, and refuses one that is not there; a gateway that has it says so meanwhile."""
    code, text = said(home, "remove", "nobody")
    assert (1, True) == (code, "nobody is no model of the cluster. Name one of these: m." in text)

    long = request(cluster, stream=True, messages=[{"role": "user", "content": LONG}])
    with ThreadPoolExecutor(1) as pool:
        with urllib.request.urlopen(long, timeout=30) as answer:
            answer.readline()
            removing = pool.submit(said, home, "remove", "m")
            with pytest.raises(urllib.error.HTTPError) as refused:
                while not removing.done():
                    ask(cluster)
            assert not removing.done()
            assert answer.readline()
        code, text = removing.result()

    told = json.load(refused.value)["error"]["message"]
    assert (503, True) == (refused.value.code, "`unilect fleet remove`" in told), told
    assert (0, "m has left the cluster.") == (code, text.strip())
    assert [] == status(home)["models"]


def test_nothing_to_stop(tmp_path: Path) -> None:
    """Where no command runs, `fleet stop` says so and fails."""
    code, text = said(tmp_path, "stop")

    assert code == 1
    assert "no `unilect fleet start` and no `unilect fleet join` of this user runs here" in text


def test_killed(cluster: Command) -> None:
    """After `kill -9` of the command no process of its cluster is left: no raylet, no replica, no agent."""
    tree = cluster.tree()
    assert len(tree) > 10
    cluster.process.send_signal(signal.SIGKILL)

    assert cluster.wait() == -signal.SIGKILL
    assert [] == psutil.wait_procs(tree, STOP_TIMEOUT_S)[1]
