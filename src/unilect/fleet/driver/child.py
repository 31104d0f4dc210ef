"""
The process that holds the gateway's connection to a Ray cluster: it brings models there and hands calls to their replicas.

It is a process of its own because a driver of Ray ends with the raylet of its node; the gateway does not, and starts it again.
Frames pass through it unread. They come from the replica's process itself over gRPC, which Serve has for calls between deployments; as
objects of Ray's they come later and cost more.
"""

import asyncio
import logging
import time
import traceback
from contextlib import suppress
from typing import Any

import grpc
import msgspec
import ray
from ray import exceptions as ray_errors
from ray import serve
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from unilect.core.errors import BackendError, BackendUnavailable, EngineDied, UnilectError
from unilect.engines.process import child
from unilect.fleet import wire
from unilect.fleet.driver import rollout
from unilect.fleet.driver.nodes import LOOK_S, Nodes
from unilect.fleet.driver.supply import NAMESPACE, Offers
from unilect.wire import frames

_PAUSE_S = 0.1  # before a call is sent once more, of which no replica has taken notice
_RECONNECT_S = 1.0
_SERVE_STARTS = 20
_TAKEN = frames.pack(frames.Reply())
_GONE = "The model's replica died during the answer. Send the request again."
_REMOVED = (
    "The model is not on the cluster any more: it was removed (`unilect fleet remove`), or could not be placed again. Ask the operator to "
    "start the gateway again, which brings it back."
)
#: What Ray says when a replica, its node, or what it had made is gone.
_DIED = (
    ray_errors.RayActorError, ray_errors.NodeDiedError, ray_errors.WorkerCrashedError, ray_errors.ObjectLostError,
    ray_errors.LocalRayletDiedError, ray_errors.RaySystemError,
)  # fmt: skip
#: What gRPC says when its connection to a replica's process broke; of UNAVAILABLE Ray makes one of the above.
_CUT = (grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.ABORTED)

#: What a call may end with, other than by a flaw of ours.
_FAILURES = UnilectError, ray_errors.RayError, RayServeException, grpc.aio.AioRpcError


class RayDriver:
    """
    One connection to a cluster.

    Args:
        settings: `address`: of the cluster; empty to start one on this machine, which ends with this process.
            `object_store_bytes`: of one that is started. `patience_s`: how long to wait for a raylet on this machine, beyond the first try.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._models: dict[str, tuple[wire.Deployment, Any]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._looks: dict[str, asyncio.Task[bool]] = {}
        self._loop = asyncio.new_event_loop()
        self._offers = Offers() if settings["address"] else None  # no other machine can join else
        own = {
            "_node_ip_address": "127.0.0.1",
            "include_dashboard": False,
            "object_store_memory": settings["object_store_bytes"],
        }
        ray.init(
            address=settings["address"] or "local",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.WARNING,
            configure_logging=False,
            **({} if settings["address"] else own),
        )
        _start_serve()
        self._nodes = Nodes(self._loop, ray.get_runtime_context().get_node_id())

    def start(self, socket_path: str) -> dict[str, Any]:
        """Serve, in a thread."""
        asyncio.set_event_loop(self._loop)
        frames.listen(self._loop, socket_path, self._answer, _meaning)
        self._nodes.watch()
        return {"nodes": len(ray.nodes())}

    async def _answer(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        request = msgspec.msgpack.decode(body, type=wire.DriverRequest)
        if request.action == "call":
            await self._call(request, writer)
            return
        deployment = msgspec.msgpack.decode(request.body, type=wire.Deployment)
        async with self._locks.setdefault(deployment.name, asyncio.Lock()):
            if self._offers is not None:
                await asyncio.to_thread(self._offers.offer, deployment.name, deployment.files)
            handle = await rollout.deploy(deployment, bytes(request.body))
            self._models[deployment.name] = deployment, handle
        writer.write(wire.value(True))

    async def _call(self, request: wire.DriverRequest, writer: asyncio.StreamWriter) -> None:
        """
        Have a replica answer a call, and tell it when nobody listens any longer.

        The reply that says nothing tells the gateway that a replica has it: from then on its death may be the call's doing.

        Raises:
            BackendUnavailable: The model has no replica within its `start_timeout_s`, or was taken off the cluster.
            EngineDied: The replica's node is gone.
        """
        if (model := self._models.get(request.model)) is None:
            raise BackendUnavailable("The model is not on the cluster. Try again.", retry_after_s=1)
        deployment, handle = model
        body, until = bytes(request.body), time.monotonic() + deployment.config.start_timeout_s
        handle = handle.options(stream=True, session_id=request.session)
        while True:
            answer, whole = handle.answer.remote(body), False
            try:
                if (node := await self._find_node(answer, deployment, until)) is not None:
                    writer.write(_TAKEN)
                    async with self._nodes.until_lost(node):
                        async for item in answer:
                            writer.write(item)
                            await writer.drain()
                    whole = True
                    return
            finally:
                if not whole:
                    answer.cancel()
            await asyncio.sleep(_PAUSE_S)

    async def _find_node(
        self, answer: Any, deployment: wire.Deployment, until: float
    ) -> str | None:
        """
        Wait until a replica has taken a call: its first item says so.

        Returns:
            The replica's node. None where the replica, or the node that may have it, died before: the call can be sent once more.

        Raises:
            BackendUnavailable: There was no replica for too long, or there will be none.
        """
        first, deaths = asyncio.ensure_future(anext(answer)), self._nodes.deaths
        first.add_done_callback(_retrieve)
        look: asyncio.Task[bool] | None = None
        try:
            while not (await asyncio.wait([first], timeout=LOOK_S))[0]:
                if look is not None and look.done() and look.result():
                    raise BackendUnavailable(_REMOVED, retry_after_s=60)
                if look is None or look.done():
                    look = self._look(deployment.name)
                if time.monotonic() > until:
                    await self._check_replicas(deployment)
                if self._nodes.deaths > deaths:
                    return None  # it may have been sent there
            return wire.node_of(await first)
        except _DIED:
            if time.monotonic() > until:
                raise
            return None
        finally:
            first.cancel()

    def _look(self, model: str) -> "asyncio.Task[bool]":
        """
        Look, once for all calls that wait, if their model was taken off the cluster: Ray tells them so only when its last replica has
        finished what it answers.
        """
        if (look := self._looks.get(model)) is None or look.done():
            look = asyncio.create_task(asyncio.to_thread(rollout.is_gone, model))
            self._looks[model] = look
        return look

    async def _check_replicas(self, deployment: wire.Deployment) -> None:
        """
        Check that the model has a replica.

        Raises:
            BackendUnavailable: It has none.
        """
        if await asyncio.to_thread(rollout.replicas_of, deployment.name):
            return  # they are busy: the gateway knows how long a request may wait for its turn
        reason = await asyncio.to_thread(rollout.timeout_reason, deployment)
        raise BackendUnavailable(reason, retry_after_s=5)


def _meaning(failure: Exception) -> UnilectError:
    """Turn an error of ours, of Ray's or of gRPC's into one for the gateway. A bug is in the log, too."""
    match failure:
        case UnilectError():
            return failure
        case DeploymentUnavailableError():
            return BackendUnavailable(_REMOVED, retry_after_s=60)
        case BackPressureError():
            return BackendUnavailable(str(failure), retry_after_s=5)
        case grpc.aio.AioRpcError() if failure.code() in _CUT:
            return EngineDied(_GONE)
        case grpc.aio.AioRpcError():
            code = failure.code().name
            return BackendError(
                f"The connection to the model's replica failed: {code}. Send the request again.",
                reason=failure.details(),
            )
    if isinstance(failure, _DIED):
        return EngineDied(_GONE)
    if not isinstance(failure, _FAILURES):
        traceback.print_exception(failure)
    return BackendError(rollout.last_line(failure))


def _retrieve(first: "asyncio.Future[Any]") -> None:
    """Have nobody complain of an error that comes when its caller has left."""
    if not first.cancelled():
        first.exception()


def _start_serve() -> None:
    """Have Serve run on the cluster, without its HTTP proxies; another gateway may start it at the same moment."""
    for _ in range(_SERVE_STARTS - 1):
        with suppress(ray_errors.ActorAlreadyExistsError):
            serve.start(proxy_location="Disabled")
            return
        time.sleep(_PAUSE_S)
    serve.start(proxy_location="Disabled")


def serve_calls(settings: dict[str, Any]) -> dict[str, Any]:
    """Connect, and answer calls."""
    until = time.monotonic() + settings["patience_s"]
    while True:
        try:
            return RayDriver(settings).start(settings["socket_path"])
        except (ConnectionError, RuntimeError, ray_errors.RayError) as error:
            if time.monotonic() > until:
                why = rollout.last_line(error)
                raise ValueError(f"Ray cannot be reached or started: {why}") from error
            ray.shutdown()
            time.sleep(_RECONNECT_S)


if __name__ == "__main__":
    child.run(serve_calls, at_end=ray.shutdown)
