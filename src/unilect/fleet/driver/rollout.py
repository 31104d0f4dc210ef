"""
A model's way onto a cluster: Ray Serve gets its settings, and replaces the replicas of older ones while these still answer.

1. The version of a deployment is the digest of its settings. So Serve itself knows what runs already: any number of gateways with the
   same configuration change nothing.
2. New replicas are loaded before old ones get no more requests, and old ones finish what they have (`max_surge_percent`).
3. Where new replicas cannot be loaded, or have no room, the old ones go on: Serve gets their settings again, since it starts no replica
   any more of settings that have failed. Whoever gave the new settings gets the reason.

Source: https://docs.ray.io/en/latest/serve/api/index.html (`serve.run_many`, `serve.status`)
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.api import RunTarget
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.deployment import Deployment
from ray.serve.exceptions import RayServeException
from ray.util import get_node_ip_address

from unilect.core.errors import BackendUnavailable
from unilect.fleet import wire
from unilect.fleet.driver import serve_internals
from unilect.fleet.driver.replica import FAILED, Replica
from unilect.fleet.driver.serve_internals import Settings, find_settings
from unilect.fleet.driver.state import ClusterError, connect, list_nodes
from unilect.fleet.environment import REPLICA, is_alone

_NAME = "engine"
# by its name, though its type says otherwise
_ROUTER: Any = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
_STARTS = 2  # attempts of Ray to start a replica before it gives a model up
_ALL_REPLICAS = 1_000_000
_DRAIN_S = 3600.0  # the longest answer that a replica may finish before it is stopped
_CHECK_S = 2.0
_SURGE_PERCENT = 100  # replicas more than there should be, while others are replaced
_PLACES_BESIDE = 4  # calls that count tokens and the like, beside the answers
_FULL = 0.75  # of the requests that a replica takes: from then on there should be another one
_LOOK_S = 0.2
_COUNTED_S = 1.0  # between two counts of the requests in flight
_RETRY_AFTER_S = 5.0
_WORKING = ("NOT_STARTED", "DEPLOYING")
_SERVES = ("RUNNING", "UNHEALTHY")  # states of settings whose replicas were loaded
_GONE = (None, "DELETING")
_REMOVED = (
    "The model was taken off the cluster while it started, by `unilect fleet remove` or by another gateway that has given it up. "
    "Start it again."
)
_TAKEN_BACK = "The new settings of the model were taken back: another gateway could not start them. Its log says why."
_own_address: Any = get_node_ip_address  # it has no types
_Result = TypeVar("_Result")


class Served(Replica):
    """A replica as Serve starts it, whose ports stay where those of its node are."""

    async def __init__(self, body: bytes) -> None:  # type: ignore[misc]  # Ray waits for it
        if is_alone(_own_address()):
            serve_internals.bind_to_loopback()
        self.node = ray.get_runtime_context().get_node_id()
        await super().__init__(body)


_SERVED: Deployment = serve.deployment(
    Served,
    name=_NAME,
    graceful_shutdown_timeout_s=_DRAIN_S,
    graceful_shutdown_wait_loop_s=0.5,
    health_check_period_s=_CHECK_S,
    max_constructor_retry_count=_STARTS,
    max_surge_percent=_SURGE_PERCENT,
    request_router_config=RequestRouterConfig(
        request_router_class=_ROUTER,
        # where the replica of a conversation has no place, any other one may have it
        request_router_kwargs={"num_fallback_replicas": _ALL_REPLICAS},
    ),
)


def app_of(model: str) -> str:
    """Return the name of a model's application on the cluster."""
    return f"unilect {model}"


async def deploy(deployment: wire.Deployment, body: bytes) -> Any:
    """
    Have a model on the cluster with these settings, with as many replicas as it needs at least. It takes as long as the model's start; who
    leaves meanwhile leaves the model to the cluster.

    Args:
        body: `deployment` as msgpack, for the replicas.

    Returns:
        The handle for its calls.

    Raises:
        BackendUnavailable: It does not start; the message says why. Replicas of older settings go on.
    """
    # how many callers a gateway knows is no setting of the model
    content = msgspec.msgpack.encode(msgspec.structs.replace(deployment, several_callers=False))
    app, version = app_of(deployment.name), hashlib.sha256(content).hexdigest()[:16]
    try:
        before = await _in_thread(state, app)
        there = None if before in _GONE else await _in_thread(find_settings, _NAME, app)
        if before == "DEPLOY_FAILED":  # of the same version Serve would start nothing
            version = f"{version} {time.time_ns()}"
        elif there is not None and there.version.partition(" ")[0] == version:
            version = there.version
        older = there if there and before in _SERVES and there.version != version else None
        await _in_thread(_run, deployment, Settings(version, body))
        if failure := await _wait_until_loaded(deployment, app):
            if older is not None:
                with suppress(msgspec.DecodeError):  # it is another unilect's
                    old = msgspec.msgpack.decode(older.body, type=wire.Deployment)
                    await _in_thread(_run, old, older)
            elif before in _GONE and await _waits(app, version):
                # it would take what others wait for, when nobody wants it
                await _in_thread(serve_internals.delete_app, app)
        elif older is not None and await _in_thread(find_settings, _NAME, app) == older:
            failure = _TAKEN_BACK
        if failure:
            raise BackendUnavailable(failure, retry_after_s=_RETRY_AFTER_S)
        return await _in_thread(serve.get_app_handle, app)
    except (RuntimeError, ValueError, RayError, RayServeException) as error:
        raise BackendUnavailable(f"Ray cannot start the model: {last_line(error)}") from error


async def _wait_until_loaded(deployment: wire.Deployment, app: str) -> str:
    """
    Wait until a model's replicas are loaded.

    Returns:
        The reason why they are not: they cannot be, there is no room for them, or the model was taken off meanwhile. Empty if they are.
    """
    until = time.monotonic() + deployment.config.start_timeout_s
    while (now := await _in_thread(state, app)) in _WORKING:
        if time.monotonic() > until:
            return await _in_thread(timeout_reason, deployment)
        await asyncio.sleep(_LOOK_S)
    if now == "DEPLOY_FAILED":
        return await _in_thread(_failure_reason, app)
    return _REMOVED if now in _GONE else ""


async def _waits(app: str, version: str) -> bool:
    """Return True if the cluster still waits for room for these settings of a model, and has got no others since."""
    if await _in_thread(state, app) not in _WORKING:
        return False
    settings = await _in_thread(find_settings, _NAME, app)
    return settings is not None and settings.version == version


async def _in_thread(call: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call Serve in a thread. A cancelled caller waits for the end of the call, so that it takes no effect after a later one."""
    task = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _run(deployment: wire.Deployment, settings: Settings) -> None:
    actor = deployment.resources | {"runtime_env": {"env_vars": REPLICA}}
    served = _SERVED.options(
        max_ongoing_requests=deployment.config.most_parallel + _PLACES_BESIDE,
        ray_actor_options=actor,
        **_scale(deployment),
    )
    bound = serve_internals.with_version(served, settings.version).bind(settings.body)
    serve.run_many(
        [RunTarget(bound, name=app_of(deployment.name), route_prefix=None)],
        wait_for_applications_running=False,
    )


def _scale(deployment: wire.Deployment) -> dict[str, Any]:
    """Make Serve's options for the number of replicas: fixed, or autoscaled."""
    number = deployment.replicas
    if number.min == number.max:
        return {"num_replicas": number.min}
    scaling = AutoscalingConfig(
        min_replicas=number.min,
        max_replicas=number.max,
        initial_replicas=max(1, number.min),
        target_ongoing_requests=max(1.0, deployment.config.most_parallel * _FULL),
        metrics_interval_s=_COUNTED_S,
        look_back_period_s=max(_COUNTED_S, min(number.up_after_s, number.down_after_s)),
        upscale_delay_s=number.up_after_s,
        downscale_delay_s=number.down_after_s,
    )
    return {"autoscaling_config": scaling}


def state(app: str) -> str | None:
    """Return Serve's status of an application; None where there is none."""
    found = serve.status().applications.get(app)
    return None if found is None else found.status.value


def is_gone(model: str) -> bool:
    """
    Return True if a model was taken off the cluster; False where the cluster does not answer.

    Replicas may still finish their requests; they take no new ones.
    """
    try:
        return state(app_of(model)) in _GONE
    except (RuntimeError, RayError, RayServeException):
        return False


def replicas_of(model: str) -> int:
    """Count the running replicas of a model."""
    found = serve.status().applications.get(app_of(model))
    if found is None:
        return 0
    return sum(one.replica_states.get("RUNNING", 0) for one in found.deployments.values())


def _failure_reason(app: str) -> str:
    """Return our own words out of Ray's report of a failed start, where they are there."""
    found = serve.status().applications.get(app)
    parts: list[Any] = [] if found is None else [found, *found.deployments.values()]
    report = "\n".join(part.message for part in parts).strip()
    _, failed, ours = report.partition(FAILED)
    if failed:
        return ours.splitlines()[0]
    lines = report.splitlines()
    return f"Ray cannot start the model: {lines[-1][:500] if lines else 'it gives no reason'}"


def timeout_reason(deployment: wire.Deployment) -> str:
    """Explain in one sentence why a model did not start in time."""
    limit = f"within {deployment.config.start_timeout_s:.0f} s (`start_timeout_s`)"
    try:
        missing = missing_resources(deployment.resources)
    except (ClusterError, RayError):  # the head does not answer either
        missing = None
    if missing is None:
        return f"The model did not load {limit}."
    return f"No node of the cluster has room for a replica {limit}: {missing}"


def missing_resources(wanted: Mapping[str, Any]) -> str | None:
    """Name the resource that a replica waits for; None where each is free somewhere, as far as Ray tells."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    needs = {names.get(key, key): value for key, value in wanted.items() if key != "resources"}
    needs |= wanted.get("resources", {})
    needs = {name: need for name, need in needs.items() if not name.startswith("node:")}
    if kind := needs.pop("accelerator_type", None):
        needs[f"accelerator_type:{kind}"] = 0.001
    # Ray's public functions tell what is free on all nodes together, and a replica needs it on one.
    nodes = list_nodes(connect(ray.get_runtime_context().gcs_address))
    free = [node["free"] for node in nodes]
    if any(all(node.get(name, 0) >= need for name, need in needs.items()) for node in free):
        return None
    for name, need in needs.items():
        most = max((node["resources"].get(name, 0) for node in nodes), default=0)
        now = max((node.get(name, 0) for node in free), default=0)
        if most < need:
            return f"a replica needs {need:g} {name}, and the largest node has {most:g}. Change `resources`, or add a node."
        if now < need:
            return f"a replica needs {need:g} {name}, and no node has more than {now:g} free. Add a node, or lower `replicas`."
    all_needs = ", ".join(f"{need:g} {name}" for name, need in needs.items())
    return f"a replica needs {all_needs}, and no node has all of it free. Add a node, or lower `replicas`."


def last_line(error: BaseException) -> str:
    """Return the last line of what an error says: Ray puts a traceback before it."""
    lines = str(error).strip().splitlines()
    return (lines[-1] if lines else type(error).__name__)[:500]
