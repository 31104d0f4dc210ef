"""node.py: what a node needs of its machine, told before Ray is started, and how Ray is called."""

import socket
from pathlib import Path

import pytest

from support.servers.clusters import free_row
from unilect.core.errors import ConfigError
from unilect.fleet import node
from unilect.fleet.node import NodeSettings
from unilect.runtime import memory

GIB = 1024**3


def settings(**other: object) -> NodeSettings:
    """A head on loopback with free ports, but for what is given."""
    usual = NodeSettings(node.LOOPBACK, free_row(), Path("/none"), {}, "", "1.2.3")
    return usual._replace(**other)


def mistakes(of: NodeSettings) -> str:
    """What is wrong with a node."""
    with pytest.raises(ConfigError) as raised:
        node.check(of)
    return "\n".join(map(str, raised.value.each))


def test_nothing_is_wrong() -> None:
    """A node with free ports and enough memory passes."""
    node.check(settings(resources={"memory": GIB / 1024, "seat": 3}))


@pytest.mark.parametrize("at", range(node.PORTS))
def test_a_port_in_use(at: int) -> None:
    """Each of a head's ports is looked at, and the one in use is told."""
    wanted = settings()
    with socket.create_server((node.LOOPBACK, wanted.port + at)):
        told = mistakes(wanted)

    assert f"port {wanted.port + at} (" in told
    assert "name the first of 9 free ports with --port" in told
    assert 1 == told.count("in use")


def test_the_ports_of_a_node() -> None:
    """A node that joins takes no port that only a head has, so those may be in use."""
    wanted = settings(head="10.0.0.1:6379")
    with socket.create_server((node.LOOPBACK, wanted.port)):
        node.check(wanted)

    assert sorted(wanted.ports) == list(range(wanted.port + 2, wanted.port + 8))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"port": 80}, "--port: 80 is no first of 9 ports; expected 1024 to 65527"),
        ({"port": 65530}, "--port: 65530 is no first of 9 ports"),
        ({"host": "127.0.0.1", "port": 0}, "--port: 0 is no first"),
        ({"host": "127.0.0.2", "port": 10000}, "--port: 10000 to 10008 are ports of the models"),
        ({"host": "192.0.2.77"}, "--listen: 192.0.2.77 is no address of this machine"),
        ({"host": "0.0.0.0"}, "--listen: 0.0.0.0 is no address of this machine"),
        ({"resources": {"memory": 2**60}}, "are to be offered. Offer less."),
    ],
)
def test_what_cannot_be(other: dict[str, object], told: str) -> None:
    """Each mistake is told with its option and what to do."""
    assert told in mistakes(settings(**other))


def test_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a node's own processes would not fit, that is told with both numbers."""
    monkeypatch.setattr(memory, "free_bytes", lambda: 100 * memory.MIB)

    assert (
        "This machine has 100 MiB of free memory, and a node takes 512 MiB without any model."
        in mistakes(settings())
    )


def test_the_command_of_a_head() -> None:
    """A head on loopback: its ports are given, the token and other machines are not in it."""
    resources = {"cpu": 2, "gpu": 0.5, "memory": GIB, "seat": 3}
    wanted = settings(port=7000, resources=resources)
    words = list(node._arguments(wanted, "/tmp/x"))

    assert {"start", "--head", "--block", "--node-ip-address=127.0.0.1", "--port=7000"} <= set(words)  # fmt: skip
    assert {"--num-cpus=2", "--num-gpus=0.5", f"--memory={GIB}", '--resources={"seat": 3}'} <= set(words)  # fmt: skip
    assert {"--min-worker-port=0", "--max-worker-port=0", "--labels=unilect/version=1.2.3"} <= set(words)  # fmt: skip
    assert not [word for word in words if "none" in word or "--address" in word]


def test_the_command_of_a_node() -> None:
    """A node that joins has the head's address, and nothing that Ray takes of a head only."""
    wanted = settings(host="10.0.0.2", port=7000, head="10.0.0.1:6379")
    words = list(node._arguments(wanted, "/tmp/x"))

    assert {"--address=10.0.0.1:6379", "--node-manager-port=7002", "--min-worker-port=10002"} <= set(words)  # fmt: skip
    assert not [word for word in words if word.startswith(("--head", "--port", "--include-dash"))]
