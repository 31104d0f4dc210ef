"""
The environment variables of Ray's processes, and of those that talk to them.

Ray replaces 127.0.0.1 by the machine's address, and has its ports listen on every interface, unless clusters of several machines are
switched off, as they are by default on Windows and macOS; then the node stays at 127.0.0.1 and its ports on loopback.

Source: https://github.com/ray-project/ray/blob/ray-2.60.0/python/ray/_private/ray_constants.py (ENABLE_RAY_CLUSTER)
"""

from collections.abc import Mapping
from pathlib import Path

from unilect.wire.frames import MAX_FRAME_BYTES

_MANY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
#: Ray's own, which every process of a cluster with TLS needs: https://docs.ray.io/en/latest/ray-core/configure.html#tls-authentication
_TLS = ("RAY_USE_TLS", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
#: Serve takes 4 MB in one message else; a frame is within what Serve makes of it
_LARGE = {"RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(MAX_FRAME_BYTES + 64 * 1024)}
#: For the gateway's connection: answers come over gRPC instead of as objects of Ray, and on the event loop that hands them on.
CONNECTION = {
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    **_LARGE,
}
#: For replicas. They start processes while gRPC is at work: its own preparations for a fork end many of the new processes at once. What
#: they run of ours only waits, for engines that are processes of their own, and needs no thread beside Serve's.
REPLICA = {
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    **_LARGE,
}
_ALONE = ("", "127.0.0.1", "localhost", "::1", "[::1]")


def is_alone(host: str) -> bool:
    """Return True if a head at this host (empty: one of this process's own) serves its machine only."""
    return host in _ALONE


def ray_environment(host: str, token: Path | None) -> dict[str, str]:
    """
    Return the variables for a cluster.

    Args:
        host: Of its head; empty for one that this process starts.
        token: The file with its token; None where it has none that we know of.
    """
    variables = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_COLOR_PREFIX": "0",
        # a node without a network is given up after 15 to 24 s; Ray's own figures are up to 65 s
        "RAY_health_check_period_ms": "3000",
        "RAY_health_check_timeout_ms": "5000",
        "RAY_health_check_failure_threshold": "3",
        _MANY: "0" if is_alone(host) else "1",
    }
    if token is not None:
        variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    return variables


def tls_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Select the variables that name the files of a cluster's certificates for Ray."""
    return {name: environment[name] for name in _TLS if name in environment}
