"""
The calls to a cluster's head that need no driver: compare versions, list the nodes, drain one.

`ray._raylet.GcsClient` is what Ray's own commands use (`ray start`, `ray drain-node`). Ray has no public way that works for a machine
which is not a node yet; one that is could not be refused in words of ours any more.
"""

import json
import platform
import socket
from importlib.metadata import version
from typing import Any

from ray import exceptions
from ray._raylet import GcsClient

LABEL = "unilect/version"
_ALIVE = 0  # GcsNodeInfo.GcsNodeState
_PREEMPTION = 2  # DrainNodeReason: the other reason is refused by a node that has work
_TIMEOUT_S = 10.0
_METADATA = (b"CLUSTER_METADATA", b"cluster")


class ClusterError(Exception):
    """A cluster that cannot be used, in words for the operator."""


def connect(address: str) -> Any:
    """
    Connect to the head.

    Raises:
        ClusterError: Nothing answers there, or it does not know our token.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S):
            pass  # Ray would try for 40 s
    except OSError as error:
        raise ClusterError(
            f"Nothing answers at {address} ({error.strerror or error}). Is it the address that `unilect fleet start` has printed, does "
            "it run, and does a firewall let this machine through?"
        ) from error
    except UnicodeError as error:
        raise ClusterError(f"{host[:100]!r} is no host name.") from error
    try:
        return GcsClient(address=address)
    except exceptions.AuthenticationError as error:
        raise ClusterError(
            f"The cluster at {address} does not know the token of this machine. Copy the file that `unilect fleet start` has named."
        ) from error
    except exceptions.RayError as error:
        raise ClusterError(
            f"What answers at {address} is no head of a Ray cluster, or of another version of Ray."
        ) from error


def check_join(address: str, ours: str) -> None:
    """
    Check that the cluster takes a node of our versions.

    Args:
        ours: The version of unilect here.

    Raises:
        ClusterError: It does not.
    """
    head = connect(address)
    metadata = json.loads(head.internal_kv_get(*_METADATA, timeout=_TIMEOUT_S) or b"{}")
    theirs = [node["unilect"] for node in list_nodes(head) if node["head"]][:1]
    pairs = [
        ("Ray", version("ray"), metadata.get("ray_version")),
        ("Python", platform.python_version(), metadata.get("python_version")),
        ("unilect", ours, theirs[0] if theirs else None),  # a head that others started has none
    ]
    wrong = [f"{name} {mine} and the cluster {other}" for name, mine, other in pairs if other and mine != other]  # fmt: skip
    if wrong:
        raise ClusterError(
            f"This machine has {', '.join(wrong)}. Install the same versions on all machines of the cluster."
        )


def list_nodes(head: Any) -> list[dict[str, Any]]:
    """List all nodes that are alive, the head first; resources in Ray's names, memory in bytes."""
    draining = {_hex(node) for node in head.get_draining_nodes(timeout=_TIMEOUT_S)}
    usage = head.get_all_resource_usage(timeout=_TIMEOUT_S).resource_usage_data.batch
    left = {one.node_id.hex(): dict(one.resources_available) for one in usage}
    nodes = [
        {
            "id": info.node_id.hex(),
            "address": info.node_manager_address,
            "host": info.node_manager_hostname,
            "head": info.is_head_node,
            "state": "draining" if info.node_id.hex() in draining else "alive",
            "unilect": dict(info.labels).get(LABEL),
            "resources": _without_marks(dict(info.resources_total)),
            "free": _without_marks(left.get(info.node_id.hex(), {})),
        }
        for info in head.get_all_node_info(timeout=_TIMEOUT_S).values()
        if info.state == _ALIVE
    ]
    return sorted(nodes, key=lambda node: (not node["head"], node["address"], node["id"]))


def drain_node(head: Any, node: str) -> None:
    """
    Have a node take nothing new, hand its replicas over and leave. It is given all the time that this takes.

    Raises:
        ClusterError: It does not.
    """
    accepted, why = head.drain_node(node, _PREEMPTION, "unilect fleet drain", 0)
    if not accepted:
        raise ClusterError(f"The node cannot be drained: {why}")


def _hex(node: Any) -> str:
    return node if isinstance(node, str) else node.hex()


def _without_marks(resources: dict[str, float]) -> dict[str, float]:
    """Drop Ray's marks of nodes (`node:...`)."""
    return {name: amount for name, amount in resources.items() if not name.startswith("node:")}
