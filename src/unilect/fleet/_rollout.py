"""
A model's way onto a cluster: Ray Serve is told its settings, and replaces the replicas of older ones while these still answer.

1. The version of a deployment is the digest of its settings. So Serve itself knows what runs already: any number of gateways with the
   same configuration change nothing.
2. New replicas are loaded before old ones get no more requests, and old ones finish what they have (`max_surge_percent`).
3. Where new replicas cannot be loaded the old ones go on. Whoever told the new settings gets the reason; to tell them once more is another
   attempt.

Source: https://docs.ray.io/en/latest/serve/api/index.html (`serve.run_many`, `serve.status`)
"""

import hashlib
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import ray
from ray import serve
from ray._private.state import available_resources_per_node
from ray.exceptions import RayError
from ray.serve.api import RunTarget
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.deployment import Deployment
from ray.serve.exceptions import RayServeException

from unilect.errors import BackendUnavailable
from unilect.fleet import _loopback, wire
from unilect.fleet._replica import FAILED, Replica
from unilect.fleet.environment import REPLICA

_NAME = "engine"
_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
_STARTS = 2  # attempts of Ray to start a replica before it gives a model up
_DRAIN_S = 3600.0  # the longest answer that a replica may finish before it is stopped
_CHECK_S = 2.0
_SURGE_PERCENT = 100  # replicas more than there should be, while others are replaced
_FULL = 0.75  # of the requests that a replica takes: from then on there should be another one
_LOOK_S = 0.2
_COUNTED_S = 1.0  # between two counts of the requests in flight
_RETRY_AFTER_S = 5.0
_WORKING = ("NOT_STARTED", "DEPLOYING")
_router: Any = _ROUTER  # by its name, though its type says otherwise


class Served(Replica):
    """A replica as Serve starts it, whose ports stay where those of its node are."""

    async def __init__(self, deployment: bytes) -> None:  # type: ignore[misc]  # Ray waits for it
        _loopback.keep()
        self.node = ray.get_runtime_context().get_node_id()
        await super().__init__(deployment)


_SERVED: Deployment = serve.deployment(
    Served,
    name=_NAME,
    graceful_shutdown_timeout_s=_DRAIN_S,
    graceful_shutdown_wait_loop_s=0.5,
    health_check_period_s=_CHECK_S,
    max_constructor_retry_count=_STARTS,
    max_surge_percent=_SURGE_PERCENT,
    request_router_config=RequestRouterConfig(request_router_class=_router),
)


def app_of(model: str) -> str:
    """The name of a model's application on the cluster."""
    return f"unilect {model}"


def bring(made: wire.Deployment, body: bytes) -> Any:
    """
    Have a model on the cluster as it is told, with as many replicas as it needs at least. It takes as long as the model's start; call it
    in a thread.

    Args:
        body: `made` as msgpack, for the replicas.

    Returns:
        The handle for its calls.

    Raises:
        BackendUnavailable: It does not start; the message says why. Replicas of older settings go on.
    """
    # how many callers a gateway knows is no setting of the model
    settings = msgspec.msgpack.encode(msgspec.structs.replace(made, several_callers=False))
    app, digest = app_of(made.name), hashlib.sha256(settings).hexdigest()[:16]
    try:
        before = _state(app)
        failed = before == "DEPLOY_FAILED"
        _tell(made, body, f"{digest} {time.time_ns()}" if failed else digest)
        until = time.monotonic() + made.start_timeout_s
        while (state := _state(app)) in _WORKING or state is None:
            if time.monotonic() > until:
                why = late(made)
                if before in (
                    None,
                    "DELETING",
                ):  # else it would take what others wait for, when nobody wants it
                    serve.delete(app, _blocking=False)
                raise BackendUnavailable(why, retry_after_s=_RETRY_AFTER_S)
            time.sleep(_LOOK_S)
        if state == "DEPLOY_FAILED":
            raise BackendUnavailable(_why(app), retry_after_s=_RETRY_AFTER_S)
        return serve.get_app_handle(app)
    except (RuntimeError, ValueError, RayError, RayServeException) as error:
        raise BackendUnavailable(f"Ray cannot start the model: {last_line(error)}") from error


def _tell(made: wire.Deployment, body: bytes, version: str) -> None:
    actor = made.resources | {"runtime_env": {"env_vars": REPLICA}}
    deployment = _SERVED.options(
        max_ongoing_requests=made.in_flight, ray_actor_options=actor, **_scale(made)
    )
    # Serve compares versions, but makes one up for each call of `run`, so that every start of a gateway would replace all replicas. To say
    # which one it is takes this mark; its test is that a second gateway changes nothing.
    deployment = deployment.options(version=version, _internal=True)
    serve.run_many(
        [RunTarget(deployment.bind(body), name=app_of(made.name), route_prefix=None)],
        wait_for_applications_running=False,
    )


def _scale(made: wire.Deployment) -> dict[str, Any]:
    """How many replicas, as Serve is told."""
    if made.least == made.most:
        return {"num_replicas": made.least}
    scaling = AutoscalingConfig(
        min_replicas=made.least,
        max_replicas=made.most,
        initial_replicas=max(1, made.least),
        target_ongoing_requests=max(1.0, made.parallel * _FULL),
        metrics_interval_s=_COUNTED_S,
        look_back_period_s=max(_COUNTED_S, min(made.up_after_s, made.down_after_s)),
        upscale_delay_s=made.up_after_s,
        downscale_delay_s=made.down_after_s,
    )
    return {"autoscaling_config": scaling}


def _state(app: str) -> str | None:
    """What Serve says of an application; None where there is none."""
    found = serve.status().applications.get(app)
    return None if found is None else found.status.value


def replicas_of(model: str) -> int:
    """How many replicas of a model answer."""
    found = serve.status().applications.get(app_of(model))
    if found is None:
        return 0
    return sum(one.replica_states.get("RUNNING", 0) for one in found.deployments.values())


def _why(app: str) -> str:
    """Our own words out of Ray's report of a failed start, where they are there."""
    found = serve.status().applications.get(app)
    who: list[Any] = [] if found is None else [found, *found.deployments.values()]
    told = [one.message for one in who]
    for text in told:
        if (at := text.find(FAILED)) >= 0:
            return str(text[at + len(FAILED) :]).splitlines()[0]
    lines = "\n".join(told).strip().splitlines()
    return f"Ray cannot start the model: {lines[-1][:500] if lines else 'it gives no reason'}"


def late(made: wire.Deployment) -> str:
    """Why a model is not there in time."""
    what = lacking(made.resources)
    if what is None:
        return f"The model did not load within {made.start_timeout_s:.0f} s (`start_timeout_s`)."
    return f"No node of the cluster has room for a replica within {made.start_timeout_s:.0f} s (`start_timeout_s`): {what}"


def lacking(wanted: Mapping[str, Any]) -> str | None:
    """Which resource a replica waits for; None where each is free somewhere, as far as Ray tells."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    needs = {names.get(key, key): value for key, value in wanted.items() if key != "resources"}
    needs |= wanted.get("resources", {})
    if kind := needs.pop("accelerator_type", None):
        needs[f"accelerator_type:{kind}"] = 0.001
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    # Ray's public functions tell what is free on all nodes together, and a replica needs it on one.
    free = list(available_resources_per_node().values())
    if any(all(node.get(name, 0) >= need for name, need in needs.items()) for node in free):
        return None
    for name, need in needs.items():
        most, now = (max((node.get(name, 0) for node in of), default=0) for of in (nodes, free))
        if most < need:
            return f"a replica needs {need:g} {name}, and the largest node has {most:g}. Change `resources`, or add a node."
        if now < need:
            return f"a replica needs {need:g} {name}, and no node has more than {now:g} free. Add a node, or lower `replicas`."
    wanted_of = ", ".join(f"{need:g} {name}" for name, need in needs.items())
    return f"a replica needs {wanted_of}, and no node has all of it free. Add a node, or lower `replicas`."


def last_line(error: BaseException) -> str:
    """The last line of what an error says: Ray puts a traceback before it."""
    lines = str(error).strip().splitlines()
    return (lines[-1] if lines else type(error).__name__)[:500]
