"""
The private parts of Ray Serve that are used, each behind a function; of the rest of Ray, `state` has the one connection to a head.

Their names change with Ray, so its version has an upper bound.

Source: https://github.com/ray-project/ray/tree/ray-2.60.0/python/ray/serve
"""

from typing import Any, NamedTuple

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve import context
from ray.serve._private import replica
from ray.serve.deployment import Deployment

_NAMESPACE = "serve"
_DETAILS_S, _COUNT_S = 15.0, 2.0
_replica: Any = replica  # its types tell what it exports, not what it has
_context: Any = context  # it has no types


class Settings(NamedTuple):
    """
    The settings of a model that Serve has.

    Attributes:
        version: The version of the deployment.
        body: Its only argument: the `wire.Deployment`, as msgpack.
    """

    version: str
    body: bytes


def bind_to_loopback() -> None:
    """
    Have the port of this replica opened on loopback, from now on and before it is opened.

    Serve opens a gRPC server in every replica, for calls between deployments, at `[::]` whatever the node's address is, and has no option
    for it.
    """
    bind = _replica.add_port_to_grpc_server

    def on_loopback(server: Any, address: str) -> Any:
        return bind(server, address.replace("[::]", "127.0.0.1"))

    _replica.add_port_to_grpc_server = on_loopback


def with_version(deployment: Deployment, version: str) -> Deployment:
    """
    Return a deployment with a version of its own.

    Serve compares versions, but makes one up for each call of `run`, so that every start of a gateway would replace all replicas.
    """
    return deployment.options(version=version, _internal=True)


def find_settings(name: str, app: str) -> Settings | None:
    """Return the settings that Serve has of a deployment; None where it does not have them yet."""
    try:
        info, _ = _context._get_global_client().get_deployment_info(name, app)
    except KeyError:
        return None
    (body,) = info.replica_config.init_args
    return Settings(info.version, body)


def delete_app(app: str) -> None:
    """Have an application removed, without waiting for its last answer."""
    serve.delete(app, _blocking=False)


def get_apps() -> dict[str, Any]:
    """Return the applications as Serve's REST API has them (`ServeInstanceDetails`), which needs Ray's dashboard, a server more."""
    try:
        controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace=_NAMESPACE)
    except ValueError:  # no gateway has been there yet
        return {}
    details: Any = ray.get(controller.get_serve_instance_details.remote(), timeout=_DETAILS_S)
    return dict(details["applications"])


def count_requests(actor: str) -> int | None:
    """Count the requests that a replica has in hand; None where it does not answer."""
    try:
        handle = ray.get_actor(actor, namespace=_NAMESPACE)
        requests: Any = ray.get(handle.get_num_ongoing_requests.remote(), timeout=_COUNT_S)
        return int(requests)
    except (ValueError, RayError):  # it starts or ends
        return None
