"""
Keeps a replica's own port on loopback, where its node is for this machine only.

Serve opens a gRPC server in every replica, for calls between deployments, at `[::]` whatever the node's address is, and has no option for
it. So the one function with which it binds that port is replaced, in the replica's process and before the port is opened.

Source: https://github.com/ray-project/ray/blob/ray-2.60.0/python/ray/serve/_private/replica.py (_on_initialized)
"""

from typing import Any

from ray.serve._private import replica
from ray.util import get_node_ip_address

from unilect.fleet.environment import is_alone

_ALL, _LOOPBACK = "[::]", "127.0.0.1"
_replica: Any = replica  # its types tell what it exports, not what it has
_own_address: Any = get_node_ip_address  # it has no types


def keep() -> None:
    """Have the port of this process opened on loopback, if the node's are."""
    if not is_alone(_own_address()):
        return
    bind = _replica.add_port_to_grpc_server

    def on_loopback(server: Any, address: str) -> Any:
        return bind(server, address.replace(_ALL, _LOOPBACK))

    _replica.add_port_to_grpc_server = on_loopback
